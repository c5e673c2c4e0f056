"""Atomic writes and checksums."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hetfl.errors import HetflError

_TEMPORARY = re.compile(r"\..+(\.\w+)\.\w+\1")
"""Names of :func:`atomic_path`, e.g. ``.run.json.x1y2z3_4.json``."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Have errors of the operating system name ``path``, so that :func:`hetfl.errors.foreseen` can tell of them.

    They name no file where a write fails, and a temporary one where that cannot be made.

    Args:
        path: what the block writes.

    Raises:
        OSError: instead of one that names no file or one beside ``path``.
    """
    try:
        yield
    except OSError as error:
        named = () if error.filename is None else Path(os.fsdecode(error.filename)).parts
        if named and not any(part.startswith(f".{path.name}.") for part in named):
            raise
        number = _number(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def append_text(path: Path, text: str) -> None:
    """Add whole lines to a file that exists; on disk before the call returns.

    Raises:
        OSError: it cannot be written; no part of the text stays.
    """
    before = path.stat().st_size
    try:
        with writing(path), path.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        os.truncate(path, before)
        raise


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that must not exist yet, readable from its beginning only by those whom ``mode`` allows.

    Raises:
        OSError: it exists, or cannot be written; no part of it stays.
    """
    with writing(path), os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        try:
            file.write(content)
            file.flush()
        except OSError:
            path.unlink()
            raise


def _number(error: OSError) -> int | None:
    """The number of an error; from its text where it has none, as with ``shutil.copytree``. None: it says nothing."""
    if error.errno is not None:
        return error.errno
    if told := re.search(r"\[Errno (\d+)\]", str(error)):
        return int(told[1])
    # numpy, when it cannot write a whole array.
    return errno.ENOSPC if re.search(r"requested and \d+ written", str(error)) else None


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that replaces it when the block ends without an error."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def clear_leftovers(folder: Path) -> None:
    """Remove what killed atomic writes have left in a folder; for the one process that writes there."""
    for path in folder.glob(".*"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` that replaces it when the block ends without an error.

    If ``path`` is a link to a folder, that one is replaced and the link stays. What killed processes have left of the
    same folder is removed.

    Raises:
        HetflError: a disk is mounted there, so that it cannot be replaced.
        OSError: what is there is no folder, or it cannot be written.
    """
    if (path.exists() or path.is_symlink()) and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    target = path.resolve() if path.is_symlink() else path
    if target.is_mount():
        raise HetflError(f"{path}: a disk is mounted there, which cannot be replaced; link to a folder on the disk")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f".{glob.escape(target.name)}.{8 * '?'}"):
            # It may go meanwhile, or be another user's; and the writer of an empty one may be about to lock it.
            with suppress(OSError), _alone(left) as dead:
                if dead and any(left.iterdir()):
                    shutil.rmtree(left, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        with _alone(temporary):
            try:
                yield temporary
                temporary.chmod(0o755)
                if target.exists():
                    shutil.rmtree(target)
                temporary.replace(target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Lock a folder until the block or the process ends; false if another one has, or where there are no locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        locked = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees either the old content or the new one."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """:func:`write_bytes` for text."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """:func:`write_text` for JSON, indented, with a final newline."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        HetflError: the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise HetflError(f"{path}: does not exist; run the stage that makes it with dvc repro") from error
    except ValueError as error:  # neither JSON nor text
        raise HetflError(f"{path}: is not JSON ({error}); delete it and run dvc repro again") from error


def folder_bytes(folder: Path) -> int:
    """Size of the files below a folder in bytes; what is not there, or is removed meanwhile, counts nothing."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(place, name).stat().st_size
    return size


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's content, in hex.

    Raises:
        HetflError: the file is missing.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise HetflError(f"{path}: does not exist; run the stage that makes it with dvc repro") from error


def sha256_json(content: Any) -> str:
    """The SHA-256 of a value's canonical JSON form, in hex."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
