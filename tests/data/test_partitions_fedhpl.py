"""FedHPL's partitions: IID, Dir, Non-IID and class subsets, with the sizes its sheet derives."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_helpers import assert_covers, class_sizes, cut, dataset_of, labels_of, lengths, own, quick, seeds

from hetfl.data.partitions import ClassSubsets, Dirichlet, DirichletOverlap, Iid, Scheme, make_partition
from hetfl.draws import Draws
from hetfl.errors import HetflError

SVHN = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]

AlphaMode = Literal["share", "literal"]


@quick
@given(class_sizes, st.integers(1, 20), seeds)
def test_iid_is_equal_parts_of_everything(sizes: list[int], clients: int, seed: int) -> None:
    labels = labels_of(sizes)
    partition = cut(Iid(clients=clients), labels, seed)
    assert_covers(partition.train, len(labels))
    assert partition.test is None
    assert max(lengths(partition.train)) - min(lengths(partition.train)) <= 1


def test_iid_sizes_of_svhn_and_of_more_clients() -> None:
    assert lengths(cut(Iid(), labels_of(SVHN)).train) == [14652, 14652, 14651, 14651, 14651]
    labels = labels_of([5000] * 10)
    for clients in (20, 50, 100):
        assert lengths(cut(Iid(clients=clients), labels).train) == [50_000 // clients] * clients


def test_quantity_of_figure_3b() -> None:
    labels = labels_of([5000] * 10)
    for percent in (10, 20, 40, 60, 80, 100):
        partition = cut(Iid(quantity=percent / 100), labels)
        assert lengths(partition.train) == [100 * percent] * 5


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
    assert lengths(partition.train) == lengths(np.array_split(labels, clients))
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
    rng = Draws(2).numpy_generator("partition:dirichlet-overlap:shares", 0)
    shares = rng.dirichlet(np.ones(4))
    assert shares[0] * 601 > 5
    assert counts[0, 0] == 5
    np.testing.assert_allclose(counts[0, 1:], 596 * shares[1:] / shares[1:].sum(), atol=1.5)


def test_random_alpha_spreads_as_the_sheet_says() -> None:
    """FedHPL sheet 2.4: mean largest share 0.46 (share), 0.73 (literal), 0.81 / 0.56 for Dir(0.1) / Dir(0.5)."""
    labels = labels_of([200] * 400)
    schemes = {
        0.46: Dirichlet(),
        0.73: Dirichlet(alpha_mode="literal"),
        0.81: Dirichlet(alpha=0.1),
        0.56: Dirichlet(alpha=0.5),
    }
    for expected, scheme in schemes.items():
        largest = cut(scheme, labels).class_counts(labels, 400).max(0) / 200
        assert abs(largest.mean() - expected) < 0.04


def test_literal_alpha_hits_the_size_of_a_class_in_dir() -> None:
    """FedHPL sheet 2.4: about 80 % of CIFAR10's clients in the literal reading, 2 % in the other."""
    labels = labels_of([500] * 10)
    for mode, low, high in (("literal", 0.65, 0.95), ("share", 0, 0.1)):
        counts = [
            cut(DirichletOverlap(axis="classes", alpha_mode=mode), labels, seed).class_counts(labels, 10)
            for seed in range(20)
        ]
        assert low <= np.mean(np.concatenate(counts).max(axis=1) == 500) <= high


@quick
@given(st.data(), st.lists(st.integers(25, 60), min_size=1, max_size=8), seeds)
def test_class_subsets_are_trained_in_parts_and_tested_in_full(
    data: st.DataObject, sizes: list[int], seed: int
) -> None:
    classes = data.draw(st.lists(st.integers(1, len(sizes)), min_size=1, max_size=5))
    labels = labels_of(sizes)
    scheme = ClassSubsets(clients=len(classes), classes=tuple(classes))
    partition = cut(scheme, labels, seed)
    assert partition.train_from == partition.test_from == ("train",)
    counts = partition.class_counts(labels, len(sizes))
    assert (counts > 0).sum(1).tolist() == classes
    held_out = np.array(sizes) - np.floor(np.round(0.8 * np.array(sizes), 9)).astype(int)
    for (train, test), owned in zip(own(partition), counts > 0, strict=True):
        assert np.bincount(labels[test], minlength=len(sizes)).tolist() == (held_out * owned).tolist()
        assert set(labels[train]) == set(labels[test])
    trained, tested = (np.concatenate(side) for side in (partition.train, partition.test or ()))
    assert len(np.unique(trained)) == len(trained)
    assert not set(trained) & set(tested)
    owned_by_some = (counts > 0).any(0)
    assert (counts.sum(0) == (np.array(sizes) - held_out) * owned_by_some).all()
    for column in counts.T:
        shares = column[column > 0]
        assert not len(shares) or shares.max() - shares.min() <= 1


def test_class_subsets_of_cifar10() -> None:
    labels = labels_of([5000] * 10)
    partition = cut(ClassSubsets(classes=(2, 4, 6, 8, 10)), labels)
    assert lengths(partition.test or ()) == [2000, 4000, 6000, 8000, 10_000]
    assert sum(lengths(partition.train)) == 40_000  # the last client owns every class
    chosen = {
        tuple(np.unique(labels[cut(ClassSubsets(clients=1, classes=(2,)), labels, s).train[0]])) for s in range(9)
    }
    assert len(chosen) > 4


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
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
        (ClassSubsets(classes=(1, 1, 1, 1, 5)), "p.yaml: x.classes: 5 is more than the 4 classes"),
        (ClassSubsets(clients=12, classes=(1,) * 12, train_share=0.1), "p.yaml: x.clients: 12 leaves client"),
    ],
)
def test_impossible_partition_names_key_value_and_remedy(scheme: Scheme, message: str) -> None:
    with pytest.raises(HetflError, match=message) as caught:
        make_partition(scheme, dataset_of(labels_of([10] * 4)), Draws(0), "p.yaml: x")
    assert "\n" not in str(caught.value)
