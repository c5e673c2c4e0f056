"""CIFAR-10 and CIFAR-100, from their authors' binary archives or from a mirror's copies in JPEG."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from hetfl.data.archive import members
from hetfl.data.entry import Entry, NoSettings
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.readers import arrays, jpeg_streams, reading
from hetfl.data.store import Subset
from hetfl.errors import HetflError

_PIXELS = 3 * 32 * 32
_HOME = "https://www.cs.toronto.edu/~kriz"

CIFAR10 = RemoteFile(
    "cifar-10-binary.tar.gz",
    (f"{_HOME}/cifar-10-binary.tar.gz",),
    "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170_052_171,
)
CIFAR100 = RemoteFile(
    "cifar-100-binary.tar.gz",
    (f"{_HOME}/cifar-100-binary.tar.gz",),
    "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    168_513_733,
)


def prepare(
    settings: NoSettings, sources: Sources, *, name: str, file: RemoteFile, label_bytes: tuple[str, ...]
) -> Mapping[str, Subset]:
    """Read both subsets in the authors' order: images uint8 [N, 32, 32, 3].

    Args:
        settings: none.
        sources: finds the files.
        name: the data set.
        file: its archive.
        label_bytes: names of the bytes before an image's pixels, in order.

    Raises:
        HetflError: the file cannot be obtained, or is damaged.
    """
    if not sources.mirrored(name, file) and (copies := compact_copies(sources, name)):
        return {subset: _jpeg_subset(path, label_bytes) for subset, path in copies.items()}
    path = sources.get(name, file)
    records: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for member, content in sorted(members(path, lambda member: member.endswith(".bin"))):
        with reading(f"{path}: {member}"):
            rows = np.frombuffer(content, np.uint8).reshape(-1, len(label_bytes) + _PIXELS)
        records["test" if "test" in member.split("/")[-1] else "train"].append(rows)
    if not all(records.values()):
        raise HetflError(f"{path}: holds no training or no test batch; fetch it again")
    return {subset: _binary_subset(np.concatenate(rows), label_bytes) for subset, rows in records.items()}


def compact_copies(sources: Sources, name: str) -> dict[str, Path]:
    """Find a mirror's ``train.npz`` and ``test.npz`` of a data set, by subset; empty if it has neither.

    Raises:
        HetflError: it has only one of them.
    """
    copies = {subset: path for subset in ("train", "test") if (path := sources.copy(name, f"{subset}.npz"))}
    if len(copies) == 1:
        [path] = copies.values()
        raise HetflError(f"{path}: the other one of train.npz and test.npz is missing; copy both")
    return copies


def _binary_subset(rows: np.ndarray, label_bytes: tuple[str, ...]) -> Subset:
    images = rows[:, len(label_bytes) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    columns = {name: rows[:, place].astype(np.int64) for place, name in enumerate(label_bytes)}
    return Subset(np.ascontiguousarray(images), columns.pop("labels"), columns)


def _jpeg_subset(path: Path, label_bytes: tuple[str, ...]) -> Subset:
    keys = {"labels": "labels", "coarse": "coarse_labels"}
    stream, offsets, *columns = arrays(path, "jpeg", "offsets", *(keys[name] for name in label_bytes))
    found = {name: column.astype(np.int64) for name, column in zip(label_bytes, columns, strict=True)}
    return Subset(jpeg_streams(path, stream, offsets), found.pop("labels"), found)


_LICENCE = "none stated; research use"
_CITATION = "A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009."
_ORIGIN = "A. Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html"

ENTRIES = (
    Entry(
        name="cifar10",
        title="CIFAR-10",
        origin=_ORIGIN,
        licence=_LICENCE,
        citation=_CITATION,
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        prepare=partial(prepare, name="cifar10", file=CIFAR10, label_bytes=("labels",)),
        files=(CIFAR10,),
        sizes={"train": 50_000, "test": 10_000},
    ),
    Entry(
        name="cifar100",
        title="CIFAR-100",
        origin=_ORIGIN,
        licence=_LICENCE,
        citation=_CITATION,
        # fmt: off
        class_names=(
            "apple",
            "aquarium_fish",
            "baby",
            "bear",
            "beaver",
            "bed",
            "bee",
            "beetle",
            "bicycle",
            "bottle",
            "bowl",
            "boy",
            "bridge",
            "bus",
            "butterfly",
            "camel",
            "can",
            "castle",
            "caterpillar",
            "cattle",
            "chair",
            "chimpanzee",
            "clock",
            "cloud",
            "cockroach",
            "couch",
            "crab",
            "crocodile",
            "cup",
            "dinosaur",
            "dolphin",
            "elephant",
            "flatfish",
            "forest",
            "fox",
            "girl",
            "hamster",
            "house",
            "kangaroo",
            "keyboard",
            "lamp",
            "lawn_mower",
            "leopard",
            "lion",
            "lizard",
            "lobster",
            "man",
            "maple_tree",
            "motorcycle",
            "mountain",
            "mouse",
            "mushroom",
            "oak_tree",
            "orange",
            "orchid",
            "otter",
            "palm_tree",
            "pear",
            "pickup_truck",
            "pine_tree",
            "plain",
            "plate",
            "poppy",
            "porcupine",
            "possum",
            "rabbit",
            "raccoon",
            "ray",
            "road",
            "rocket",
            "rose",
            "sea",
            "seal",
            "shark",
            "shrew",
            "skunk",
            "skyscraper",
            "snail",
            "snake",
            "spider",
            "squirrel",
            "streetcar",
            "sunflower",
            "sweet_pepper",
            "table",
            "tank",
            "telephone",
            "television",
            "tiger",
            "tractor",
            "train",
            "trout",
            "tulip",
            "turtle",
            "wardrobe",
            "whale",
            "willow_tree",
            "wolf",
            "woman",
            "worm",
        ),
        attributes={
            "coarse": (
                "aquatic_mammals",
                "fish",
                "flowers",
                "food_containers",
                "fruit_and_vegetables",
                "household_electrical_devices",
                "household_furniture",
                "insects",
                "large_carnivores",
                "large_man-made_outdoor_things",
                "large_natural_outdoor_scenes",
                "large_omnivores_and_herbivores",
                "medium_mammals",
                "non-insect_invertebrates",
                "people",
                "reptiles",
                "small_mammals",
                "trees",
                "vehicles_1",
                "vehicles_2",
            )
        },
        # fmt: on
        prepare=partial(prepare, name="cifar100", file=CIFAR100, label_bytes=("coarse", "labels")),
        files=(CIFAR100,),
        sizes={"train": 50_000, "test": 10_000},
    ),
)
