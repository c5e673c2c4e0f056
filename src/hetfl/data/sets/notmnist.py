"""The small notMNIST: letters A to J in many typefaces."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from hetfl.config import Settings
from hetfl.data.entry import Entry
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.readers import held_out, pictures, reading, take
from hetfl.data.store import Subset
from hetfl.draws import Draws

FILE = RemoteFile(
    "notMNIST_small.tar.gz",
    (
        "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
        "https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",
    ),
    "md5:c9890a473a9769fda4bdf314aaf500dd",
    8_458_043,
)
UNREADABLE = {
    "A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png",
    "F/Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png",
}
"""Two files of the archive that are not images."""
LETTERS = tuple("ABCDEFGHIJ")


class NotMnistSettings(Settings):
    """How the archive, which has no subsets, is divided: ``test`` is the share of every letter that is held out."""

    test: float = Field(default=0.2, gt=0, lt=1)
    seed: int = 0


def prepare(settings: NotMnistSettings, sources: Sources) -> Mapping[str, Subset]:
    """Divide the images, uint8 [N, 28, 28, 1] in order of their names, by a keyed permutation of every letter."""
    path = sources.get("notmnist", FILE)
    names, images = pictures(path, _is_image, (28, 28), "L")
    with reading(path):
        labels = np.array([LETTERS.index(name.split("/")[-2]) for name in names], dtype=np.int64)
    everything = Subset(images, labels)
    train, test = held_out(labels, settings.test, Draws(settings.seed), "data:notmnist")
    return {"train": take(everything, train), "test": take(everything, test)}


def _is_image(name: str) -> bool:
    return name.endswith(".png") and "/".join(name.split("/")[-2:]) not in UNREADABLE


ENTRY = Entry(
    name="notmnist",
    title="notMNIST (small)",
    origin="Y. Bulatov, http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html",
    licence="none stated; research use",
    citation="Y. Bulatov. notMNIST dataset. 2011.",
    class_names=LETTERS,
    settings=NotMnistSettings,
    prepare=prepare,
    files=(FILE,),
)
