"""MNIST and Fashion-MNIST, which share a file format."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from hetfl.data.entry import Entry, NoSettings
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.readers import arrays, idx
from hetfl.data.sets.cifar import compact_copies
from hetfl.data.store import Subset


def _files(homes: tuple[str, ...], *rows: tuple[str, str, int]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(name, tuple(f"{home}/{name}" for home in homes), f"md5:{md5}", size) for name, md5, size in rows
    )


MNIST = _files(
    ("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist"),
    ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
    ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
    ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
    ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
)
FASHION = _files(
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
    ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
    ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
    ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
    ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
)


def prepare(
    settings: NoSettings, sources: Sources, *, name: str, files: tuple[RemoteFile, ...]
) -> Mapping[str, Subset]:
    """Read both subsets in the authors' order: images uint8 [N, 28, 28, 1]."""
    mirrored = all(sources.mirrored(name, file) for file in files)
    if not mirrored and (copies := compact_copies(sources, name)):
        return {subset: _subset(*arrays(path, "images", "labels")) for subset, path in copies.items()}
    found = [idx(sources.get(name, file)) for file in files]
    return {"train": _subset(*found[:2]), "test": _subset(*found[2:])}


def _subset(images: np.ndarray, labels: np.ndarray) -> Subset:
    return Subset(images[..., None], labels.astype(np.int64))


ENTRIES = (
    Entry(
        name="mnist",
        title="MNIST",
        origin="Y. LeCun, C. Cortes, C. Burges, http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0, as commonly given",
        citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to document "
        "recognition. Proceedings of the IEEE, 1998.",
        class_names=tuple("0123456789"),
        prepare=partial(prepare, name="mnist", files=MNIST),
        files=MNIST,
        sizes={"train": 60_000, "test": 10_000},
    ),
    Entry(
        name="fashion-mnist",
        title="Fashion-MNIST",
        origin="Zalando Research, https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        citation="H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine "
        "Learning Algorithms. arXiv:1708.07747, 2017.",
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        prepare=partial(prepare, name="fashion-mnist", files=FASHION),
        files=FASHION,
        sizes={"train": 60_000, "test": 10_000},
    ),
)
