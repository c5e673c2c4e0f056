"""SVHN's cropped digits, without its ``extra`` subset."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hetfl.data.entry import Entry, NoSettings
from hetfl.data.fetch import RemoteFile, Sources
from hetfl.data.readers import matlab, reading
from hetfl.data.store import Subset

_HOME = "http://ufldl.stanford.edu/housenumbers"

FILES = {
    "train": RemoteFile(
        "train_32x32.mat", (f"{_HOME}/train_32x32.mat",), "md5:e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794
    ),
    "test": RemoteFile(
        "test_32x32.mat", (f"{_HOME}/test_32x32.mat",), "md5:eb5a983be6a315427106f1b164d9cef3", 64_275_384
    ),
}


def prepare(settings: NoSettings, sources: Sources) -> Mapping[str, Subset]:
    """Read both subsets in the authors' order: images uint8 [N, 32, 32, 3]; the files' label 10 is the digit 0."""
    subsets = {}
    for name, file in FILES.items():
        path = sources.get("svhn", file)
        images, labels = matlab(path, "X", "y")
        with reading(path):
            digits = labels.reshape(-1).astype(np.int64)
            if wrong := set(digits.tolist()) - set(range(1, 11)):
                raise ValueError(f"label {min(wrong)}, labels run from 1 to 10")
            subsets[name] = Subset(np.ascontiguousarray(images.transpose(3, 0, 1, 2)), digits % 10)
    return subsets


ENTRY = Entry(
    name="svhn",
    title="SVHN",
    origin="Y. Netzer et al., http://ufldl.stanford.edu/housenumbers",
    licence="non-commercial use only",
    citation="Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, A. Y. Ng. Reading Digits in Natural Images with "
    "Unsupervised Feature Learning. NIPS Workshop on Deep Learning and Unsupervised Feature Learning, 2011.",
    class_names=tuple("0123456789"),
    prepare=prepare,
    files=tuple(FILES.values()),
    sizes={"train": 73_257, "test": 26_032},
)
