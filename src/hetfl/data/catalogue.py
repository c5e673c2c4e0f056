"""Every data set hetfl can prepare: what it is, where it comes from, and how it is split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from hetfl.config import Settings
from hetfl.data.store import Split, write_dataset
from hetfl.draws import Draws
from hetfl.errors import unknown


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue.

    Attributes:
        name: the name used in params.yaml.
        title: its name in print.
        origin: who made it and where it is published.
        licence: its licence.
        citation: how to cite it.
        source: where the copy that ``prepare`` reads is taken from.
        class_names: one name per label value.
        settings: the class of its settings.
        prepare: turns settings into splits by name.
    """

    name: str
    title: str
    origin: str
    licence: str
    citation: str
    source: str
    class_names: tuple[str, ...]
    settings: type[Settings]
    prepare: Callable[[Any], dict[str, Split]]


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


def prepare_digits(settings: DigitsSettings) -> dict[str, Split]:
    """Scikit-learn's 1,797 digits, 8x8x1 with 0..16 stretched to 0..255, cut by one keyed permutation."""
    from sklearn.datasets import load_digits  # a second to import, and needed only here

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = bunch.target.astype(np.int64)
    order = Draws(settings.seed).numpy("data:digits").permutation(DIGITS_SIZE)
    public, test, train = np.split(order, [settings.public, settings.public + settings.test])
    parts = {"public": public, "train": train, "test": test}
    return {name: Split(images[part], labels[part]) for name, part in parts.items()}


CATALOGUE: dict[str, Entry] = {
    "digits": Entry(
        name="digits",
        title="Digits (scikit-learn)",
        origin="E. Alpaydin, C. Kaynak: test part of UCI's Optical Recognition of Handwritten Digits, "
        "https://archive.ics.uci.edu/dataset/80",
        licence="CC BY 4.0",
        citation="E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. "
        "UCI Machine Learning Repository, 1998. https://doi.org/10.24432/C50P49",
        source=f"scikit-learn {version('scikit-learn')} bundled copy",
        class_names=tuple("0123456789"),
        settings=DigitsSettings,
        prepare=prepare_digits,
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


def prepare_dataset(name: str, settings: Settings, folder: Path) -> None:
    """Prepare a data set of the catalogue and write it.

    Args:
        name: the data set.
        settings: an instance of its entry's settings class.
        folder: where it goes, replaced as a whole.

    Raises:
        HetflError: the data set is unknown, or what was prepared is not well formed.
    """
    known = entry(name)
    write_dataset(
        folder,
        name=known.name,
        title=known.title,
        origin=known.origin,
        licence=known.licence,
        source=known.source,
        settings=settings.model_dump(mode="json"),
        class_names=known.class_names,
        splits=known.prepare(settings),
    )
