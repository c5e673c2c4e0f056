"""What the tests of partitions share: data sets without images, and what is asked of every partition."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hetfl.data.partitions import Partition, Scheme, make_partition
from hetfl.data.store import Dataset, Subset
from hetfl.draws import Draws

NO_IMAGES: Any = None
"""Partitions look at labels and attributes only."""

# How fast a machine is, is no property of a partition.
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
class_sizes = st.lists(st.integers(20, 60), min_size=1, max_size=8)
seeds = st.integers(0, 2**31)


def labels_of(sizes: Sequence[int], seed: int = 0) -> np.ndarray:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).permutation(labels)


def dataset_of(*labels: np.ndarray, coarse: np.ndarray | None = None, domains: int = 0) -> Dataset:
    """Splits ``train``, ``test`` and ``val`` with these labels; the training labels name the classes.

    Args:
        labels: of each subset, the training labels again where there are no test labels.
        coarse: the coarse label of each class.
        domains: number of domains, dealt to the samples in turn.
    """
    num_classes = int(labels[0].max()) + 1
    names = {} if coarse is None else {"coarse": tuple(map(str, range(coarse.max() + 1)))}
    names |= {"domain": tuple(map(str, range(domains)))} if domains else {}

    def subset(of: np.ndarray) -> Subset:
        values = {} if coarse is None else {"coarse": coarse[of]}
        values |= {"domain": np.arange(len(of)) % domains} if domains else {}
        return Subset(NO_IMAGES, of, values)

    named = dict(zip(("train", "test", "val"), labels if len(labels) > 1 else labels * 2, strict=False))
    subsets = {name: subset(of) for name, of in named.items()}
    return Dataset("toy", "Toy", tuple(f"c{c}" for c in range(num_classes)), subsets, "c0ffee", names)


def cut(scheme: Scheme, labels: np.ndarray, seed: int = 0, test_labels: np.ndarray | None = None) -> Partition:
    return make_partition(scheme, dataset_of(labels, labels if test_labels is None else test_labels), Draws(seed))


def parts(partition: Partition) -> tuple[np.ndarray, ...]:
    return partition.train + (partition.test or ())


def own(partition: Partition) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test samples of each client, where it has test samples of its own."""
    assert partition.test is not None
    return list(zip(partition.train, partition.test, strict=True))


def same(a: Partition, b: Partition) -> bool:
    return all(map(np.array_equal, parts(a), parts(b)))


def digest(partition: Partition) -> str:
    return hashlib.sha256(b"|".join(part.tobytes() for part in parts(partition))).hexdigest()[:12]


def lengths(of: Sequence[np.ndarray]) -> list[int]:
    return [len(part) for part in of]


def assert_covers(indices: Sequence[np.ndarray], size: int) -> None:
    """Every sample once."""
    np.testing.assert_array_equal(np.sort(np.concatenate(indices)), np.arange(size))
