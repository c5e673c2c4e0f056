"""The partitions of FGPT (arXiv 2310.18285) and SGPT (CVPR 2024) by label; those by domain are in ``domains``."""

from __future__ import annotations

from math import gcd
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hetfl.data.partitions.base import Partition, Scheme
from hetfl.data.partitions.shares import members, sorted_parts
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError, unknown


class Pathological(Scheme):
    """A few classes per client; training and test subset are divided with the same shares (FGPT, section 4; SGPT).

    Attributes:
        classes_per_client: s; every class is divided into s * clients / C portions of different sizes.
        remainder: whether the samples of a class that rounding leaves over are dropped or go to its last portion.
    """

    scheme: Literal["pathological"] = "pathological"
    classes_per_client: int = Field(ge=1)
    remainder: Literal["drop", "last"] = "drop"

    test: ClassVar[Literal["shared", "own"]] = "own"

    @property
    def exhaustive(self) -> bool:
        """True if the remainder is not dropped."""
        return self.remainder == "last"

    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Assign the classes to the clients, then divide each class among its holders."""
        num_classes = dataset.num_classes
        holders = self._deal(num_classes, draws, where)
        train: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        test: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        sides = [
            (side, parts, members(dataset.labels((side,)), num_classes))
            for side, parts in (("train", train), ("test", test))
        ]
        for label, clients in enumerate(holders):
            weights = draws.numpy_generator("partition:pathological:shares", label).uniform(0.4, 0.6, len(clients))
            shares = weights / weights.sum()
            for side, parts, classes in sides:
                shuffled = draws.numpy_generator(f"partition:pathological:{side}", label).permutation(classes[label])
                ends = np.cumsum((shares * len(shuffled)).astype(np.int64))
                if self.remainder == "last":
                    ends[-1] = len(shuffled)
                for client, piece in zip(clients, np.split(shuffled, ends)[:-1], strict=True):
                    parts[client].append(piece)
        return Partition(sorted_parts(train), sorted_parts(test))

    def _deal(self, num_classes: int, draws: Draws, where: str) -> list[list[int]]:
        """The clients that hold each class, in order of assignment."""
        taken, clients = self.classes_per_client, self.clients
        if taken > num_classes:
            raise HetflError(f"{where}.classes_per_client: {taken} is more than the {num_classes} classes")
        if taken * clients % num_classes:
            step = num_classes // gcd(num_classes, clients)
            raise HetflError(
                f"{where}.classes_per_client: {taken} for each of {clients} clients makes {taken * clients} "
                f"portions, which is no multiple of {num_classes} classes; use a multiple of {step}"
            )
        left = np.full(num_classes, taken * clients // num_classes)
        holders: list[list[int]] = [[] for _ in range(num_classes)]
        for client in range(clients):
            # A client takes classes one by one, each time a random one of those with most portions left. It takes no
            # class twice, so its classes are the first ones of a list sorted by portions left, then at random.
            chances = draws.numpy_generator("partition:pathological:classes", client).random(num_classes)
            chosen = np.lexsort((chances, -left))[:taken]
            left[chosen] -= 1
            for label in chosen:
                holders[label].append(client)
        return holders


class Pachinko(Scheme):
    """Pachinko allocation: clients draw classes from a random tree of coarse and fine labels (FGPT, Dirichlet).

    Training and test subset are pooled and divided into equal parts. Client after client, in random order, draws its
    samples: a coarse label from its Dir(beta), one of that label's classes from its Dir(beta_fine), and one of the
    samples left of that class. A label without samples is dropped and the other probabilities are renormalised. In
    the end, each sample is for training or for testing as its own subset says (Reddi et al., Adaptive Federated
    Optimization, ICLR 2021, appendix; in the variant of FedTP).

    Attributes:
        beta: concentration over the coarse labels.
        beta_fine: concentration over the classes of a coarse label.
        attribute: name of the attribute that holds the coarse label; all samples of a class must have the same one.
    """

    scheme: Literal["pachinko"] = "pachinko"
    beta: float = Field(gt=0)
    beta_fine: float = Field(default=10.0, gt=0)
    attribute: str = "coarse"

    test: ClassVar[Literal["shared", "own"]] = "own"

    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Draw each client's number of samples of each class, then hand out the shuffled classes."""
        labels = dataset.labels(("train", "test"))
        groups = self._groups(labels, dataset, where)
        classes = members(labels, dataset.num_classes)
        stock = [
            draws.numpy_generator("partition:pachinko:samples", c).permutation(part) for c, part in enumerate(classes)
        ]
        given = np.zeros(dataset.num_classes, dtype=np.int64)
        sizes = np.array([len(part) for part in stock])
        parts = [np.empty(0, np.int64)] * self.clients
        order = draws.numpy_generator("partition:pachinko:order").permutation(self.clients)
        for turn, client in enumerate(order):
            rng = draws.numpy_generator("partition:pachinko:client", int(client))
            number = (len(labels) + self.clients - 1 - turn) // self.clients
            taken = self._draw(number, sizes - given, groups, rng)
            parts[client] = np.concatenate([part[g : g + t] for part, g, t in zip(stock, given, taken, strict=True)])
            given += taken
        train_size = len(dataset.subset("train"))
        train = sorted_parts([part[part < train_size]] for part in parts)
        test = sorted_parts([part[part >= train_size] - train_size] for part in parts)
        return Partition(train, test)

    def _groups(self, labels: np.ndarray, dataset: Dataset, where: str) -> np.ndarray:
        """The coarse label of each class, int64 [C]."""
        if self.attribute not in dataset.attributes:
            raise unknown("attribute", self.attribute, dataset.attributes, f"{where}.attribute")
        coarse = dataset.attribute(self.attribute, ("train", "test"))
        groups = np.zeros(dataset.num_classes, dtype=np.int64)
        groups[labels] = coarse
        if (groups[labels] != coarse).any():
            name = dataset.class_names[labels[np.argmax(groups[labels] != coarse)]]
            raise HetflError(
                f"{where}.attribute: {self.attribute!r} has several values within class {name!r}; "
                "one that groups the classes is needed"
            )
        return groups

    def _draw(self, number: int, left: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """How many samples of each class one client draws, int64 [C].

        Args:
            number: how many it draws in all, at most what is left.
            left: samples left of each class, int64 [C].
            groups: the coarse label of each class, int64 [C].
            rng: the client's source of randomness.
        """
        # A weight that underflowed must still count where nothing else is left.
        tiny = np.finfo(float).tiny
        coarse = np.maximum(rng.dirichlet(np.full(groups.max() + 1, self.beta)), tiny)
        # Gamma weights, normalised within the group below, are Dirichlet weights.
        fine = np.maximum(rng.standard_gamma(self.beta_fine, len(groups)), tiny)
        taken = np.zeros_like(left)
        while (missing := number - taken.sum()) > 0:
            room = left - taken
            within = np.where(room > 0, fine, 0)
            of_group = np.bincount(groups, within)
            upper = np.where(of_group > 0, coarse, 0)
            weights = (upper / upper.sum())[groups] * within / np.maximum(of_group, tiny)[groups]
            drawn = rng.choice(len(groups), missing, p=weights / weights.sum())
            # These probabilities are valid up to the draw that empties a class.
            order = np.argsort(drawn, kind="stable")
            starts = np.searchsorted(drawn[order], drawn[order])
            rank = np.empty_like(order)
            rank[order] = np.arange(missing) - starts
            emptying = np.flatnonzero(rank + 1 == room[drawn])[:1]
            taken += np.bincount(drawn[: emptying[0] + 1] if len(emptying) else drawn, minlength=len(groups))
        return taken
