"""A prepared data set on disk: uint8 images and labels per split, and a card that says what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetfl.config import Settings, validate
from hetfl.errors import HetflError, unknown
from hetfl.files import atomic_folder, read_json, sha256_file, sha256_json, write_json


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels.

    Attributes:
        images: uint8 [N, H, W, C].
        labels: int64 [N], indices into the data set's class names.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def class_counts(self, num_classes: int) -> np.ndarray:
        """Number of samples of each class, int64 [num_classes]."""
        return np.bincount(self.labels, minlength=num_classes)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A prepared data set; ``checksum`` identifies its content wherever it is mentioned."""

    name: str
    title: str
    class_names: tuple[str, ...]
    splits: Mapping[str, Split]
    checksum: str

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def split(self, name: str) -> Split:
        """The split of that name.

        Raises:
            HetflError: there is none.
        """
        if name not in self.splits:
            raise unknown("split", name, self.splits, f"data set {self.name}")
        return self.splits[name]


class StoredFile(Settings):
    """What the card says about one file."""

    bytes: int
    sha256: str


class Card(Settings):
    """``card.json``: what a prepared data set is, where it came from, and what its files must be."""

    name: str
    title: str
    origin: str
    licence: str
    source: str
    """Where this copy was taken from, e.g. ``"scikit-learn 1.9.1 bundled copy"``."""
    settings: dict[str, Any]
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    """Height, width, channels."""
    split_sizes: dict[str, int]
    files: dict[str, StoredFile]
    checksum: str
    """SHA-256 over the files' names and checksums."""


def write_dataset(
    folder: Path,
    *,
    name: str,
    title: str,
    origin: str,
    licence: str,
    source: str,
    settings: Mapping[str, Any],
    class_names: tuple[str, ...],
    splits: Mapping[str, Split],
) -> None:
    """Write a prepared data set, replacing the folder as a whole.

    Args:
        folder: where it goes.
        name: its name in the catalogue.
        title: its name in print.
        origin: who made it and where it is published.
        licence: its licence.
        source: where this copy was taken from.
        settings: what it was prepared with, in JSON's types.
        class_names: one name per label value.
        splits: images and labels by split name; all images have one shape.

    Raises:
        HetflError: there is no split, or images or labels have a wrong type, shape or value.
    """
    if not splits:
        raise HetflError(f"data set {name}: has no split, at least one is needed")
    image_shape = next(iter(splits.values())).images.shape[1:]
    for split_name, split in splits.items():
        _check_split(split, len(split.labels), image_shape, len(class_names), f"data set {name}: {split_name}")
    with atomic_folder(folder) as temporary:
        files = {}
        for split_name, split in splits.items():
            for array_name, array in (("images", split.images), ("labels", split.labels)):
                path = temporary / f"{split_name}-{array_name}.npy"
                np.save(path, np.ascontiguousarray(array), allow_pickle=False)
                files[path.name] = StoredFile(bytes=path.stat().st_size, sha256=sha256_file(path))
        card = Card(
            name=name,
            title=title,
            origin=origin,
            licence=licence,
            source=source,
            settings=dict(settings),
            class_names=class_names,
            image_shape=image_shape,
            split_sizes={split_name: len(split) for split_name, split in splits.items()},
            files=files,
            checksum=_checksum(files),
        )
        write_json(temporary / "card.json", card.model_dump(mode="json"))


def read_card(folder: Path) -> Card:
    """The card of a prepared data set.

    Raises:
        HetflError: it is missing or not a card.
    """
    path = folder / "card.json"
    if not path.exists():
        raise HetflError(f"{folder}: does not exist; {_remedy(folder)}")
    return validate(Card, read_json(path), str(path))


def read_dataset(folder: Path) -> Dataset:
    """Open a prepared data set, memory-mapped.

    File sizes, types, shapes and labels are checked here, contents only by :func:`verify_dataset`.

    Raises:
        HetflError: something is missing or is not what the card says.
    """
    card = read_card(folder)
    splits = {}
    for name, size in card.split_sizes.items():
        split = Split(_open(folder, f"{name}-images.npy", card), _open(folder, f"{name}-labels.npy", card))
        _check_split(split, size, card.image_shape, len(card.class_names), f"{folder}: {name}")
        splits[name] = split
    return Dataset(card.name, card.title, card.class_names, splits, card.checksum)


def verify_dataset(folder: Path) -> None:
    """Check every file of a prepared data set against the checksums of its card.

    Raises:
        HetflError: something is missing or has changed.
    """
    read_dataset(folder)
    card = read_card(folder)
    for name, file in card.files.items():
        found = sha256_file(folder / name)
        if found != file.sha256:
            raise HetflError(
                f"{folder / name}: SHA-256 is {found[:12]}, the card says {file.sha256[:12]}; {_remedy(folder)}"
            )
    if card.checksum != _checksum(card.files):
        raise HetflError(f"{folder / 'card.json'}: checksum does not belong to the files listed; {_remedy(folder)}")


def _checksum(files: Mapping[str, StoredFile]) -> str:
    return sha256_json({name: file.sha256 for name, file in files.items()})


def _remedy(folder: Path) -> str:
    return f"run dvc repro download@{folder.name}"


def _open(folder: Path, name: str, card: Card) -> np.ndarray:
    path = folder / name
    if name not in card.files or not path.exists():
        raise HetflError(f"{path}: does not exist; {_remedy(folder)}")
    size, expected = path.stat().st_size, card.files[name].bytes
    if size != expected:
        raise HetflError(f"{path}: has {size} bytes, the card says {expected}; {_remedy(folder)}")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise HetflError(f"{path}: is not an array file of numpy ({error}); {_remedy(folder)}") from error


def _check_split(split: Split, size: int, image_shape: tuple[int, ...], num_classes: int, what: str) -> None:
    images, labels = split.images, split.labels
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape != (size, *image_shape):
        right = f"uint8 [{size}, {', '.join(map(str, image_shape))}]"
        raise HetflError(f"{what} images: {images.dtype} {list(images.shape)}, {right} is needed")
    if labels.dtype != np.int64 or labels.shape != (size,):
        raise HetflError(f"{what} labels: {labels.dtype} {list(labels.shape)}, int64 [{size}] is needed")
    if size == 0:
        raise HetflError(f"{what}: has 0 samples, at least one is needed")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        raise HetflError(f"{what} labels: {wrong} is not a class, labels run from 0 to {num_classes - 1}")
