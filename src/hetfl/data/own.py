"""Data sets of one's own, defined in params.yaml alone: a folder of images by class, or tables of Hugging Face."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import ExifTags, Image, ImageOps
from pydantic import Field, field_validator

from hetfl.config import Settings
from hetfl.data.inputs import Mean, Std
from hetfl.data.readers import held_out, take
from hetfl.data.store import Dataset, Subset, write_dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError, unknown

Layout = Literal["images", "datasets", "parquet"]
"""``images``: a folder for each class with its image files. ``datasets``: what ``save_to_disk`` of Hugging Face's
``datasets`` writes. ``parquet``: Parquet files with a column of images and one of labels."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Image files, as torchvision's ``ImageFolder`` knows them; other files are left out."""

FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes each orientation of EXIF; 1 is upright."""

SUBSETS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
}
"""Subsets, by the names that folders, files and tables give them."""


class OwnSettings(Settings):
    """A data set of one's own.

    Attributes:
        path: its folder, absolute or from the checkout.
        layout: see :data:`Layout`.
        title: its name in tables; empty: its name in params.yaml.
        licence: its licence, for the card.
        size: height and width in pixels in which images are stored.
        fit: images that are not square are cut to their central square (``crop``) or stretched (``stretch``).
        grey: store one channel instead of three.
        mean, std: how experiments normalise its images, in [0, 1], for all channels or for each; None: as the
            backbone expects. An experiment's own ``input`` goes first.
        classes: the names of all classes, in the order of their labels, also of those that this folder has no image
            of; empty: the classes that it has.
        image, label: the tables' columns; empty: those that are of Hugging Face's type Image and ClassLabel, or are
            called so.
        test: the share of each class that is held out, where the folder has no test images.
        public: the share of each class that no client gets, as the subset ``public``, for methods that use one.
        seed: of these draws.
    """

    path: str = Field(min_length=1)
    layout: Layout = "images"
    title: str = ""
    licence: str = "not stated"
    size: int = Field(default=32, ge=1, le=1024)
    fit: Literal["crop", "stretch"] = "crop"
    grey: bool = False
    mean: Mean | tuple[Mean, Mean, Mean] | None = None
    std: Std | tuple[Std, Std, Std] | None = None
    classes: tuple[str, ...] = ()
    image: str = ""
    label: str = ""
    test: float = Field(default=0.2, gt=0, lt=1)
    public: float = Field(default=0.0, ge=0, lt=1)
    seed: int = 0

    @field_validator("classes")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in value if value.count(name) > 1]:
            raise ValueError(f"has {twice[0]!r} twice; name each class once")
        return value


@dataclass(frozen=True)
class Sample:
    """One image that is not read yet.

    Attributes:
        subset: ``train``, ``test`` or ``val``; empty where the folder is not divided.
        label: the name of its class.
        name: of the file or the table's row, for messages and the digest.
        read: gives the encoded image.
    """

    subset: str
    label: str
    name: str
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Found:
    """What a folder holds.

    Attributes:
        class_names: in the order of the labels.
        samples: in the folder's order.
    """

    class_names: tuple[str, ...]
    samples: Sequence[Sample]

    @property
    def sizes(self) -> dict[str, int]:
        """Samples of each subset; the subset is ``""`` where the folder is not divided."""
        names = [sample.subset for sample in self.samples]
        return {name: names.count(name) for name in dict.fromkeys(names)}


def layout_of(folder: Path) -> Layout:
    """The layout of a folder.

    Raises:
        HetflError: it has none of the layouts.
    """
    if not folder.is_dir():
        raise HetflError(f"{folder}: is not a folder; name one with images by class, or with tables")
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return "datasets"
    if any(folder.rglob("*.parquet")):
        return "parquet"
    if next(_image_files(folder), None) is not None:
        return "images"
    raise HetflError(
        f"{folder}: has no images in folders by class (<class>/<image> or train/<class>/<image>), no files of "
        "save_to_disk and no *.parquet"
    )


def look(name: str, settings: OwnSettings, root: Path) -> Found:
    """Find the samples of a data set without decoding them.

    Raises:
        HetflError: the folder is missing or is not of the layout, or its classes have no images or are not those of
            the settings.
    """
    folder, where = root / settings.path, f"data set {name}"
    if not folder.is_dir():
        raise HetflError(
            f"params.yaml: data.{name}.path: {settings.path!r} is not a folder; name the one of the images"
        )
    found = _images(folder) if settings.layout == "images" else _tables(folder, settings, where)
    if not found.samples:
        raise HetflError(f"{where}: {folder} has no images of layout {settings.layout!r}")
    if settings.classes:
        if strange := {sample.label for sample in found.samples} - {*settings.classes}:
            raise unknown("class", min(strange), settings.classes, f"params.yaml: data.{name}.classes")
        found = Found(settings.classes, found.samples)
    if len(found.class_names) < 2:
        raise HetflError(f"{where}: {folder} has {len(found.class_names)} class, at least two are needed")
    if "train" not in found.sizes and "" not in found.sizes:
        raise HetflError(f"{where}: {folder} has {', '.join(found.sizes)} and no train; at least that is needed")
    trained = {sample.label for sample in found.samples if sample.subset in ("train", "")}
    if lacking := [label for label in found.class_names if label not in trained and label not in settings.classes]:
        raise HetflError(f"{where}: class {lacking[0]!r} has no image to train on; add some or remove the class")
    return found


def prepare_own(name: str, settings: OwnSettings, root: Path, folder: Path) -> None:
    """Read a data set of one's own and write it, see :func:`divided`.

    Args:
        name: of the data set.
        settings: its settings.
        root: the checkout.
        folder: the folder to write; replaced as a whole.

    Raises:
        HetflError: see :func:`look`; or an image cannot be read.
    """
    found = look(name, settings, root)
    images, digest = _decoded(found.samples, settings)
    subsets = divided(name, settings, found, images)
    write_dataset(
        folder,
        name=name,
        title=settings.title or name,
        origin=f"{settings.path} ({settings.layout})",
        licence=settings.licence,
        source=[{"name": settings.path, "from": "your folder", "sha256": digest}],
        settings=settings.model_dump(mode="json"),
        class_names=found.class_names,
        subsets=subsets,
    )


def outline(name: str, settings: OwnSettings, root: Path) -> Dataset:
    """A data set with its labels and black images, made without reading a single image.

    Raises:
        HetflError: see :func:`look`.
    """
    found = look(name, settings, root)
    images = np.broadcast_to(np.zeros((), np.uint8), (len(found.samples), 1, 1, 1))
    subsets = divided(name, settings, found, images)
    return Dataset(name, settings.title or name, found.class_names, subsets, "")


def divided(name: str, settings: OwnSettings, found: Found, images: np.ndarray) -> dict[str, Subset]:
    """The subsets of a data set.

    A missing test subset is held out of the training images by a keyed draw; ``val`` takes its place if there is one.

    Args:
        name: of the data set.
        settings: its settings.
        found: its samples.
        images: uint8 [N, h, w, C], in their order.

    Raises:
        HetflError: a share that is held out is no image, or all of a class.
    """
    labels = np.array([found.class_names.index(sample.label) for sample in found.samples], dtype=np.int64)
    everything, parts = Subset(images, labels), np.array([sample.subset or "train" for sample in found.samples])
    subsets = {part: take(everything, np.flatnonzero(parts == part)) for part in dict.fromkeys(parts.tolist())}
    if "test" not in subsets and "val" in subsets:
        subsets["test"] = subsets.pop("val")
    draws = Draws(settings.seed)
    for part, share in (("test", settings.test), ("public", settings.public)):
        if part not in subsets and share:
            kept, out = held_out(subsets["train"].labels, share, draws, f"data:own:{part}")
            at = f"params.yaml: data.{name}.{part}: {share}"
            if not len(out):
                raise HetflError(f"{at} of each class is no image; set a larger share")
            before, subsets["train"] = subsets["train"], take(subsets["train"], kept)
            subsets[part] = take(before, out)
            if lost := {*before.labels.tolist()} - {*subsets["train"].labels.tolist()}:
                label = found.class_names[min(lost)]
                raise HetflError(
                    f"{at} leaves class {label!r} no image to train on; set a smaller share or add images"
                )
    return {part: subsets[part] for part in ("public", "train", "val", "test") if part in subsets}


def statistics(found: Found, settings: OwnSettings, most: int = 1000) -> tuple[list[float], list[float], bool, int]:
    """What a look at some of the images says.

    Args:
        found: from :func:`look`.
        settings: how images are stored, apart from ``grey`` and ``size``.
        most: images to read, evenly spread over those to train on.

    Returns:
        Mean and standard deviation of each of three channels in [0, 1], whether all images are grey, and the median
        of their shorter sides in pixels.
    """
    trained = [sample for sample in found.samples if sample.subset in ("train", "")]
    chosen = trained[:: max(1, len(trained) // most)]
    sides, grey, sums = [], True, np.zeros((2, 3))
    for sample in chosen:
        image = _opened(sample.read(), sample.name)
        sides.append(min(image.size))
        pixels = np.asarray(_fitted(image, settings).convert("RGB"), dtype=np.float64) / 255
        grey = grey and bool((pixels == pixels[..., :1]).all())
        sums += [pixels.mean(axis=(0, 1)), np.square(pixels).mean(axis=(0, 1))]
    mean, square = sums / len(chosen)
    std = np.sqrt(np.maximum(square - mean**2, 1e-6))
    return mean.tolist(), std.tolist(), grey, int(np.median(sides))


def _decoded(samples: Sequence[Sample], settings: OwnSettings) -> tuple[np.ndarray, str]:
    """Images uint8 [N, size, size, 1 or 3], and the SHA-256 over names and contents."""
    images = np.empty((len(samples), settings.size, settings.size, 1 if settings.grey else 3), np.uint8)

    def read(place: int) -> str:
        sample = samples[place]
        content = sample.read()
        image = _fitted(_opened(content, sample.name), settings).convert("L" if settings.grey else "RGB")
        images[place] = np.asarray(image).reshape(images.shape[1:])
        return f"{sample.subset}/{sample.label}/{sample.name}:{hashlib.sha256(content).hexdigest()}"

    # Pillow decodes and resizes without Python's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        lines = [*pool.map(read, range(len(samples)))]
    return images, hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _opened(content: bytes, name: str) -> Image.Image:
    """An image turned as its camera says, in its own size.

    Raises:
        HetflError: it is not a readable image.
    """
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            image.load()
            turn = _turn(image)
            found = image if image.mode[0] not in "IF" else _of_8_bits(image)
            return found.copy() if turn is None else found.transpose(turn)
    except Exception as error:  # Pillow lets those of its own conversions through
        reason = str(error).partition(" <")[0]
        raise HetflError(f"{name}: is not a readable image ({reason}); mend or remove it") from error


def _of_8_bits(image: Image.Image) -> Image.Image:
    """A grey image of 16 bits in 8, which Pillow's own conversion would only cut off at white.

    Raises:
        ValueError: the file does not say which of its values is white.
    """
    pixels = np.asarray(image)
    if image.mode == "F" or pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError(
            f"grey pixels from {pixels.min()} to {pixels.max()}, where white is unknown; save 8 or 16 bits"
        )
    white = pixels == image.info.get("transparency", -1)
    return Image.fromarray(np.where(white, 255, np.round(pixels / 257)).astype(np.uint8))


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How an image is to be turned by its EXIF; None: not at all, also if its EXIF cannot be read.

    Pillow's ``exif_transpose`` turns images in the same way, but fails at EXIF that it cannot write again.
    """
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # see _opened
        return None


def _fitted(image: Image.Image, settings: OwnSettings) -> Image.Image:
    """The image in the size that is stored, bilinearly with antialiasing."""
    if image.mode not in ("L", "RGB"):
        # Palettes cannot be resized as they are; what is transparent becomes white.
        image = image.convert("RGBA" if "transparency" in image.info or "A" in image.mode else "RGB")
        if image.mode == "RGBA":
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    size = (settings.size, settings.size)
    if settings.fit == "crop":
        return ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    return image.resize(size, Image.Resampling.BILINEAR)


def _image_files(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Subset, class and path of each image below folders by class, in order of the names.

    Raises:
        HetflError: a folder inside is a link, or a name is not UTF-8.
    """
    parts = {part.name: SUBSETS[part.name.lower()] for part in _folders(folder) if part.name.lower() in SUBSETS}
    roots = [(subset, folder / part) for part, subset in parts.items()] if "train" in parts.values() else []
    for subset, root in roots or [("", folder)]:
        for of_class in _folders(root):
            for path in sorted(of_class.rglob("*")):
                _check_link(path)
                if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file():
                    _check_encoding(path)
                    yield subset, of_class.name, path


def _check_encoding(path: Path) -> None:
    """Check that a path can be written down, as the digest, the card and DVC do."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise HetflError(f"{os.fsencode(path)!r}: its name is not UTF-8; rename it") from error


def _check_link(path: Path) -> None:
    """Check that DVC looks into a folder, so that a change of its images is seen."""
    if path.is_symlink() and path.is_dir():
        raise HetflError(f"{path}: is a link to a folder, which DVC does not look into; put the folder itself there")


def _folders(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    for path in found:
        _check_link(path)
    return found


def _images(folder: Path) -> Found:
    samples = [
        Sample(subset, label, path.relative_to(folder).as_posix(), path.read_bytes)
        for subset, label, path in _image_files(folder)
    ]
    return Found(tuple(sorted({sample.label for sample in samples})), samples)


def _tables(folder: Path, settings: OwnSettings, where: str) -> Found:
    """The samples of Arrow or Parquet files; images are read when they are asked for."""
    samples: list[Sample] = []
    names: list[str] = []
    for subset, file, table in _opened_tables(folder, settings.layout, where):
        features = _features(table.schema)
        image = _column(table, settings.image, features, "Image", ("image", "img"), f"{where}: {file}", "image")
        label = _column(
            table, settings.label, features, "ClassLabel", ("label", "labels"), f"{where}: {file}", "label"
        )
        words = features.get(label, {}).get("names")
        for row, value in enumerate(table.column(label).to_pylist()):
            if value is None or words and isinstance(value, int) and not 0 <= value < len(words):
                raise HetflError(f"{where}: {file}:{row}: {label} is {value!r}, which is no class; remove such rows")
            name = str(words[value]) if words and isinstance(value, int) else str(value)
            samples.append(Sample(subset, name, f"{file}:{row}", _Cell(table.column(image), row, folder, file)))
        names += [str(word) for word in words or ()]
    labels = {sample.label for sample in samples}
    ordered = [*dict.fromkeys(name for name in names if name in labels)]
    rest = sorted(labels - {*ordered}, key=lambda label: (0, int(label), "") if label.isdecimal() else (1, 0, label))
    return Found((*ordered, *rest), samples)


@dataclass(frozen=True)
class _Cell:
    """The encoded image of one row."""

    column: Any
    row: int
    folder: Path
    file: str

    def __call__(self) -> bytes:
        value = self.column[self.row].as_py()
        if isinstance(value, Mapping):
            value = value.get("bytes") or value.get("path")
        if isinstance(value, str):
            try:
                return (self.folder / value).read_bytes()
            except OSError as error:
                raise HetflError(f"{self.file}:{self.row}: {value} cannot be read ({error.strerror})") from error
        if not isinstance(value, bytes):
            kind = type(value).__name__
            raise HetflError(f"{self.file}:{self.row}: holds {kind}; an encoded image (bytes) or a path is needed")
        return value


def _opened_tables(folder: Path, layout: Layout, where: str) -> Iterator[tuple[str, str, Any]]:
    """Subset, name and content of each file of a data set, memory-mapped."""
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise HetflError(f"{where}: layout {layout!r} needs pyarrow; pip install 'hetfl[tables]'") from error
    try:
        if layout == "parquet":
            for path in sorted(folder.rglob("*.parquet")):
                yield _subset_of(path.relative_to(folder)), path.name, parquet.read_table(path, memory_map=True)
            return
        listed = folder / "dataset_dict.json"
        parts = json.loads(listed.read_text())["splits"] if listed.is_file() else [""]
        for part in parts:
            state = json.loads((folder / part / "state.json").read_text())
            for file in state["_data_files"]:
                path = folder / part / file["filename"]
                with pyarrow.memory_map(str(path)) as source:
                    yield SUBSETS.get(part.lower(), part), path.name, ipc.open_stream(source).read_all()
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise HetflError(f"{where}: {folder} cannot be read as {layout} ({reason})") from error


def _subset_of(path: Path) -> str:
    """The subset that a Parquet file's name or folder speaks of; empty if of none."""
    words = re.split(r"[^a-z]+", path.as_posix().lower())
    return next((SUBSETS[word] for word in words if word in SUBSETS), "")


def _features(schema: Any) -> dict[str, Any]:
    """Hugging Face's types of the columns, from the metadata of a schema; empty if there are none."""
    written = (schema.metadata or {}).get(b"huggingface")
    try:
        return dict(json.loads(written)["info"]["features"]) if written else {}
    except (ValueError, KeyError, TypeError):
        return {}


def _column(
    table: Any, wanted: str, features: Mapping[str, Any], kind: str, usual: Sequence[str], where: str, key: str
) -> str:
    """The name of the column with images or labels."""
    if wanted:
        if wanted not in table.column_names:
            raise unknown("column", wanted, table.column_names, where)
        return wanted
    typed = [name for name, of in features.items() if isinstance(of, dict) and of.get("_type") == kind]
    found = [*typed, *(name for name in usual if name in table.column_names)]
    if not found:
        known = ", ".join(table.column_names)
        raise HetflError(
            f"{where}: has no column of type {kind} and none called {usual[0]!r}; set {key} to one of {known}"
        )
    return found[0]
