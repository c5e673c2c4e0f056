"""FGPT's and SGPT's partitions: a few classes per client, Pachinko, domains."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_helpers import NO_IMAGES, assert_covers, cut, dataset_of, labels_of, lengths, own, quick, seeds

from hetfl.data.partitions import Domains, Pachinko, Partition, Pathological, Scheme, make_partition
from hetfl.data.store import Dataset, Subset
from hetfl.draws import Draws
from hetfl.errors import HetflError


@quick
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), seeds)
def test_pathological_gives_every_client_its_classes(taken: int, more: int, rounds: int, seed: int) -> None:
    num_classes = taken * more
    clients = more * rounds
    labels, test_labels = labels_of([40] * num_classes), labels_of([20] * num_classes, 1)
    scheme = Pathological(clients=clients, classes_per_client=taken)
    partition = cut(scheme, labels, seed, test_labels)
    for train, test in own(partition):
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
    [(10, 430, 560, 49_490, 9_500), (5, 420, 580, 49_745, 9_750), (50, 440, 520, 47_515, 7_487)],
)
def test_pathological_sizes_of_cifar100(taken: int, low: int, high: int, total: int, test_total: int) -> None:
    """FGPT sheet, section 3: n_i 446-543 and totals 49,490 / 9,500 at s=10."""
    labels, test_labels = labels_of([500] * 100), labels_of([100] * 100)
    partition = cut(Pathological(clients=100, classes_per_client=taken), labels, 0, test_labels)
    sizes = lengths(partition.train)
    assert low <= min(sizes) and max(sizes) <= high
    assert abs(sum(sizes) - total) < 60
    test_sizes = lengths(partition.test or ())
    assert abs(sum(test_sizes) - test_total) < 60
    if taken == 10:
        assert min(test_sizes) >= 80 and max(test_sizes) <= 108


def test_pathological_sizes_of_cifar100c() -> None:
    """FGPT sheet, section 3: 80 / 20 images a class; s=2 gives 160 / 40 each, s=10 loses nothing."""
    labels, test_labels = labels_of([80] * 100), labels_of([20] * 100)
    for taken in (2, 10):
        scheme = Pathological(clients=50, classes_per_client=taken, remainder="last")
        partition = cut(scheme, labels, 0, test_labels)
        assert_covers(partition.train, 8000)
        assert_covers(partition.test or (), 2000)
        if taken == 2:
            assert {(len(train), len(test)) for train, test in own(partition)} == {(160, 40)}


def fine_and_coarse(partition: Partition, dataset: Dataset, groups: np.ndarray) -> tuple[list[int], list[int]]:
    """Number of classes and of coarse labels of each client."""
    train, test = dataset.subset("train").labels, dataset.subset("test").labels
    held = [np.unique(np.concatenate((train[a], test[b]))) for a, b in own(partition)]
    return lengths(held), lengths([np.unique(groups[labels]) for labels in held])


@pytest.mark.parametrize(("beta", "fine", "low", "high", "coarse"), [(0.1, 33, 4, 60, 8.5), (0.01, 9, 3, 30, 2)])
def test_pachinko_of_cifar100_spreads_as_the_sheet_says(
    beta: float, fine: float, low: int, high: int, coarse: float
) -> None:
    """FGPT sheet, section 3: fine labels per client 33 (7-54) and 9 (4-27), coarse labels 8.5 and 2."""
    groups = np.random.default_rng(0).permutation(np.arange(100) % 20)
    dataset = dataset_of(labels_of([500] * 100), labels_of([100] * 100), coarse=groups)
    medians = []
    for seed in range(4):
        partition = make_partition(Pachinko(clients=100, beta=beta), dataset, Draws(seed))
        assert {len(train) + len(test) for train, test in own(partition)} == {600}
        assert_covers(partition.train, 50_000)
        assert_covers(partition.test or (), 10_000)
        fines, coarses = fine_and_coarse(partition, dataset, groups)
        assert low <= min(fines) and max(fines) <= high
        medians.append((np.median(fines), np.median(coarses)))
    assert np.mean(medians, axis=0) == pytest.approx([fine, coarse], rel=0.12)


@quick
@given(
    st.lists(st.integers(5, 30), min_size=2, max_size=8), st.integers(1, 7), st.sampled_from([1e-3, 0.1, 10]), seeds
)
def test_pachinko_deals_out_everything_in_equal_parts(sizes: list[int], clients: int, beta: float, seed: int) -> None:
    labels, test_labels = labels_of([3 * size for size in sizes]), labels_of(sizes)
    dataset = dataset_of(labels, test_labels, coarse=np.arange(len(sizes)) % 2)
    partition = make_partition(Pachinko(clients=clients, beta=beta, beta_fine=0.5), dataset, Draws(seed))
    assert_covers(partition.train, len(labels))
    assert_covers(partition.test or (), len(test_labels))
    totals = [len(train) + len(test) for train, test in own(partition)]
    assert max(totals) - min(totals) <= 1


def test_pachinko_follows_its_weights_until_a_class_runs_out() -> None:
    """Even weights give even classes; one small class is emptied and the other of its group takes its place."""
    groups = np.array([0, 0, 1, 1])
    dataset = dataset_of(labels_of([4000] * 4), labels_of([1000] * 4), coarse=groups)
    even = make_partition(Pachinko(clients=20, beta=1e4, beta_fine=1e4), dataset, Draws(0))
    counts = even.class_counts(dataset.subset("train").labels, 4)
    # A fourth of 1,000 each, four fifths of them training samples; the last client takes what is left.
    assert np.sort(np.abs(counts - 200).max(axis=1))[:-1].max() < 60

    dataset = dataset_of(labels_of([100, 7900, 4000, 4000]), labels_of([0, 2000, 1000, 1000]), coarse=groups)
    skewed = make_partition(Pachinko(clients=20, beta=1e4, beta_fine=1e4), dataset, Draws(0))
    counts = skewed.class_counts(dataset.subset("train").labels, 4)
    np.testing.assert_allclose((counts[:, 0] + counts[:, 1]) / counts.sum(1), 0.5, atol=0.1)


def test_pachinko_concentrates_within_coarse_labels() -> None:
    groups = np.arange(100) % 20
    dataset = dataset_of(labels_of([50] * 100), labels_of([10] * 100), coarse=groups)
    median = {}
    for beta_fine in (0.01, 10.0):
        partition = make_partition(Pachinko(clients=60, beta=0.01, beta_fine=beta_fine), dataset, Draws(0))
        median[beta_fine] = np.median(fine_and_coarse(partition, dataset, groups)[0])
    assert median[0.01] < 0.6 * median[10.0]


def test_pachinko_deals_in_random_order() -> None:
    """The first two of five get the samples that do not go into five."""
    dataset = dataset_of(labels_of([15, 15]), labels_of([6, 6]), coarse=np.array([0, 1]))
    larger = set()
    for seed in range(8):
        partition = make_partition(Pachinko(beta=10), dataset, Draws(seed))
        larger.add(tuple(k for k, (train, test) in enumerate(own(partition)) if len(train) + len(test) == 9))
    assert len(larger) > 3 and all(len(clients) == 2 for clients in larger)


def test_pachinko_needs_classes_within_coarse_labels() -> None:
    dataset = dataset_of(labels_of([10] * 4), coarse=np.arange(4), domains=2)
    with pytest.raises(
        HetflError, match=r"^x.attribute: 'domain' has several values within class 'c\d'; one that groups"
    ):
        make_partition(Pachinko(beta=0.1, attribute="domain"), dataset, Draws(0), "x")


def by_domain(train: list[int], test: list[int], classes: int = 10) -> Dataset:
    """Domains of these sizes."""
    names = tuple(f"d{d}" for d in range(len(train)))

    def subset(sizes: list[int]) -> Subset:
        domain = labels_of(sizes)
        return Subset(NO_IMAGES, np.arange(len(domain)) % classes, {"domain": domain})

    subsets = {"train": subset(train), "test": subset(test)}
    return Dataset("toy", "Toy", tuple(f"c{c}" for c in range(classes)), subsets, "c0ffee", {"domain": names})


def test_domains_of_five_dataset() -> None:
    dataset = by_domain([800] * 5, [200] * 5)
    partition = make_partition(Domains(clients=20, clients_per_domain=4), dataset, Draws(0))
    assert {(len(train), len(test)) for train, test in own(partition)} == {(200, 50)}
    for side, indices in (("train", partition.train), ("test", partition.test or ())):
        domain = dataset.attribute("domain", (side,))
        assert [np.unique(domain[part]).tolist() for part in indices] == [[k // 4] for k in range(20)]


@quick
@given(st.lists(st.integers(8, 40), min_size=1, max_size=5), st.integers(1, 4), seeds)
def test_domains_are_cut_into_equal_parts(sizes: list[int], each: int, seed: int) -> None:
    dataset = by_domain(sizes, [max(1, size // 4) for size in sizes])
    partition = make_partition(Domains(clients=each * len(sizes), clients_per_domain=each), dataset, Draws(seed))
    assert_covers(partition.train, sum(sizes))
    assert_covers(partition.test or (), len(dataset.subset("test")))
    for first in range(0, partition.clients, each):
        of_domain = lengths(partition.train[first : first + each])
        assert max(of_domain) - min(of_domain) <= 1


def test_limit_gives_every_client_the_same_number() -> None:
    """Office-Caltech10 with about 80 % for training: half of the smallest, rounded down."""
    train, test = [767, 899, 125, 236], [191, 224, 32, 59]
    dataset = by_domain(train, test)
    partition = make_partition(Domains(clients=4, limit=0.5), dataset, Draws(0))
    assert lengths(partition.train) == [62] * 4
    assert lengths(partition.test or ()) == test
    whole = make_partition(Domains(clients=4), dataset, Draws(0))
    assert all(np.isin(few, many).all() for few, many in zip(partition.train, whole.train, strict=True))
    # A random choice: a set may be stored class by class.
    positions = np.searchsorted(whole.train[1], partition.train[1])
    assert 300 < positions.mean() < 600


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Pathological(classes_per_client=5), "p.yaml: x.classes_per_client: 5 is more than the 4 classes"),
        (
            Pathological(classes_per_client=3),
            "p.yaml: x.classes_per_client: 3 for each of 5 .* a multiple of 4",
        ),
        (Pathological(classes_per_client=1, clients=2), "p.yaml: x.classes_per_client: 1 .* a multiple of 2"),
        (Domains(clients=5), "p.yaml: x.clients: 5, but 2 domains with 1 each need 2"),
        (Domains(clients=4, clients_per_domain=2, limit=0.05), "p.yaml: x.limit: 0.05 of the 10 training samples"),
    ],
)
def test_impossible_partition_names_key_value_and_remedy(scheme: Scheme, message: str) -> None:
    with pytest.raises(HetflError, match=message) as caught:
        make_partition(scheme, dataset_of(labels_of([10] * 4), domains=2), Draws(0), "p.yaml: x")
    assert "\n" not in str(caught.value)
