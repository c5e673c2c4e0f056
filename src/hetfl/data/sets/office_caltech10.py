"""Office-Caltech10: ten classes in four domains."""

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

FILE = RemoteFile("office_caltech_10.zip", (), "")
COPY = "office-caltech10-short256.tar"
DOMAINS = ("amazon", "caltech", "dslr", "webcam")
CLASSES = (
    "backpack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)
OFFICE31_NAMES = {"back_pack": "backpack"}
"""Class folders that have Office-31's spelling in some archives, and their names here."""


class OfficeCaltech10Settings(Settings):
    """How images are stored and divided into training and test; the authors publish no division.

    Attributes:
        size: height and width in pixels that every image is stretched to.
        test: share of every class of every domain that is held out for the test subset.
        seed: of the random division.
    """

    size: int = Field(default=224, ge=1)
    test: float = Field(default=0.2, gt=0, lt=1)
    seed: int = 0


def prepare(settings: OfficeCaltech10Settings, sources: Sources) -> Mapping[str, Subset]:
    """Read images by domain, class and file name, from an archive with members ``<any>/<domain>/<class>/<file>``."""
    path = None if sources.mirrored("office-caltech10", FILE) else sources.copy("office-caltech10", COPY)
    path = path or sources.get("office-caltech10", FILE)
    names, images = pictures(path, lambda name: name.endswith(".jpg"), (settings.size, settings.size))
    with reading(path):
        places = [name.split("/")[-3:-1] for name in names]
        domains = np.array([DOMAINS.index(domain) for domain, _ in places], dtype=np.int64)
        labels = np.array([CLASSES.index(OFFICE31_NAMES.get(label, label)) for _, label in places], dtype=np.int64)
    everything = Subset(images, labels, {"domain": domains})
    groups = domains * len(CLASSES) + labels
    train, test = held_out(groups, settings.test, Draws(settings.seed), "data:office-caltech10")
    return {"train": take(everything, train), "test": take(everything, test)}


ENTRY = Entry(
    name="office-caltech10",
    title="Office-Caltech10",
    origin="B. Gong et al.; images of Office-31 and Caltech-256. The authors publish no archive that can be "
    "checked, so it is read from a mirror",
    licence="none stated; research use",
    citation="B. Gong, Y. Shi, F. Sha, K. Grauman. Geodesic flow kernel for unsupervised domain adaptation. CVPR, "
    "2012.",
    class_names=CLASSES,
    settings=OfficeCaltech10Settings,
    prepare=prepare,
    files=(FILE,),
    attributes={"domain": DOMAINS},
)
