"""The partitions of FedTGP (Zhang et al., AAAI 2024), drawn as its authors' data generator (PFLlib) draws them.

That generator takes one stream of numbers from the seed, through every class and then every client. The stream is
NumPy's frozen legacy generator, so the published client sizes come out exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hetfl.data.partitions.base import Partition, PooledScheme
from hetfl.data.partitions.shares import members
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError


class FedTgpScheme(PooledScheme):
    """Splits are pooled, shared among the clients, and each client's part is cut into training and test samples.

    Training samples stay in the order they were drawn in: it is the order in which the authors' code reads them.

    Attributes:
        seed: 1 is the published partition, the same for all methods and trials; None: the trial's seed.
        minimum: samples of a client, training and test together: in :class:`Practical` the least it may have, in
            :class:`Blocks`, divided by the number of classes, the least of a class. The authors set
            batch size / (1 - train_share).
        minimum_mode: ``fixed``, or ``half``: at most half of an equal share (the authors' later code).
    """

    seed: int | None = Field(default=1, ge=0, lt=2**32)
    minimum: int = Field(default=40, ge=1)
    minimum_mode: Literal["fixed", "half"] = "fixed"

    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Share the pool, then shuffle every client's part; its first samples are for testing."""
        stream = np.random.RandomState(draws.seed % 2**32)
        train, test = [], []
        for part in self.share(members(dataset.labels(self.pool), dataset.num_classes), stream, where):
            order = stream.permutation(len(part))
            held_out, kept = np.split(order, [len(part) - int(self.train_share * len(part))])
            train.append(part[kept])
            test.append(part[held_out])
        return Partition(tuple(train), tuple(test), self.pool, self.pool)

    @abstractmethod
    def share(self, classes: list[np.ndarray], stream: np.random.RandomState, where: str) -> list[np.ndarray]:
        """Share the pool among the clients.

        Args:
            classes: indices of the samples of each class, int64.
            stream: the source of randomness.
            where: the key that holds the settings.

        Returns:
            Indices of each client, int64.

        Raises:
            HetflError: it cannot be done.
        """

    def least_samples(self, samples: int) -> int:
        """The minimum that is in force.

        Args:
            samples: size of the pool.
        """
        return self.minimum if self.minimum_mode == "fixed" else min(self.minimum, samples // self.clients // 2)


class Practical(FedTgpScheme):
    """Every class cut into disjoint parts with Dirichlet shares (FedTGP, practical setting).

    A client that holds an equal share already gets nothing of the next class; this cap is in the authors' code and
    not in the paper. A draw that leaves a client below the minimum is done over.

    Attributes:
        beta: concentration of the symmetric Dirichlet distribution of a class's shares.
    """

    scheme: Literal["practical"] = "practical"
    beta: float = Field(default=0.1, gt=0)

    attempts: ClassVar[int] = 200
    """Draws before giving up."""

    def share(self, classes: list[np.ndarray], stream: np.random.RandomState, where: str) -> list[np.ndarray]:
        """Draw until every client has the minimum."""
        samples = sum(map(len, classes))
        least = self.least_samples(samples)
        if self.clients * least > samples:
            raise HetflError(
                f"{where}.minimum: {least} for each of {self.clients} clients is more than the {samples} samples; "
                f"use at most {samples // self.clients} or fewer clients"
            )
        for _ in range(self.attempts):
            parts = self._draw(classes, samples / self.clients, stream)
            if min(map(len, parts)) >= least:
                return parts
        raise HetflError(
            f"{where}.minimum: {least} samples were not left to every client in {self.attempts} draws with beta "
            f"{self.beta}; use a lower minimum, a larger beta or fewer clients"
        )

    def _draw(self, classes: list[np.ndarray], cap: float, stream: np.random.RandomState) -> list[np.ndarray]:
        pieces: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in range(self.clients)]
        sizes = np.zeros(self.clients, dtype=np.int64)
        for indices in classes:
            shuffled = indices.copy()
            stream.shuffle(shuffled)
            # With a very small beta the shares underflow and are no numbers; the last client then gets the class.
            shares = np.nan_to_num(stream.dirichlet(np.full(self.clients, self.beta))) * (sizes < cap)
            ends = (np.cumsum(shares / max(shares.sum(), np.finfo(float).tiny)) * len(shuffled)).astype(np.int64)
            for client, piece in enumerate(np.split(shuffled, ends[:-1])):
                pieces[client].append(piece)
                sizes[client] += len(piece)
        return [np.concatenate(of_client) for of_client in pieces]


class Blocks(FedTgpScheme):
    """A few classes per client, dealt in blocks (FedTGP, pathological setting).

    A class goes to the first clients that still want one, in parts of uneven size: each owner but the last draws
    its number, the last takes the rest. A class that finds no owner is not used (two of Flowers102).

    Attributes:
        classes_per_client: how many classes each client holds, training and test together.
    """

    scheme: Literal["blocks"] = "blocks"
    classes_per_client: int = Field(ge=1)

    @property
    def exhaustive(self) -> bool:
        """Not where a class finds no owner."""
        return False

    def share(self, classes: list[np.ndarray], stream: np.random.RandomState, where: str) -> list[np.ndarray]:
        """Deal the classes in order and draw the size of each part."""
        key = f"{where}.classes_per_client"
        if self.classes_per_client > len(classes):
            raise HetflError(f"{key}: {self.classes_per_client} is more than the {len(classes)} classes")
        per_class = -(-self.clients * self.classes_per_client // len(classes))
        least = self.least_samples(sum(map(len, classes))) / len(classes)
        pieces: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        for label, indices in enumerate(classes):
            owners = [c for c in range(self.clients) if len(pieces[c]) < self.classes_per_client][:per_class]
            if not owners:
                break
            equal = len(indices) / len(owners)
            low, high = int(max(equal / 10, least)), int(equal)
            if low >= high:
                raise HetflError(
                    f"{where}.minimum: leaves {len(owners)} owners of class {label} at least {low} of its "
                    f"{len(indices)} samples each; use a lower minimum, fewer clients or fewer classes per client"
                )
            sizes = stream.randint(low, high, len(owners) - 1)
            for client, piece in zip(owners, np.split(indices, np.cumsum(sizes)), strict=True):
                pieces[client].append(piece)
        if len(pieces[-1]) < self.classes_per_client:
            raise HetflError(
                f"{key}: {self.classes_per_client} of {len(classes)} classes for each of {self.clients} clients do "
                f"not come in blocks; the {per_class} owners of a class must divide the number of clients"
            )
        return [np.concatenate(of_client) for of_client in pieces]
