"""The papers' tables of what is counted and needs no training: elements, bytes and operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetfl.errors import unknown
from hetfl.experiments.plan import Params
from hetfl.tables.counted.fedhpl import TABLES as FEDHPL
from hetfl.tables.counted.fedtgp import TABLES as FEDTGP
from hetfl.tables.counted.fgpt import TABLES as FGPT
from hetfl.tables.counted.layout import Counts, laid_out

COUNTED_TABLES: dict[str, Callable[[Params], Counts]] = {**FEDHPL, **FEDTGP, **FGPT}
"""By the name of the stage."""


def counted_table(name: str, params: Params) -> dict[str, Any]:
    """Count what a table counts; see :func:`hetfl.tables.counted.layout.laid_out`.

    Args:
        name: one of :data:`COUNTED_TABLES`.
        params: whose experiments have the settings that it counts with.

    Raises:
        HetflError: there is no such table.
    """
    if name not in COUNTED_TABLES:
        raise unknown("table", name, COUNTED_TABLES)
    return laid_out(name, COUNTED_TABLES[name](params))
