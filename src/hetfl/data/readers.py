"""Readers of the file formats that data sets are published in. A damaged file is an error of one line."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np

from hetfl.data.archive import DAMAGE, decode, members
from hetfl.data.npz import LARGEST, npz
from hetfl.data.store import Subset
from hetfl.draws import Draws
from hetfl.errors import HetflError


@contextmanager
def reading(what: Path | str) -> Iterator[None]:
    """Turn a library's error about a damaged file into one line.

    Args:
        what: the file, for the message.

    Raises:
        HetflError: the file is missing or damaged.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise HetflError(f"{what}: does not exist; fetch it again") from error
    except (*DAMAGE, LookupError, TypeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:160]
        raise HetflError(f"{what}: is not in its published format ({reason}); fetch it again") from error


def arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Read arrays of an npz file by name.

    Raises:
        HetflError: the file is damaged or lacks one.
    """
    with reading(path):
        return list(npz(path, names).values())


def idx(path: Path) -> np.ndarray:
    """Read the uint8 array of a gzip-compressed IDX file, MNIST's format.

    Its header is two zero bytes, the byte 8 for uint8, the rank as one byte, and big-endian sizes of four bytes each.

    Raises:
        HetflError: the file is damaged.
    """
    with reading(path), gzip.open(path) as file:
        parts, size = [], 0
        while part := file.read(2**20):
            parts.append(part)
            if (size := size + len(part)) > LARGEST:
                raise ValueError(f"holds more than {LARGEST} bytes")
        content = b"".join(parts)
        if content[:3] != b"\0\0\x08":
            raise ValueError("does not start as an IDX file of bytes")
        shape = np.frombuffer(content, ">i4", content[3], 4).astype(int)
        body = np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape))
        if len(body) != prod(shape.tolist()):
            raise ValueError(f"holds {len(body)} bytes, its header says {shape.tolist()}")
        return body.reshape(shape)


def matlab(path: Path, *names: str) -> list[np.ndarray]:
    """Read arrays of a MATLAB 5 file by name.

    Raises:
        HetflError: the file is damaged or lacks one.
    """
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import MatReadError

    with reading(path), path.open("rb") as file:
        if not file.read(10).startswith(b"MATLAB 5.0"):
            raise ValueError("does not start as a MATLAB 5 file")
        file.seek(0)
        try:
            size = sum(8 * prod(shape) for _, shape, _ in whosmat(file))
            if size > 8 * LARGEST:
                raise ValueError(f"holds {size // 8} numbers, at most {LARGEST} are read")
            file.seek(0)
            found: Mapping[str, np.ndarray] = loadmat(file)
        except (MatReadError, MemoryError) as error:  # a length in the file may say anything
            raise ValueError(str(error)) from error
        return [found[name] for name in names]


def jpeg_streams(path: Path, stream: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Decode images of one size from concatenated JPEG streams.

    Args:
        path: the file they come from, for the error message.
        stream: uint8 [bytes].
        offsets: int [N + 1]; image i is ``stream[offsets[i]:offsets[i + 1]]``.

    Returns:
        uint8 [N, H, W, 3].

    Raises:
        HetflError: an image is damaged or has another size.
    """
    data = stream.tobytes()
    with reading(path):
        spans = list(zip(offsets, offsets[1:], strict=False))
        if not spans:
            raise ValueError("holds no image")
        images = (decode(data[a:b], f"{path}: image {i}") for i, (a, b) in enumerate(spans))
        first = next(images)
        out = np.empty((len(spans), *first.shape), np.uint8)
        out[0] = first
        for index, image in enumerate(images, start=1):
            out[index] = image
    return out


def pictures(
    path: Path, wanted: Callable[[str], object], size: tuple[int, int], mode: str = "RGB"
) -> tuple[list[str], np.ndarray]:
    """Decode the image files of an archive, sorted by name.

    Args:
        path: the archive.
        wanted: says by its name whether a member is read.
        size: height and width in pixels; every image is stretched to it, bilinearly with antialiasing.
        mode: ``RGB`` or ``L``.

    Returns:
        Names, and images uint8 [N, H, W, 3 or 1].

    Raises:
        HetflError: the archive or an image is damaged, or no member is wanted.
    """
    encoded = sorted(members(path, wanted))
    if not encoded:
        raise HetflError(f"{path}: holds none of the images that it should; fetch it again")
    images = np.empty((len(encoded), *size, 1 if mode == "L" else 3), np.uint8)
    for index, (name, content) in enumerate(encoded):
        images[index] = decode(content, f"{path}: {name}", size, mode)
    return [name for name, _ in encoded], images


def take(subset: Subset, index: np.ndarray) -> Subset:
    """The samples of a subset at ``index`` [n], in that order."""
    attributes = {name: values[index] for name, values in subset.attributes.items()}
    return Subset(np.asarray(subset.images)[index], np.asarray(subset.labels)[index], attributes)


def held_out(groups: np.ndarray, share: float, draws: Draws, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """Divide samples in two, holding out the same share of every group.

    Args:
        groups: [N], the group of each sample.
        share: the part of every group to hold out, rounded to a whole number of samples.
        draws: the source of randomness.
        purpose: the name of the draw.

    Returns:
        Sorted indices of the samples that are kept, and of those that are held out.
    """
    out = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        chosen = draws.numpy_generator(purpose, int(group)).permutation(members)
        out[chosen[: round(share * len(members))]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)
