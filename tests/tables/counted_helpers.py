"""Counted tables as they are committed.

Counting all of them takes a minute. ``.ci/run`` counts them anew and compares every cell, and tests of each paper
count some cells anew.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from settings_files import PAPERS

from hetfl.files import read_json

TABLES = PAPERS / "tables"


@cache
def table(name: str) -> dict[str, Any]:
    """What ``tables/<name>/<name>.json`` holds."""
    return read_json(TABLES / name / f"{name}.json")


def found(name: str, row: str, column: str) -> dict[str, Any]:
    """A cell of it."""
    (cell,) = (cell for cell in table(name)["cells"] if (cell["row"], cell["column"]) == (row, column))
    return cell
