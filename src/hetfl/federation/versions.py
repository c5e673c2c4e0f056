"""Stand-in for the versions of the numerics: the keys that a stage depends on."""

from __future__ import annotations

from collections.abc import Iterable

from hetfl.federation.plan import Cell

FILE = "versions.yaml"


def keys(cells: Iterable[Cell]) -> list[str]:
    """What a stage that trains these cells depends on in ``versions.yaml``."""
    return sorted({"engine", "models", *(f"methods.{cell.method}" for cell in cells)})
