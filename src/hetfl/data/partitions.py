"""How clients share a data set: one settings class per scheme, index lists as the result.

A scheme is a subclass of :class:`Scheme` that knows how to cut; it joins ``PartitionSettings`` and nothing
else changes.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hetfl.config import Settings
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.files import atomic_folder, read_json, sha256_file, write_json


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each client holds.

    Attributes:
        train: per client, sorted int64 indices into the training split.
        test: the same for the test split; None means that every client is tested on all of it.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...] | None

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train)

    def class_counts(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Training samples per client and class, int64 [clients, num_classes].

        Args:
            labels: labels of the training split, int64 [N].
            num_classes: number of classes.
        """
        return np.stack([np.bincount(labels[part], minlength=num_classes) for part in self.train])


class Scheme(Settings):
    """What every partition scheme has; the class variables and properties are what it promises."""

    clients: int = Field(default=5, ge=1)

    disjoint: ClassVar[bool] = True
    """No sample is held by two clients."""
    test: ClassVar[Literal["shared", "own"]] = "shared"
    """Whether every client is tested on the whole test split or on a part of its own."""

    @property
    def exhaustive(self) -> bool:
        """Every sample is held by some client."""
        return True

    def least(self, class_sizes: np.ndarray) -> np.ndarray:
        """Training samples of each class that every client holds at least, int64 [C].

        Args:
            class_sizes: training samples of each class, int64 [C].
        """
        return np.zeros_like(class_sizes)

    @abstractmethod
    def cut(
        self, train_labels: np.ndarray, test_labels: np.ndarray, num_classes: int, draws: Draws, where: str
    ) -> Partition:
        """Draw a partition; see :func:`make_partition`, which checks what comes out."""


class Iid(Scheme):
    """Equal disjoint parts of the shuffled training split (FedHPL, "IID")."""

    scheme: Literal["iid"] = "iid"

    def cut(
        self, train_labels: np.ndarray, test_labels: np.ndarray, num_classes: int, draws: Draws, where: str
    ) -> Partition:
        """Shuffle and cut; sizes differ by one at most."""
        order = draws.numpy("partition:iid").permutation(len(train_labels))
        return Partition(_sorted([part] for part in np.array_split(order, self.clients)), None)


class DirichletOverlap(Scheme):
    """Clients draw independently from the whole training split (FedHPL, "Dir").

    Two clients may hold the same sample, one client never holds it twice. With ``axis: classes`` (CIFAR10)
    a client's shares over the classes sum to 1 and it holds N/K samples; a class that is too small gives
    what it lacks to the others, proportionally. With ``axis: clients`` (CIFAR100, SVHN) a class's shares
    over the clients sum to 1.

    Attributes:
        axis: over what the shares sum to 1.
        alpha_mode: ``share``: the random vector that sums to 1 is the share vector, uniform on the simplex;
            ``literal``: it is the concentration of the Dirichlet distribution the shares come from.
        minimum: the part of every class that every client holds at least, rounded down.
    """

    scheme: Literal["dirichlet-overlap"] = "dirichlet-overlap"
    axis: Literal["classes", "clients"]
    alpha_mode: Literal["share", "literal"] = "share"
    minimum: float = Field(default=0.0, ge=0)

    disjoint: ClassVar[bool] = False

    @property
    def exhaustive(self) -> bool:
        """Some samples may be held by nobody."""
        return False

    def least(self, class_sizes: np.ndarray) -> np.ndarray:
        """floor(minimum * N_c)."""
        return _floors(self.minimum, class_sizes)

    def cut(
        self, train_labels: np.ndarray, test_labels: np.ndarray, num_classes: int, draws: Draws, where: str
    ) -> Partition:
        """Draw the counts, then each client's samples without replacement."""
        _check_minimum(self.minimum, self.clients, where)
        sizes = np.bincount(train_labels, minlength=num_classes)
        floors = self.least(sizes)
        if self.axis == "clients":
            counts = _counts_over_clients(sizes, floors, self.clients, None, self.alpha_mode, draws, self.scheme)
        else:
            counts = np.empty((self.clients, num_classes), dtype=np.int64)
            for client in range(self.clients):
                rng = draws.numpy("partition:dirichlet-overlap:shares", client)
                shares = _shares(rng, num_classes, None, self.alpha_mode)
                total = (len(train_labels) + self.clients - 1 - client) // self.clients
                wanted = np.rint(_capped(shares, total, sizes))
                counts[client] = _settle(wanted, shares, total, floors, sizes)
        starts = np.cumsum(sizes) - sizes
        parts = []
        for client in range(self.clients):
            rng = draws.numpy("partition:dirichlet-overlap:samples", client)
            order = np.lexsort((rng.random(len(train_labels)), train_labels))
            label = train_labels[order]
            rank = np.arange(len(order)) - starts[label]
            parts.append([order[rank < counts[client, label]]])
        return Partition(_sorted(parts), None)


class Dirichlet(Scheme):
    """Every class cut into disjoint parts, one per client (FedHPL, "Non-IID").

    Attributes:
        alpha: concentration of the symmetric Dirichlet distribution of a class's shares; None: random.
        alpha_mode: what a random alpha means, see :class:`DirichletOverlap`; not used with a fixed one.
        minimum: the part of every class that every client holds at least, rounded down.
    """

    scheme: Literal["dirichlet"] = "dirichlet"
    alpha: float | None = Field(default=None, gt=0)
    alpha_mode: Literal["share", "literal"] = "share"
    minimum: float = Field(default=0.0, ge=0)

    def least(self, class_sizes: np.ndarray) -> np.ndarray:
        """floor(minimum * N_c)."""
        return _floors(self.minimum, class_sizes)

    def cut(
        self, train_labels: np.ndarray, test_labels: np.ndarray, num_classes: int, draws: Draws, where: str
    ) -> Partition:
        """Draw the counts, shuffle each class and cut it."""
        _check_minimum(self.minimum, self.clients, where)
        members = _members(train_labels, num_classes)
        sizes = np.array([len(indices) for indices in members])
        counts = _counts_over_clients(
            sizes, self.least(sizes), self.clients, self.alpha, self.alpha_mode, draws, self.scheme
        )
        parts: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        for label, indices in enumerate(members):
            shuffled = draws.numpy("partition:dirichlet:samples", label).permutation(indices)
            for part, piece in zip(parts, np.split(shuffled, np.cumsum(counts[:-1, label])), strict=True):
                part.append(piece)
        return Partition(_sorted(parts), None)


class Pathological(Scheme):
    """A few classes per client, training and test split cut with the same shares (FGPT, section 4; SGPT).

    Attributes:
        classes_per_client: s; every class is cut into s * clients / C portions of uneven size.
        remainder: what rounding leaves of a class is dropped, or given to its last portion.
    """

    scheme: Literal["pathological"] = "pathological"
    classes_per_client: int = Field(ge=1)
    remainder: Literal["drop", "last"] = "drop"

    test: ClassVar[Literal["shared", "own"]] = "own"

    @property
    def exhaustive(self) -> bool:
        """Only where the remainder is not dropped."""
        return self.remainder == "last"

    def cut(
        self, train_labels: np.ndarray, test_labels: np.ndarray, num_classes: int, draws: Draws, where: str
    ) -> Partition:
        """Deal the classes to the clients, then cut each class among its holders."""
        holders = self._deal(num_classes, draws, where)
        train: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        test: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        sides = (("train", train, train_labels), ("test", test, test_labels))
        members = {side: _members(labels, num_classes) for side, _, labels in sides}
        for label, clients in enumerate(holders):
            weights = draws.numpy("partition:pathological:shares", label).uniform(0.4, 0.6, len(clients))
            shares = weights / weights.sum()
            for side, parts, _ in sides:
                rng = draws.numpy(f"partition:pathological:{side}", label)
                shuffled = rng.permutation(members[side][label])
                ends = np.cumsum((shares * len(shuffled)).astype(np.int64))
                if self.remainder == "last":
                    ends[-1] = len(shuffled)
                for client, piece in zip(clients, np.split(shuffled, ends)[:-1], strict=True):
                    parts[client].append(piece)
        return Partition(_sorted(train), _sorted(test))

    def _deal(self, num_classes: int, draws: Draws, where: str) -> list[list[int]]:
        """The clients that hold each class, in the order they took it."""
        taken, clients = self.classes_per_client, self.clients
        if taken > num_classes:
            raise HetflError(f"{where}.classes_per_client: {taken} is more than the {num_classes} classes")
        if taken * clients % num_classes:
            step = num_classes // gcd(num_classes, clients)
            raise HetflError(
                f"{where}.classes_per_client: {taken} for each of {clients} clients makes {taken * clients} "
                f"portions, which {num_classes} classes cannot share evenly; use a multiple of {step}"
            )
        left = np.full(num_classes, taken * clients // num_classes)
        holders: list[list[int]] = [[] for _ in range(num_classes)]
        for client in range(clients):
            # A class taken has one portion fewer and is not taken again by this client, so taking one after
            # another, a random one of those with most portions left, is the head of one sorted list.
            chances = draws.numpy("partition:pathological:classes", client).random(num_classes)
            chosen = np.lexsort((chances, -left))[:taken]
            left[chosen] -= 1
            for label in chosen:
                holders[label].append(client)
        return holders


PartitionSettings = Annotated[Iid | DirichletOverlap | Dirichlet | Pathological, Field(discriminator="scheme")]


def make_partition(
    settings: Scheme,
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    num_classes: int,
    draws: Draws,
    where: str = "partition",
) -> Partition:
    """Share a data set among clients.

    Args:
        settings: the scheme.
        train_labels: labels of the training split, int64 [N].
        test_labels: labels of the test split, int64 [E].
        num_classes: number of classes; labels lie below it.
        draws: the source of randomness.
        where: the key that holds the settings, e.g. ``"params.yaml: partitions.digits.noniid"``.

    Raises:
        HetflError: the scheme cannot be met, or a client is left without a training sample.
    """
    if settings.clients > len(train_labels):
        raise HetflError(f"{where}.clients: {settings.clients} is more than the {len(train_labels)} training samples")
    partition = settings.cut(train_labels, test_labels, num_classes, draws, where)
    check_partition(partition, settings, train_labels, test_labels, num_classes, where)
    return partition


def check_partition(
    partition: Partition,
    settings: Scheme,
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    num_classes: int,
    where: str = "partition",
) -> None:
    """Check that a partition is what its scheme promises; arguments as for :func:`make_partition`.

    A client without test samples is allowed: it is left out of statistics per client.

    Raises:
        HetflError: it is not.
    """
    if partition.clients != settings.clients:
        raise HetflError(f"{where}.clients: {settings.clients}, the partition has {partition.clients}")
    if (partition.test is None) != (settings.test == "shared"):
        raise HetflError(f"{where}.scheme: the test split must be {settings.test}, it is not")
    _check_side(partition.train, "train", len(train_labels), settings, where)
    if partition.test is not None:
        _check_side(partition.test, "test", len(test_labels), settings, where)
    empty = [client for client, part in enumerate(partition.train) if len(part) == 0]
    if empty:
        raise HetflError(
            f"{where}.clients: {settings.clients} leaves client {empty[0]} without a training sample; "
            "use fewer clients or another seed"
        )
    least = settings.least(np.bincount(train_labels, minlength=num_classes))
    short = np.argwhere(partition.class_counts(train_labels, num_classes) < least)
    if len(short):
        client, label = short[0]
        raise HetflError(f"{where}.minimum: client {client} holds fewer than {least[label]} samples of class {label}")


def write_partition(folder: Path, partition: Partition, settings: Scheme, dataset: Dataset, seed: int) -> None:
    """Write ``indices.npz`` and ``card.json``, replacing the folder as a whole.

    Args:
        folder: where they go.
        partition: the partition.
        settings: the scheme it was made with.
        dataset: the data set it shares.
        seed: the seed it was drawn with.
    """
    labels = dataset.split("train").labels
    holders = np.bincount(np.concatenate(partition.train), minlength=len(labels))
    sides = {"train": partition.train} | ({} if partition.test is None else {"test": partition.test})
    arrays: dict[str, Any] = {f"{side}-{k}": part for side, parts in sides.items() for k, part in enumerate(parts)}
    with atomic_folder(folder) as temporary:
        indices = temporary / "indices.npz"
        # Not compressed: the bytes must not depend on the version of zlib.
        np.savez(indices, **arrays)
        card = {
            "settings": settings.model_dump(mode="json"),
            "seed": seed,
            "dataset": dataset.name,
            "dataset_checksum": dataset.checksum,
            "clients": partition.clients,
            "sizes": {side: [len(part) for part in parts] for side, parts in sides.items()},
            "class_counts": partition.class_counts(labels, dataset.num_classes).tolist(),
            "overlap": float(np.mean(holders > 1)),
            "unused": float(np.mean(holders == 0)),
            "sha256": sha256_file(indices),
        }
        write_json(temporary / "card.json", card)


def read_partition(folder: Path) -> tuple[Partition, dict[str, Any]]:
    """Read a partition and its card.

    Raises:
        HetflError: a file is missing, or the indices are not those the card was written for.
    """
    card = read_json(folder / "card.json")
    indices = folder / "indices.npz"
    found = sha256_file(indices)
    expected = card.get("sha256") if isinstance(card, dict) else None
    if found != expected:
        raise HetflError(
            f"{indices}: SHA-256 is {found[:12]}, the card says {str(expected)[:12]}; "
            "delete the folder and run dvc repro again"
        )
    with np.load(indices, allow_pickle=False) as arrays:
        train = tuple(arrays[f"train-{client}"] for client in range(card["clients"]))
        test = tuple(arrays[f"test-{client}"] for client in range(card["clients"])) if "test-0" in arrays else None
    return Partition(train, test), card


def _sorted(parts: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.sort(np.concatenate(list(pieces))).astype(np.int64) for pieces in parts)


def _members(labels: np.ndarray, num_classes: int) -> list[np.ndarray]:
    ends = np.cumsum(np.bincount(labels, minlength=num_classes))
    return np.split(np.argsort(labels, kind="stable"), ends[:-1])


def _floors(minimum: float, class_sizes: np.ndarray) -> np.ndarray:
    # 0.29 * 100 is 28.999999999999996 in binary, and means 29.
    return np.floor(np.round(minimum * class_sizes, 9)).astype(np.int64)


def _check_minimum(minimum: float, clients: int, where: str) -> None:
    if round(minimum * clients, 9) > 1:
        raise HetflError(
            f"{where}.minimum: {minimum} of every class for each of {clients} clients is more than there is; "
            f"use at most {1 / clients:.4g}"
        )


def _shares(rng: np.random.Generator, size: int, alpha: float | None, alpha_mode: str) -> np.ndarray:
    """Shares that sum to 1, float [size]: Dirichlet(alpha), or what a random alpha means."""
    if alpha is not None:
        return rng.dirichlet(np.full(size, alpha))
    if alpha_mode == "share":
        return rng.dirichlet(np.ones(size))
    alphas = 1 - rng.random(size)
    return rng.dirichlet(alphas / alphas.sum())


def _counts_over_clients(
    sizes: np.ndarray,
    floors: np.ndarray,
    clients: int,
    alpha: float | None,
    alpha_mode: str,
    draws: Draws,
    scheme: str,
) -> np.ndarray:
    """Samples per client and class, int64 [K, C]; every column sums to the size of its class."""
    counts = np.empty((clients, len(sizes)), dtype=np.int64)
    for label, size in enumerate(sizes):
        shares = _shares(draws.numpy(f"partition:{scheme}:shares", label), clients, alpha, alpha_mode)
        floor, ceiling = np.full(clients, floors[label]), np.full(clients, size)
        counts[:, label] = _settle(np.rint(shares * size), shares, size, floor, ceiling)
    return counts


def _capped(shares: np.ndarray, total: int, caps: np.ndarray) -> np.ndarray:
    """``total`` spread in proportion to the shares, none above its cap, the excess handed to the others."""
    full = np.zeros(len(shares), dtype=bool)
    spread = shares * total
    while (over := ~full & (spread > caps)).any():
        full |= over
        rest = shares[~full].sum()
        scale = (total - caps[full].sum()) / rest if rest > 0 else 0.0
        spread = np.where(full, caps, shares * scale)
    return spread


def _settle(wanted: np.ndarray, shares: np.ndarray, total: int, floors: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """Counts near the wanted ones, between floors and caps, that sum to ``total``; int64, same shape.

    A surplus is taken one by one from the largest count, a deficit goes to the largest share that has room.
    """
    counts = np.clip(wanted.astype(np.int64), floors, caps)
    if counts.sum() > total:
        levels = range(int(counts.max()) + 1)
        level = bisect_right(levels, total, key=lambda at: np.maximum(np.minimum(counts, at), floors).sum()) - 1
        lowered = np.maximum(np.minimum(counts, level), floors)
        order = np.argsort(-counts, kind="stable")
        lowerable = order[(counts > level)[order] & (floors <= level)[order]]
        lowered[lowerable[: total - lowered.sum()]] += 1
        return lowered
    order = np.argsort(-shares, kind="stable")
    room = (caps - counts)[order]
    counts[order] += np.clip(total - counts.sum() - (np.cumsum(room) - room), 0, room)
    return counts


def _check_side(parts: Sequence[np.ndarray], side: str, size: int, settings: Scheme, where: str) -> None:
    for client, part in enumerate(parts):
        if part.dtype != np.int64 or (np.diff(part) <= 0).any():
            raise HetflError(f"{where}: {side} indices of client {client} must be int64, sorted, none twice")
        if len(part) and (part[0] < 0 or part[-1] >= size):
            raise HetflError(f"{where}: {side} indices of client {client} must lie in 0..{size - 1}")
    if len(parts) != settings.clients:
        raise HetflError(f"{where}.clients: {settings.clients}, the partition has {len(parts)} {side} parts")
    holders = np.bincount(np.concatenate(parts), minlength=size)
    if settings.disjoint and (holders > 1).any():
        raise HetflError(f"{where}: {side} sample {int(np.argmax(holders > 1))} must have one client, it has more")
    if settings.exhaustive and (holders == 0).any():
        raise HetflError(f"{where}: {side} sample {int(np.argmax(holders == 0))} must have a client, it has none")
