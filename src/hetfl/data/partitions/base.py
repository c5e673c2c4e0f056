"""The partition, the base class of all schemes, and the check that a partition has its scheme's properties."""

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
        train: for each client, int64 indices of its training samples, without duplicates.
        test: the same for its test samples; None if every client is tested on all test samples.
        train_from: names of the subsets that the training indices refer to, as if they were concatenated.
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
            labels: labels of the subsets that the side's indices refer to, int64 [N].
            num_classes: number of classes.
            side: training or test samples; clients must have test samples of their own.
        """
        parts = self.train if side == "train" else self.test or ()
        return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])

    def holders(self, side: Side, dataset: Dataset) -> dict[str, np.ndarray]:
        """How many clients hold each sample: int64 [size of the subset], by name of the subset.

        Args:
            side: whether samples held for training or for testing are counted.
            dataset: the data set that the partition divides.
        """
        parts, names = (self.train, self.train_from) if side == "train" else (self.test, self.test_from)
        sizes = [len(dataset.subset(name)) for name in names]
        if parts is None:
            return {name: np.full(size, self.clients) for name, size in zip(names, sizes, strict=True)}
        counts = np.bincount(np.concatenate(parts), minlength=sum(sizes))
        return dict(zip(names, np.split(counts, np.cumsum(sizes)[:-1]), strict=True))


class Scheme(Settings):
    """Base class of all partition schemes.

    The class variables and properties are the scheme's guarantees, which :func:`check_partition` checks. They hold
    for the partition before ``quantity`` and ``test_quantity`` reduce it.

    Attributes:
        clients: number of clients.
        seed: of the partition, so that all trials share it; None: each trial has its own partition.
        quantity: the share of its training samples that every client keeps, rounded down but at least one sample. The
            samples kept with a smaller share are among those kept with a larger one.
        test_quantity: the same for test samples; if clients share the test subset, all keep the same samples.
    """

    clients: int = Field(default=5, ge=1)
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    quantity: float = Field(default=1.0, gt=0, le=1)
    test_quantity: float = Field(default=1.0, gt=0, le=1)

    disjoint: ClassVar[tuple[Side, ...]] = ("train", "test")
    """The sides on which no two clients hold the same sample."""
    test: ClassVar[Literal["shared", "own"]] = "shared"
    """Whether all clients are tested on the whole test subset (shared) or each on its own test samples."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the subsets that training samples are taken from."""
        return ("train",)

    @property
    def exhaustive(self) -> bool:
        """Whether some client holds each sample of these subsets, for training or for testing."""
        return True

    def least(self, class_sizes: np.ndarray) -> np.ndarray:
        """The minimum number of training samples of each class that every client holds, int64 [C].

        Args:
            class_sizes: training samples of each class, int64 [C].
        """
        return np.zeros_like(class_sizes)

    @abstractmethod
    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Draw a partition; :func:`make_partition` calls this and checks the result.

        Args:
            dataset: the data set to divide.
            draws: the source of randomness.
            where: the key that holds the settings, for error messages.

        Raises:
            HetflError: the data set cannot be divided like this.
        """


class PooledScheme(Scheme):
    """A scheme that pools subsets and divides the pool anew into training and test samples.

    Attributes:
        pool: names of the subsets, in order.
        train_share: the share of the pool that becomes training samples.
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
    """Partition a data set among clients by its labels and attributes.

    Args:
        settings: the scheme.
        dataset: the data set.
        draws: the source of randomness, unless the settings have a seed.
        where: the key that holds the settings, e.g. ``"params.yaml: partitions.digits.splits.noniid"``.

    Raises:
        HetflError: the scheme cannot be applied, or leaves a client without a training sample.
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
    """Check that a partition, before ``quantity`` reduces it, has its scheme's guarantees.

    A client may have no test samples; statistics over clients then leave it out.

    Args:
        partition: the partition.
        settings: the scheme.
        dataset: the data set that it divides.
        where: the key that holds the settings.

    Raises:
        HetflError: the partition violates a guarantee.
    """
    if partition.clients != settings.clients:
        raise HetflError(f"{where}.clients: {settings.clients}, the partition has {partition.clients}")
    if (partition.test is None) != (settings.test == "shared"):
        raise HetflError(f"{where}.scheme: clients' test samples must be {settings.test}, they are not")
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
    if not any(map(len, partition.test or [dataset.labels(partition.test_from)])):
        raise HetflError(
            f"{where}: no client has a test sample; use another scheme, or hold more samples out for testing"
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
            raise HetflError(f"{where}: {side} indices of client {client} must be int64 without duplicates")
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
                raise HetflError(f"{where}: {side} sample {sample} of {name} has several clients; one is allowed")
    for name in dict.fromkeys((*train, *test)):
        none = np.zeros(len(dataset.subset(name)), dtype=np.int64)
        trains, tests = train.get(name, none), test.get(name, none)
        if (both := (trains > 0) & (tests > 0)).any():
            raise HetflError(f"{where}: sample {int(np.argmax(both))} of {name} is both a training and a test sample")
        if settings.exhaustive and (free := trains + tests == 0).any():
            raise HetflError(f"{where}: sample {int(np.argmax(free))} of {name} has no client; one is needed")


def _thin(parts: Sequence[np.ndarray], quantity: float, draws: Draws, purpose: str) -> tuple[np.ndarray, ...]:
    def kept(client: int, part: np.ndarray) -> np.ndarray:
        order = draws.numpy_generator(purpose, client).permutation(len(part))
        return part[np.sort(order[: max(1, int(floors(quantity, len(part))))])]

    return tuple(kept(client, part) for client, part in enumerate(parts))
