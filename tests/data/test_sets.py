"""The catalogue's entries, on small archives in the layout that the data sets' authors publish."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from hetfl.config import Settings
from hetfl.data import fetch
from hetfl.data.catalogue import entry, prepare_dataset
from hetfl.data.entry import Entry
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.sets import CATALOGUE, domainnet, office_caltech10, tiny_imagenet
from hetfl.data.sets.notmnist import UNREADABLE
from hetfl.data.store import Dataset, Subset, read_card, read_dataset
from hetfl.errors import HetflError

Files = dict[str, Any]
"""By file name, a file's content, or the members of an archive by name."""
Prepare = Callable[..., Dataset]

WITHOUT_CHECKSUM = {"office_caltech_10.zip", "painting_train.txt", "painting_test.txt"}


class Unchecked(Sources):
    """Sources that take any file for the published one."""

    def get(self, dataset: str, file: RemoteFile) -> Path:
        return super().get(dataset, replace(file, checksum=""))


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror"
    folder.mkdir()
    return folder


@pytest.fixture
def prepare(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Prepares a data set from the mirror, without regard to checksums and published sizes, and reads it."""

    def run(name: str, **settings: Any) -> Dataset:
        monkeypatch.setitem(CATALOGUE, name, replace(entry(name), sizes={}))
        sources = Unchecked(mirror, tmp_path / "downloads")
        prepare_dataset(name, entry(name).settings(**settings), tmp_path / "data" / name, sources)
        return read_dataset(tmp_path / "data" / name)

    return run


def put(folder: Path, files: Files) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, dict):
            content = zipped(content) if name.endswith(".zip") else tarred(content, name)
        (folder / name).write_bytes(content)


def tarred(members: Mapping[str, bytes], name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w" if name.endswith(".tar") else "w:gz") as archive:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return buffer.getvalue()


def encoded(pixels: np.ndarray, kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"quality": 95, "subsampling": 0} if kind == "JPEG" else {}))
    return buffer.getvalue()


def plain(value: int, height: int = 8, width: int = 8) -> bytes:
    """A JPEG file of one grey, which JPEG keeps."""
    return encoded(np.full((height, width, 3), value, np.uint8))


def saved(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    savemat(buffer, arrays)
    return buffer.getvalue()


def noise(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), dtype=np.uint8)


def greys(subset: Subset) -> list[int]:
    """The value of each image, all of whose pixels have it."""
    values = subset.images.reshape(len(subset), -1)
    assert (values == values[:, :1]).all()
    return values[:, 0].tolist()


def cifar_records(images: np.ndarray, *labels: np.ndarray) -> bytes:
    pixels = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([np.stack(labels, axis=1).astype(np.uint8), pixels], axis=1).tobytes()


def cifar10() -> Files:
    images, number = noise(30, 32, 32, 3), np.arange(30)
    batches = {
        f"cifar-10-batches-bin/data_batch_{1 + i}.bin": cifar_records(part, labels % 10)
        for i, (part, labels) in enumerate(zip(np.split(images[:20], 5), np.split(number[:20], 5), strict=True))
    }
    test = {"cifar-10-batches-bin/test_batch.bin": cifar_records(images[20:], 9 - number[20:] % 10)}
    text = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n", "cifar-10-batches-bin/readme.html": b"<html>"}
    return {"cifar-10-binary.tar.gz": text | test | dict(reversed(batches.items()))}


def cifar100() -> Files:
    images, fine = noise(110, 32, 32, 3), np.arange(110) % 100
    return {
        "cifar-100-binary.tar.gz": {
            "cifar-100-binary/fine_label_names.txt": b"apple\n",
            "cifar-100-binary/train.bin": cifar_records(images[:100], fine[:100] // 5, fine[:100]),
            "cifar-100-binary/test.bin": cifar_records(images[100:], fine[100:] // 5, fine[100:]),
        }
    }


def idx(array: np.ndarray) -> bytes:
    shape = np.array(array.shape, ">i4").tobytes()
    return gzip.compress(b"\0\0\x08" + bytes([array.ndim]) + shape + array.tobytes())


def mnist() -> Files:
    images, labels = noise(30, 28, 28), (np.arange(30) % 10).astype(np.uint8)
    return {
        "train-images-idx3-ubyte.gz": idx(images[:20]),
        "train-labels-idx1-ubyte.gz": idx(labels[:20]),
        "t10k-images-idx3-ubyte.gz": idx(images[20:]),
        "t10k-labels-idx1-ubyte.gz": idx(labels[20:]),
    }


def svhn() -> Files:
    images, digits = noise(30, 32, 32, 3), np.arange(30) % 10
    labels = np.where(digits == 0, 10, digits).astype(np.uint8)[:, None]
    return {
        f"{name}_32x32.mat": saved(X=images[part].transpose(1, 2, 3, 0), y=labels[part])
        for name, part in (("train", slice(20)), ("test", slice(20, None)))
    }


def notmnist() -> Files:
    members = {
        f"notMNIST_small/{letter}/{'bca'[i % 3]}{i}.png": encoded(np.full((28, 28), 10 * c + i, np.uint8), "PNG")
        for c, letter in enumerate("ABCDEFGHIJ")
        for i in range(10)
    }
    return {"notMNIST_small.tar.gz": members | {f"notMNIST_small/{name}": b"" for name in sorted(UNREADABLE)}}


def flowers102() -> Files:
    labels = np.array([102, 1, 2, 2, 50, 51, 7, 7, 7, 101])
    return {
        "102flowers.tgz": {f"jpg/image_{i:05d}.jpg": plain(10 * i, 30, 50) for i in (7, 1, 2, 3, 10, 4, 5, 6, 8, 9)},
        "imagelabels.mat": saved(labels=labels.astype(np.uint8)[None]),
        "setid.mat": saved(
            trnid=np.array([[9, 1, 4]], np.uint16),
            valid=np.array([[2, 10]], np.uint16),
            tstid=np.array([[8, 7, 6, 5, 3]], np.uint16),
        ),
    }


def tiny() -> Files:
    root, wnids = "tiny-imagenet-200", tiny_imagenet.CLASSES
    members = {f"{root}/wnids.txt": "\n".join(reversed(wnids)).encode()}
    for c, wnid in enumerate(wnids):
        grey = encoded(np.full((64, 64), c, np.uint8))
        members[f"{root}/train/{wnid}/images/{wnid}_0.JPEG"] = plain(c, 64, 64)
        members[f"{root}/train/{wnid}/images/{wnid}_1.JPEG"] = grey
        members[f"{root}/train/{wnid}/{wnid}_boxes.txt"] = b"x"
    listed = list(enumerate(reversed(range(200))))
    members |= {f"{root}/val/images/val_{i}.JPEG": plain(c, 64, 64) for i, c in listed}
    members[f"{root}/val/val_annotations.txt"] = "".join(
        f"val_{i}.JPEG\t{wnids[c]}\t0\t32\t44\t62\n" for i, c in listed
    ).encode()
    return {"tiny-imagenet-200.zip": members | {f"{root}/test/images/test_0.JPEG": plain(0)}}


def office_members() -> dict[str, bytes]:
    return {
        f"office_caltech_10/{domain}/{label}/frame_{i:04d}.jpg": plain(50 * d + 5 * c + i, 9, 6)
        for d, domain in reversed(list(enumerate(office_caltech10.DOMAINS)))
        for c, label in enumerate(office_caltech10.CLASSES)
        for i in range(5)
    }


def office() -> Files:
    return {"office_caltech_10.zip": office_members()}


def domain_net() -> Files:
    files: Files = {}
    for d, domain in enumerate(domainnet.DOMAINS):
        # The third image of each class is for testing, the fourth in no list.
        names = {
            label: [f"{domain}/{label}/{domain}_{c:03d}_{i:06d}.jpg" for i in range(4)]
            for c, label in enumerate(("aircraft_carrier", *domainnet.CLASSES))
        }
        files[f"{domain}.zip"] = {
            name: plain(40 * d + 3 * c + i, 10, 20)
            for c, row in enumerate(names.values())
            for i, name in enumerate(row)
        }
        for subset, part in (("train", slice(2)), ("test", slice(2, 3))):
            lines = [f"{name} {number}\n" for number, row in enumerate(names.values()) for name in row[part]]
            files[f"{domain}_{subset}.txt"] = "".join(lines).encode()
    return files


OFFICIAL: dict[str, Callable[[], Files]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "mnist": mnist,
    "fashion-mnist": mnist,
    "svhn": svhn,
    "notmnist": notmnist,
    "flowers102": flowers102,
    "tiny-imagenet": tiny,
    "office-caltech10": office,
    "domainnet": domain_net,
}


def test_cifar10(mirror: Path, prepare: Prepare) -> None:
    put(mirror / "cifar10", cifar10())
    dataset = prepare("cifar10")
    images, number = noise(30, 32, 32, 3), np.arange(30)
    np.testing.assert_array_equal(dataset.subset("train").images, images[:20])
    np.testing.assert_array_equal(dataset.subset("test").images, images[20:])
    np.testing.assert_array_equal(dataset.labels(["train"]), number[:20] % 10)
    np.testing.assert_array_equal(dataset.labels(["test"]), 9 - number[20:] % 10)
    assert dataset.class_names[::3] == ("airplane", "cat", "frog", "truck")
    assert dataset.attributes == {}


def test_cifar100_has_its_coarse_labels_first(mirror: Path, prepare: Prepare) -> None:
    put(mirror / "cifar100", cifar100())
    dataset = prepare("cifar100")
    images = noise(110, 32, 32, 3)
    np.testing.assert_array_equal(dataset.subset("train").images, images[:100])
    np.testing.assert_array_equal(dataset.subset("test").images, images[100:])
    assert dataset.labels(["train", "test"]).tolist() == [*range(100), *range(10)]
    assert dataset.attribute("coarse", ["train", "test"]).tolist() == [i % 100 // 5 for i in range(110)]
    assert dataset.num_classes == 100
    assert dataset.class_names == tuple(sorted(dataset.class_names))
    assert len(dataset.attributes["coarse"]) == 20
    assert dataset.attributes["coarse"] == tuple(sorted(dataset.attributes["coarse"]))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist(name: str, mirror: Path, prepare: Prepare) -> None:
    put(mirror / name, mnist())
    dataset = prepare(name)
    images = noise(30, 28, 28)[..., None]
    np.testing.assert_array_equal(dataset.subset("train").images, images[:20])
    np.testing.assert_array_equal(dataset.subset("test").images, images[20:])
    assert dataset.labels(["train", "test"]).tolist() == list(range(10)) * 3


def test_svhn_calls_label_10_the_digit_0(mirror: Path, prepare: Prepare) -> None:
    put(mirror / "svhn", svhn())
    dataset = prepare("svhn")
    images = noise(30, 32, 32, 3)
    np.testing.assert_array_equal(dataset.subset("train").images, images[:20])
    np.testing.assert_array_equal(dataset.subset("test").images, images[20:])
    assert dataset.labels(["train", "test"]).tolist() == list(range(10)) * 3
    assert dataset.class_names[0] == "0"


def test_notmnist_holds_out_of_every_letter(mirror: Path, prepare: Prepare) -> None:
    put(mirror / "notmnist", notmnist())
    dataset = prepare("notmnist", test=0.3)
    train, test = dataset.subset("train"), dataset.subset("test")
    assert train.images.shape == (70, 28, 28, 1)
    assert (train.class_counts(10).tolist(), test.class_counts(10).tolist()) == ([7] * 10, [3] * 10)
    assert dataset.class_names == tuple("ABCDEFGHIJ")
    for subset in (train, test):
        values = np.array(greys(subset))
        assert (values // 10 == subset.labels).all()
        # By name: a2 a5 a8, b0 b3 b6 b9, c1 c4 c7.
        order = [(value // 10, "bca"[value % 10 % 3], value) for value in values]
        assert order == sorted(order)
    assert sorted(greys(train) + greys(test)) == list(range(100))
    assert greys(prepare("notmnist", test=0.3).subset("test")) == greys(test)
    assert greys(prepare("notmnist", test=0.3, seed=1).subset("test")) != greys(test)


def test_flowers_are_in_the_order_of_their_lists(mirror: Path, prepare: Prepare) -> None:
    put(mirror / "flowers102", flowers102())
    dataset = prepare("flowers102", size=16)
    assert {name: subset.images.shape for name, subset in dataset.subsets.items()} == {
        "train": (3, 16, 16, 3),
        "val": (2, 16, 16, 3),
        "test": (5, 16, 16, 3),
    }
    assert [greys(dataset.subset(name)) for name in ("train", "val", "test")] == [
        [90, 10, 40],
        [20, 100],
        [80, 70, 60, 50, 30],
    ]
    assert dataset.labels(["train", "val", "test"]).tolist() == [6, 101, 1, 0, 100, 6, 6, 50, 49, 1]
    assert (dataset.class_names[0], dataset.class_names[101]) == ("pink primrose", "blackberry lily")


def test_tiny_imagenet_is_in_the_order_of_its_ids(mirror: Path, prepare: Prepare) -> None:
    put(mirror / "tiny-imagenet", tiny())
    dataset = prepare("tiny-imagenet")
    assert set(dataset.subsets) == {"train", "val"}
    assert dataset.subset("train").images.shape == (400, 64, 64, 3)
    assert (
        greys(dataset.subset("train")) == dataset.labels(["train"]).tolist() == [c for c in range(200) for _ in "01"]
    )
    assert greys(dataset.subset("val")) == dataset.labels(["val"]).tolist() == list(range(200))
    assert dataset.class_names == tuple(sorted(dataset.class_names))


@pytest.mark.parametrize("files", [office(), {office_caltech10.COPY: office_members()}], ids=["official", "copy"])
def test_office_holds_out_of_every_class_of_every_domain(files: Files, mirror: Path, prepare: Prepare) -> None:
    put(mirror / "office-caltech10", files)
    dataset = prepare("office-caltech10", size=12, test=0.4)
    cells = {}
    for name, subset in dataset.subsets.items():
        cells[name] = 10 * subset.attributes["domain"] + subset.labels
        assert (np.array(greys(subset)) // 5 == cells[name]).all()
        assert greys(subset) == sorted(greys(subset))
    assert np.bincount(cells["train"]).tolist() == [3] * 40
    assert np.bincount(cells["test"]).tolist() == [2] * 40
    assert not set(greys(dataset.subset("train"))) & set(greys(dataset.subset("test")))
    assert dataset.subset("test").images.shape == (80, 12, 12, 3)
    assert dataset.attributes["domain"] == ("amazon", "caltech", "dslr", "webcam")
    other = prepare("office-caltech10", size=12, test=0.4, seed=1)
    assert greys(other.subset("test")) != greys(dataset.subset("test"))


def test_images_are_stretched_with_antialiasing(mirror: Path, prepare: Prepare) -> None:
    members = office_members()
    striped = np.zeros((40, 160, 3), np.uint8)
    striped[:, ::2, 0] = striped[:, 80:, 2] = 254
    members["office_caltech_10/amazon/backpack/frame_0000.jpg"] = encoded(striped)
    put(mirror / "office-caltech10", {"office_caltech_10.zip": members})
    dataset = prepare("office-caltech10", size=4)
    [found] = [image for subset in dataset.subsets.values() for image in subset.images if image.std() > 20]
    np.testing.assert_allclose(found[..., 0].astype(int), 127, atol=10)
    np.testing.assert_allclose(found[..., 2].astype(int), [[0, 40, 214, 254]] * 4, atol=40)


def test_office_knows_office31s_spelling(mirror: Path, prepare: Prepare) -> None:
    members = {name.replace("backpack", "back_pack"): content for name, content in office_members().items()}
    put(mirror / "office-caltech10", {"office_caltech_10.zip": members})
    assert prepare("office-caltech10", size=4).subset("test").class_counts(10).tolist() == [4] * 10


def test_domainnet_takes_ten_classes_as_they_are_listed(mirror: Path, prepare: Prepare) -> None:
    put(mirror / "domainnet", domain_net())
    dataset = prepare("domainnet", size=16)
    assert dataset.subset("train").images.shape == (120, 16, 16, 3)
    for name, images in (("train", (0, 1)), ("test", (2,))):
        rows = [(d, c, i) for d in range(6) for c in range(10) for i in images]
        assert greys(dataset.subset(name)) == [40 * d + 3 * (c + 1) + i for d, c, i in rows]
        assert dataset.labels([name]).tolist() == [c for _, c, _ in rows]
        assert dataset.attribute("domain", [name]).tolist() == [d for d, _, _ in rows]
    assert dataset.attributes["domain"] == ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def test_an_image_in_both_lists_of_domainnet_is_for_testing(mirror: Path, prepare: Prepare) -> None:
    files = domain_net()
    files["real_train.txt"] += files["real_test.txt"]
    put(mirror / "domainnet", files)
    dataset = prepare("domainnet", size=8)
    assert {name: len(subset) for name, subset in dataset.subsets.items()} == {"train": 120, "test": 60}
    assert not set(greys(dataset.subset("train"))) & set(greys(dataset.subset("test")))


def test_domainnets_lists_are_had_before_its_archives(mirror: Path, tmp_path: Path) -> None:
    put(mirror / "domainnet", {name: file for name, file in domain_net().items() if name.endswith("_train.txt")})
    sources = Unchecked(mirror, tmp_path / "downloads")
    with pytest.raises(HetflError, match="clipart_test.txt is not downloaded"):
        domainnet.prepare(domainnet.DomainNetSettings(), sources)
    assert [used["name"] for used in sources.used] == ["clipart_train.txt"]


def jpeg_copy(images: np.ndarray, **labels: np.ndarray) -> bytes:
    streams = [encoded(image) for image in images]
    jpeg = np.frombuffer(b"".join(streams), np.uint8)
    return npz(jpeg=jpeg, offsets=np.cumsum([0, *map(len, streams)]), **labels)


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def copies(name: str) -> Files:
    """A mirror's compact copies: image i of a subset has the grey 2 * i, its label is (i + 1) % 10."""

    def split(size: int) -> bytes:
        number = np.arange(size)
        labels = ((number + 1) % 10).astype(np.uint8)
        shape = (size, 28, 28) if "mnist" in name else (size, 32, 32, 3)
        images = np.broadcast_to(2 * number.reshape(-1, *[1] * (len(shape) - 1)), shape).astype(np.uint8)
        if "mnist" in name:
            return npz(images=images, labels=labels)
        return jpeg_copy(images, labels=labels, coarse_labels=labels + 3)

    return {"train.npz": split(12), "test.npz": split(7)}


WITH_COPIES = ("cifar10", "cifar100", "mnist", "fashion-mnist")


def origins(tmp_path: Path, name: str) -> list[tuple[str, str]]:
    return [(used["name"], used["from"]) for used in read_card(tmp_path / "data" / name).source]


@pytest.mark.parametrize("name", WITH_COPIES)
def test_compact_copies(name: str, mirror: Path, tmp_path: Path, prepare: Prepare) -> None:
    put(mirror / name, copies(name))
    dataset = prepare(name)
    for subset, size in (("train", 12), ("test", 7)):
        assert greys(dataset.subset(subset)) == list(range(0, 2 * size, 2))
        assert dataset.labels([subset]).tolist() == [(i + 1) % 10 for i in range(size)]
    if name == "cifar100":
        assert dataset.attribute("coarse", ["test"]).tolist() == [4, 5, 6, 7, 8, 9, 10]
    assert origins(tmp_path, name) == [(f"{name}/{subset}.npz", "mirror copy") for subset in ("train", "test")]


@pytest.mark.parametrize("name", [*WITH_COPIES, "office-caltech10"])
def test_the_official_archive_wins_over_a_copy(name: str, mirror: Path, tmp_path: Path, prepare: Prepare) -> None:
    files = OFFICIAL[name]()
    put(mirror / name, copies(name) if name in WITH_COPIES else {office_caltech10.COPY: {"x/y/z.jpg": plain(0)}})
    put(mirror / name, files)
    prepare(name)
    assert origins(tmp_path, name) == [(file, "mirror") for file in files]


def test_part_of_the_official_files_does_not_hide_a_copy(mirror: Path, tmp_path: Path, prepare: Prepare) -> None:
    put(mirror / "mnist", copies("mnist"))
    put(mirror / "mnist", {"t10k-labels-idx1-ubyte.gz": mnist()["t10k-labels-idx1-ubyte.gz"]})
    assert len(prepare("mnist").subset("train")) == 12


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_a_copy_of_one_subset_is_an_error(name: str, mirror: Path, prepare: Prepare) -> None:
    put(mirror / name, {"train.npz": copies(name)["train.npz"]})
    with pytest.raises(
        HetflError, match=f"{name}/train.npz: the other one of train.npz and test.npz is missing; copy both$"
    ):
        prepare(name)


def changed(copy: bytes, *without: str, **arrays: Any) -> bytes:
    """A compact copy with some arrays left out or put in the place of others."""
    with np.load(io.BytesIO(copy)) as found:
        return npz(**{name: array for name, array in (dict(found) | arrays).items() if name not in without})


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        *((name, lambda copy: copy[:-300], "is not in its published format") for name in WITH_COPIES),
        *((name, lambda copy: b"text", "is not in its published format") for name in WITH_COPIES),
        *((name, lambda copy: changed(copy, "labels"), "is not in .*labels") for name in WITH_COPIES),
        ("cifar100", lambda copy: changed(copy, "coarse_labels"), "is not in .*coarse_labels"),
        ("cifar10", lambda copy: changed(copy, "offsets"), "is not in .*offsets"),
        ("cifar10", lambda copy: changed(copy, jpeg=np.zeros(9000, np.uint8)), "image 0: is not a readable image"),
        ("cifar10", lambda copy: changed(copy, labels=np.array([{}], object)), "is not in its published format"),
    ],
)
def test_damaged_copies_are_named_in_one_line(
    name: str, damage: Callable[[bytes], bytes], message: str, mirror: Path, tmp_path: Path, prepare: Prepare
) -> None:
    files = copies(name)
    put(mirror / name, files | {"test.npz": damage(files["test.npz"])})
    with pytest.raises(HetflError, match=f"{name}/test.npz: {message}") as error:
        prepare(name)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", OFFICIAL)
def test_without_a_mirror_the_authors_are_asked(
    name: str, mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import requests

    asked = []

    def offline(url: str, **_: Any) -> None:
        asked.append(url)
        raise requests.ConnectionError

    monkeypatch.setattr(requests, "get", offline)
    monkeypatch.setattr(fetch, "WAIT", 0)
    settings = entry(name).settings()
    with pytest.raises(HetflError, match=f"^{name}: .*; put it into {name}/ of a folder that .*HETFL_MIRROR"):
        prepare_dataset(name, settings, tmp_path / "data" / name, Sources(mirror, tmp_path / "downloads"))
    assert not (tmp_path / "data").exists()
    assert set(asked) <= {url for file in entry(name).files for url in file.urls}
    assert bool(asked) == (name != "office-caltech10")


def replaced(file: str, content: bytes) -> Callable[[Files], None]:
    return lambda files: files.update({file: content})


def member(archive: str, name: str, content: bytes | None) -> Callable[[Files], None]:
    """Replaces a member of an archive, or leaves it out."""

    def change(files: Files) -> None:
        assert name in files[archive]
        files[archive][name] = content
        if content is None:
            del files[archive][name]

    return change


def cut(file: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        content = files[file]
        if isinstance(content, dict):
            content = zipped(content) if file.endswith(".zip") else tarred(content, file)
        files[file] = content[: len(content) // 2]

    return change


def deeper(files: Files) -> None:
    """An image below its class's folder, in the archive as in the list."""
    files["real_train.txt"] += b"real/bird/more/real_001_000009.jpg 1\n"
    files["real.zip"]["real/bird/more/real_001_000009.jpg"] = plain(0)


CIFAR10, CIFAR100 = "cifar-10-binary.tar.gz", "cifar-100-binary.tar.gz"
IMAGE = np.zeros((1, 32, 32, 3), np.uint8)
ZERO = np.zeros(1, int)
TINY, TRAIN_IMAGE = "tiny-imagenet-200.zip", "tiny-imagenet-200/train/n01443537/images/n01443537_0.JPEG"
ANNOTATIONS = "tiny-imagenet-200/val/val_annotations.txt"
OFFICE, FRAME = "office_caltech_10.zip", "office_caltech_10/dslr/mug/frame_0003.jpg"
BIRD = "real/bird/real_001_000001.jpg"

DAMAGES = [
    ("cifar10", cut(CIFAR10), rf"{CIFAR10}: is not a whole archive"),
    (
        "cifar10",
        member(CIFAR10, "cifar-10-batches-bin/data_batch_2.bin", b"\0" * 3074),
        rf"{CIFAR10}: cifar-10-batches-bin/data_batch_2.bin: is not in its published format",
    ),
    ("cifar10", member(CIFAR10, "cifar-10-batches-bin/test_batch.bin", None), rf"{CIFAR10}: holds no .* test batch"),
    (
        "cifar10",
        member(CIFAR10, "cifar-10-batches-bin/test_batch.bin", cifar_records(IMAGE, ZERO + 10)),
        "cifar10: test labels: 10 is not a class",
    ),
    (
        "cifar100",
        member(CIFAR100, "cifar-100-binary/train.bin", b"\0" * 3073),
        rf"{CIFAR100}: cifar-100-binary/train.bin: is not in its published format",
    ),
    (
        "cifar100",
        member(CIFAR100, "cifar-100-binary/train.bin", cifar_records(IMAGE, ZERO + 20, ZERO)),
        "cifar100: train coarse: 20 is not a coarse",
    ),
    ("cifar100", member(CIFAR100, "cifar-100-binary/train.bin", None), rf"{CIFAR100}: holds no training"),
    ("mnist", cut("train-images-idx3-ubyte.gz"), "train-images-idx3-ubyte.gz: is not in its published format"),
    (
        "mnist",
        replaced(
            "t10k-images-idx3-ubyte.gz", gzip.compress(gzip.decompress(mnist()["t10k-images-idx3-ubyte.gz"])[:-1])
        ),
        r"t10k-images-idx3-ubyte.gz: .*holds 7839 bytes, its header says",
    ),
    (
        "fashion-mnist",
        replaced("train-labels-idx1-ubyte.gz", gzip.compress(b"\0\0\x0d\x01")),
        "train-labels-idx1-ubyte.gz: .*does not start as an IDX file",
    ),
    (
        "mnist",
        replaced("t10k-labels-idx1-ubyte.gz", idx(np.full(10, 10, np.uint8))),
        "mnist: test labels: 10 is not a class",
    ),
    (
        "mnist",
        replaced("t10k-labels-idx1-ubyte.gz", idx(np.zeros(9, np.uint8))),
        r"mnist: test images: uint8 \[10, 28, 28, 1\], uint8 \[9, 28, 28, 1\] is needed",
    ),
    ("svhn", cut("test_32x32.mat"), "test_32x32.mat: is not in its published format"),
    (
        "svhn",
        replaced("test_32x32.mat", saved(X=IMAGE.transpose(1, 2, 3, 0))),
        r"test_32x32.mat: is not in its published format \('y'\)",
    ),
    (
        "svhn",
        replaced("test_32x32.mat", saved(X=IMAGE.transpose(1, 2, 3, 0), y=ZERO[:, None] + 11)),
        r"test_32x32.mat: .*label 11, labels run from 1 to 10",
    ),
    ("svhn", replaced("test_32x32.mat", saved(X=IMAGE[0], y=ZERO[:, None] + 1)), "test_32x32.mat: is not in its"),
    ("notmnist", cut("notMNIST_small.tar.gz"), "notMNIST_small.tar.gz: is not a whole archive"),
    (
        "notmnist",
        member("notMNIST_small.tar.gz", "notMNIST_small/C/b0.png", b""),
        "notMNIST_small.tar.gz: notMNIST_small/C/b0.png: is not a readable image",
    ),
    (
        "notmnist",
        lambda files: files["notMNIST_small.tar.gz"].update({"notMNIST_small/AB/a.png": encoded(IMAGE[0], "PNG")}),
        "notMNIST_small.tar.gz: is not in its published format",
    ),
    ("notmnist", replaced("notMNIST_small.tar.gz", tarred({"a": b""}, "")), "notMNIST_small.tar.gz: holds none of"),
    (
        "flowers102",
        member("102flowers.tgz", "jpg/image_00003.jpg", plain(0)[:-300]),
        "102flowers.tgz: jpg/image_00003.jpg: is not a readable image",
    ),
    (
        "flowers102",
        member("102flowers.tgz", "jpg/image_00003.jpg", None),
        "102flowers.tgz: holds 9 images, 10 have a label",
    ),
    ("flowers102", replaced("imagelabels.mat", saved(x=ZERO)), "imagelabels.mat: is not in its published format"),
    ("flowers102", replaced("imagelabels.mat", b"MATLAB"), "imagelabels.mat: is not in its published format"),
    (
        "flowers102",
        replaced("imagelabels.mat", saved(labels=np.full((1, 10), 103))),
        "flowers102: train labels: 102 is not a class",
    ),
    (
        "flowers102",
        replaced("setid.mat", saved(trnid=ZERO + 11, valid=ZERO + 1, tstid=ZERO + 1)),
        "setid.mat: is not in its published format .*out of bounds",
    ),
    (
        "flowers102",
        replaced("setid.mat", saved(trnid=ZERO, valid=ZERO + 1, tstid=ZERO + 1)),
        "setid.mat: .*names image 0",
    ),
    ("tiny-imagenet", cut(TINY), f"{TINY}: is not a whole archive"),
    ("tiny-imagenet", member(TINY, TRAIN_IMAGE, b"\xff\xd8"), f"{TINY}: {TRAIN_IMAGE}: is not a readable image"),
    ("tiny-imagenet", member(TINY, ANNOTATIONS, None), f"{TINY}: is not in its published format"),
    (
        "tiny-imagenet",
        member(TINY, ANNOTATIONS, b"val_0.JPEG\tn01443537\t0\t0\t1\t1\n"),
        rf"{TINY}: is not in its published format \('val_1.JPEG'\)",
    ),
    ("tiny-imagenet", member(TINY, ANNOTATIONS, b"val_0.JPEG"), f"{TINY}: {ANNOTATIONS}: is not in its published"),
    (
        "tiny-imagenet",
        lambda files: files[TINY].update({TRAIN_IMAGE.replace("n01443537", "n00000001"): plain(0)}),
        f"{TINY}: is not in its published format",
    ),
    ("office-caltech10", cut(OFFICE), f"{OFFICE}: is not a whole archive"),
    ("office-caltech10", member(OFFICE, FRAME, plain(0)[:-300]), f"{OFFICE}: {FRAME}: is not a readable image"),
    (
        "office-caltech10",
        lambda files: files[OFFICE].update({"office_caltech_10/dslr/car/frame_0001.jpg": plain(0)}),
        f"{OFFICE}: is not in its published format",
    ),
    ("domainnet", cut("real.zip"), "real.zip: is not a whole archive"),
    ("domainnet", member("real.zip", BIRD, b""), f"real.zip: {BIRD}: is not a readable image"),
    ("domainnet", member("real.zip", BIRD, None), f"real.zip: lacks {BIRD}, which a list names"),
    ("domainnet", deeper, "real_train.txt: is not in its published format"),
    ("domainnet", replaced("sketch_test.txt", b"\xff\xfe"), "sketch_test.txt: is not in its published format"),
    ("domainnet", lambda files: files.pop("painting_test.txt"), "painting_test.txt is not downloaded"),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES)
def test_damaged_files_are_named_in_one_line(
    name: str, damage: Callable[[Files], None], message: str, mirror: Path, tmp_path: Path, prepare: Prepare
) -> None:
    files = OFFICIAL[name]()
    damage(files)
    put(mirror / name, files)
    with pytest.raises(HetflError, match=message) as error:
        prepare(name, **({"size": 8} if "size" in entry(name).settings.model_fields else {}))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "data").exists()


def test_a_missing_batch_is_found_by_the_published_size(mirror: Path, tmp_path: Path) -> None:
    put(mirror / "cifar10", cifar10())
    with pytest.raises(HetflError, match="data set cifar10: train has 20 images, 50000 are published"):
        prepare_dataset("cifar10", entry("cifar10").settings(), tmp_path / "out", Unchecked(mirror, tmp_path))


ENTRIES = pytest.mark.parametrize("known", CATALOGUE.values(), ids=CATALOGUE)


@ENTRIES
def test_entries_say_what_they_are(known: Entry) -> None:
    assert re.fullmatch("[a-z0-9][a-z0-9.-]*", known.name)
    assert all((known.title, known.origin, known.licence, known.citation))
    assert known.prepare.__doc__
    for names in (known.class_names, *known.attributes.values()):
        assert names
        assert all(names)
        assert len(set(names)) == len(names)


@ENTRIES
def test_settings_have_defaults_and_a_docstring(known: Entry) -> None:
    assert issubclass(known.settings, Settings)
    assert known.settings.__doc__
    assert known.settings.__doc__ != Settings.__doc__
    assert known.settings().model_dump(mode="json").keys() == known.settings.model_fields.keys()


@ENTRIES
def test_files_have_an_address_and_a_checksum(known: Entry) -> None:
    for file in known.files:
        assert file.urls or not file.checksum
        assert all(re.match("https?://[^ ]+$", url) for url in file.urls)
        if file.name in WITHOUT_CHECKSUM:
            assert file.checksum == ""
        else:
            algorithm, digits = file.checksum.split(":")
            assert re.fullmatch("[0-9a-f]+", digits)
            whole = {"md5": 32, "sha256": 64, "sha512": 128}[algorithm]
            assert len(digits) == whole or (known.name == "domainnet" and len(digits) >= 50)


def test_every_name_is_given_once() -> None:
    assert {name: known.name for name, known in CATALOGUE.items()} == {name: name for name in CATALOGUE}
    names = [(known.name, file.name) for known in CATALOGUE.values() for file in known.files]
    assert len(set(names)) == len(names)


def test_class_counts() -> None:
    assert {name: len(known.class_names) for name, known in CATALOGUE.items()} == {
        "cifar10": 10,
        "cifar100": 100,
        "cifar100c": 100,
        "digits": 10,
        "domainnet": 10,
        "fashion-mnist": 10,
        "five": 50,
        "five-merged": 10,
        "flowers102": 102,
        "mnist": 10,
        "notmnist": 10,
        "office-caltech10": 10,
        "svhn": 10,
        "tiny-imagenet": 200,
    }
