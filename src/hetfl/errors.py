"""The exceptions that a user is meant to see."""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

NAMED = 5
"""How many cells an error names when many fail for the same reason."""
LISTED = 40
"""How many known names an error lists if none is near."""
AGAIN = "then run the same command again"
"""How what the operating system refuses ends; see :func:`foreseen`."""


class HetflError(Exception):
    """A mistake in the input, in one line: the key or file, its value, and what would be right."""


class FailedCellsError(HetflError):
    """Some cells failed and the others are done. The message has one line per reason, which names the cells.

    Args:
        failures: maps the folder of a cell's record to what went wrong, in one line.
    """

    def __init__(self, failures: Mapping[Path, str]) -> None:
        self.failures = dict(failures)
        cells: dict[str, list[str]] = {}
        disk: dict[str, list[str]] = {}
        for folder, reason in self.failures.items():
            if reason.endswith(AGAIN):  # the disk fails the cells at different files
                disk.setdefault(reason.partition(": ")[2], []).append(reason)
            else:
                cells.setdefault(reason, []).append(str(folder))
        lines = [_name_cells(reason, names) for reason, names in cells.items()]
        lines += [f"{same[0]} ({len(same)} cells)" if len(same) > 1 else same[0] for same in disk.values()]
        super().__init__("\n".join(lines))


def _name_cells(reason: str, names: list[str]) -> str:
    return reason if names[0] in reason else f"{few(names, NAMED)}: {reason}"


def one_line(error: BaseException) -> str:
    """The first line of an error, :func:`without_password`; its type comes first unless :func:`foreseen` knows it."""
    known = foreseen(error)
    text = without_password((str(known or error).splitlines() or [""])[0])
    return text if known else f"{type(error).__name__}: {text[:200]}"


def in_short(text: str, most: int = 300) -> str:
    """What somebody else says, who may not be trusted: one line of at most ``most`` printable characters."""
    return "".join(char if char.isprintable() else " " for char in text[:most])


def without_password(text: str) -> str:
    """A text in which no address has a user and a password."""
    return re.sub(r"://[^/\s]*@", "://", text)


_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
_REMEDIES = {
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files",
    errno.EROFS: "make the file system writable",
    errno.EACCES: "change its permissions or those of its folder",
    errno.EPERM: "change its permissions or those of its folder",
    errno.EIO: "check the disk",
    errno.ESTALE: "check the network file system",
    errno.EXDEV: "keep runs/, evaluations/ and .hetfl/ of a checkout on one disk",
    errno.ENAMETOOLONG: "use a shorter folder",
}


def foreseen(error: BaseException) -> HetflError | None:
    """An error as a user is told of it: a :class:`HetflError`, or one of the operating system that names a file.

    Returns:
        The error with a message that names the path and what to do; None if a traceback should tell of it.
    """
    if isinstance(error, HetflError):
        return error
    if not isinstance(error, OSError) or (error.filename is None and error.errno not in (*_FULL, *_REMEDIES)):
        return None
    path = os.fspath(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else "a file"
    path = os.fsdecode(path)
    if error.errno in _FULL:
        return HetflError(f"{path}: {_FULL[error.errno]}; make room, {AGAIN}")
    reason = error.strerror or str(error)
    if error.errno in _REMEDIES:
        return HetflError(f"{path}: cannot be written or read ({reason}); {_REMEDIES[error.errno]}, {AGAIN}")
    return HetflError(
        f"{path}: {_obstacle(Path(path)) or f'cannot be written or read ({reason}); check it'}, {AGAIN}"
    )


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it followed, says that memory does not suffice.

    torch, which is not imported here, has a class for a GPU's; libraries and the system have words. Errors of another
    kind follow while a graph is recorded.
    """
    words = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    while error is not None:
        if type(error).__name__ == "OutOfMemoryError" or any(some in str(error) for some in words):
            return True
        error = error.__cause__ or error.__context__
    return False


def _obstacle(path: Path) -> str:
    """What stands where a folder or file should be, and what to do; empty if nothing does."""
    for place in (path, *path.parents):
        inside = place != path
        if place.is_symlink() and not place.exists():
            return f"{place} is a link to {place.readlink()}, which does not exist; make that or remove the link"
        if place.is_dir():
            return "" if inside else "is a folder where a file is needed; move it away"
        if place.exists():
            return f"{place} is a file where a folder is needed; move it away"
    return ""


def few(names: Sequence[str], most: int) -> str:
    """The first of some names in a sentence, and how many more there are: ``a, b and 4 more``."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def either(names: Iterable[str]) -> str:
    """Names in a sentence: ``a, b or c``."""
    *some, last = names
    return f"{', '.join(some)} or {last}" if some else last


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> HetflError:
    """An error for a name that does not exist, with the nearest one that does.

    Args:
        kind: what was looked up, e.g. ``"method"``.
        name: the name that was not found.
        known: the names that exist.
        where: the key that held the name, e.g. ``"params.yaml: experiments.x.dataset"``.
    """
    known = sorted({*known})
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {few(known, LISTED) or 'none'}"
    prefix = f"{where}: " if where else ""
    return HetflError(f"{prefix}unknown {kind} {name!r}; {hint}")
