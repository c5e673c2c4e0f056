import hashlib
import time
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetfl.config import Settings, validate
from hetfl.data.partitions import (
    Dirichlet,
    DirichletOverlap,
    Iid,
    Partition,
    PartitionSettings,
    Pathological,
    Scheme,
    check_partition,
    make_partition,
    read_partition,
    write_partition,
)
from hetfl.data.store import Dataset, Split
from hetfl.draws import Draws
from hetfl.errors import HetflError

SVHN = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]

AlphaMode = Literal["share", "literal"]

# How fast a machine is, is no property of a partition.
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
class_sizes = st.lists(st.integers(20, 60), min_size=1, max_size=8)
seeds = st.integers(0, 2**31)


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).permutation(labels)


def cut(scheme: Scheme, labels: np.ndarray, seed: int = 0, test_labels: np.ndarray | None = None) -> Partition:
    test_labels = labels if test_labels is None else test_labels
    return make_partition(scheme, labels, test_labels, int(labels.max()) + 1, Draws(seed))


def same(a: Partition, b: Partition) -> bool:
    return all(map(np.array_equal, a.train + (a.test or ()), b.train + (b.test or ())))


def assert_covers(parts: tuple[np.ndarray, ...], size: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(size))


@quick
@given(class_sizes, st.integers(1, 20), seeds)
def test_iid_is_equal_parts_of_everything(sizes: list[int], clients: int, seed: int) -> None:
    labels = labels_of(sizes)
    partition = cut(Iid(clients=clients), labels, seed)
    assert_covers(partition.train, len(labels))
    assert partition.test is None
    lengths = [len(part) for part in partition.train]
    assert max(lengths) - min(lengths) <= 1


def test_iid_sizes_of_svhn() -> None:
    partition = cut(Iid(), labels_of(SVHN))
    assert [len(part) for part in partition.train] == [14652, 14652, 14651, 14651, 14651]


@quick
@given(class_sizes, st.integers(1, 5), st.sampled_from([None, 0.1, 1.0]), st.floats(0.05, 0.2), seeds)
def test_dirichlet_uses_every_sample_once(
    sizes: list[int], clients: int, alpha: float | None, minimum: float, seed: int
) -> None:
    labels = labels_of(sizes)
    for mode in ("share", "literal"):
        partition = cut(Dirichlet(clients=clients, alpha=alpha, alpha_mode=mode, minimum=minimum), labels, seed)
        assert_covers(partition.train, len(labels))
        counts = partition.class_counts(labels, len(sizes))
        assert (counts.sum(0) == sizes).all()
        assert (counts >= np.floor(minimum * np.array(sizes))).all()


def test_minimum_is_the_floor_of_the_papers_percentage() -> None:
    labels = labels_of(SVHN)
    scheme = Dirichlet(alpha=0.1, minimum=0.005)
    floors = [24, 69, 52, 42, 37, 34, 28, 27, 25, 23]
    assert scheme.least(np.array(SVHN)).tolist() == floors
    counts = np.stack([cut(scheme, labels, seed).class_counts(labels, 10) for seed in range(5)])
    assert (counts.min((0, 1)) == floors).all()
    assert Dirichlet(minimum=0.29).least(np.array([100])).tolist() == [29]


def test_minimum_of_cifar100_caps_a_clients_part_of_a_class() -> None:
    labels = labels_of([500] * 100)
    counts = cut(Dirichlet(alpha=0.1, minimum=0.1), labels).class_counts(labels, 100)
    assert counts.min() == 50
    assert counts.max() == 300


def test_whole_class_may_be_promised() -> None:
    labels = labels_of([50, 50])
    assert (cut(Dirichlet(minimum=0.2), labels).class_counts(labels, 2) == 10).all()


@quick
@given(class_sizes, st.integers(1, 5), st.sampled_from(["share", "literal"]), st.floats(0.05, 0.2), seeds)
def test_overlap_over_classes_gives_every_client_the_same_size(
    sizes: list[int], clients: int, mode: AlphaMode, minimum: float, seed: int
) -> None:
    labels = labels_of(sizes)
    scheme = DirichletOverlap(axis="classes", clients=clients, alpha_mode=mode, minimum=minimum)
    partition = cut(scheme, labels, seed)
    assert [len(part) for part in partition.train] == [len(p) for p in np.array_split(labels, clients)]
    counts = partition.class_counts(labels, len(sizes))
    assert (counts <= sizes).all()
    assert (counts >= np.floor(minimum * np.array(sizes))).all()
    assert all(len(np.unique(part)) == len(part) for part in partition.train)


@quick
@given(class_sizes, st.integers(1, 5), st.sampled_from(["share", "literal"]), st.floats(0.05, 0.2), seeds)
def test_overlap_over_clients_gives_every_class_its_size(
    sizes: list[int], clients: int, mode: AlphaMode, minimum: float, seed: int
) -> None:
    labels = labels_of(sizes)
    scheme = DirichletOverlap(axis="clients", clients=clients, alpha_mode=mode, minimum=minimum)
    partition = cut(scheme, labels, seed)
    counts = partition.class_counts(labels, len(sizes))
    assert (counts.sum(0) == sizes).all()
    assert (counts >= np.floor(minimum * np.array(sizes))).all()
    assert all(len(np.unique(part)) == len(part) for part in partition.train)


@pytest.mark.parametrize("axis", ["classes", "clients"])
def test_overlapping_clients_draw_independently(axis: Literal["classes", "clients"]) -> None:
    labels = labels_of([300] * 10)
    holders = np.bincount(np.concatenate(cut(DirichletOverlap(axis=axis), labels).train), minlength=3000)
    # Five independent draws of a fifth each: 0.8^5 = 33 % held by nobody, 26 % by two or more.
    assert 0.25 < np.mean(holders == 0) < 0.45
    assert 0.2 < np.mean(holders > 1) < 0.4


def test_class_that_is_too_small_hands_its_excess_on_in_proportion() -> None:
    sizes = [5, 1000, 1000, 1000]
    labels = labels_of(sizes)
    partition = cut(DirichletOverlap(axis="classes", clients=5), labels, seed=2)
    counts = partition.class_counts(labels, 4)
    rng = Draws(2).numpy("partition:dirichlet-overlap:shares", 0)
    shares = rng.dirichlet(np.ones(4))
    assert shares[0] * 601 > 5
    assert counts[0, 0] == 5
    np.testing.assert_allclose(counts[0, 1:], 596 * shares[1:] / shares[1:].sum(), atol=1.5)


def test_random_alpha_spreads_as_the_sheet_says() -> None:
    """FedHPL sheet 2.4: mean largest share 0.46 (share), 0.73 (literal), 0.81 for Dir(0.1)."""
    labels = labels_of([200] * 400)
    schemes = {0.46: Dirichlet(), 0.73: Dirichlet(alpha_mode="literal"), 0.81: Dirichlet(alpha=0.1)}
    for expected, scheme in schemes.items():
        largest = cut(scheme, labels).class_counts(labels, 400).max(0) / 200
        assert abs(largest.mean() - expected) < 0.04


@quick
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), seeds)
def test_pathological_gives_every_client_its_classes(taken: int, more: int, rounds: int, seed: int) -> None:
    num_classes = taken * more
    clients = more * rounds
    labels, test_labels = labels_of([40] * num_classes), labels_of([20] * num_classes, 1)
    scheme = Pathological(clients=clients, classes_per_client=taken)
    partition = cut(scheme, labels, seed, test_labels)
    assert partition.test is not None
    for train, test in zip(partition.train, partition.test, strict=True):
        assert len(np.unique(labels[train])) == taken
        assert set(labels[train]) == set(test_labels[test])
    held = partition.class_counts(labels, num_classes) > 0
    assert (held.sum(0) == rounds).all()
    # Every block of C/s consecutive clients uses every class exactly once.
    assert (held.reshape(rounds, more, num_classes).sum(1) == 1).all()


@quick
@given(st.sampled_from([(10, 4, 5), (10, 3, 10), (6, 4, 9), (7, 7, 3), (4, 3, 4)]), seeds)
def test_pathological_deals_evenly_where_blocks_do_not_fit(case: tuple[int, int, int], seed: int) -> None:
    num_classes, taken, clients = case
    labels = labels_of([50] * num_classes)
    scheme = Pathological(clients=clients, classes_per_client=taken, remainder="last")
    partition = cut(scheme, labels, seed)
    assert_covers(partition.train, len(labels))
    held = partition.class_counts(labels, num_classes) > 0
    assert (held.sum(1) == taken).all()
    assert (held.sum(0) == taken * clients // num_classes).all()


@pytest.mark.parametrize(
    ("taken", "low", "high", "total", "test_total"),
    [(10, 430, 560, 49_490, 9_500), (5, 420, 580, 49_745, 9_750)],
)
def test_pathological_sizes_of_cifar100(taken: int, low: int, high: int, total: int, test_total: int) -> None:
    """FGPT sheet, section 3: n_i 446-543 and totals 49,490 / 9,500 at s=10."""
    labels, test_labels = labels_of([500] * 100), labels_of([100] * 100)
    partition = cut(Pathological(clients=100, classes_per_client=taken), labels, 0, test_labels)
    lengths = [len(part) for part in partition.train]
    assert low <= min(lengths) and max(lengths) <= high
    assert abs(sum(lengths) - total) < 60
    assert partition.test is not None
    test_lengths = [len(part) for part in partition.test]
    assert abs(sum(test_lengths) - test_total) < 60
    if taken == 10:
        assert min(test_lengths) >= 80 and max(test_lengths) <= 108


SCHEMES = [
    Iid(clients=5),
    DirichletOverlap(axis="classes"),
    DirichletOverlap(axis="clients"),
    Dirichlet(alpha=0.5),
    Dirichlet(),
    Pathological(classes_per_client=4),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.scheme)
def test_seed_decides(scheme: Scheme) -> None:
    labels = labels_of([40] * 10)
    assert same(cut(scheme, labels, 1), cut(scheme, labels, 1))
    assert not same(cut(scheme, labels, 1), cut(scheme, labels, 2))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.scheme)
def test_a_hundred_clients_and_classes_are_quick(scheme: Scheme) -> None:
    labels = labels_of([100] * 100)
    start = time.process_time()
    cut(scheme.model_copy(update={"clients": 100}), labels)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Iid(clients=41), "p.yaml: x.clients: 41 is more than the 40 training samples"),
        (
            Dirichlet(minimum=0.3),
            "p.yaml: x.minimum: 0.3 of every class for each of 5 clients .* at most 0.2",
        ),
        (DirichletOverlap(axis="classes", minimum=0.21), "p.yaml: x.minimum: 0.21"),
        (DirichletOverlap(axis="clients", minimum=1.0, clients=2), "p.yaml: x.minimum: 1.0 .* at most 0.5"),
        (
            Dirichlet(alpha=0.001, clients=20),
            "p.yaml: x.clients: 20 leaves client .* without a training sample",
        ),
        (Pathological(classes_per_client=5), "p.yaml: x.classes_per_client: 5 is more than the 4 classes"),
        (
            Pathological(classes_per_client=3),
            "p.yaml: x.classes_per_client: 3 for each of 5 .* a multiple of 4",
        ),
        (Pathological(classes_per_client=1, clients=2), "p.yaml: x.classes_per_client: 1 .* a multiple of 2"),
    ],
)
def test_impossible_partition_names_key_value_and_remedy(scheme: Scheme, message: str) -> None:
    labels = labels_of([10] * 4)
    with pytest.raises(HetflError, match=message) as caught:
        make_partition(scheme, labels, labels, 4, Draws(0), "p.yaml: x")
    assert "\n" not in str(caught.value)


def test_settings_are_told_apart_by_their_scheme() -> None:
    class Params(Settings):
        partitions: dict[str, PartitionSettings]

    raw = {"partitions": {"a": {"scheme": "iid"}, "b": {"scheme": "dirichlet", "alpha": 0.5, "clients": 3}}}
    params = validate(Params, raw, "params.yaml")
    assert params.partitions == {"a": Iid(), "b": Dirichlet(alpha=0.5, clients=3)}
    for wrong in ({"scheme": "idd"}, {}, {"scheme": "iid", "alpha": 1}, {"scheme": "iid", "clients": 0}):
        with pytest.raises(HetflError, match="partitions.a"):
            validate(Params, {"partitions": {"a": wrong}}, "params.yaml")


def indices(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("scheme", "train", "message"),
    [
        (Iid(clients=2), (indices(0, 1, 2), indices(2, 3)), "train sample 2 must have one client"),
        (Iid(clients=2), (indices(0, 1), indices(3)), "train sample 2 must have a client"),
        (Iid(clients=2), (indices(0, 1), indices(2, 2, 3)), "client 1 must be int64, sorted, none twice"),
        (Iid(clients=2), (indices(0, 1), indices(2, 3, 4)), r"client 1 must lie in 0\.\.3"),
        (Iid(clients=2), (indices(0, 1, 2, 3), indices()), "leaves client 1 without a training sample"),
        (Iid(clients=3), (indices(0, 1), indices(2, 3)), "clients: 3, the partition has 2"),
        (
            Dirichlet(clients=2, minimum=0.5),
            (indices(0, 1), indices(2, 3)),
            "minimum: client 0 holds fewer than 1",
        ),
        (Pathological(clients=2, classes_per_client=1), (indices(0, 1), indices(2, 3)), "must be own"),
    ],
)
def test_broken_promise_is_found(scheme: Scheme, train: tuple[np.ndarray, ...], message: str) -> None:
    labels = indices(0, 0, 1, 1)
    with pytest.raises(HetflError, match=message):
        check_partition(Partition(train, None), scheme, labels, labels, 2)


def dataset_of(labels: np.ndarray) -> Dataset:
    split = Split(np.zeros((len(labels), 1, 1, 1), np.uint8), labels)
    return Dataset("toy", "Toy", tuple("abcd"), {"train": split, "test": split}, "c0ffee")


@pytest.mark.parametrize("scheme", [DirichletOverlap(axis="clients"), Pathological(classes_per_client=4)])
def test_what_is_written_is_read_and_bytes_are_stable(tmp_path: Path, scheme: Scheme) -> None:
    labels = labels_of([21] * 4)
    partition = cut(scheme, labels)
    write_partition(tmp_path / "a", partition, scheme, dataset_of(labels), seed=7)
    found, card = read_partition(tmp_path / "a")
    assert same(found, partition)
    assert all(part.dtype == np.int64 for part in found.train)
    assert (found.test is None) == (partition.test is None)
    assert card["settings"] == scheme.model_dump()
    assert (card["seed"], card["dataset"], card["dataset_checksum"], card["clients"]) == (
        7,
        "toy",
        "c0ffee",
        5,
    )
    assert card["sizes"]["train"] == [len(part) for part in partition.train]
    assert card["class_counts"] == partition.class_counts(labels, 4).tolist()
    holders = np.bincount(np.concatenate(partition.train), minlength=84)
    assert card["overlap"] == np.mean(holders > 1)
    assert card["unused"] == np.mean(holders == 0)

    with zipfile.ZipFile(tmp_path / "a" / "indices.npz") as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    write_partition(tmp_path / "b", partition, scheme, dataset_of(labels), seed=7)
    for name in ("indices.npz", "card.json"):
        one, two = ((tmp_path / folder / name).read_bytes() for folder in "ab")
        assert hashlib.sha256(one).digest() == hashlib.sha256(two).digest()


def test_indices_that_are_not_the_cards_are_refused(tmp_path: Path) -> None:
    labels = labels_of([20] * 4)
    for seed in range(2):
        write_partition(tmp_path / str(seed), cut(Iid(), labels, seed), Iid(), dataset_of(labels), seed)
    (tmp_path / "0" / "indices.npz").replace(tmp_path / "1" / "indices.npz")
    with pytest.raises(HetflError, match="indices.npz: SHA-256 is .*, the card says"):
        read_partition(tmp_path / "1")
    with pytest.raises(HetflError, match="does not exist"):
        read_partition(tmp_path / "0")
    with pytest.raises(HetflError, match="card.json: does not exist"):
        read_partition(tmp_path / "2")
