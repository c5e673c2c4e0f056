import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetfl.config import validate
from hetfl.data import store
from hetfl.data.catalogue import entry, prepare_dataset
from hetfl.data.fetch import Sources
from hetfl.data.sets.digits import DigitsSettings
from hetfl.data.store import (
    Dataset,
    Subset,
    read_card,
    read_dataset,
    verified_dataset,
    verify_dataset,
    write_dataset,
)
from hetfl.errors import HetflError

DOMAINS = {"domain": ("amazon", "webcam")}
SOURCE = [{"name": "tiny.zip", "from": "mirror", "sha256": "0" * 64}, {"name": "load_tiny", "from": "bundled"}]


def nowhere() -> Sources:
    """Sources that have nothing, new each time, since they remember what was taken."""
    return Sources(mirror=None, downloads=Path("/nonexistent"))


def some_subset(size: int = 6, classes: int = 3, **attributes: Any) -> Subset:
    rng = np.random.default_rng(size)
    images = rng.integers(0, 256, (size, 4, 5, 3), dtype=np.uint8)
    values = {name: np.asarray(of) for name, of in attributes.items()}
    return Subset(images, np.arange(size, dtype=np.int64) % classes, values)


def write(folder: Path, attributes: dict[str, tuple[str, ...]] | None = None, **subsets: Subset) -> None:
    write_dataset(
        folder,
        name="tiny",
        title="Tiny",
        origin="this test",
        licence="none",
        source=SOURCE,
        settings={"seed": 3},
        class_names=("a", "b", "c"),
        subsets=subsets or {"train": some_subset(6), "test": some_subset(4)},
        attributes=attributes,
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("data") / "digits"
    prepare_dataset("digits", DigitsSettings(), folder, nowhere())
    verify_dataset(folder)
    return read_dataset(folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    dataset = read_dataset(tmp_path / "tiny")
    assert (dataset.name, dataset.title, dataset.class_names, dataset.num_classes) == (
        "tiny",
        "Tiny",
        ("a", "b", "c"),
        3,
    )
    assert set(dataset.subsets) == {"train", "test"}
    for name, size in (("train", 6), ("test", 4)):
        subset, original = dataset.subset(name), some_subset(size)
        assert len(subset) == size
        assert isinstance(subset.images, np.memmap)
        np.testing.assert_array_equal(subset.images, original.images)
        np.testing.assert_array_equal(subset.labels, original.labels)
    assert dataset.subset("test").class_counts(4).tolist() == [2, 1, 1, 0]
    card = read_card(tmp_path / "tiny")
    assert card.image_shape == (4, 5, 3)
    assert card.subset_sizes == {"train": 6, "test": 4}
    assert card.settings == {"seed": 3}
    assert card.source == SOURCE
    assert card.attributes == dataset.attributes == {}


def test_attributes_are_written_and_read(tmp_path: Path) -> None:
    train, test = (
        some_subset(6, domain=[0, 1] * 3, coarse=[0] * 6),
        some_subset(4, coarse=[0] * 4, domain=[1, 1, 0, 1]),
    )
    names = DOMAINS | {"coarse": ("everything",)}
    write(tmp_path / "tiny", names, train=train, test=test)
    dataset = read_dataset(tmp_path / "tiny")
    assert dataset.attributes == names
    assert isinstance(dataset.subset("train").attributes["domain"], np.memmap)
    assert dataset.subset("train").attributes["domain"].tolist() == [0, 1] * 3
    assert dataset.attribute("domain", ["test", "train"]).tolist() == [1, 1, 0, 1, *[0, 1] * 3]
    assert dataset.attribute("coarse", ["test"]).tolist() == [0] * 4
    assert read_card(tmp_path / "tiny").attributes == names
    other = replace(test, attributes=test.attributes | {"domain": 1 - test.attributes["domain"]})
    write(tmp_path / "other", names, train=train, test=other)
    assert read_dataset(tmp_path / "other").checksum != dataset.checksum
    verify_dataset(tmp_path / "tiny")


def test_labels_of_subsets_stand_one_after_another(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    dataset = read_dataset(tmp_path / "tiny")
    assert dataset.labels(["test", "train"]).tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 1, 2]
    assert dataset.labels(["test"]).dtype == np.int64
    with pytest.raises(HetflError, match="data set tiny: unknown subset 'val'"):
        dataset.labels(["train", "val"])


def test_missing_attribute_is_named(tmp_path: Path) -> None:
    write(tmp_path / "tiny", DOMAINS, train=some_subset(2, domain=[0, 1]))
    dataset = read_dataset(tmp_path / "tiny")
    with pytest.raises(HetflError, match="data set tiny: unknown attribute 'domains'; did you mean 'domain'"):
        dataset.attribute("domains", ["train"])
    with pytest.raises(HetflError, match="data set tiny: unknown subset 'tset'; known: train"):
        dataset.attribute("domain", ["tset"])


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (some_subset(2), "test: has labels; labels, domain are needed"),
        (some_subset(2, domain=[0, 1], coarse=[0, 0]), "test: has labels, domain, coarse; labels, domain are needed"),
        (some_subset(2, coarse=[0, 1]), "test: has labels, coarse; labels, domain are needed"),
        (some_subset(2, domain=[0.0, 1.0]), r"test domain: float64 \[2\], int64 \[2\] is needed"),
        (some_subset(2, domain=[0]), r"test domain: int64 \[1\], int64 \[2\] is needed"),
        (some_subset(2, domain=[[0], [1]]), r"test domain: int64 \[2, 1\], int64 \[2\] is needed"),
        (some_subset(2, domain=[0, 2]), "test domain: 2 is not a domain, they run from 0 to 1"),
        (some_subset(2, domain=[-1, 2]), "test domain: -1 is not a domain, they run from 0 to 1"),
    ],
)
def test_malformed_attributes_are_not_written(tmp_path: Path, test: Subset, message: str) -> None:
    with pytest.raises(HetflError, match=f"^data set tiny: {message}$"):
        write(tmp_path / "tiny", DOMAINS, train=some_subset(2, domain=[0, 1]), test=test)
    assert not (tmp_path / "tiny").exists()


def test_no_subset_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(HetflError, match="data set tiny: has no subset"):
        write_dataset(
            tmp_path / "tiny",
            name="tiny",
            title="Tiny",
            origin="this test",
            licence="none",
            source=[],
            settings={},
            class_names=("a",),
            subsets={},
        )


def test_checksum_depends_on_content_only(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two")
    write(tmp_path / "swapped", train=some_subset(4), test=some_subset(6))
    one, two, swapped = (read_dataset(tmp_path / name).checksum for name in ("one", "two", "swapped"))
    assert one == two != swapped


def test_writing_again_replaces_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    write(tmp_path / "tiny", public=some_subset(5))
    assert set(read_dataset(tmp_path / "tiny").subsets) == {"public"}
    assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == [
        "card.json",
        "public-images.npy",
        "public-labels.npy",
    ]


def test_missing_subset_is_named(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    with pytest.raises(HetflError, match="unknown subset 'tset'; did you mean 'test'"):
        read_dataset(tmp_path / "tiny").subset("tset")


def test_missing_folder_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(HetflError, match="cifar10: does not exist; run dvc repro download-cifar10"):
        read_dataset(tmp_path / "cifar10")


def test_missing_file_says_what_to_run_for_the_data_set_of_the_card(tmp_path: Path) -> None:
    write(tmp_path / "ward-0")
    (tmp_path / "ward-0" / "test-labels.npy").unlink()
    with pytest.raises(HetflError, match="ward-0/test-labels.npy: does not exist; run dvc repro download-tiny"):
        read_dataset(tmp_path / "ward-0")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "test-domain.npy: does not exist; run dvc repro download-tiny"),
        (lambda path: path.write_bytes(path.read_bytes()[:-8]), "test-domain.npy: has 136 bytes, the card says 144"),
        (lambda path: np.save(path, np.array([0, 2])), "test domain: 2 is not a domain"),
        (lambda path: np.save(path, np.array([0.0, 1.0])), r"test domain: float64 \[2\], int64 \[2\] is needed"),
    ],
)
def test_damaged_attribute_is_found_on_reading(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    write(tmp_path / "tiny", DOMAINS, train=some_subset(2, domain=[0, 1]), test=some_subset(2, domain=[1, 0]))
    damage(tmp_path / "tiny" / "test-domain.npy")
    with pytest.raises(HetflError, match=message):
        read_dataset(tmp_path / "tiny")


def test_changed_content_is_found_by_verification(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    path = tmp_path / "tiny" / "train-images.npy"
    images = np.load(path)
    images[0, 0, 0, 0] ^= 1
    np.save(path, images)
    read_dataset(tmp_path / "tiny")
    with pytest.raises(HetflError, match="train-images.npy: SHA-256 is"):
        verify_dataset(tmp_path / "tiny")


def test_changed_card_is_found_by_verification(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    path = tmp_path / "tiny" / "card.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"checksum": "0" * 64}))
    with pytest.raises(HetflError, match="card.json: checksum does not belong"):
        verify_dataset(tmp_path / "tiny")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "bytes, the card says"),
        (lambda content: b"x" * len(content), "is not an array file of numpy"),
    ],
)
def test_damaged_file_is_found_on_reading(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    write(tmp_path / "tiny")
    path = tmp_path / "tiny" / "train-images.npy"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(HetflError, match=message):
        read_dataset(tmp_path / "tiny")


def test_labels_outside_the_classes_are_found_on_reading(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    path = tmp_path / "tiny" / "train-labels.npy"
    np.save(path, np.load(path) + 1)
    with pytest.raises(HetflError, match="train labels: 3 is not a class, they run from 0 to 2"):
        read_dataset(tmp_path / "tiny")


@pytest.mark.parametrize(
    ("subset", "message"),
    [
        (
            Subset(some_subset().images.astype(np.float32), some_subset().labels),
            r"float32 \[6, 4, 5, 3\], uint8",
        ),
        (Subset(some_subset().images[..., 0], some_subset().labels), r"uint8 \[6, 4, 5\]"),
        (Subset(some_subset().images[:5], some_subset().labels), r"uint8 \[5, 4, 5, 3\], uint8 \[6, "),
        (Subset(some_subset().images, some_subset().labels.astype(np.int32)), r"int32 \[6\], int64 \[6\]"),
        (Subset(some_subset().images, some_subset().labels - 1), "-1 is not a class"),
        (Subset(some_subset().images[:0], some_subset().labels[:0]), "0 samples"),
    ],
)
def test_malformed_subset_is_not_written(tmp_path: Path, subset: Subset, message: str) -> None:
    with pytest.raises(HetflError, match=message):
        write(tmp_path / "tiny", train=subset)
    assert not (tmp_path / "tiny").exists()


def test_digits_are_scikit_learns(digits: Dataset) -> None:
    from sklearn.datasets import load_digits  # a second, which who collects this test need not wait for

    bunch = load_digits()
    expected = sorted(
        (label, np.rint(image * 255 / 16).astype(np.uint8).tobytes())
        for image, label in zip(bunch.images, bunch.target, strict=True)
    )
    subsets = digits.subsets.values()
    found = sorted(
        (label, image.tobytes())
        for subset in subsets
        for image, label in zip(subset.images, subset.labels, strict=True)
    )
    assert found == expected
    assert {name: subset.images.shape for name, subset in digits.subsets.items()} == {
        "public": (600, 8, 8, 1),
        "train": (800, 8, 8, 1),
        "test": (397, 8, 8, 1),
    }
    assert digits.num_classes == 10
    assert max(int(subset.images.max()) for subset in subsets) == 255


def test_digits_are_bundled(tmp_path: Path) -> None:
    prepare_dataset("digits", DigitsSettings(), tmp_path / "digits", nowhere())
    [source] = read_card(tmp_path / "digits").source
    assert source["name"] == "load_digits"
    assert source["from"].startswith("bundled with scikit-learn ")
    assert set(source) == {"name", "from"}


def test_digits_follow_their_seed(digits: Dataset, tmp_path: Path) -> None:
    prepare_dataset("digits", DigitsSettings(), tmp_path / "again", nowhere())
    prepare_dataset("digits", DigitsSettings(seed=1), tmp_path / "other", nowhere())
    assert read_dataset(tmp_path / "again").checksum == digits.checksum
    assert read_dataset(tmp_path / "other").checksum != digits.checksum


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"public": 1500}, "params.yaml: data.digits.test: 397 plus public 1500 must be less than the 1797"),
        ({"public": 1000, "test": 797}, "params.yaml: data.digits.test: 797"),
        ({"test": 0}, "params.yaml: data.digits.test: 0"),
        ({"public": 0}, "params.yaml: data.digits.public: 0"),
    ],
)
def test_digits_settings_leave_training_images(raw: dict[str, int], message: str) -> None:
    with pytest.raises(HetflError, match=message):
        validate(DigitsSettings, raw, "params.yaml: data.digits")


def test_unknown_data_set_is_named() -> None:
    with pytest.raises(HetflError, match="params.yaml: x: unknown data set 'digit'; did you mean 'digits'"):
        entry("digit", "params.yaml: x")


def test_a_flipped_byte_is_found_before_training_and_files_are_read_once(tmp_path: Path, monkeypatch) -> None:
    write(tmp_path / "tiny")
    read: list[str] = []
    real = store.sha256_file
    monkeypatch.setattr(store, "sha256_file", lambda path: read.append(path.name) or real(path))
    known = tmp_path / "known"
    verified_dataset(tmp_path / "tiny", known)
    files = [path.name for path in (tmp_path / "tiny").glob("*.npy")]
    assert sorted(read) == sorted(files)
    verified_dataset(tmp_path / "tiny", known)
    assert sorted(read) == sorted(files)
    path = tmp_path / "tiny" / "train-images.npy"
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    read_dataset(tmp_path / "tiny")  # type, shape and size are right
    for _ in range(2):
        with pytest.raises(
            HetflError, match="train-images.npy: SHA-256 is .*, the card says .*dvc repro download-tiny"
        ):
            verified_dataset(tmp_path / "tiny", known)
    assert [name for name in read if name not in files] == []
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(last)
    verified_dataset(tmp_path / "tiny", known)
    next(known.iterdir()).write_text("[")
    verified_dataset(tmp_path / "tiny", known)
