"""The exceptions that a user is meant to see."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

NAMED = 5
"""How many cells an error names when many fail for the same reason."""
LISTED = 40
"""How many known names an error lists if none is near."""


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
        for folder, reason in self.failures.items():
            cells.setdefault(reason, []).append(str(folder))
        super().__init__("\n".join(_name_cells(reason, names) for reason, names in cells.items()))


def _name_cells(reason: str, names: list[str]) -> str:
    if names[0] in reason:
        return reason
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}: {reason}"


def one_line(error: BaseException) -> str:
    """The first line of an error; its type comes first unless the error is a :class:`HetflError`."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, HetflError) else f"{type(error).__name__}: {text[:200]}"


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
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known[:LISTED]) or 'none'}{more}"
    prefix = f"{where}: " if where else ""
    return HetflError(f"{prefix}unknown {kind} {name!r}; {hint}")
