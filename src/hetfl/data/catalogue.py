"""Every data set hetfl can prepare: what it is, where it comes from, and how it is split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from hetfl.config import Settings
from hetfl.data.store import Split, write_dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError, unknown


@dataclass(frozen=True)
class Sources:
    """Where a data set may come from.

    Attributes:
        mirror: a folder with local copies that is looked in first, or None.
        downloads: a folder that keeps what was downloaded.
    """

    mirror: Path | None
    downloads: Path


@dataclass(frozen=True)
class Prepared:
    """A data set ready to be written: its splits by name, and the copy they were read from."""

    splits: dict[str, Split]
    source: str


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue.

    Attributes:
        name: the name used in params.yaml.
        title: its name in print.
        origin: who made it and where it is published.
        licence: its licence.
        citation: how to cite it.
        class_names: one name per label value.
        settings: the class of its settings.
        prepare: turns settings and sources into splits.
    """

    name: str
    title: str
    origin: str
    licence: str
    citation: str
    class_names: tuple[str, ...]
    settings: type[Settings]
    prepare: Callable[[Any, Sources], Prepared]


DIGITS_SIZE = 1797


class DigitsSettings(Settings):
    """How the digits are split; what ``public`` and ``test`` leave is the training set."""

    public: int = Field(default=600, gt=0)
    test: int = Field(default=397, gt=0, validate_default=True)
    seed: int = 0

    @field_validator("test")
    @classmethod
    def _leaves_training_images(cls, test: int, info: ValidationInfo) -> int:
        public = info.data.get("public", 0)
        if public + test >= DIGITS_SIZE:
            raise ValueError(
                f"plus public {public} must be less than the {DIGITS_SIZE} images, the rest is for training"
            )
        return test


def prepare_digits(settings: DigitsSettings, sources: Sources) -> Prepared:
    """Scikit-learn's 1,797 digits, 8x8x1 with 0..16 stretched to 0..255, cut by one keyed permutation."""
    from sklearn.datasets import load_digits  # a second to import, and needed only here

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = bunch.target.astype(np.int64)
    order = Draws(settings.seed).numpy("data:digits").permutation(DIGITS_SIZE)
    public, test, train = np.split(order, [settings.public, settings.public + settings.test])
    parts = {"public": public, "train": train, "test": test}
    splits = {name: Split(images[part], labels[part]) for name, part in parts.items()}
    return Prepared(splits, f"scikit-learn {version('scikit-learn')} bundled copy")


class Cifar10Settings(Settings):
    """CIFAR-10 has none: its training and test images are fixed."""


def prepare_cifar10(settings: Cifar10Settings, sources: Sources) -> Prepared:
    """CIFAR-10 from ``<mirror>/cifar10/{train,test}.npz``, or from its authors through torchvision.

    Raises:
        HetflError: it is neither in the mirror nor can be downloaded.
    """
    if sources.mirror is not None and (sources.mirror / "cifar10").is_dir():
        folder = sources.mirror / "cifar10"
        copies = {name: _jpeg_split(folder / f"{name}.npz") for name in ("train", "test")}
        return Prepared(copies, "mirror, JPEG-coded")
    from torchvision.datasets import CIFAR10  # seconds to import, and needed only here

    splits = {}
    for name in ("train", "test"):
        try:
            official = CIFAR10(str(sources.downloads / "cifar10"), train=name == "train", download=True)
        except (OSError, RuntimeError) as error:
            raise HetflError(
                f"cifar10: cannot be downloaded ({error}); name a folder that holds cifar10/ in data.mirror of "
                "params.yaml or in HETFL_MIRROR"
            ) from error
        splits[name] = Split(np.asarray(official.data, np.uint8), np.asarray(official.targets, np.int64))
    return Prepared(splits, "official archive")


def _jpeg_split(path: Path) -> Split:
    # A mirror keeps images as JPEG streams, back to back, with their offsets.
    from PIL import Image

    try:
        with np.load(path, allow_pickle=False) as arrays:
            stream, offsets, labels = arrays["jpeg"].tobytes(), arrays["offsets"], arrays["labels"]
        pairs = zip(offsets[:-1], offsets[1:], strict=True)
        images = [np.asarray(Image.open(BytesIO(stream[begin:end])).convert("RGB")) for begin, end in pairs]
    except (OSError, KeyError, ValueError, BadZipFile) as error:
        raise HetflError(f"{path}: is not a readable set of images ({error}); copy it again") from error
    return Split(np.stack(images), labels.astype(np.int64))


CATALOGUE: dict[str, Entry] = {
    "digits": Entry(
        name="digits",
        title="Digits (scikit-learn)",
        origin="E. Alpaydin, C. Kaynak: test part of UCI's Optical Recognition of Handwritten Digits, "
        "https://archive.ics.uci.edu/dataset/80",
        licence="CC BY 4.0",
        citation="E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. "
        "UCI Machine Learning Repository, 1998. https://doi.org/10.24432/C50P49",
        class_names=tuple("0123456789"),
        settings=DigitsSettings,
        prepare=prepare_digits,
    ),
    "cifar10": Entry(
        name="cifar10",
        title="CIFAR-10",
        origin="A. Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; research use",
        citation="A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009.",
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        settings=Cifar10Settings,
        prepare=prepare_cifar10,
    ),
}


def entry(name: str, where: str = "") -> Entry:
    """The catalogue's entry of that name.

    Args:
        name: the data set.
        where: the key that held the name, for the error.

    Raises:
        HetflError: there is none.
    """
    if name not in CATALOGUE:
        raise unknown("data set", name, CATALOGUE, where)
    return CATALOGUE[name]


def prepare_dataset(name: str, settings: Settings, folder: Path, sources: Sources) -> None:
    """Prepare a data set of the catalogue and write it.

    Args:
        name: the data set.
        settings: an instance of its entry's settings class.
        folder: where it goes, replaced as a whole.
        sources: a mirror and a folder for downloads.

    Raises:
        HetflError: the data set is unknown, or what was prepared is not well formed.
    """
    known = entry(name)
    prepared = known.prepare(settings, sources)
    write_dataset(
        folder,
        name=known.name,
        title=known.title,
        origin=known.origin,
        licence=known.licence,
        source=prepared.source,
        settings=settings.model_dump(mode="json"),
        class_names=known.class_names,
        splits=prepared.splits,
    )
