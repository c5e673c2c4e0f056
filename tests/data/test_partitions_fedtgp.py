"""FedTGP's partitions against the reference partitions of its setup sheet, section 3.4."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_helpers import assert_covers, cut, dataset_of, labels_of, lengths, own, quick, same, seeds

from hetfl.data.partitions import Blocks, Partition, Practical, Scheme, make_partition
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError

# Samples of each class of the pool; how they are ordered changes which samples, not how many.
SETS = {
    "cifar10": dataset_of(labels_of([5000] * 10), labels_of([1000] * 10)),
    "cifar100": dataset_of(labels_of([500] * 100), labels_of([100] * 100)),
    "tiny-imagenet": dataset_of(labels_of([500] * 200)),
    "fashion-mnist": dataset_of(labels_of([6000] * 10), labels_of([1000] * 10)),
}
POOL = {"tiny-imagenet": ("train",)}

SIZES = {
    "cifar10": "1621 1814 1211 2080 5128 4264 1440 2622 2974 3236 1164 1964 5994 1527 3100 4325 4252 3175 5449 2660",
    "cifar100": "3020 3053 2753 3029 2640 2877 3120 3047 2807 3211 2761 3359 3290 2971 3301 3132 3345 2642 3035 2607",
    "tiny-imagenet": "5092 3261 5001 5006 5162 5323 5067 4823 5144 5210 "
    "5465 4638 5132 5154 5099 5450 4596 5079 5074 5224",
    "fashion-mnist": "82 320 875 2603 1455 5473 4385 4461 5560 3556 6170 6803 8551 626 1328 195 2937 4832 5090 4698",
}
BLOCK_SIZES = {
    "cifar10": "2266 1250 2243 6241 2009 952 1734 7305 1859 2514 2046 5581 1605 1114 1548 7733 2649 1442 2084 5825",
    "cifar100": "1816 4184 1941 4059 1426 4574 952 5048 1654 4346 2060 3940 1890 4110 1364 4636 1960 4040 1899 4101",
}


def practical(name: str, clients: int = 20) -> Partition:
    return make_partition(Practical(clients=clients, pool=POOL.get(name, ("train", "test"))), SETS[name], Draws(0))


def totals(partition: Partition) -> list[int]:
    """Samples of each client, training and test."""
    return [len(train) + len(test) for train, test in own(partition)]


def classes_of(partition: Partition, dataset: Dataset) -> tuple[list[int], list[int]]:
    """Number of classes of each client: in all its samples, in its training samples."""
    labels = dataset.labels(partition.train_from)
    whole = [len(np.unique(labels[np.concatenate(both)])) for both in own(partition)]
    return whole, [len(np.unique(labels[train])) for train in partition.train]


@pytest.mark.parametrize("name", SIZES)
def test_practical_sizes_are_the_published_ones(name: str) -> None:
    assert totals(practical(name)) == list(map(int, SIZES[name].split()))


@pytest.mark.parametrize(
    ("name", "clients", "classes", "train_classes", "train", "steps"),
    [
        ("cifar10", 20, 102, 101, 44_995, 4_491),
        ("cifar100", 20, 921, 869, 44_992, 4_489),
        ("tiny-imagenet", 20, 1776, 1690, 74_993, 7_488),
        ("fashion-mnist", 20, 106, 102, 52_493, 5_241),
        ("cifar100", 50, 1920, 1806, 44_983, 4_478),
        ("cifar100", 100, 3271, 3040, 44_962, 4_456),
    ],
)
def test_practical_totals(name: str, clients: int, classes: int, train_classes: int, train: int, steps: int) -> None:
    partition = practical(name, clients)
    whole, trained = classes_of(partition, SETS[name])
    assert (sum(whole), sum(trained)) == (classes, train_classes)
    sizes = lengths(partition.train)
    # Batches of ten, the last short one left out.
    assert (sum(sizes), sum(size // 10 for size in sizes)) == (train, steps)


def test_practical_cifar100() -> None:
    partition = practical("cifar100")
    labels = SETS["cifar100"].labels(("train", "test"))
    whole, _ = classes_of(partition, SETS["cifar100"])
    assert whole == [33, 47, 54, 47, 57, 42, 41, 32, 39, 46, 47, 47, 41, 44, 40, 38, 44, 38, 45, 99]
    unseen = [int((~np.isin(labels[test], labels[train])).sum()) for train, test in own(partition)]
    assert (sum(unseen), sum(lengths(partition.test or ()))) == (58, 15_008)
    # The order is that of training: batches of ten in order, the rest left out, lose one pair of client and class.
    full = [train[: len(train) // 10 * 10] for train in partition.train]
    assert sum(len(np.unique(labels[part])) for part in full) == 868


def test_practical_cifar100_with_more_clients() -> None:
    for clients, low, high in ((50, 660, 1469), (100, 275, 817)):
        sizes = totals(practical("cifar100", clients))
        assert (min(sizes), max(sizes)) == (low, high)


@pytest.mark.parametrize(("name", "taken"), [("cifar10", 2), ("cifar100", 10)])
def test_block_sizes_are_the_derived_ones(name: str, taken: int) -> None:
    partition = make_partition(Blocks(clients=20, classes_per_client=taken), SETS[name], Draws(0))
    assert totals(partition) == list(map(int, BLOCK_SIZES[name].split()))
    assert classes_of(partition, SETS[name])[0] == [taken] * 20


def test_other_seeds_and_the_trials_seed() -> None:
    labels = labels_of([60] * 10)
    assert same(cut(Practical(seed=3), labels, 0), cut(Practical(seed=None), labels, 3))
    assert not same(cut(Practical(), labels), cut(Practical(seed=3), labels))
    assert same(cut(Practical(seed=None), labels, -1), cut(Practical(seed=None), labels, -1))


@quick
@given(
    st.lists(st.integers(20, 60), min_size=4, max_size=8),
    st.integers(1, 5),
    st.floats(0.3, 2),
    st.integers(2, 5),
    st.sampled_from([0.5, 0.75, 0.8]),
    st.sampled_from([("train",), ("train", "test"), ("val", "train")]),
    seeds,
)
def test_practical_uses_every_sample_once(
    sizes: list[int], clients: int, beta: float, minimum: int, share: float, pool: tuple[str, ...], seed: int
) -> None:
    labels = labels_of([2 * size for size in sizes])
    dataset = dataset_of(labels, labels_of(sizes, 1), labels_of(sizes, 2))
    scheme = Practical(clients=clients, beta=beta, minimum=minimum, train_share=share, pool=pool, seed=seed)
    partition = make_partition(scheme, dataset, Draws(0))
    pooled = dataset.labels(pool)
    assert_covers([np.concatenate(both) for both in own(partition)], len(pooled))
    assert partition.train_from == partition.test_from == pool
    assert min(totals(partition)) >= minimum
    assert lengths(partition.train) == [int(share * size) for size in totals(partition)]
    # The last client also gets what rounding leaves.
    for train, test in own(partition)[:-1]:
        counts = np.bincount(pooled[np.concatenate((train, test))], minlength=len(sizes))
        # Who holds an equal share gets no more.
        before_last = counts.sum() - counts[np.flatnonzero(counts)[-1]]
        assert before_last < len(pooled) / clients


def test_training_order_is_as_drawn() -> None:
    train = practical("cifar10").train[0]
    assert (np.diff(train) < 0).mean() > 0.4


def test_draw_below_the_minimum_is_done_over() -> None:
    labels = labels_of([60] * 10)
    smallest = {seed: min(totals(cut(Practical(seed=seed, minimum=1), labels))) for seed in range(10)}
    seed = min(smallest, key=lambda seed: smallest[seed])
    again = cut(Practical(seed=seed, minimum=smallest[seed] + 10), labels)
    assert min(totals(again)) >= smallest[seed] + 10
    assert_covers([np.concatenate(both) for both in own(again)], 1200)


def test_minimum_may_be_read_as_half_an_equal_share() -> None:
    labels = labels_of([20] * 5)
    partition = cut(Practical(clients=10, minimum_mode="half", beta=1.0), labels)
    assert min(totals(partition)) >= 10
    with pytest.raises(
        HetflError, match=r"minimum: 40 for each of 10 clients is more than the 200 samples.* at most 20"
    ):
        cut(Practical(clients=10, beta=1.0), labels)


@quick
@given(st.sampled_from([(10, 2, 20), (10, 3, 9), (12, 4, 6), (4, 4, 3), (6, 1, 6), (13, 4, 6), (13, 2, 5)]), seeds)
def test_blocks_give_every_client_its_classes(case: tuple[int, int, int], seed: int) -> None:
    num_classes, taken, clients = case
    labels = labels_of([50] * num_classes)
    dataset = dataset_of(labels, labels_of([30] * num_classes))
    scheme = Blocks(clients=clients, classes_per_client=taken, seed=seed)
    partition = make_partition(scheme, dataset, Draws(0))
    pooled = dataset.labels(("train", "test"))
    whole = replace(partition, train=tuple(np.concatenate(both) for both in own(partition)))
    counts = whole.class_counts(pooled, num_classes)
    owners = -(-clients * taken // num_classes)
    assert ((counts > 0).sum(1) == taken).all()
    used = counts.sum(0) > 0
    assert used.sum() == clients * taken / owners and (np.diff(used.astype(int)) <= 0).all()
    for column in counts[:, used].T:
        held = np.flatnonzero(column)
        assert len(held) == owners
        assert held.tolist() == list(range(held[0], held[0] + owners))
        equal = 80 / owners
        assert column.sum() == 80
        assert owners == 1 or column[held[:-1]].min() >= int(equal / 10) and column[held[:-1]].max() < equal
    assert lengths(partition.train) == [int(0.75 * size) for size in totals(partition)]


def test_flowers_classes_without_an_owner_are_not_used() -> None:
    """102 classes of 40 to 258 images, ten for each of 20 clients, two owners each: the last two find none."""
    sizes = np.random.default_rng(0).integers(40, 259, 102)
    labels = labels_of(sizes.tolist())
    dataset = dataset_of(labels, labels_of([10] * 102), labels_of([10] * 102))
    pool = ("train", "val", "test")
    partition = make_partition(Blocks(clients=20, classes_per_client=10, pool=pool), dataset, Draws(0))
    pooled = dataset.labels(pool)
    used = pooled[np.concatenate([np.concatenate(both) for both in own(partition)])]
    assert sorted(set(used)) == list(range(100))
    assert len(used) == (pooled < 100).sum()


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Practical(clients=5), r"x.minimum: 40 for each of 5 clients is more than the 80 samples; use at most 16"),
        (
            Practical(clients=5, minimum=16, beta=0.01),
            r"x.minimum: no draw out of 200 gives every client 16 samples with beta 0.01; use a lower minimum",
        ),
        (
            Practical(clients=2, minimum=39, beta=1e-9),
            r"x.minimum: no draw .* 39 samples .* a larger beta or fewer clients",
        ),
        (Blocks(classes_per_client=5), r"x.classes_per_client: 5 is more than the 4 classes"),
        (
            Blocks(clients=3, classes_per_client=3),
            r"x.minimum: gives each of the 3 owners of class 0 at least 10 of its 20",
        ),
        (
            Blocks(clients=4, classes_per_client=3, minimum=4),
            r"x.classes_per_client: 3 of 4 classes for each of 4 clients .* must be a multiple of a class.s 3 owners",
        ),
    ],
)
def test_impossible_partition_names_key_value_and_remedy(scheme: Scheme, message: str) -> None:
    with pytest.raises(HetflError, match=message) as caught:
        make_partition(scheme, dataset_of(labels_of([10] * 4)), Draws(0), "p.yaml: x")
    assert "\n" not in str(caught.value)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["cifar10", "cifar100", "fashion-mnist"])
def test_official_order_gives_the_same_counts(name: str) -> None:
    """The order of the official files decides which samples, not how many of a class."""
    folder = Path(os.environ.get("HETFL_MIRROR", "")) / name
    if not (folder / "train.npz").is_file():
        pytest.skip(f"HETFL_MIRROR names no folder with {name}/train.npz")
    labels = []
    for split in ("train", "test"):
        with np.load(folder / f"{split}.npz", allow_pickle=False) as arrays:
            labels.append(arrays["labels"].astype(np.int64))
    official = dataset_of(*labels)
    found = make_partition(Practical(clients=20), official, Draws(0))
    expected = practical(name)
    pools = [dataset.labels(("train", "test")) for dataset in (official, SETS[name])]
    for parts in ("train", "test"):
        for a, b in zip(getattr(found, parts), getattr(expected, parts), strict=True):
            np.testing.assert_array_equal(pools[0][a], pools[1][b])
    assert not same(found, expected)
