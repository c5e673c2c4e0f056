"""What each paper's file says: its tables with their numbers as printed.

``<paper>.yaml`` has the tables that show runs, see :mod:`hetfl.tables.layout`, and as transcriptions those that are
counted.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hetfl.config import read_yaml

PAPERS = ("fedhpl", "fedtgp", "fgpt")


@cache
def content(paper: str) -> dict[str, Any]:
    """All that the file of a paper says."""
    return read_yaml(Path(__file__).with_name(f"{paper}.yaml"))


def printed(paper: str) -> dict[str, Any]:
    """The paper's tables that are counted and not trained for, as transcribed: ``table_<number>`` -> content."""
    tables: dict[str, Any] = content(paper)["counted"]
    return tables


def methods(paper: str) -> dict[str, str]:
    """The paper's methods in the order of its tables: row -> title."""
    titles: dict[str, str] = content(paper)["titles"]
    return titles
