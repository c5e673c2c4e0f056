"""CIFAR-100-C and Five-Dataset, on small stand-ins for the sets they are made of."""

import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hetfl.config import validate
from hetfl.data.catalogue import entry, prepare_dataset
from hetfl.data.corruptions import CORRUPTIONS, corrupt
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.sets import cifar100c, five
from hetfl.data.sets.cifar100c import Cifar100CSettings
from hetfl.data.store import Subset, read_card, read_dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.files import sha256_file

PHOTOGRAPHS = 500
TEN = tuple(CORRUPTIONS)[:10]


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    (tmp_path / "mirror" / "cifar100c").mkdir(parents=True)
    return Sources(tmp_path / "mirror", tmp_path / "downloads")


@pytest.fixture
def photographs(monkeypatch: pytest.MonkeyPatch) -> Subset:
    """500 test images of 100 classes: image i is of class i % 100 and tells i by its first pixel."""
    number = np.arange(PHOTOGRAPHS)
    images = np.full((PHOTOGRAPHS, 32, 32, 3), 128, np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = number // 256, number % 256
    test = Subset(images, number % 100)
    fake = replace(cifar100c.CIFAR100, prepare=lambda settings, sources: {"train": test, "test": test})
    monkeypatch.setattr(cifar100c, "CIFAR100", fake)
    monkeypatch.setattr(cifar100c, "PHOTOGRAPHS", PHOTOGRAPHS)
    monkeypatch.setattr(cifar100c, "corrupt", told)
    return test


def told(
    image: np.ndarray, name: str, severity: int, rng: np.random.Generator, frost: list[np.ndarray] | None
) -> np.ndarray:
    """Instead of a corruption: the photograph, with domain, severity and a draw in its second pixel."""
    image = image.copy()
    image[0, 1] = list(CORRUPTIONS).index(name), severity, rng.integers(256)
    return image


def photograph(subset: Subset) -> np.ndarray:
    return subset.images[:, 0, 0, 0].astype(int) * 256 + subset.images[:, 0, 0, 1]


def prepare(sources: Sources, **settings: object) -> Mapping[str, Subset]:
    return cifar100c.prepare(validate(Cifar100CSettings, settings, "data.cifar100c"), sources)


def test_each_photograph_once_and_every_class_cut_alike(photographs: Subset, sources: Sources) -> None:
    subsets = prepare(sources, per_domain=50, frost="synthetic")
    assert {name: len(subset) for name, subset in subsets.items()} == {"train": 400, "test": 100}
    assert subsets["train"].class_counts(100).tolist() == [4] * 100
    everything = np.concatenate([photograph(subset) for subset in subsets.values()])
    assert sorted(everything) == list(range(PHOTOGRAPHS))
    domains = np.concatenate([subset.attributes["domain"] for subset in subsets.values()])
    assert np.bincount(domains, minlength=19).tolist() == [50] * 10 + [0] * 9


@pytest.mark.parametrize("leak_free", [True, False])
def test_images_labels_and_attributes_belong_together(leak_free: bool, photographs: Subset, sources: Sources) -> None:
    subsets = prepare(
        sources, per_domain=50, leak_free=leak_free, frost="synthetic", domains=["fog", "snow", "contrast"]
    )
    for subset in subsets.values():
        assert (subset.labels == photograph(subset) % 100).all()
        assert (subset.images[:, 0, 1, 0] == subset.attributes["domain"]).all()
        assert (subset.images[:, 0, 1, 1] == subset.attributes["severity"] + 1).all()
    assert set(subsets["train"].attributes["domain"]) == {
        list(CORRUPTIONS).index(n) for n in ("fog", "snow", "contrast")
    }


def test_severities_are_uniform_over_the_chosen(photographs: Subset, sources: Sources) -> None:
    for leak_free in (True, False):
        [subset] = prepare(sources, per_domain=250, leak_free=leak_free, domains=["fog", "snow"], test=1).values()
        assert (np.abs(np.bincount(subset.attributes["severity"]) - 100) < 35).all()
        chosen = prepare(sources, per_domain=9, leak_free=leak_free, domains=["fog"], severities=[2, 4], test=1)
        assert set(chosen["test"].attributes["severity"]) == {1, 3}


def test_independent_domains_can_share_photographs_but_repeat_no_image(photographs: Subset, sources: Sources) -> None:
    [subset] = prepare(sources, per_domain=400, leak_free=False, domains=["fog", "snow"], test=1).values()
    where = np.stack([subset.attributes["domain"], subset.attributes["severity"], photograph(subset)])
    assert len(np.unique(where, axis=1).T) == 800
    assert len(np.unique(photograph(subset))) < 450


def test_the_complete_set_is_in_its_authors_order_and_holds_the_smaller(
    photographs: Subset, sources: Sources
) -> None:
    whole = prepare(sources, per_domain=5 * PHOTOGRAPHS, leak_free=False, domains=["fog", "snow"], test=1)
    assert list(whole) == ["test"]
    every = whole["test"]
    assert photograph(every).tolist() == list(range(PHOTOGRAPHS)) * 10
    assert every.attributes["severity"].tolist() == [
        v for _ in range(2) for v in range(5) for _ in range(PHOTOGRAPHS)
    ]
    part = prepare(sources, per_domain=20, domains=["fog"], test=1)["test"]
    start = (every.attributes["domain"] == part.attributes["domain"][0]).argmax()
    rows = start + part.attributes["severity"] * PHOTOGRAPHS + photograph(part)
    np.testing.assert_array_equal(every.images[rows], part.images)


def test_the_seed_decides(photographs: Subset, sources: Sources) -> None:
    first, same, other = (
        prepare(sources, per_domain=50, frost="synthetic", seed=seed)["train"] for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.images, same.images)
    assert (first.images[:, 0] != other.images[:, 0]).any()


def test_a_corrupted_image_has_a_draw_of_its_own(
    photographs: Subset, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar100c, "corrupt", corrupt)
    [subset] = prepare(sources, per_domain=3, domains=["shot_noise"], severities=[2], test=1, seed=4).values()
    for image, number in zip(subset.images, [_nearest(photographs, subset, i) for i in range(3)], strict=True):
        rng = Draws(4).numpy_generator("data:cifar100c:shot_noise", PHOTOGRAPHS + number)
        np.testing.assert_array_equal(image, corrupt(photographs.images[number], "shot_noise", 2, rng))


def _nearest(photographs: Subset, subset: Subset, index: int) -> int:
    # The label leaves five photographs; noise hides which of them it is, the draw that fits tells.
    candidates = np.flatnonzero(photographs.labels == subset.labels[index])
    for number in candidates:
        rng = Draws(4).numpy_generator("data:cifar100c:shot_noise", PHOTOGRAPHS + int(number))
        if (corrupt(photographs.images[number], "shot_noise", 2, rng) == subset.images[index]).all():
            return int(number)
    raise AssertionError("no photograph with its draw gives this image")


def frost_files(monkeypatch: pytest.MonkeyPatch, mirror: Path) -> None:
    files = []
    for name in ("frost1.png", "frost2.png"):
        path = mirror / "cifar100c" / name
        Image.fromarray(np.full((200, 205, 3), 60, np.uint8)).save(path)
        files.append(RemoteFile(name, (), f"sha256:{sha256_file(path)}"))
    monkeypatch.setattr(cifar100c, "FROST", tuple(files))


def test_frost_uses_the_photographs(
    photographs: Subset, sources: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cifar100c, "corrupt", corrupt)
    frost_files(monkeypatch, tmp_path / "mirror")
    [subset] = prepare(sources, per_domain=5, domains=["frost"], severities=[1], test=1).values()
    assert (subset.images[:, 1:] == 128 + 60 // 5).all()
    assert [used["name"] for used in sources.used] == ["frost1.png", "frost2.png"]


def test_photographs_are_asked_for_only_if_frost_is_wanted(photographs: Subset, sources: Sources) -> None:
    prepare(sources, per_domain=5, domains=["fog"])
    prepare(sources, per_domain=5, frost="synthetic")
    assert sources.used == []


def test_synthetic_frost_has_textures_of_the_seed(photographs: Subset, sources: Sources) -> None:
    first, same, other = (cifar100c._textures("synthetic", sources, Draws(seed)) for seed in (0, 0, 1))
    assert len(first) == 5
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"domains": ["fog", "frosst"]}, r"domains.1: 'frosst' is no corruption; did you mean 'frost'?"),
        ({"domains": ["fog", "fog"]}, r"domains: \['fog', 'fog'\] names one twice"),
        ({"domains": []}, "domains: .* at least 1"),
        ({"severities": [0]}, "severities.0: 0 should be greater than or equal to 1"),
        ({"severities": [6]}, "severities.0: 6 should be less than or equal to 5"),
        (
            {"per_domain": 1001},
            "per_domain: 1001 times 10 domains is more than the 10000 photographs; use at most 1000",
        ),
        ({"domains": list(CORRUPTIONS)}, "per_domain: 1000 times 19 domains .* at most 526, or leak_free: false"),
        ({"leak_free": False, "per_domain": 50_001}, "per_domain: 50001 is more than the 50000 images of a domain"),
        ({"leak_free": False, "severities": [1], "per_domain": 10_001}, "more than the 10000 images of a domain"),
        ({"test": 0}, "test: 0 should be greater than 0"),
        ({"source": "generatd"}, "source: 'generatd' should be 'generated' or 'official'"),
    ],
)
def test_wrong_settings_of_cifar100c_are_named(raw: dict, message: str) -> None:
    with pytest.raises(HetflError, match=message):
        validate(Cifar100CSettings, raw, "params.yaml: data.cifar100c")


def npy(array: np.ndarray) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


Archive = Callable[..., None]


@pytest.fixture
def archive(photographs: Subset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """Writes an archive such as the official one: image i at severity v of domain d holds [d, v, i % 251]."""

    def write(*domains: str, **others: bytes) -> None:
        rows = np.arange(5 * PHOTOGRAPHS)
        contents = {"labels": npy((rows % PHOTOGRAPHS % 100).astype(np.uint8))}
        for name in domains:
            colours = np.stack(
                [np.full_like(rows, list(CORRUPTIONS).index(name)), rows // PHOTOGRAPHS, rows % PHOTOGRAPHS % 251], -1
            )
            contents[name] = npy(np.broadcast_to(colours[:, None, None], (len(rows), 32, 32, 3)).astype(np.uint8))
        path = tmp_path / "mirror" / "cifar100c" / cifar100c.ARCHIVE.name
        with tarfile.open(path, "w") as tar:
            for name, content in sorted({**contents, **others}.items()):
                info = tarfile.TarInfo(f"CIFAR-100-C/{name}.npy")
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
        file = RemoteFile(path.name, (), f"sha256:{sha256_file(path)}")
        monkeypatch.setattr(cifar100c, "ARCHIVE", file)

    return write


def test_official_images_are_those_of_the_same_rows(archive: Archive, sources: Sources) -> None:
    archive("snow", "frost", "fog", glass_blur=b"not wanted, not read")
    wanted = {"domains": ["snow", "frost", "fog"], "per_domain": 100}
    official, made = prepare(sources, source="official", **wanted), prepare(sources, frost="synthetic", **wanted)
    for name, subset in official.items():
        np.testing.assert_array_equal(subset.labels, made[name].labels)
        assert (subset.images[:, 5, 5, 0] == subset.attributes["domain"]).all()
        assert (subset.images[:, 5, 5, 1] == subset.attributes["severity"]).all()
        assert (subset.images[:, 5, 5, 2] == photograph(made[name]) % 251).all()
    assert [used["name"] for used in sources.used] == ["CIFAR-100-C.tar"]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({}, "lacks fog; delete it and fetch it again"),
        ({"fog": npy(np.zeros((9, 32, 32, 3), np.uint8))}, r"fog.npy: is not .* \(is uint8 \[9, 32, 32, 3\]\)"),
        ({"fog": npy(np.zeros((2500, 32, 32, 3), np.int8))}, r"fog.npy: .*int8"),
        ({"fog": npy(np.array([{}]))}, "fog.npy: is not in its published format"),
        ({"fog": b"text"}, "fog.npy: is not in its published format"),
        ({"labels": b"text"}, "labels.npy: is not in its published format"),
    ],
)
def test_damaged_official_archives_are_told_in_one_line(
    others: dict[str, bytes], message: str, archive: Archive, sources: Sources
) -> None:
    archive("snow", **others)
    with pytest.raises(HetflError, match=message) as caught:
        prepare(sources, source="official", domains=["snow", "fog"], per_domain=10)
    assert "\n" not in str(caught.value)


def test_the_card_tells_how_frost_was_made(photographs: Subset, sources: Sources, tmp_path: Path) -> None:
    settings = validate(Cifar100CSettings, {"per_domain": 50, "frost": "synthetic"}, "data")
    prepare_dataset("cifar100c", settings, tmp_path / "cifar100c", sources)
    card, dataset = read_card(tmp_path / "cifar100c"), read_dataset(tmp_path / "cifar100c")
    assert (card.settings["frost"], card.settings["domains"]) == ("synthetic", list(TEN))
    assert dataset.attributes["severity"] == ("1", "2", "3", "4", "5")
    assert dataset.attributes["domain"] == tuple(CORRUPTIONS)
    assert (dataset.num_classes, dataset.class_names[0]) == (100, "apple")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five sets of 300 images; set s has images of value 50 * s + class, the first two sets in colour."""

    def fake(number: int) -> Callable[..., Mapping[str, Subset]]:
        labels = np.random.default_rng(number).permutation(np.arange(300) % 10)
        side, channels = (32, 3) if number < 2 else (28, 1)
        images = np.broadcast_to((50 * number + labels)[:, None, None, None], (300, side, side, channels))
        wrong = Subset(np.full((10, side, side, channels), 255, np.uint8), np.arange(10))
        return lambda settings, sources: {"train": Subset(images.astype(np.uint8), labels), "test": wrong}

    monkeypatch.setattr(five, "SETS", tuple(replace(each, prepare=fake(i)) for i, each in enumerate(five.SETS)))


def prepare_five(name: str, sources: Sources, **settings: object) -> Mapping[str, Subset]:
    known = entry(name)
    return known.prepare(validate(known.settings, settings, "data.five"), sources)


def test_five_is_balanced_and_offset(parts: None, sources: Sources) -> None:
    subsets = prepare_five("five", sources, per_dataset=100, size=40)
    for name, per_class in (("train", 8), ("test", 2)):
        subset = subsets[name]
        assert subset.images.shape == (50 * per_class, 40, 40, 3)
        assert subset.class_counts(50).tolist() == [per_class] * 50
        assert (subset.labels // 10 == subset.attributes["domain"]).all()
        value = 50 * subset.attributes["domain"] + subset.labels % 10
        assert (subset.images == value[:, None, None, None]).all()


def test_merged_five_has_ten_classes(parts: None, sources: Sources) -> None:
    apart, merged = (prepare_five(name, sources, per_dataset=50, size=8) for name in ("five", "five-merged"))
    for name, subset in merged.items():
        np.testing.assert_array_equal(subset.labels, apart[name].labels % 10)
        np.testing.assert_array_equal(subset.images, apart[name].images)
    assert len(entry("five-merged").class_names) == 10


def test_five_names_classes_by_set() -> None:
    names = entry("five").class_names
    assert (len(names), len(set(names))) == (50, 50)
    assert names[::10] == ("svhn: 0", "cifar10: airplane", "notmnist: A", "fashion-mnist: T-shirt/top", "mnist: 0")
    assert entry("five").attributes["domain"] == ("svhn", "cifar10", "notmnist", "fashion-mnist", "mnist")


def test_five_takes_other_images_with_another_seed(
    parts: None, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [replace(each, prepare=_numbered) for each in five.SETS]
    monkeypatch.setattr(five, "SETS", tuple(told))
    first, same, other = (
        prepare_five("five", sources, per_dataset=100, size=28, seed=seed)["train"].images for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)
    assert len(np.unique(first[:80], axis=0)) == 80  # no image twice


def _numbered(settings: object, sources: Sources) -> Mapping[str, Subset]:
    images = np.broadcast_to(np.arange(200)[:, None, None, None], (200, 28, 28, 1)).astype(np.uint8)
    return {"train": Subset(images, np.arange(200) % 10)}


@pytest.mark.parametrize("channels", [1, 3])
def test_five_resizes_as_pillow_does(channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (28, 28, channels), dtype=np.uint8)
    resized = five._resized(image, 224)
    assert resized.shape == (224, 224, 3)
    for channel in range(3):
        expected = Image.fromarray(image[..., min(channel, channels - 1)]).resize(
            (224, 224), Image.Resampling.BILINEAR
        )
        np.testing.assert_array_equal(resized[..., channel], expected)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"per_dataset": 1005}, "per_dataset: 1005 should be a multiple of 10"),
        (
            {"per_dataset": 310},
            "per_dataset 310 needs 31 training images of each class, class 0 of svhn has 30; use at most 300$",
        ),
        ({"test": 1}, "test: 1 should be less than 1"),
        ({"size": 0}, "size: 0 should be greater"),
    ],
)
def test_wrong_settings_of_five_are_named(raw: dict, message: str, parts: None, sources: Sources) -> None:
    with pytest.raises(HetflError, match=message):
        prepare_five("five", sources, **raw)


@pytest.mark.realdata
def test_corrupted_real_photographs_are_still_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to brightness and contrast, the nearest of all 10,000 test images is of the same class."""
    mirror = Path(os.environ.get("HETFL_MIRROR", ""))
    if not (mirror / "cifar100").is_dir():
        pytest.skip("HETFL_MIRROR names no folder with cifar100/")
    real = cifar100c.CIFAR100.prepare(cifar100c.CIFAR100.settings(), Sources(mirror, tmp_path))
    monkeypatch.setattr(cifar100c, "CIFAR100", replace(cifar100c.CIFAR100, prepare=lambda *_: real))
    raw = {"per_domain": 100, "frost": "synthetic", "test": 1}
    [subset] = cifar100c.prepare(validate(Cifar100CSettings, raw, "data"), Sources(mirror, tmp_path)).values()
    nearest = (_direction(subset.images) @ _direction(real["test"].images).T).argmax(axis=1)
    right = real["test"].labels[nearest] == subset.labels
    shares = {TEN[domain]: right[subset.attributes["domain"] == domain].mean() for domain in range(10)}
    assert min(shares.values()) > 0.5 and np.mean(list(shares.values())) > 0.9, shares


def _direction(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)
