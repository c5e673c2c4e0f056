"""Five-Dataset: SVHN, CIFAR-10, notMNIST, Fashion-MNIST and MNIST in one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from PIL import Image
from pydantic import Field

from hetfl.config import Settings
from hetfl.data.entry import Entry
from hetfl.data.fetch import Sources
from hetfl.data.readers import held_out
from hetfl.data.sets.cifar import ENTRIES as CIFAR
from hetfl.data.sets.mnist import ENTRIES as MNIST
from hetfl.data.sets.notmnist import ENTRY as NOTMNIST
from hetfl.data.sets.svhn import ENTRY as SVHN
from hetfl.data.store import Subset
from hetfl.draws import Draws
from hetfl.errors import HetflError

CLASSES = 10
"""Number of classes of each set."""
SETS = tuple(
    {entry.name: entry for entry in (SVHN, *CIFAR, NOTMNIST, *MNIST)}[name]
    for name in ("svhn", "cifar10", "notmnist", "fashion-mnist", "mnist")
)
"""In the order of Adversarial Continual Learning (Ebrahimi et al., ECCV 2020), the origin of Five-Dataset."""


class FiveSettings(Settings):
    """How many samples are taken from each set.

    The paper (FGPT) takes 1,000 random samples of each set and then divides them. It does not state whether classes
    are balanced, which share is for testing, or whether sets share labels.

    Attributes:
        per_dataset: images taken from each set's training subset, the same number of each class.
        test: share of every class that is held out for the test subset.
        size: height and width in pixels; images of 28 or 32 pixels are resized to it bilinearly, without a crop.
        seed: of all draws.
    """

    per_dataset: int = Field(default=1000, gt=0, multiple_of=CLASSES)
    test: float = Field(default=0.2, gt=0, lt=1)
    size: int = Field(default=224, ge=1, le=1024)
    seed: int = 0


def prepare(settings: FiveSettings, sources: Sources, *, merged: bool) -> Mapping[str, Subset]:
    """Make both subsets, images uint8 [N, size, size, 3] sorted by set.

    Args:
        settings: how many samples are taken.
        sources: finds the files.
        merged: whether class i of every set has label i, which makes 10 classes; otherwise there are 50.

    Raises:
        HetflError: a set has too few images, or its files cannot be obtained.
    """
    draws = Draws(settings.seed)
    images: list[np.ndarray] = []
    labels = []
    for entry in SETS:
        pool = entry.prepare(entry.settings(), sources)["train"]
        chosen = _balanced(pool.labels, settings.per_dataset // CLASSES, draws, entry.name)
        images.extend(pool.images[chosen])
        labels.append(pool.labels[chosen])
    domain = np.repeat(np.arange(len(SETS)), settings.per_dataset)
    label = np.concatenate(labels)
    apart = CLASSES * domain + label
    train, test = held_out(apart, settings.test, draws, "data:five:test")
    target = label if merged else apart

    def subset(places: np.ndarray) -> Subset:
        resized = np.empty((len(places), settings.size, settings.size, 3), np.uint8)
        for number, place in enumerate(places):
            resized[number] = _resized(images[place], settings.size)
        return Subset(resized, target[places], {"domain": domain[places]})

    return {"train": subset(train), "test": subset(test)}


def _balanced(labels: np.ndarray, per_class: int, draws: Draws, name: str) -> np.ndarray:
    """Positions of ``per_class`` samples of each class, sorted."""
    chosen = []
    for label in range(CLASSES):
        members = np.flatnonzero(labels == label)
        if len(members) < per_class:
            raise HetflError(
                f"five: per_dataset {CLASSES * per_class} needs {per_class} training images of each class, class "
                f"{label} of {name} has {len(members)}; use at most {CLASSES * len(members)}"
            )
        chosen.append(draws.numpy_generator(f"data:five:{name}", label).choice(members, per_class, replace=False))
    return np.sort(np.concatenate(chosen))


def _resized(image: np.ndarray, size: int) -> np.ndarray:
    grey = image.shape[-1] == 1
    resized = Image.fromarray(image[..., 0] if grey else image).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized.convert("RGB"))


def _entry(name: str, title: str, class_names: tuple[str, ...], merged: bool) -> Entry:
    return Entry(
        name=name,
        title=title,
        origin="made of SVHN, CIFAR-10, notMNIST (small), Fashion-MNIST and MNIST, after S. Ebrahimi et al., "
        "https://github.com/facebookresearch/Adversarial-Continual-Learning",
        licence="those of its parts",
        citation="S. Ebrahimi, F. Meier, R. Calandra, T. Darrell, M. Rohrbach. Adversarial Continual Learning. "
        "ECCV, 2020.",
        class_names=class_names,
        settings=FiveSettings,
        prepare=partial(prepare, merged=merged),
        attributes={"domain": tuple(entry.name for entry in SETS)},
    )


ENTRIES = (
    _entry(
        "five", "Five-Dataset", tuple(f"{each.name}: {name}" for each in SETS for name in each.class_names), False
    ),
    _entry("five-merged", "Five-Dataset, ten classes", tuple(map(str, range(CLASSES))), True),
)
