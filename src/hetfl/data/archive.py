"""Archives and images of data sets, read in memory: nothing is ever extracted, so nothing can be half extracted."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Self

import numpy as np
from PIL import Image

from hetfl.errors import HetflError

LARGEST = 512 * 2**20
"""Size limit of one member, in bytes."""
RATIO = 100
"""An archive may unpack to so many times its size, and :data:`LARGEST` more; images are hardly compressed."""
HEADER = 2**20
"""Size limit of the headers before one member of a tar, in bytes: long names, and what pax adds."""

DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(OSError, EOFError, ValueError, RuntimeError, MemoryError),
)
"""What the standard library raises for a damaged archive. An encoding error is a ValueError, an unknown compression
method a RuntimeError; a damaged header of xz can ask for more memory than there is."""


class Member(tarfile.TarInfo):
    """A member of a tar whose headers take little memory. For ``tarfile.open(..., tarinfo=Member)``."""

    HEADERS = (
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    )
    """Kinds of members that are headers of the next one, which tarfile reads whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read one block.

        Raises:
            ValueError: it is of a header beyond :data:`HEADER`, or of a sparse file, whose holes have no limit.
        """
        found = super().frombuf(buf, encoding, errors)
        if found.type in cls.HEADERS and not 0 <= found.size <= HEADER:
            raise ValueError(f"a header has {found.size} bytes, at most {HEADER} are read")
        if found.type == tarfile.GNUTYPE_SPARSE:
            raise ValueError("a member is sparse; only plain files are read")
        return found


def members(
    path: Path, wanted: Callable[[str], object] = lambda name: True, largest: int = LARGEST
) -> Iterator[tuple[str, bytes]]:
    """Read the files in a tar (compressed or not) or zip archive, in the archive's order, without extracting them.

    All names of a zip are checked before anything is read; those of a tar one by one, as it is read.

    Args:
        path: the archive.
        wanted: says by its name whether a file is read; folders are skipped.
        largest: size limit of one member, in bytes.

    Yields:
        Name and content of each file.

    Raises:
        HetflError: the archive is truncated or damaged, or a member is a link or a device, has an absolute name or
            one that leads out, or is too large, or all are together.
    """
    with _one_line(path):
        most = LARGEST + RATIO * path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
                for entry in entries:
                    kind = entry.external_attr >> 28  # the file type of Unix, where the archive was made there
                    _check_member(path, entry.filename, kind in (0, 0o4, 0o10))
                total = 0
                for entry in entries:
                    if not entry.is_dir() and wanted(entry.filename):
                        _check_size(path, entry.filename, entry.file_size, largest)
                        total += entry.file_size
                        _check_total(path, total, most)
                        if entry.compress_size > path.stat().st_size:
                            raise zipfile.BadZipFile("is shorter than its list of contents says")
                        yield entry.filename, archive.read(entry)
            return
        with tarfile.open(path, "r:*", tarinfo=Member) as archive:
            for member in archive:
                _check_total(path, archive.offset, most)  # what is skipped is unpacked, too
                name = member.name.removeprefix("./")
                _check_member(path, name, member.isfile() or member.isdir())
                if member.isfile() and wanted(name):
                    _check_size(path, name, member.size, largest)
                    content = archive.extractfile(member)
                    assert content is not None
                    yield name, content.read()
            # tarfile takes a cut or a damaged header as the end, and stops before the checksum of what is compressed.
            assert archive.fileobj is not None
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("ends without its end mark")
            while archive.fileobj.read(2**20):
                pass


def decode(
    data: bytes,
    what: str,
    size: tuple[int, int] | None = None,
    mode: str = "RGB",
    resample: Image.Resampling = Image.Resampling.BILINEAR,
) -> np.ndarray:
    """Decode one image.

    Args:
        data: content of a JPEG or PNG file.
        what: its name in an error message.
        size: height and width in pixels to stretch it to; None: its own size.
        mode: ``RGB`` or ``L``.
        resample: the filter for resizing, applied with antialiasing.

    Returns:
        uint8 [H, W, C], C being 3 or 1.

    Raises:
        HetflError: it is not a readable image.
    """
    try:
        with Image.open(BytesIO(data), formats=("JPEG", "PNG")) as image:
            converted = image.convert(mode)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = str(error).partition(" <")[0]
        raise HetflError(f"{what}: is not a readable image ({reason}); fetch its archive again") from error
    if size is not None:
        converted = converted.resize((size[1], size[0]), resample)
    pixels = np.asarray(converted)
    return pixels if pixels.ndim == 3 else pixels[..., None]


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise HetflError(f"{path}: does not exist; fetch it again") from error
    except DAMAGE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")[:160]
        raise HetflError(f"{path}: is not a whole archive ({reason}); delete it and fetch it again") from error


def _check_member(path: Path, name: str, plain: bool) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    if not name:
        raise HetflError(f"{path}: a member has no name; fetch it again")
    if not plain:
        raise HetflError(f"{path}: member {name!r} is a link or a device; only plain files are read, fetch it again")
    if parts.is_absolute() or ".." in parts.parts or ":" in (parts.parts or ("",))[0]:
        raise HetflError(f"{path}: member {name!r} leads out of the archive; fetch it again")


def _check_total(path: Path, total: int, most: int) -> None:
    if total > most:
        raise HetflError(f"{path}: unpacks to more than {RATIO} times its size; fetch it again")


def _check_size(path: Path, name: str, size: int, largest: int) -> None:
    if size > largest:
        raise HetflError(f"{path}: member {name!r} has {size} bytes, at most {largest} are read; fetch it again")
