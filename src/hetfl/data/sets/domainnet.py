"""DomainNet: the classes that FedBN and SGPT use, in six domains."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from hetfl.config import Settings
from hetfl.data.entry import Entry
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.readers import pictures, reading
from hetfl.data.store import Split
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
# The first digits of each SHA-512. Clipart and painting are the cleaned versions. Those of painting's lists are not
# known, so these two are read from a mirror.
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


def prepare(settings: DomainNetSettings, sources: Sources) -> Mapping[str, Split]:
    """The ten classes of the published training and test lists, by domain and file name."""
    wanted = tuple(f"/{label}/" for label in CLASSES)
    parts: dict[str, list[Split]] = {"train": [], "test": []}
    for number, domain in enumerate(DOMAINS):
        split_of: dict[str, str] = {}
        for split in parts:
            path = sources.get("domainnet", LISTS[f"{domain}_{split}"])
            with reading(path):
                names = [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
            split_of |= {name: split for name in names if any(label in name for label in wanted)}
        archive = sources.get("domainnet", ARCHIVES[domain])
        names, images = pictures(archive, split_of.__contains__, (settings.size, settings.size))
        if len(names) != len(split_of):
            raise HetflError(f"{archive}: lacks {min(split_of.keys() - names)}, which is listed; fetch it again")
        with reading(archive):
            labels = np.array([CLASSES.index(name.split("/")[-2]) for name in names], dtype=np.int64)
        for split, found in parts.items():
            here = np.array([split_of[name] == split for name in names])
            domains = np.full(here.sum(), number, dtype=np.int64)
            found.append(Split(images[here], labels[here], {"domain": domains}))
    return {split: _join(found) for split, found in parts.items()}


def _join(parts: list[Split]) -> Split:
    return Split(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
        {"domain": np.concatenate([part.attributes["domain"] for part in parts])},
    )


ENTRY = Entry(
    name="domainnet",
    title="DomainNet (ten classes)",
    origin="X. Peng et al., http://ai.bu.edu/M3SDA/",
    licence="fair use notice of its authors; research use",
    citation="X. Peng, Q. Bai, X. Xia, Z. Huang, K. Saenko, B. Wang. Moment Matching for Multi-Source Domain "
    "Adaptation. ICCV, 2019.",
    class_names=CLASSES,
    settings=DomainNetSettings,
    prepare=prepare,
    files=(*ARCHIVES.values(), *LISTS.values()),
    attributes={"domain": DOMAINS},
)
