"""What a partition is, what every scheme has, and the check that a partition is what its scheme promises."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from hetfl.config import Settings
from hetfl.data.partitions.shares import floors
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError, unknown

Side = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each client holds.

    Attributes:
        train: per client, int64 indices of its training samples, none twice.
        test: the same for its test samples; None means that every client is tested on all there are.
        train_from: names of the subsets that the training indices count through, one after another.
        test_from: the same for the test indices.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...] | None
    train_from: tuple[str, ...] = ("train",)
    test_from: tuple[str, ...] = ("test",)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train)

    def class_counts(self, labels: np.ndarray, num_classes: int, side: Side = "train") -> np.ndarray:
        """Samples per client and class, int64 [clients, num_classes].

        Args:
            labels: labels of the subsets that the side's indices count through, int64 [N].
            num_classes: number of classes.
            side: training or test samples; for these, clients must have their own.
        """
        parts = self.train if side == "train" else self.test or ()
        return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])

    def holders(self, side: Side, dataset: Dataset) -> dict[str, np.ndarray]:
        """How many clients hold each sample, int64 [size of the subset], by subset.

        Args:
            side: held for training or for testing.
            dataset: the data set that is shared.
        """
        parts, names = (self.train, self.train_from) if side == "train" else (self.test, self.test_from)
        sizes = [len(dataset.subset(name)) for name in names]
        if parts is None:
            return {name: np.full(size, self.clients) for name, size in zip(names, sizes, strict=True)}
        counts = np.bincount(np.concatenate(parts), minlength=sum(sizes))
        return dict(zip(names, np.split(counts, np.cumsum(sizes)[:-1]), strict=True))


class Scheme(Settings):
    """What every partition scheme has; the class variables and properties are what it promises.

    Attributes:
        clients: number of clients.
        seed: draw with this seed whatever the trial's, so that all trials share one partition; None: the trial's.
        quantity: the part of its training samples that every client keeps, rounded down, at least one; what is
            kept at 0.1 is kept at 0.2 as well. Promises are about the partition before this.
        test_quantity: the same for test samples; of a shared test subset every client keeps the same ones.
    """

    clients: int = Field(default=5, ge=1)
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    quantity: float = Field(default=1.0, gt=0, le=1)
    test_quantity: float = Field(default=1.0, gt=0, le=1)

    disjoint: ClassVar[tuple[Side, ...]] = ("train", "test")
    """The sides on which no sample is held by two clients."""
    test: ClassVar[Literal["shared", "own"]] = "shared"
    """Whether every client is tested on the whole test subset or on a part of its own."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the subsets that training samples come from."""
        return ("train",)

    @property
    def exhaustive(self) -> bool:
        """Every sample of the subsets in use is held by some client, for training or for testing."""
        return True

    def least(self, class_sizes: np.ndarray) -> np.ndarray:
        """Training samples of each class that every client holds at least, int64 [C].

        Args:
            class_sizes: training samples of each class, int64 [C].
        """
        return np.zeros_like(class_sizes)

    @abstractmethod
    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Draw a partition; see :func:`make_partition`, which checks what comes out."""


class PooledScheme(Scheme):
    """A scheme that puts subsets together and parts them anew into training and test samples.

    Attributes:
        pool: names of the subsets, in this order.
        train_share: the part that becomes training samples.
    """

    pool: tuple[str, ...] = Field(default=("train", "test"), min_length=1)
    train_share: float = Field(default=0.75, gt=0, lt=1)

    test: ClassVar[Literal["shared", "own"]] = "own"

    @field_validator("pool")
    @classmethod
    def _subsets_are_different(cls, pool: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(pool)) < len(pool):
            raise ValueError("names a subset twice")
        return pool

    @property
    def sources(self) -> tuple[str, ...]:
        """The pool."""
        return self.pool


def make_partition(settings: Scheme, dataset: Dataset, draws: Draws, where: str = "partition") -> Partition:
    """Share a data set among clients; only its labels and attributes are looked at.

    Args:
        settings: the scheme.
        dataset: the data set.
        draws: the source of randomness, unless the settings bring a seed of their own.
        where: the key that holds the settings, e.g. ``"params.yaml: partitions.digits.splits.noniid"``.

    Raises:
        HetflError: the scheme cannot be met, or a client is left without a training sample.
    """
    for name in settings.sources:
        if name not in dataset.subsets:
            key = f"{where}.pool" if isinstance(settings, PooledScheme) else where
            raise unknown("subset", name, dataset.subsets, key)
    samples = sum(len(dataset.subset(name)) for name in settings.sources)
    if settings.clients > samples:
        raise HetflError(f"{where}.clients: {settings.clients} is more than the {samples} training samples")
    if settings.seed is not None:
        draws = Draws(settings.seed)
    partition = settings.cut(dataset, draws, where)
    check_partition(partition, settings, dataset, where)
    if settings.quantity < 1:
        train = _thin(partition.train, settings.quantity, draws, "partition:quantity")
        partition = replace(partition, train=train)
    if settings.test_quantity < 1:
        shared = np.arange(len(dataset.labels(partition.test_from)), dtype=np.int64)
        whole = partition.test or (shared,)
        test = _thin(whole, settings.test_quantity, draws, "partition:test quantity")
        partition = replace(partition, test=test if partition.test else test * settings.clients)
    return partition


def check_partition(partition: Partition, settings: Scheme, dataset: Dataset, where: str = "partition") -> None:
    """Check that a partition, before its ``quantity`` is cut down, is what its scheme promises.

    A client without test samples is allowed: it is left out of statistics per client.

    Args:
        partition: the partition.
        settings: the scheme.
        dataset: the data set it shares.
        where: the key that holds the settings.

    Raises:
        HetflError: it is not.
    """
    if partition.clients != settings.clients:
        raise HetflError(f"{where}.clients: {settings.clients}, the partition has {partition.clients}")
    if (partition.test is None) != (settings.test == "shared"):
        raise HetflError(f"{where}.scheme: the test subset must be {settings.test}, it is not")
    labels = dataset.labels(partition.train_from)
    _check_indices(partition.train, "train", len(labels), settings, where)
    if partition.test is not None:
        _check_indices(partition.test, "test", len(dataset.labels(partition.test_from)), settings, where)
    empty = [client for client, part in enumerate(partition.train) if len(part) == 0]
    if empty:
        raise HetflError(
            f"{where}.clients: {settings.clients} leaves client {empty[0]} without a training sample; "
            "use fewer clients or another seed"
        )
    _check_holders(partition, settings, dataset, where)
    least = settings.least(np.bincount(labels, minlength=dataset.num_classes))
    short = np.argwhere(partition.class_counts(labels, dataset.num_classes) < least)
    if len(short):
        client, label = short[0]
        raise HetflError(f"{where}.minimum: client {client} holds fewer than {least[label]} samples of class {label}")


def _check_indices(parts: Sequence[np.ndarray], side: Side, size: int, settings: Scheme, where: str) -> None:
    for client, part in enumerate(parts):
        if part.dtype != np.int64 or len(np.unique(part)) < len(part):
            raise HetflError(f"{where}: {side} indices of client {client} must be int64, none twice")
        if len(part) and (part.min() < 0 or part.max() >= size):
            raise HetflError(f"{where}: {side} indices of client {client} must lie in 0..{size - 1}")
    if len(parts) != settings.clients:
        raise HetflError(f"{where}.clients: {settings.clients}, the partition has {len(parts)} {side} parts")


def _check_holders(partition: Partition, settings: Scheme, dataset: Dataset, where: str) -> None:
    train, test = (partition.holders(side, dataset) for side in ("train", "test"))
    for side, held in (("train", train), ("test", test if settings.test == "own" else {})):
        for name, counts in held.items() if side in settings.disjoint else ():
            if (counts > 1).any():
                sample = int(np.argmax(counts > 1))
                raise HetflError(f"{where}: {side} sample {sample} of {name} must have one client, it has more")
    for name in dict.fromkeys((*train, *test)):
        none = np.zeros(len(dataset.subset(name)), dtype=np.int64)
        trains, tests = train.get(name, none), test.get(name, none)
        if (both := (trains > 0) & (tests > 0)).any():
            raise HetflError(f"{where}: sample {int(np.argmax(both))} of {name} is both trained and tested on")
        if settings.exhaustive and (free := trains + tests == 0).any():
            raise HetflError(f"{where}: sample {int(np.argmax(free))} of {name} must have a client, it has none")


def _thin(parts: Sequence[np.ndarray], quantity: float, draws: Draws, purpose: str) -> tuple[np.ndarray, ...]:
    def kept(client: int, part: np.ndarray) -> np.ndarray:
        order = draws.numpy_generator(purpose, client).permutation(len(part))
        return part[np.sort(order[: max(1, int(floors(quantity, len(part))))])]

    return tuple(kept(client, part) for client, part in enumerate(parts))
