"""What holds for every scheme: promises and their check, seeds, quantity, files."""

import hashlib
import json
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from partition_helpers import dataset_of, digest, labels_of, lengths, parts, same

from hetfl.config import Settings, validate
from hetfl.data.partitions import (
    Blocks,
    ClassSubsets,
    Dirichlet,
    DirichletOverlap,
    Domains,
    Iid,
    Pachinko,
    Partition,
    PartitionSettings,
    Pathological,
    Practical,
    Scheme,
    check_partition,
    make_partition,
    read_partition,
    write_partition,
)
from hetfl.data.partitions.shares import settle
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.files import sha256_file

SCHEMES = {
    "iid": Iid(clients=5),
    "overlap-classes": DirichletOverlap(axis="classes"),
    "overlap-clients": DirichletOverlap(axis="clients"),
    "dirichlet-0.5": Dirichlet(alpha=0.5),
    "dirichlet": Dirichlet(minimum=0.02),
    "class-subsets": ClassSubsets(classes=(2, 4, 6, 8, 10)),
    "practical": Practical(clients=5, beta=0.5, seed=None),
    "blocks": Blocks(clients=4, classes_per_client=5, seed=None),
    "pathological": Pathological(classes_per_client=4),
    "pathological-last": Pathological(classes_per_client=2, remainder="last"),
    "pachinko": Pachinko(beta=0.1),
    "domains": Domains(clients=4, clients_per_domain=2, limit=0.9),
}
every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())


def toy(train: int = 500, test: int = 200) -> Dataset:
    """Ten classes in five coarse ones, two domains."""
    return dataset_of(np.arange(train) * 7 % 10, np.arange(test) * 3 % 10, coarse=np.arange(10) * 3 % 5, domains=2)


def test_every_scheme_is_tried_here() -> None:
    assert {type(scheme) for scheme in SCHEMES.values()} == set(get_args(get_args(PartitionSettings)[0]))


@every_scheme
def test_seed_decides(scheme: Scheme) -> None:
    dataset = toy()
    assert same(make_partition(scheme, dataset, Draws(1)), make_partition(scheme, dataset, Draws(1)))
    assert not same(make_partition(scheme, dataset, Draws(1)), make_partition(scheme, dataset, Draws(2)))


@every_scheme
def test_seed_of_its_own_makes_one_partition_for_all_trials(scheme: Scheme) -> None:
    dataset = toy()
    for quantity in (1.0, 0.5):
        fixed = scheme.model_copy(update={"seed": 1, "quantity": quantity})
        free = scheme.model_copy(update={"quantity": quantity})
        expected = make_partition(free, dataset, Draws(1))
        assert all(same(make_partition(fixed, dataset, Draws(trial)), expected) for trial in range(3))


@every_scheme
def test_quantity_keeps_a_nested_part_of_the_training_samples(scheme: Scheme) -> None:
    dataset = toy()
    whole = make_partition(scheme, dataset, Draws(3))
    previous = whole
    for quantity in (0.8, 0.4, 0.2, 0.1, 0.001):
        thin = make_partition(scheme.model_copy(update={"quantity": quantity}), dataset, Draws(3))
        assert lengths(thin.train) == [max(1, int(round(quantity * n, 6))) for n in lengths(whole.train)]
        for few, more in zip(thin.train, previous.train, strict=True):
            # The same samples in the same order, some left out.
            np.testing.assert_array_equal(few, more[np.isin(more, few)])
        assert digest(replace(thin, train=whole.train)) == digest(whole)
        assert (thin.train_from, thin.test_from) == (whole.train_from, whole.test_from)
        previous = thin


@every_scheme
def test_test_quantity_keeps_a_part_of_the_test_samples(scheme: Scheme) -> None:
    dataset = toy()
    whole = make_partition(scheme, dataset, Draws(3))
    thin = make_partition(scheme.model_copy(update={"test_quantity": 0.5}), dataset, Draws(3))
    assert digest(replace(thin, test=whole.test)) == digest(whole)
    assert thin.test is not None
    if whole.test is None:
        sizes = [len(dataset.labels(whole.test_from)) // 2] * scheme.clients
        assert lengths(thin.test) == sizes
        assert all(np.array_equal(part, thin.test[0]) for part in thin.test)
    else:
        for few, more in zip(thin.test, whole.test, strict=True):
            assert len(few) == max(1, len(more) // 2) or not len(more)
            np.testing.assert_array_equal(few, more[np.isin(more, few)])


@every_scheme
def test_a_hundred_clients_and_classes_are_quick(scheme: Scheme) -> None:
    labels = labels_of([500] * 100)
    dataset = dataset_of(labels, labels_of([100] * 100, 1), coarse=np.arange(100) % 20, domains=50)
    more = {"clients": 100, "classes_per_client": 10, "classes": (50,) * 100, "minimum": 0}
    scheme = scheme.model_copy(update={key: value for key, value in more.items() if hasattr(scheme, key)})
    start = time.process_time()
    make_partition(scheme, dataset, Draws(0))
    assert time.process_time() - start < 2


GOLDEN = {
    "iid": "f2a539f77087",
    "overlap-classes": "8b8a4c8aad73",
    "overlap-clients": "c3fe97bbc713",
    "dirichlet-0.5": "f1f2b734e0f1",
    "dirichlet": "0588e770fece",
    "class-subsets": "5e5a4c1a05da",
    "practical": "e4a79967fe14",
    "blocks": "673d797d0bb5",
    "pathological": "9b8caa5033c4",
    "pathological-last": "5be9af291b65",
    "pachinko": "675af151e101",
    "domains": "d7b460fefbcb",
}


@every_scheme
def test_indices_are_what_they_always_were(scheme: Scheme, request: pytest.FixtureRequest) -> None:
    """Published results name their partitions by seed."""
    name = request.node.callspec.id
    assert digest(make_partition(scheme, toy(), Draws(0))) == GOLDEN[name]


def test_too_many_clients_are_an_error() -> None:
    dataset = dataset_of(labels_of([10] * 4))
    with pytest.raises(HetflError, match=r"^p.yaml: x.clients: 41 is more than the 40 training samples$"):
        make_partition(Iid(clients=41), dataset, Draws(0), "p.yaml: x")


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Practical(pool=("train", "vall")), r"^p.yaml: x.pool: unknown subset 'vall'; did you mean 'val'\?$"),
        (
            Blocks(pool=("tset",), classes_per_client=1),
            r"^p.yaml: x.pool: unknown subset 'tset'; did you mean 'test'",
        ),
        (
            Pachinko(beta=1.0, attribute="corse"),
            r"^p.yaml: x.attribute: unknown attribute 'corse'; did you mean 'coa",
        ),
        (Domains(attribute="style"), r"^p.yaml: x.attribute: unknown attribute 'style'; known: coarse, domain$"),
    ],
)
def test_unknown_names_are_errors_of_one_line(scheme: Scheme, message: str) -> None:
    labels = labels_of([10] * 4)
    dataset = dataset_of(labels, labels, labels, coarse=np.arange(4), domains=2)
    with pytest.raises(HetflError, match=message):
        make_partition(scheme, dataset, Draws(0), "p.yaml: x")


def test_settings_are_told_apart_by_their_scheme() -> None:
    class Params(Settings):
        partitions: dict[str, PartitionSettings]

    raw = {
        "a": {"scheme": "iid"},
        "b": {"scheme": "dirichlet", "alpha": 0.5, "clients": 3},
        "c": {"scheme": "class-subsets", "clients": 2, "classes": [1, 2]},
    }
    params = validate(Params, {"partitions": raw}, "params.yaml")
    assert params.partitions == {
        "a": Iid(),
        "b": Dirichlet(alpha=0.5, clients=3),
        "c": ClassSubsets(clients=2, classes=(1, 2)),
    }
    wrongs = {
        "idd": {"scheme": "idd"},
        "scheme": {},
        "alpha": {"scheme": "iid", "alpha": 1},
        "clients": {"scheme": "iid", "clients": 0},
        "quantity": {"scheme": "iid", "quantity": 0},
        "seed": {"scheme": "iid", "seed": -1},
        r"pool: \['train', 'train'\] names a subset twice": {"scheme": "practical", "pool": ["train", "train"]},
        r"classes: \[1, 2\] must have one number per client, clients is 5": {
            "scheme": "class-subsets",
            "classes": [1, 2],
        },
    }
    for message, wrong in wrongs.items():
        with pytest.raises(HetflError, match=rf"^params.yaml: partitions.a.*{message}"):
            validate(Params, {"partitions": {"a": wrong}}, "params.yaml")


def indices(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("scheme", "train", "message"),
    [
        (
            Iid(clients=2),
            (indices(0, 1, 2), indices(2, 3)),
            "train sample 2 of train has several clients; one is allowed",
        ),
        (Iid(clients=2), (indices(0, 1), indices(3)), "sample 2 of train has no client; one is needed"),
        (Iid(clients=2), (indices(0, 1), indices(2, 2, 3)), "client 1 must be int64 without duplicates"),
        (
            Iid(clients=2),
            (indices(0, 1), np.array([2, 3], dtype=np.int32)),
            "client 1 must be int64 without duplicates",
        ),
        (Iid(clients=2), (indices(0, 1), indices(2, 3, 4)), r"client 1 must lie in 0\.\.3"),
        (Iid(clients=2), (indices(0, 1), indices(2, -1)), r"client 1 must lie in 0\.\.3"),
        (Iid(clients=2), (indices(0, 1, 2, 3), indices()), "leaves client 1 without a training sample"),
        (Iid(clients=3), (indices(0, 1), indices(2, 3)), "clients: 3, the partition has 2"),
        (
            Dirichlet(clients=2, minimum=0.5),
            (indices(0, 1), indices(2, 3)),
            "minimum: client 0 holds fewer than 1",
        ),
        (
            Pathological(clients=2, classes_per_client=1),
            (indices(0, 1), indices(2, 3)),
            "test samples must be own, they are not",
        ),
    ],
)
def test_broken_promise_is_found(scheme: Scheme, train: tuple[np.ndarray, ...], message: str) -> None:
    dataset = dataset_of(indices(0, 0, 1, 1))
    with pytest.raises(HetflError, match=message):
        check_partition(Partition(train, None), scheme, dataset)


@pytest.mark.parametrize(
    ("scheme", "test", "message"),
    [
        (Practical(clients=2), (indices(2), indices(3)), None),
        (Practical(clients=2), (indices(2), indices()), "sample 3 of train has no client; one is needed"),
        (
            Practical(clients=2),
            (indices(2, 3), indices(3)),
            "test sample 3 of train has several clients; one is allowed",
        ),
        (Practical(clients=2), (indices(1, 2), indices(3)), "sample 1 of train is both a training and a test sample"),
        (ClassSubsets(clients=2, classes=(1, 1)), (indices(2, 3), indices(3)), None),
        (ClassSubsets(clients=2, classes=(1, 1)), (indices(2, 3), indices()), None),
        (ClassSubsets(clients=2, classes=(1, 1)), (indices(), indices()), "no client has a test sample; use another"),
        (ClassSubsets(clients=2, classes=(1, 1)), (indices(2), indices(0)), "sample 0 of train is both"),
    ],
)
def test_broken_promise_is_found_where_subsets_are_pooled(
    scheme: Scheme, test: tuple[np.ndarray, ...], message: str | None
) -> None:
    dataset = dataset_of(indices(0, 0, 1, 1))
    partition = Partition((indices(1), indices(0)), test, ("train",), ("train",))
    if message is None:
        check_partition(partition, scheme, dataset)
    else:
        with pytest.raises(HetflError, match=message):
            check_partition(partition, scheme, dataset)


def test_a_surplus_is_taken_from_the_largest_count_that_may_become_smaller() -> None:
    def settled(wanted: list[int], least: list[int], total: int) -> list[int]:
        given = np.array(wanted)
        return settle(given, given / given.sum(), total, np.array(least), np.full(len(wanted), 100)).tolist()

    assert settled([5, 5, 4], [0, 0, 0], 8) == [3, 3, 2]
    assert settled([5, 5, 4], [5, 0, 0], 8) == [5, 2, 1]
    assert settled([2, 5, 4], [2, 4, 0], 7) == [2, 4, 1]


@every_scheme
def test_what_is_written_is_read_and_bytes_are_stable(tmp_path: Path, scheme: Scheme) -> None:
    dataset = toy()
    partition = make_partition(scheme, dataset, Draws(7))
    write_partition(tmp_path / "a", partition, scheme, dataset, seed=7)
    found, card = read_partition(tmp_path / "a")
    assert same(found, partition)
    assert all(part.dtype == np.int64 for part in parts(found))
    assert (found.test is None) == (partition.test is None)
    assert (found.train_from, found.test_from) == (partition.train_from, partition.test_from)
    assert type(scheme).model_validate(card["settings"]) == scheme
    assert card["settings"]["scheme"] == scheme.model_dump()["scheme"]
    assert card["splits"] == {"train": list(partition.train_from), "test": list(partition.test_from)}
    assert (card["seed"], card["dataset"], card["dataset_checksum"]) == (7, "toy", "c0ffee")
    assert card["clients"] == scheme.clients
    assert card["sizes"]["train"] == lengths(partition.train)
    labels = dataset.labels(partition.train_from)
    assert card["class_counts"]["train"] == partition.class_counts(labels, 10).tolist()
    assert ("test" in card["class_counts"]) == (partition.test is not None)
    if partition.test is not None:
        tested = dataset.labels(partition.test_from)
        assert card["class_counts"]["test"] == partition.class_counts(tested, 10, "test").tolist()
    assert card["class_names"] == list(dataset.class_names)

    with zipfile.ZipFile(tmp_path / "a" / "indices.npz") as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    write_partition(tmp_path / "b", partition, scheme, dataset, seed=7)
    for name in ("indices.npz", "card.json"):
        one, two = ((tmp_path / folder / name).read_bytes() for folder in "ab")
        assert hashlib.sha256(one).digest() == hashlib.sha256(two).digest()


def test_card_tells_how_much_is_shared_and_unused(tmp_path: Path) -> None:
    dataset = dataset_of(indices(0, 0, 1, 1))
    cases = {
        # One of four with two clients, one of four with none.
        "overlap": (DirichletOverlap(clients=2, axis="classes"), Partition((indices(0, 1), indices(1, 2)), None)),
        # Held for testing is not unused.
        "pool": (
            ClassSubsets(clients=2, classes=(1, 1)),
            Partition((indices(0), indices(1)), (indices(2), indices(2)), ("train",), ("train",)),
        ),
    }
    found = {}
    for name, (scheme, partition) in cases.items():
        write_partition(tmp_path / name, partition, scheme.model_copy(update={"seed": 4}), dataset, seed=0)
        card = read_partition(tmp_path / name)[1]
        found[name] = card["overlap"], card["unused"], card["seed"]
    assert found == {"overlap": (0.25, 0.25, 4), "pool": (0.0, 0.25, 4)}


def test_indices_that_are_not_the_cards_are_refused(tmp_path: Path) -> None:
    dataset = dataset_of(labels_of([20] * 4))
    for seed in range(2):
        partition = make_partition(Iid(), dataset, Draws(seed))
        write_partition(tmp_path / str(seed), partition, Iid(), dataset, seed)
    (tmp_path / "0" / "indices.npz").replace(tmp_path / "1" / "indices.npz")
    with pytest.raises(HetflError, match="indices.npz: SHA-256 is .*, the card says"):
        read_partition(tmp_path / "1")
    with pytest.raises(HetflError, match="does not exist"):
        read_partition(tmp_path / "0")
    with pytest.raises(HetflError, match="card.json: does not exist"):
        read_partition(tmp_path / "2")
    (tmp_path / "1" / "card.json").write_text('{"sha256": "0"}')
    with pytest.raises(HetflError, match="card.json: is not the card of a partition; delete the folder"):
        read_partition(tmp_path / "1")


def test_a_partition_of_other_data_is_refused(tmp_path: Path) -> None:
    dataset = dataset_of(labels_of([20] * 4))
    write_partition(tmp_path, make_partition(Iid(), dataset, Draws(0)), Iid(), dataset, 0)
    with pytest.raises(HetflError, match="was made from other data; run dvc repro partition@toy$"):
        read_partition(tmp_path, replace(dataset, checksum="other"))


def damaged(arrays: dict[str, Any], card: dict[str, Any], kind: str) -> str:
    """Change a partition; returns what the line about it says."""
    if kind == "floats":
        arrays["train-0"] = arrays["train-0"].astype(float)
        return "train-0 is float64"
    if kind == "a matrix":
        arrays["train-0"] = arrays["train-0"][:, None]
        return r"train-0 is int64 \[.*, 1\]"
    if kind == "a sample twice":
        arrays["train-0"][1] = arrays["train-0"][0]
        return "without duplicates"
    if kind == "below the data":
        arrays["train-0"][0] = -1
        return r"card.json: train-0 has -1, indices lie in 0..79"
    if kind == "beyond the data":
        arrays["train-4"][0] = 80
        return r"card.json: train-4 has 80, indices lie in 0..79"
    if kind == "a client less":
        del arrays["train-4"]
        return "has 4 arrays, the card says 5 clients"
    if kind == "a client more":
        arrays["train-5"] = arrays["train-4"][:0]
        return "has 6 arrays, the card says 5 clients"
    if kind == "other samples":
        arrays["train-4"] = arrays["train-4"][:-1]
        return "card.json: sizes is not what the indices and the data set say"
    name, value = kind.split("=")
    card[name] = json.loads(value)
    return {"clients": "card.json: clients is", "splits": "is not the card"}.get(
        name, f"card.json: {name} is not what"
    )


DAMAGED = [
    *("floats", "a matrix", "a sample twice", "below the data", "beyond the data", "a client less", "a client more"),
    *("other samples", "clients=0", "clients=true", 'clients="5"', "splits=[]", "overlap=0.5", "class_counts={}"),
    *('class_names=["a"]', "unused=1.0", "sizes={}"),
]


@pytest.mark.parametrize("kind", DAMAGED)
def test_partitions_with_a_right_checksum_and_wrong_content_are_refused(tmp_path: Path, kind: str) -> None:
    dataset = dataset_of(labels_of([20] * 4))
    write_partition(tmp_path, make_partition(Iid(clients=5), dataset, Draws(0)), Iid(clients=5), dataset, 0)
    read_partition(tmp_path, dataset)
    with np.load(tmp_path / "indices.npz") as stored:
        arrays = dict(stored)
    card = json.loads((tmp_path / "card.json").read_text())
    told = damaged(arrays, card, kind)
    np.savez(tmp_path / "indices.npz", **arrays)
    card["sha256"] = sha256_file(tmp_path / "indices.npz")
    (tmp_path / "card.json").write_text(json.dumps(card))
    with pytest.raises(HetflError, match=told) as caught:
        read_partition(tmp_path, dataset)
    assert "\n" not in str(caught.value) and "delete the folder and run dvc repro again" in str(caught.value)


def test_what_is_no_archive_of_indices_is_one_line(tmp_path: Path) -> None:
    dataset = dataset_of(labels_of([20] * 4))
    write_partition(tmp_path, make_partition(Iid(), dataset, Draws(0)), Iid(), dataset, 0)
    card = json.loads((tmp_path / "card.json").read_text())
    for content in (b"", b"PK\x03\x04" + bytes(99), b"noise"):
        (tmp_path / "indices.npz").write_bytes(content)
        (tmp_path / "card.json").write_text(json.dumps({**card, "sha256": sha256_file(tmp_path / "indices.npz")}))
        with pytest.raises(HetflError, match="indices.npz: "):
            read_partition(tmp_path)
