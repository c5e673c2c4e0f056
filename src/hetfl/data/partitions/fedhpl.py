"""The partitions of FedHPL (Ma et al., arXiv 2405.17267): IID, Dir, Non-IID, and those of its Figures 7 to 9."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from hetfl.data.partitions.base import Partition, PooledScheme, Scheme, Side
from hetfl.data.partitions.shares import (
    capped,
    counts_over_clients,
    floors,
    members,
    random_shares,
    settle,
    sorted_parts,
)
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError


class Iid(Scheme):
    """Equal disjoint parts of the shuffled training subset (FedHPL, "IID")."""

    scheme: Literal["iid"] = "iid"

    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Shuffle and divide; sizes differ by one at most."""
        order = draws.numpy_generator("partition:iid").permutation(len(dataset.labels(("train",))))
        return Partition(sorted_parts([part] for part in np.array_split(order, self.clients)), None)


class DirichletOverlap(Scheme):
    """Clients draw independently from the whole training subset (FedHPL, "Dir").

    Two clients may hold the same sample, but no client holds a sample twice. With ``axis: classes`` (CIFAR10) a
    client's shares over the classes sum to 1 and it holds N/K samples; if a class is too small, the other classes
    replace the missing samples in proportion to their shares. With ``axis: clients`` (CIFAR100, SVHN) a class's
    shares over the clients sum to 1.

    Attributes:
        axis: the axis over which shares sum to 1.
        alpha_mode: what the paper's random vector that sums to 1 is. ``share``: the shares themselves, uniform on the
            simplex. ``literal``: the concentration of the Dirichlet distribution that the shares are drawn from.
        minimum: every client holds at least this share of every class, rounded down.
    """

    scheme: Literal["dirichlet-overlap"] = "dirichlet-overlap"
    axis: Literal["classes", "clients"]
    alpha_mode: Literal["share", "literal"] = "share"
    minimum: float = Field(default=0.0, ge=0)

    disjoint: ClassVar[tuple[Side, ...]] = ("test",)

    @property
    def exhaustive(self) -> bool:
        """False: some samples may have no client."""
        return False

    def least(self, class_sizes: np.ndarray) -> np.ndarray:
        """floor(minimum * N_c)."""
        return floors(self.minimum, class_sizes)

    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Draw the counts, then each client's samples without replacement."""
        _check_minimum(self.minimum, self.clients, where)
        labels = dataset.labels(("train",))
        sizes = np.bincount(labels, minlength=dataset.num_classes)
        least = self.least(sizes)
        if self.axis == "clients":
            counts = counts_over_clients(sizes, least, self.clients, None, self.alpha_mode, draws, self.scheme)
        else:
            counts = np.empty((self.clients, dataset.num_classes), dtype=np.int64)
            for client in range(self.clients):
                rng = draws.numpy_generator("partition:dirichlet-overlap:shares", client)
                shares = random_shares(rng, dataset.num_classes, None, self.alpha_mode)
                total = (len(labels) + self.clients - 1 - client) // self.clients
                wanted = np.rint(capped(shares, total, sizes))
                counts[client] = settle(wanted, shares, total, least, sizes)
        starts = np.cumsum(sizes) - sizes
        parts = []
        for client in range(self.clients):
            rng = draws.numpy_generator("partition:dirichlet-overlap:samples", client)
            order = np.lexsort((rng.random(len(labels)), labels))
            label = labels[order]
            rank = np.arange(len(order)) - starts[label]
            parts.append([order[rank < counts[client, label]]])
        return Partition(sorted_parts(parts), None)


class Dirichlet(Scheme):
    """Every class is divided into disjoint parts, one per client (FedHPL, "Non-IID").

    Attributes:
        alpha: concentration of the symmetric Dirichlet distribution of a class's shares; None: random.
        alpha_mode: meaning of a random alpha, see :class:`DirichletOverlap`; not used with a fixed one.
        minimum: every client holds at least this share of every class, rounded down.
    """

    scheme: Literal["dirichlet"] = "dirichlet"
    alpha: float | None = Field(default=None, gt=0)
    alpha_mode: Literal["share", "literal"] = "share"
    minimum: float = Field(default=0.0, ge=0)

    def least(self, class_sizes: np.ndarray) -> np.ndarray:
        """floor(minimum * N_c)."""
        return floors(self.minimum, class_sizes)

    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Draw the counts, shuffle each class and divide it."""
        _check_minimum(self.minimum, self.clients, where)
        classes = members(dataset.labels(("train",)), dataset.num_classes)
        sizes = np.array([len(indices) for indices in classes])
        counts = counts_over_clients(
            sizes, self.least(sizes), self.clients, self.alpha, self.alpha_mode, draws, self.scheme
        )
        parts: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        for label, indices in enumerate(classes):
            shuffled = draws.numpy_generator("partition:dirichlet:samples", label).permutation(indices)
            for part, piece in zip(parts, np.split(shuffled, np.cumsum(counts[:-1, label])), strict=True):
                part.append(piece)
        return Partition(sorted_parts(parts), None)


class ClassSubsets(PooledScheme):
    """Each client owns some classes and is tested on held-out samples of them (FedHPL, Figs. 7-9).

    The owners of a class get equal disjoint parts of its training samples; each of them is tested on all its held-out
    samples. A class without an owner is not used.

    Attributes:
        classes: number of classes that each client owns; the classes themselves are random.
    """

    scheme: Literal["class-subsets"] = "class-subsets"
    classes: tuple[Annotated[int, Field(ge=1)], ...]
    pool: tuple[str, ...] = Field(default=("train",), min_length=1)
    train_share: float = Field(default=0.8, gt=0, lt=1)

    disjoint: ClassVar[tuple[Side, ...]] = ("train",)

    @field_validator("classes")
    @classmethod
    def _one_number_per_client(cls, classes: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        clients = info.data.get("clients", len(classes))
        if len(classes) != clients:
            raise ValueError(f"must have one number per client, clients is {clients}")
        return classes

    @property
    def exhaustive(self) -> bool:
        """False: a class may have no owner."""
        return False

    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Assign the classes, hold out a part of each, divide the rest among the owners."""
        most = max(self.classes)
        if most > dataset.num_classes:
            raise HetflError(f"{where}.classes: {most} is more than the {dataset.num_classes} classes")
        owners: list[list[int]] = [[] for _ in range(dataset.num_classes)]
        for client, number in enumerate(self.classes):
            order = draws.numpy_generator("partition:class-subsets:classes", client).permutation(dataset.num_classes)
            for label in order[:number]:
                owners[label].append(client)
        train: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        test: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        for label, indices in enumerate(members(dataset.labels(self.pool), dataset.num_classes)):
            shuffled = draws.numpy_generator("partition:class-subsets:samples", label).permutation(indices)
            kept, held_out = np.split(shuffled, [int(floors(self.train_share, len(shuffled)))])
            if owners[label]:
                for client, piece in zip(owners[label], np.array_split(kept, len(owners[label])), strict=True):
                    train[client].append(piece)
                    test[client].append(held_out)
        return Partition(sorted_parts(train), sorted_parts(test), self.pool, self.pool)


def _check_minimum(minimum: float, clients: int, where: str) -> None:
    if round(minimum * clients, 9) > 1:
        raise HetflError(
            f"{where}.minimum: {minimum} of every class for each of {clients} clients is more than the whole class; "
            f"use at most {1 / clients:.4g}"
        )
