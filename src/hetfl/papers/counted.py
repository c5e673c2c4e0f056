"""What the papers' tables of counted numbers have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from importlib.metadata import version
from typing import Any

from hetfl.errors import unknown
from hetfl.experiments.plan import Params

Cell = dict[str, Any]


@dataclass(frozen=True)
class Counted:
    """A table's content; see :func:`arithmetic_table`.

    Attributes:
        rows, columns: their titles by name.
        cells: as :func:`number` and :func:`formula` make them.
        models: names of the architectures behind the numbers.
        footnotes: sentences on the table as a whole.
        head: what the rows are.
        blocks: ``title``, ``rows`` and ``columns`` of each part of the table; empty: one part with everything.
        packages: whose versions may decide a number.
    """

    title: str
    rows: Mapping[str, str]
    columns: Mapping[str, str]
    cells: list[Cell]
    models: Sequence[str]
    footnotes: Sequence[str] = ()
    head: str = "Method"
    blocks: Sequence[Mapping[str, Any]] = ()
    packages: Sequence[str] = ("torch", "timm")


def arithmetic_table(
    name: str, params: Params, tables: Mapping[str, Callable[[Params], Counted]], note: str
) -> dict[str, Any]:
    """Count what one of a paper's tables counts.

    Args:
        name: of the table.
        params: whose experiments have the settings that it counts with.
        tables: the paper's counted tables.
        note: what holds for all of them.

    Returns:
        A table as :func:`hetfl.report.table.build_table` makes it; its cells have ``printed`` and ``value`` (None
        where the entry is a formula), both as text with the printed number of decimals, their ``unit``, whether they
        agree (None where nothing is printed), and a ``footnote`` where there is something to say.

    Raises:
        HetflError: there is no such table.
    """
    if name not in tables:
        raise unknown("table", name, tables)
    table = tables[name](params)
    own = [cell["footnote"] for cell in table.cells if cell["footnote"]]
    return {
        "table": name,
        "title": table.title,
        "note": note,
        "seeds": [],
        "head": table.head,
        "columns": dict(table.columns),
        "rows": dict(table.rows),
        **({"blocks": list(table.blocks)} if table.blocks else {}),
        "cells": table.cells,
        "footnotes": list(dict.fromkeys([*own, *table.footnotes])),
        "provenance": {
            "datasets": {},
            "partitions": {},
            "models": list(table.models),
            "weights": {},
            "rounds": [],
            "clients": [],
            "engines": [],
            "devices": [],
            "versions": {package: [version(package)] for package in table.packages},
            "commits": [],
        },
    }


def number(row: str, column: str, value: float, unit: str, digits: int, given: float | None = None) -> Cell:
    """A cell with a number in its unit, rounded to some digits, and what the paper prints there."""
    cell = formula(row, column, rounded(value, digits), unit, None if given is None else rounded(given, digits))
    return cell | {"printed": None if given is None else float(given), "value": value}


def whole(row: str, column: str, value: int, unit: str) -> Cell:
    """A cell with a whole number, its thousands apart."""
    return formula(row, column, f"{value:,}", unit) | {"value": value}


def formula(row: str, column: str, text: str, unit: str, given: Any = None) -> Cell:
    """A cell with a text, and what the paper prints there."""
    return {
        "row": row,
        "column": column,
        "printed": None,
        "printed_text": "" if given is None else str(given),
        "value": None,
        "value_text": text,
        "unit": unit,
        "status": "arithmetic",
        "agrees": None if given is None else text == str(given),
        "footnote": None,
        "seeds": [],
        "provenance": [],
    }


def remarked(cells: list[Cell], remarks: Mapping[tuple[str, str], str]) -> list[Cell]:
    """The cells with their footnotes, by row and column."""
    return [cell | {"footnote": remarks.get((cell["row"], cell["column"]))} for cell in cells]


def rounded(value: float, digits: int) -> str:
    """Half up, as a person rounds."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
