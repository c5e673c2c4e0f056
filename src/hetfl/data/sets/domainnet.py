"""DomainNet: the ten classes that FedBN and SGPT use, in six domains."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from hetfl.config import Settings
from hetfl.data.archive import decode, members
from hetfl.data.entry import Entry
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.readers import reading
from hetfl.data.store import Subset
from hetfl.errors import HetflError

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
CLASSES = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)

_HOME = "http://csr.bu.edu/ftp/visda/2019/multi-source"
# With the first digits of each SHA-512. Clipart and painting are the cleaned versions. The checksums of painting's
# two lists are not known, so these are read from a mirror.
_IMAGES = {
    "clipart": ("groundtruth/clipart.zip", "3bcfb9ec1b4061e8d5b0b887d4ebd4a708732787fc563c6dfc2d"),
    "infograph": ("infograph.zip", "47841f0d1b8606e4b02d508b250484d54f5cf04ef6c4875c6c5a39c"),
    "painting": ("groundtruth/painting.zip", "4c98b02563075948668a298c488660fda1d1a7ed85fd69caa7985fba"),
    "quickdraw": ("quickdraw.zip", "127cce1dd57fc99992f8614de77d03ae8ed6af242973f7a013ec0a"),
    "real": ("real.zip", "751713d4592d1278b50bf69787988cfae280cabdac80ee34ec4016e"),
    "sketch": ("sketch.zip", "369b8b6d78ac61bfcc85f660d878ba5fc701524b82bbc2eb65ca9a"),
}
_LISTS = {
    "clipart_train": "400985ce2a0878df2d8e54f1996c4fc253e577c1f91136304e553b",
    "clipart_test": "4d34a4a540d8b139499581875e2d18bbedd37c347233523d66beaf",
    "infograph_train": "d9ed4d86e2ea20b44315699964b6b7dc09442f0539300444d9329d",
    "infograph_test": "700f2b5deaad3923b0b8b85aeb694b73f24b13255cf48db3e770eaf",
    "painting_train": "",
    "painting_test": "",
    "quickdraw_train": "7410e8a1debd769e0412725a0fcc646d83055d297b5f44a92f50308",
    "quickdraw_test": "07a97e84d723f58dea67683ae5ddf013ebc5d33b76deca9a5d34f72",
    "real_train": "a5a510fec614018546510d55c378bca008fcfd51062f6414583639e",
    "real_test": "9586235e335340f065de720f99332bc906aa0ab147006a1a7ea4925",
    "sketch_train": "ee92102f2b98f11765e6a97afbab15c60f2bac6e30fa7e1bc5a7db",
    "sketch_test": "7384fc06670979911d7e1e9a34ba8a6cd20e9e77d6bc3536c739ff4",
}
ARCHIVES = {
    domain: RemoteFile(f"{domain}.zip", (f"{_HOME}/{place}",), f"sha512:{digits}")
    for domain, (place, digits) in _IMAGES.items()
}
LISTS = {
    name: RemoteFile(f"{name}.txt", (f"{_HOME}/domainnet/txt/{name}.txt",), f"sha512:{digits}" if digits else "")
    for name, digits in _LISTS.items()
}


class DomainNetSettings(Settings):
    """``size``: pixels of the square that every image is stretched to."""

    size: int = Field(default=224, ge=1)


def prepare(settings: DomainNetSettings, sources: Sources) -> Mapping[str, Subset]:
    """Read the ten classes of the published training and test lists, by domain and file name.

    The lists are read first, because they are small and give the sizes of the image arrays.
    """
    listed: dict[str, list[list[str]]] = {"train": [], "test": []}
    for domain in DOMAINS:
        train, test = (_listed(sources, LISTS[f"{domain}_{subset}"]) for subset in listed)
        listed["train"].append(sorted(train - test))
        listed["test"].append(sorted(test))
    subsets = {subset: _blank(names, settings.size) for subset, names in listed.items()}
    for number, domain in enumerate(DOMAINS):
        places: dict[str, np.ndarray] = {}
        for subset, names in listed.items():
            start = sum(map(len, names[:number]))
            places |= zip(names[number], subsets[subset].images[start:], strict=False)
        archive = sources.get("domainnet", ARCHIVES[domain])
        for name, content in members(archive, places.__contains__):
            places.pop(name)[:] = decode(content, f"{archive}: {name}", (settings.size, settings.size))
        if places:
            raise HetflError(f"{archive}: lacks {min(places)}, which a list names; fetch it again")
    return subsets


def _listed(sources: Sources, file: RemoteFile) -> set[str]:
    """Names of the ten classes' images in a list, ``<domain>/<class>/<file>``."""
    path = sources.get("domainnet", file)
    with reading(path):
        names = [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
        return {name for name in names for _, label, _ in [name.split("/")] if label in CLASSES}


def _blank(names: list[list[str]], size: int) -> Subset:
    """A subset with the labels of these images, domain by domain, and uninitialised pixels."""
    labels = [CLASSES.index(name.split("/")[1]) for domain in names for name in domain]
    domains = np.repeat(np.arange(len(names)), [len(domain) for domain in names])
    images = np.empty((len(labels), size, size, 3), np.uint8)
    return Subset(images, np.array(labels, dtype=np.int64), {"domain": domains})


ENTRY = Entry(
    name="domainnet",
    title="DomainNet (ten classes)",
    origin="X. Peng et al., http://ai.bu.edu/M3SDA/. No checksum of painting's lists is known, so they are read from "
    "a mirror",
    licence="fair use notice of its authors; research use",
    citation="X. Peng, Q. Bai, X. Xia, Z. Huang, K. Saenko, B. Wang. Moment Matching for Multi-Source Domain "
    "Adaptation. ICCV, 2019.",
    class_names=CLASSES,
    settings=DomainNetSettings,
    prepare=prepare,
    files=(*ARCHIVES.values(), *LISTS.values()),
    attributes={"domain": DOMAINS},
)
