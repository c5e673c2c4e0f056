"""Oxford Flowers102."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from hetfl.config import Settings
from hetfl.data.entry import Entry
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.readers import matlab, pictures, reading
from hetfl.data.store import Subset
from hetfl.errors import HetflError

_HOME = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"

IMAGES = RemoteFile(
    "102flowers.tgz", (f"{_HOME}/102flowers.tgz",), "md5:52808999861908f626f3c1f4e79d11fa", 344_862_509
)
LABELS = RemoteFile("imagelabels.mat", (f"{_HOME}/imagelabels.mat",), "md5:e0620be6f572b9609742df49c70aed4d", 502)
SPLITS = RemoteFile("setid.mat", (f"{_HOME}/setid.mat",), "md5:a5357ecc9cb78c4bef273ce3793fc85c", 14_989)


class Flowers102Settings(Settings):
    """``size``: height and width in pixels that every image is stretched to; FedTGP's generator uses 64."""

    size: int = Field(default=64, ge=1)


def prepare(settings: Flowers102Settings, sources: Sources) -> Mapping[str, Subset]:
    """Read the three published subsets, each in the order of its list; label 0 is the authors' class 1."""
    archive, *lists = (sources.get("flowers102", file) for file in (IMAGES, LABELS, SPLITS))
    (labels,) = matlab(lists[0], "labels")
    ids = dict(zip(("train", "val", "test"), matlab(lists[1], "trnid", "valid", "tstid"), strict=True))
    labels = labels.reshape(-1).astype(np.int64) - 1
    _, images = pictures(archive, lambda name: name.endswith(".jpg"), (settings.size, settings.size))
    if len(images) != len(labels):
        raise HetflError(f"{archive}: holds {len(images)} images, {len(labels)} have a label; fetch it again")
    with reading(lists[1]):
        rows = {name: found.reshape(-1).astype(np.int64) - 1 for name, found in ids.items()}
        if min(index.min() for index in rows.values()) < 0:
            raise ValueError("names image 0, but image numbers start at 1")
        return {name: Subset(images[index], labels[index]) for name, index in rows.items()}


ENTRY = Entry(
    name="flowers102",
    title="Flowers102",
    origin="M.-E. Nilsback, A. Zisserman, https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    licence="none stated; research use",
    citation="M.-E. Nilsback, A. Zisserman. Automated Flower Classification over a Large Number of Classes. ICVGIP, "
    "2008.",
    # fmt: off
    class_names=(
        "pink primrose",
        "hard-leaved pocket orchid",
        "canterbury bells",
        "sweet pea",
        "english marigold",
        "tiger lily",
        "moon orchid",
        "bird of paradise",
        "monkshood",
        "globe thistle",
        "snapdragon",
        "colt's foot",
        "king protea",
        "spear thistle",
        "yellow iris",
        "globe-flower",
        "purple coneflower",
        "peruvian lily",
        "balloon flower",
        "giant white arum lily",
        "fire lily",
        "pincushion flower",
        "fritillary",
        "red ginger",
        "grape hyacinth",
        "corn poppy",
        "prince of wales feathers",
        "stemless gentian",
        "artichoke",
        "sweet william",
        "carnation",
        "garden phlox",
        "love in the mist",
        "mexican aster",
        "alpine sea holly",
        "ruby-lipped cattleya",
        "cape flower",
        "great masterwort",
        "siam tulip",
        "lenten rose",
        "barbeton daisy",
        "daffodil",
        "sword lily",
        "poinsettia",
        "bolero deep blue",
        "wallflower",
        "marigold",
        "buttercup",
        "oxeye daisy",
        "common dandelion",
        "petunia",
        "wild pansy",
        "primula",
        "sunflower",
        "pelargonium",
        "bishop of llandaff",
        "gaura",
        "geranium",
        "orange dahlia",
        "pink-yellow dahlia?",
        "cautleya spicata",
        "japanese anemone",
        "black-eyed susan",
        "silverbush",
        "californian poppy",
        "osteospermum",
        "spring crocus",
        "bearded iris",
        "windflower",
        "tree poppy",
        "gazania",
        "azalea",
        "water lily",
        "rose",
        "thorn apple",
        "morning glory",
        "passion flower",
        "lotus",
        "toad lily",
        "anthurium",
        "frangipani",
        "clematis",
        "hibiscus",
        "columbine",
        "desert-rose",
        "tree mallow",
        "magnolia",
        "cyclamen",
        "watercress",
        "canna lily",
        "hippeastrum",
        "bee balm",
        "ball moss",
        "foxglove",
        "bougainvillea",
        "camellia",
        "mallow",
        "mexican petunia",
        "bromelia",
        "blanket flower",
        "trumpet creeper",
        "blackberry lily",
    ),
    # fmt: on
    settings=Flowers102Settings,
    prepare=prepare,
    files=(IMAGES, LABELS, SPLITS),
    sizes={"train": 1_020, "val": 1_020, "test": 6_149},
)
