"""The mirrored sets as they really are, from the folder that HETFL_MIRROR names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from settings_files import PAPER_PARAMS

from hetfl.data.catalogue import entry, prepare_dataset
from hetfl.data.fetch import Sources
from hetfl.data.partitions import make_partition
from hetfl.data.store import Subset, read_card, read_dataset
from hetfl.draws import Draws

pytestmark = pytest.mark.realdata

Folder = Callable[[str], Path]

COPIES = {
    "cifar10/train.npz": "f7608a2c6ebad731597aec89b509185873991d3b1dbcd9d34f7aa3061b494158",
    "cifar10/test.npz": "be70b62f5cd5d045e6cd3631e487eec2fb5839c659c8d139410ac6a10f2da2bf",
    "cifar100/train.npz": "ec9d67e4a1d8acbf2751df1d8e1adf410ca0b2d92b198b706a93c84e3bb3bc4d",
    "cifar100/test.npz": "78139e0ab3ff3a525a69b5e2d5f8fc008bc12f4099745f1bb7f2e57dd2f47018",
    "mnist/train.npz": "8ee2e642084af9bb8922b1ec3d60c45d862e40c2e65d82873a882d8da25589f7",
    "mnist/test.npz": "df8710f2a0a424d8ff1628a7f884b44323cb1a64073df7b678bf3c12b520fe60",
    "fashion-mnist/train.npz": "118b5d692ac4980ac25763551fdb03dbaa6091fa5338629421338335fe443044",
    "fashion-mnist/test.npz": "2d9395f9a0dd19776f6999b8259ba5a5e900110c9ae6997e5a28b61474220a72",
    "office-caltech10/office-caltech10-short256.tar": (
        "d0ae21c3635002ba5d93aff3b5b3a2313f42d78dbdf06aeff2520656b7e6fdd0"
    ),
}
"""SHA-256 of the mirror's files, from its README."""
SETS = ("cifar10", "cifar100", "mnist", "fashion-mnist", "office-caltech10")
MNIST_COUNTS = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Prepares a data set of the mirror when it is first wanted."""
    mirror, prepared = Path(os.environ.get("HETFL_MIRROR") or "/nonexistent"), tmp_path_factory.mktemp("data")

    def get(name: str) -> Path:
        if not (mirror / name).is_dir():
            pytest.skip(f"HETFL_MIRROR names no folder with {name}/")
        if not (prepared / name).exists():
            prepare_dataset(name, entry(name).settings(), prepared / name, Sources(mirror, prepared / "downloads"))
        return prepared / name

    return get


def statistics(subset: Subset) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of values in [0, 1]."""
    channels = subset.images.shape[-1]
    counts = [np.bincount(subset.images[..., c].ravel(), minlength=256) for c in range(channels)]
    values = np.arange(256) / 255
    means = [float(np.average(values, weights=of)) for of in counts]
    variances = [np.average((values - mean) ** 2, weights=of) for mean, of in zip(means, counts, strict=True)]
    return means, np.sqrt(variances).tolist()


@pytest.mark.parametrize("name", SETS)
def test_card_names_the_mirrors_files(name: str, folder: Folder) -> None:
    assert read_card(folder(name)).source == [
        {"name": file, "from": "mirror copy", "sha256": sha256}
        for file, sha256 in COPIES.items()
        if file.startswith(f"{name}/")
    ]


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100), ("fashion-mnist", 10)])
def test_balanced_sets(name: str, classes: int, folder: Folder) -> None:
    dataset = read_dataset(folder(name))
    shape = (28, 28, 1) if name == "fashion-mnist" else (32, 32, 3)
    for subset, size in {"train": 60_000 if name == "fashion-mnist" else 50_000, "test": 10_000}.items():
        assert dataset.subset(subset).images.shape == (size, *shape)
        assert dataset.subset(subset).class_counts(classes).tolist() == [size // classes] * classes


def test_mnist(folder: Folder) -> None:
    dataset = read_dataset(folder("mnist"))
    for name, counts in MNIST_COUNTS.items():
        assert dataset.subset(name).class_counts(10).tolist() == counts
        assert dataset.subset(name).images.shape == (sum(counts), 28, 28, 1)
    assert dataset.subset("train").labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("cifar10", [0.4913, 0.4822, 0.4464], [0.2471, 0.2436, 0.2617]),
        ("cifar100", [0.5070, 0.4865, 0.4408], [0.2673, 0.2565, 0.2761]),
        ("mnist", [0.1307], [0.3081]),
        ("fashion-mnist", [0.2860], [0.3530]),
    ],
)
def test_channel_statistics(name: str, mean: list[float], std: list[float], folder: Folder) -> None:
    """The mirror's README for the decoded CIFARs, the constants in common use for the other two."""
    means, stds = statistics(read_dataset(folder(name)).subset("train"))
    np.testing.assert_allclose(means, mean, atol=1e-4)
    np.testing.assert_allclose(stds, std, atol=1e-4)


def test_cifar10_is_in_its_official_order(folder: Folder) -> None:
    dataset = read_dataset(folder("cifar10"))
    assert dataset.subset("train").labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]  # the first of data_batch_1


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_class_names_are_the_mirrors(name: str, folder: Folder) -> None:
    dataset = read_dataset(folder(name))
    with np.load(Path(os.environ["HETFL_MIRROR"]) / name / "train.npz", allow_pickle=False) as copy:
        assert dataset.class_names == tuple(copy["class_names"].tolist())
        if "coarse" in dataset.attributes:
            assert dataset.attributes["coarse"] == tuple(copy["coarse_class_names"].tolist())


def test_every_coarse_class_of_cifar100_has_five_classes(folder: Folder) -> None:
    dataset = read_dataset(folder("cifar100"))
    pairs = np.stack([dataset.labels(["train", "test"]), dataset.attribute("coarse", ["train", "test"])], axis=1)
    fine, coarse = np.unique(pairs, axis=0).T
    assert fine.tolist() == list(range(100))
    assert np.bincount(coarse).tolist() == [5] * 20
    trees = [dataset.class_names[i] for i in fine[coarse == dataset.attributes["coarse"].index("trees")]]
    assert trees == ["maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"]


def test_office_caltech10(folder: Folder) -> None:
    dataset = read_dataset(folder("office-caltech10"))
    assert dataset.subset("train").images.shape[1:] == (224, 224, 3)
    domains = dataset.attribute("domain", ["train", "test"])
    assert dataset.attributes["domain"] == ("amazon", "caltech", "dslr", "webcam")
    assert np.bincount(domains).tolist() == [958, 1123, 157, 295]
    cells = {
        name: np.bincount(10 * subset.attributes["domain"] + subset.labels, minlength=40)
        for name, subset in dataset.subsets.items()
    }
    assert (cells["train"] > 0).all()
    sizes = cells["train"] + cells["test"]
    assert cells["test"].tolist() == [round(0.2 * size) for size in sizes.tolist()]


def test_the_papers_splits_of_cifar10(folder: Folder) -> None:
    """FedHPL: 10,000 a client in IID and Dir, 50 of a class at least, every image used once in Non-IID."""
    dataset = read_dataset(folder("cifar10"))
    splits = PAPER_PARAMS.partitions["cifar10"].splits
    counts = {
        split: make_partition(splits[split], dataset, Draws(0), f"splits.{split}").class_counts(
            dataset.labels(["train"]), 10
        )
        for split in ("iid", "dir", "noniid")
    }
    assert counts["iid"].sum(axis=1).tolist() == counts["dir"].sum(axis=1).tolist() == [10_000] * 5
    assert counts["noniid"].sum(axis=0).tolist() == [5000] * 10
    assert min(counts["dir"].min(), counts["noniid"].min()) >= 50
