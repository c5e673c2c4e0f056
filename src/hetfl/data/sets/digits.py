"""The digits of scikit-learn, which need no download."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from hetfl.config import Settings
from hetfl.data.entry import Entry
from hetfl.data.fetch import Sources
from hetfl.data.store import Subset
from hetfl.draws import Draws

SIZE = 1797


class DigitsSettings(Settings):
    """How the digits are divided.

    Attributes:
        public: number of images in the public subset.
        test: number of images in the test subset; the rest is the training subset.
        seed: of the random division.
    """

    public: int = Field(default=600, gt=0)
    test: int = Field(default=397, gt=0, validate_default=True)
    seed: int = 0

    @field_validator("test")
    @classmethod
    def _leaves_training_images(cls, test: int, info: ValidationInfo) -> int:
        public = info.data.get("public", 0)
        if public + test >= SIZE:
            raise ValueError(f"plus public {public} must be less than the {SIZE} images, the rest is for training")
        return test


def prepare(settings: DigitsSettings, sources: Sources) -> Mapping[str, Subset]:
    """Divide the 1,797 images by one keyed permutation: uint8 [N, 8, 8, 1], with 0..16 scaled to 0..255."""
    from sklearn.datasets import load_digits  # a second to import, and needed only here

    sources.note("load_digits", f"bundled with scikit-learn {version('scikit-learn')}")
    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = bunch.target.astype(np.int64)
    order = Draws(settings.seed).numpy_generator("data:digits").permutation(SIZE)
    public, test, train = np.split(order, [settings.public, settings.public + settings.test])
    parts = {"public": public, "train": train, "test": test}
    return {name: Subset(images[part], labels[part]) for name, part in parts.items()}


ENTRY = Entry(
    name="digits",
    title="Digits (scikit-learn)",
    origin="E. Alpaydin, C. Kaynak: test part of UCI's Optical Recognition of Handwritten Digits, "
    "https://archive.ics.uci.edu/dataset/80",
    licence="CC BY 4.0",
    citation="E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. "
    "UCI Machine Learning Repository, 1998. https://doi.org/10.24432/C50P49",
    class_names=tuple("0123456789"),
    settings=DigitsSettings,
    prepare=prepare,
)
