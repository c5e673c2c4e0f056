"""The partitions of FedTGP (Zhang et al., AAAI 2024), drawn as its authors' data generator (PFLlib) draws them.

That generator seeds one stream of random numbers and uses it for every class and then for every client. The stream is
NumPy's legacy generator, which never changes, so the published client sizes are reproduced exactly.
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
    """Subsets are pooled and divided among the clients; each client's part is divided into training and test samples.

    Training samples keep the order in which they are drawn, since the authors' code reads them in that order.

    Attributes:
        seed: 1 gives the published partition, for all methods and trials; None: the trial's seed.
        minimum: the minimum number of a client's samples, for training and testing together. In :class:`Practical` it
            applies to the client; in :class:`Blocks`, divided by the number of classes, to each of its classes. The
            authors set it to batch size / (1 - train_share).
        minimum_mode: ``fixed``: the minimum as given; ``half``: at most half of an equal share of the pool (the
            authors' later code).
    """

    seed: int | None = Field(default=1, ge=0, lt=2**32)
    minimum: int = Field(default=40, ge=1)
    minimum_mode: Literal["fixed", "half"] = "fixed"

    def cut(self, dataset: Dataset, draws: Draws, where: str) -> Partition:
        """Divide the pool, then shuffle every client's part; its first samples are for testing."""
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
        """Divide the pool among the clients.

        Args:
            classes: for each class, indices of its samples, int64.
            stream: the source of randomness.
            where: the key that holds the settings.

        Returns:
            For each client, indices of its samples, int64.

        Raises:
            HetflError: the settings allow no such division.
        """

    def least_samples(self, samples: int) -> int:
        """The minimum number of samples by ``minimum_mode``.

        Args:
            samples: size of the pool.
        """
        return self.minimum if self.minimum_mode == "fixed" else min(self.minimum, samples // self.clients // 2)


class Practical(FedTgpScheme):
    """Every class is divided into disjoint parts with Dirichlet shares (FedTGP, practical setting).

    A client that already holds an equal share of the pool gets nothing of the next class. This cap is in the authors'
    code and not in the paper. A draw that leaves a client below the minimum is repeated.

    Attributes:
        beta: concentration of the symmetric Dirichlet distribution of a class's shares.
    """

    scheme: Literal["practical"] = "practical"
    beta: float = Field(default=0.1, gt=0)

    attempts: ClassVar[int] = 200
    """Maximum number of draws."""

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
            f"{where}.minimum: no draw out of {self.attempts} gives every client {least} samples with beta "
            f"{self.beta}; use a lower minimum, a larger beta or fewer clients"
        )

    def _draw(self, classes: list[np.ndarray], cap: float, stream: np.random.RandomState) -> list[np.ndarray]:
        pieces: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in range(self.clients)]
        sizes = np.zeros(self.clients, dtype=np.int64)
        for indices in classes:
            shuffled = indices.copy()
            stream.shuffle(shuffled)
            # With a very small beta the shares underflow to NaN; the last client then gets the class.
            shares = np.nan_to_num(stream.dirichlet(np.full(self.clients, self.beta))) * (sizes < cap)
            ends = (np.cumsum(shares / max(shares.sum(), np.finfo(float).tiny)) * len(shuffled)).astype(np.int64)
            for client, piece in enumerate(np.split(shuffled, ends[:-1])):
                pieces[client].append(piece)
                sizes[client] += len(piece)
        return [np.concatenate(of_client) for of_client in pieces]


class Blocks(FedTgpScheme):
    """A few classes per client, assigned in blocks (FedTGP, pathological setting).

    A class goes to the first clients that have too few classes, in parts of different sizes: the size is random for
    each of its owners but the last, who gets the rest. A class without an owner is not used (two of Flowers102).

    Attributes:
        classes_per_client: number of classes of each client.
    """

    scheme: Literal["blocks"] = "blocks"
    classes_per_client: int = Field(ge=1)

    @property
    def exhaustive(self) -> bool:
        """False: a class may have no owner."""
        return False

    def share(self, classes: list[np.ndarray], stream: np.random.RandomState, where: str) -> list[np.ndarray]:
        """Assign the classes in order and draw the size of each part."""
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
                    f"{where}.minimum: gives each of the {len(owners)} owners of class {label} at least {low} of its "
                    f"{len(indices)} samples, which is too many; "
                    "use a lower minimum, fewer clients or fewer classes per client"
                )
            sizes = stream.randint(low, high, len(owners) - 1)
            for client, piece in zip(owners, np.split(indices, np.cumsum(sizes)), strict=True):
                pieces[client].append(piece)
        if len(pieces[-1]) < self.classes_per_client:
            raise HetflError(
                f"{key}: {self.classes_per_client} of {len(classes)} classes for each of {self.clients} clients "
                f"form no blocks; the number of clients must be a multiple of a class's {per_class} owners"
            )
        return [np.concatenate(of_client) for of_client in pieces]
