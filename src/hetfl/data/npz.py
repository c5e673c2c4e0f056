"""Arrays of numpy's npz files, whose headers are believed only as far as their bytes go."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from io import BytesIO
from math import prod
from pathlib import Path

import numpy as np

LARGEST = 2**30
"""Size limit of all arrays read from one file, in bytes."""


def npz(path: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Read arrays of an npz file.

    Args:
        path: the file.
        names: those to read; None: all.

    Raises:
        ValueError: an array is larger than :data:`LARGEST`, or its header says something else than its bytes.
        Exception: what ``zipfile`` raises for a damaged file, ``KeyError`` where it lacks an array.
    """
    with zipfile.ZipFile(path) as archive:
        every = [entry.filename.removesuffix(".npy") for entry in archive.infolist()]
        wanted = every if names is None else names
        entries = [archive.getinfo(f"{name}.npy") for name in wanted]
        if (size := sum(entry.file_size for entry in entries)) > LARGEST:
            raise ValueError(f"holds {size} bytes, at most {LARGEST} are read")
        if max((entry.compress_size for entry in entries), default=0) > path.stat().st_size:
            raise ValueError("is shorter than its list of contents says")
        return {name: _array(archive.read(entry)) for name, entry in zip(wanted, entries, strict=True)}


def _array(content: bytes) -> np.ndarray:
    """An array of a file's bytes; numpy itself would first make room for what the header says."""
    file = BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"holds an array of format {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    body = content[file.tell() :]
    if dtype.hasobject:
        raise ValueError("holds objects, numbers are needed")
    if not all(0 <= length < 2**40 for length in shape) or len(body) != prod(shape) * dtype.itemsize:
        raise ValueError(f"holds {len(body)} bytes, its header says {dtype} {list(shape)}")
    array = np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")
    return array.copy()  # which may be written
