import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hetfl.config import validate
from hetfl.data.catalogue import Cifar10Settings, DigitsSettings, Sources, entry, prepare_dataset
from hetfl.data.store import Dataset, Split, read_card, read_dataset, verify_dataset, write_dataset
from hetfl.errors import HetflError

NOWHERE = Sources(mirror=None, downloads=Path("/nonexistent"))


def some_split(size: int = 6, classes: int = 3) -> Split:
    rng = np.random.default_rng(size)
    images = rng.integers(0, 256, (size, 4, 5, 3), dtype=np.uint8)
    return Split(images, np.arange(size, dtype=np.int64) % classes)


def write(folder: Path, **splits: Split) -> None:
    write_dataset(
        folder,
        name="tiny",
        title="Tiny",
        origin="this test",
        licence="none",
        source="a generator",
        settings={"seed": 3},
        class_names=("a", "b", "c"),
        splits=splits or {"train": some_split(6), "test": some_split(4)},
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("data") / "digits"
    prepare_dataset("digits", DigitsSettings(), folder, NOWHERE)
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
    assert set(dataset.splits) == {"train", "test"}
    for name, size in (("train", 6), ("test", 4)):
        split, original = dataset.split(name), some_split(size)
        assert len(split) == size
        assert isinstance(split.images, np.memmap)
        np.testing.assert_array_equal(split.images, original.images)
        np.testing.assert_array_equal(split.labels, original.labels)
    assert dataset.split("test").class_counts(4).tolist() == [2, 1, 1, 0]
    card = read_card(tmp_path / "tiny")
    assert card.image_shape == (4, 5, 3)
    assert card.split_sizes == {"train": 6, "test": 4}
    assert card.settings == {"seed": 3}


def test_checksum_depends_on_content_only(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two")
    write(tmp_path / "swapped", train=some_split(4), test=some_split(6))
    one, two, swapped = (read_dataset(tmp_path / name).checksum for name in ("one", "two", "swapped"))
    assert one == two != swapped


def test_writing_again_replaces_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    write(tmp_path / "tiny", public=some_split(5))
    assert set(read_dataset(tmp_path / "tiny").splits) == {"public"}
    assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == [
        "card.json",
        "public-images.npy",
        "public-labels.npy",
    ]


def test_missing_split_is_named(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    with pytest.raises(HetflError, match="unknown split 'tset'; did you mean 'test'"):
        read_dataset(tmp_path / "tiny").split("tset")


def test_missing_folder_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(HetflError, match="cifar10: does not exist; run dvc repro download@cifar10"):
        read_dataset(tmp_path / "cifar10")


def test_missing_file_says_what_to_run(tmp_path: Path) -> None:
    write(tmp_path / "tiny")
    (tmp_path / "tiny" / "test-labels.npy").unlink()
    with pytest.raises(HetflError, match="test-labels.npy: does not exist; run dvc repro download@tiny"):
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
    with pytest.raises(HetflError, match="train labels: 3 is not a class, labels run from 0 to 2"):
        read_dataset(tmp_path / "tiny")


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            Split(some_split().images.astype(np.float32), some_split().labels),
            r"float32 \[6, 4, 5, 3\], uint8",
        ),
        (Split(some_split().images[..., 0], some_split().labels), r"uint8 \[6, 4, 5\]"),
        (Split(some_split().images[:5], some_split().labels), r"uint8 \[5, 4, 5, 3\], uint8 \[6, "),
        (Split(some_split().images, some_split().labels.astype(np.int32)), r"int32 \[6\], int64 \[6\]"),
        (Split(some_split().images, some_split().labels - 1), "-1 is not a class"),
        (Split(some_split().images[:0], some_split().labels[:0]), "0 samples"),
    ],
)
def test_malformed_split_is_not_written(tmp_path: Path, split: Split, message: str) -> None:
    with pytest.raises(HetflError, match=message):
        write(tmp_path / "tiny", train=split)
    assert not (tmp_path / "tiny").exists()


def test_digits_are_scikit_learns(digits: Dataset) -> None:
    bunch = load_digits()
    expected = sorted(
        (label, np.rint(image * 255 / 16).astype(np.uint8).tobytes())
        for image, label in zip(bunch.images, bunch.target, strict=True)
    )
    splits = digits.splits.values()
    found = sorted(
        (label, image.tobytes()) for split in splits for image, label in zip(split.images, split.labels, strict=True)
    )
    assert found == expected
    assert {name: split.images.shape for name, split in digits.splits.items()} == {
        "public": (600, 8, 8, 1),
        "train": (800, 8, 8, 1),
        "test": (397, 8, 8, 1),
    }
    assert digits.num_classes == 10
    assert max(int(split.images.max()) for split in splits) == 255


def test_digits_follow_their_seed(digits: Dataset, tmp_path: Path) -> None:
    prepare_dataset("digits", DigitsSettings(), tmp_path / "again", NOWHERE)
    prepare_dataset("digits", DigitsSettings(seed=1), tmp_path / "other", NOWHERE)
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


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in a mirror's layout with a few random CIFAR-10 images."""
    folder = tmp_path_factory.mktemp("mirror")
    (folder / "cifar10").mkdir()
    rng = np.random.default_rng(0)
    for name, size in (("train", 20), ("test", 10)):
        streams = []
        for image in rng.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8):
            buffer = BytesIO()
            Image.fromarray(image).save(buffer, "JPEG", quality=95, subsampling=0)
            streams.append(buffer.getvalue())
        offsets = np.cumsum([0, *map(len, streams)])
        jpeg = np.frombuffer(b"".join(streams), np.uint8)
        np.savez(folder / "cifar10" / f"{name}.npz", jpeg=jpeg, offsets=offsets, labels=np.arange(size) % 10)
    return folder


def test_cifar10_from_a_mirror(mirror: Path, tmp_path: Path) -> None:
    prepare_dataset("cifar10", Cifar10Settings(), tmp_path / "cifar10", Sources(mirror, tmp_path))
    dataset = read_dataset(tmp_path / "cifar10")
    assert (len(dataset.split("train")), len(dataset.split("test")), dataset.num_classes) == (20, 10, 10)
    assert dataset.split("train").images.shape == (20, 32, 32, 3)
    assert read_card(tmp_path / "cifar10").source == "mirror, JPEG-coded"


def test_a_broken_mirror_and_no_network_are_one_line(mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10/train.npz").write_bytes((mirror / "cifar10/train.npz").read_bytes()[:500])
    with pytest.raises(HetflError, match=r"train.npz: is not a readable set of images .*copy it again$"):
        prepare_dataset("cifar10", Cifar10Settings(), tmp_path / "out", Sources(tmp_path, tmp_path))
    import torchvision.datasets

    def offline(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", offline)
    with pytest.raises(HetflError, match=r"cannot be downloaded \(no route to host\); name a folder .*HETFL_MIRROR$"):
        prepare_dataset("cifar10", Cifar10Settings(), tmp_path / "out", Sources(None, tmp_path))
    assert not (tmp_path / "out").exists()
