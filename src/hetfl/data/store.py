"""A prepared data set on disk: images, labels and attributes of each subset, and a card that describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from hetfl.config import Settings, validate
from hetfl.errors import HetflError, unknown
from hetfl.files import atomic_folder, read_json, sha256_file, sha256_json, write_json


@dataclass(frozen=True, eq=False)
class Subset:
    """The training, test, validation or public part of a data set.

    Attributes:
        images: uint8 [N, H, W, C].
        labels: int64 [N], indices into the data set's class names.
        attributes: further labels, int64 [N] each, by name (``coarse``, ``domain``, ``severity``): indices into the
            data set's names for the values of that attribute.
    """

    images: np.ndarray
    labels: np.ndarray
    attributes: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def class_counts(self, num_classes: int) -> np.ndarray:
        """Number of samples of each class, int64 [num_classes]."""
        return np.bincount(self.labels, minlength=num_classes)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A prepared data set.

    Attributes:
        name: its name in the catalogue.
        title: its name in print.
        class_names: one name per label value.
        subsets: by name, such as ``train`` and ``test``.
        checksum: SHA-256 over the checksums of its files.
        attributes: per attribute of its samples, the names of the attribute's values.
    """

    name: str
    title: str
    class_names: tuple[str, ...]
    subsets: Mapping[str, Subset]
    checksum: str
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def subset(self, name: str) -> Subset:
        """The subset with this name.

        Raises:
            HetflError: it does not exist.
        """
        if name not in self.subsets:
            raise unknown("subset", name, self.subsets, f"data set {self.name}")
        return self.subsets[name]

    def labels(self, names: Sequence[str]) -> np.ndarray:
        """The labels of several subsets, concatenated: int64 [sum of sizes].

        Raises:
            HetflError: a subset does not exist.
        """
        return np.concatenate([self.subset(name).labels for name in names])

    def attribute(self, attribute: str, names: Sequence[str]) -> np.ndarray:
        """One attribute of several subsets, concatenated: int64 [sum of sizes].

        Raises:
            HetflError: a subset does not exist, or its samples have no such attribute.
        """
        if attribute not in self.attributes:
            raise unknown("attribute", attribute, self.attributes, f"data set {self.name}")
        return np.concatenate([self.subset(name).attributes[attribute] for name in names])


class StoredFile(Settings):
    """Size and checksum of one file of a data set."""

    bytes: int
    sha256: str


class Card(Settings):
    """``card.json``: what a prepared data set is, where it came from, and the checksums of its files."""

    name: str
    title: str
    origin: str
    licence: str
    source: list[dict[str, str]]
    """The files it was read from, each with ``name``, ``from`` and, unless bundled with a library, ``sha256``."""
    settings: dict[str, Any]
    class_names: tuple[str, ...]
    attributes: dict[str, tuple[str, ...]]
    """Per attribute of the samples, the names of the attribute's values."""
    image_shape: tuple[int, int, int]
    """Height, width, channels."""
    subset_sizes: dict[str, int] = Field(alias="split_sizes")
    """Number of samples of each subset. The file keeps the key ``split_sizes``, so that DVC sees no change in it."""
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
    source: Sequence[Mapping[str, str]],
    settings: Mapping[str, Any],
    class_names: tuple[str, ...],
    subsets: Mapping[str, Subset],
    attributes: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Write a prepared data set, replacing the folder as a whole.

    Args:
        folder: the folder to write.
        name: its name in the catalogue.
        title: its name in print.
        origin: who made it and where it is published.
        licence: its licence.
        source: the files it was read from, see :class:`Card`.
        settings: the settings it was prepared with, as JSON values.
        class_names: one name per label value.
        subsets: images and labels by subset name; all images have one shape, all subsets the same attributes.
        attributes: per attribute of the samples, the names of the attribute's values.

    Raises:
        HetflError: there is no subset, or images, labels or attributes have a wrong type, shape or value.
    """
    if not subsets:
        raise HetflError(f"data set {name}: has no subset, at least one is needed")
    image_shape = next(iter(subsets.values())).images.shape[1:]
    values = _value_counts(class_names, attributes or {})
    for subset_name, subset in subsets.items():
        _check_subset(subset, len(subset.labels), image_shape, values, f"data set {name}: {subset_name}")
    with atomic_folder(folder) as temporary:
        files = {}
        for subset_name, subset in subsets.items():
            for array_name, array in _arrays(subset).items():
                path = temporary / f"{subset_name}-{array_name}.npy"
                np.save(path, np.ascontiguousarray(array), allow_pickle=False)
                files[path.name] = StoredFile(bytes=path.stat().st_size, sha256=sha256_file(path))
        card = Card(
            name=name,
            title=title,
            origin=origin,
            licence=licence,
            source=[dict(file) for file in source],
            settings=dict(settings),
            class_names=class_names,
            attributes=dict(attributes or {}),
            image_shape=image_shape,
            split_sizes={subset_name: len(subset) for subset_name, subset in subsets.items()},
            files=files,
            checksum=_checksum(files),
        )
        write_json(temporary / "card.json", card.model_dump(mode="json", by_alias=True))


def read_card(folder: Path) -> Card:
    """Read the card of a prepared data set.

    Raises:
        HetflError: the folder is missing, or its ``card.json`` is not a card.
    """
    path = folder / "card.json"
    if not path.exists():
        raise HetflError(f"{folder}: does not exist; {_remedy(folder.name)}")
    return validate(Card, read_json(path), str(path))


def read_dataset(folder: Path) -> Dataset:
    """Open a prepared data set, memory-mapped.

    This checks sizes of files, types, shapes and the range of labels. :func:`verify_dataset` also checks contents.

    Raises:
        HetflError: a file is missing or differs from the card.
    """
    card = read_card(folder)
    values = _value_counts(card.class_names, card.attributes)
    subsets = {}
    for name, size in card.subset_sizes.items():
        opened = {array: _open(folder, f"{name}-{array}.npy", card) for array in ("images", *values)}
        subset = Subset(opened.pop("images"), opened.pop("labels"), opened)
        _check_subset(subset, size, card.image_shape, values, f"{folder}: {name}")
        subsets[name] = subset
    return Dataset(card.name, card.title, card.class_names, subsets, card.checksum, card.attributes)


def verified_dataset(folder: Path, known: Path) -> Dataset:
    """Open a prepared data set whose contents are what its card says.

    A file is read for this once, and again after its time or size changed.

    Args:
        folder: the data set's.
        known: a folder for what was found before.

    Raises:
        HetflError: a file is missing or differs from the card.
    """
    dataset = read_dataset(folder)
    path = known / f"{sha256_json(str(folder.absolute()))[:16]}.json"
    try:
        before = read_json(path)
    except HetflError:  # missing or damaged
        before = {}
    now = verify_files(folder, before if isinstance(before, dict) else {})
    if now != before:
        with suppress(OSError):  # where it cannot be written files are read again the next time
            write_json(path, now)
    return dataset


def verify_dataset(folder: Path) -> None:
    """Check every file of a prepared data set against the checksums of its card.

    Raises:
        HetflError: a file is missing or has changed.
    """
    read_dataset(folder)
    verify_files(folder)


def verify_files(folder: Path, known: Mapping[str, Any] = {}) -> dict[str, list[Any]]:  # noqa: B006 - never mutated
    """Check a prepared data set's files against the checksums of its card.

    Args:
        folder: the data set's.
        known: what this returned before; files whose times and sizes have not changed since are not read.

    Returns:
        Time, size and checksum of each file.

    Raises:
        HetflError: a file is missing or differs from the card.
    """
    card, found = read_card(folder), {}
    for name, file in card.files.items():
        status = (folder / name).stat()
        found[name] = [status.st_mtime_ns, status.st_size, file.sha256]
        if known.get(name) == found[name]:
            continue
        content = sha256_file(folder / name)
        if content != file.sha256:
            raise HetflError(
                f"{folder / name}: SHA-256 is {content[:12]}, the card says {file.sha256[:12]}; {_remedy(card.name)}"
            )
    if card.checksum != _checksum(card.files):
        raise HetflError(
            f"{folder / 'card.json'}: checksum does not belong to the files listed; {_remedy(card.name)}"
        )
    return found


def _checksum(files: Mapping[str, StoredFile]) -> str:
    return sha256_json({name: file.sha256 for name, file in files.items()})


def _remedy(name: str) -> str:
    return f"run dvc repro download-{name}"


def _open(folder: Path, name: str, card: Card) -> np.ndarray:
    path = folder / name
    if name not in card.files or not path.exists():
        raise HetflError(f"{path}: does not exist; {_remedy(card.name)}")
    size, expected = path.stat().st_size, card.files[name].bytes
    if size != expected:
        raise HetflError(f"{path}: has {size} bytes, the card says {expected}; {_remedy(card.name)}")
    try:
        # Copy on write: processes share the pages, and torch can wrap the array without copying it.
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise HetflError(f"{path}: is not an array file of numpy ({error}); {_remedy(card.name)}") from error


def _arrays(subset: Subset) -> dict[str, np.ndarray]:
    return {"images": subset.images, "labels": subset.labels, **subset.attributes}


def _value_counts(class_names: Sequence[str], attributes: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Number of values of the labels and of each attribute."""
    return {"labels": len(class_names), **{name: len(names) for name, names in attributes.items()}}


def _check_subset(
    subset: Subset, size: int, image_shape: tuple[int, ...], values: Mapping[str, int], what: str
) -> None:
    images, indices = subset.images, {"labels": subset.labels, **subset.attributes}
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape != (size, *image_shape):
        right = f"uint8 [{size}, {', '.join(map(str, image_shape))}]"
        raise HetflError(f"{what} images: {images.dtype} {list(images.shape)}, {right} is needed")
    if set(indices) != set(values):
        raise HetflError(f"{what}: has {', '.join(indices)}; {', '.join(values)} are needed")
    for name, array in indices.items():
        if array.dtype != np.int64 or array.shape != (size,):
            raise HetflError(f"{what} {name}: {array.dtype} {list(array.shape)}, int64 [{size}] is needed")
    if size == 0:
        raise HetflError(f"{what}: has 0 samples, at least one is needed")
    for name, array in indices.items():
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= values[name]:
            wrong = low if low < 0 else high
            kind = "class" if name == "labels" else name
            raise HetflError(f"{what} {name}: {wrong} is not a {kind}, they run from 0 to {values[name] - 1}")
