"""The one exception that a user is meant to see."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HetflError(Exception):
    """A mistake in the input, told in one line: what (key or file), its value, what would be right."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> HetflError:
    """An error for a name that does not exist, with the nearest one that does.

    Args:
        kind: what was looked up, e.g. ``"method"``.
        name: the name that was not found.
        known: the names that exist.
        where: the key that held the name, e.g. ``"params.yaml: experiments.x.dataset"``.
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'none'}"
    prefix = f"{where}: " if where else ""
    return HetflError(f"{prefix}unknown {kind} {name!r}; {hint}")
