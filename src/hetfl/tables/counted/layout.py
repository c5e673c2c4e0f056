"""Tables that are counted: what a paper's YAML file says of them, and how counts become their cells.

:mod:`hetfl.tables.notation` has the notation; settings of a cell say how its number is shown. In footnotes and in the
titles of parts ``{name}`` stands for a number that is computed with the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hetfl.config import Settings, read_yaml
from hetfl.tables.notation import Layout, methods, read_layouts

Place = tuple[str, str]
"""Names of a row and a column."""
Cells = dict[Place, int | float | str]
"""What is counted: numbers, or texts that are shown as they are."""


class Shown(Settings):
    """How a cell's number is shown.

    Attributes:
        unit: in which; the file's ``units`` say how much one is, others are 1.
        digits: decimals.
        thousands: whole numbers with a comma between thousands.
        footnote: what a reader must know about this cell.
    """

    unit: str = ""
    digits: int = 0
    thousands: bool = False
    footnote: str = ""


class CountedLayout(Layout):
    """A table that is counted.

    Attributes:
        models: the paper's names of architectures -> ours.
        packages: whose versions may decide a number.
        experiments: whose settings it counts with.
        note: on all tables of the file.
        units: of the file, and how much one is.
    """

    meant = frozenset(Shown.model_fields)

    models: dict[str, str]
    packages: list[str] = ["torch", "timm"]
    experiments: list[str] = []
    note: str = ""
    units: dict[str, int] = {}

    @property
    def printed(self) -> dict[Place, Any]:
        """What the paper prints."""
        places = ((part.name(column), row, number) for part in self.parts for row, column, number in part.places)
        return {(row, column): number for column, row, number in places if number is not None}

    @property
    def shown(self) -> dict[Place, Shown]:
        """How the number of every place is shown."""
        return {
            (row, part.name(column)): Shown.model_validate(self.settings(part, row, column))
            for part in self.parts
            for row, column, _ in part.places
        }


@dataclass(frozen=True)
class Counts:
    """What is counted for a table.

    Attributes:
        cells: in the order of the table's JSON.
        facts: what footnotes and the titles of parts name.
        alone: cells that no printed number stands beside, although the layout has one.
    """

    cells: Cells
    facts: Mapping[str, Any] = field(default_factory=dict)
    alone: Collection[Place] = ()


@cache
def layouts(paper: str) -> dict[str, CountedLayout]:
    """The counted tables of a paper, by name.

    Raises:
        HetflError: the file has something else than the notation; the error names file and key.
    """
    path = Path(__file__).with_name(f"{paper}.yaml")
    told = read_yaml(path)
    found = read_layouts(CountedLayout, told, f"counted/{path.name}", methods(paper) | told.get("titles", {}))
    shared = {key: told[key] for key in ("note", "units")}
    return {name: table.model_copy(update=shared) for name, table in found.items()}


def layout(name: str) -> CountedLayout:
    """The layout of a table, e.g. of ``fgpt-table-2``."""
    return layouts(name.partition("-")[0])[name]


def laid_out(name: str, counts: Counts) -> dict[str, Any]:
    """A table in the form of :func:`hetfl.report.table.build_table`.

    Its cells have ``printed`` and ``value`` (None where the entry is a text), both also as text with the printed
    number of digits, their ``unit``, whether they agree (None where nothing is printed), and a ``footnote`` where
    there is something to say.
    """
    table = layout(name)
    shown, facts = table.shown, counts.facts
    given = {place: number for place, number in table.printed.items() if place not in counts.alone}
    cells = []
    for (row, column), value in counts.cells.items():
        how = shown[row, column]
        told = _cell(value, how, table.units.get(how.unit, 1), given.get((row, column)))
        footnote = how.footnote.format_map(facts) or None
        cells.append({"row": row, "column": column, **told, "footnote": footnote, "seeds": [], "provenance": []})
    blocks = [
        {"title": part.title.format_map(facts), "rows": [*part.rows], "columns": [*map(part.name, part.columns)]}
        for part in table.parts
        if part.title
    ]
    own = [cell["footnote"] for cell in cells if cell["footnote"]]
    return {
        "table": name,
        "title": table.title,
        "note": table.note,
        "seeds": [],
        "head": table.head,
        "columns": table.columns,
        "rows": table.rows,
        **({"blocks": blocks} if blocks else {}),
        "cells": cells,
        "footnotes": list(dict.fromkeys([*own, *(footnote.format_map(facts) for footnote in table.footnotes)])),
        "provenance": {
            "datasets": {},
            "partitions": {},
            "models": [*table.models.values()],
            "weights": {},
            **{key: [] for key in ("rounds", "clients", "engines", "devices")},
            "versions": {package: [version(package)] for package in table.packages},
            "commits": [],
        },
    }


def _cell(value: int | float | str, how: Shown, unit: int, given: Any) -> dict[str, Any]:
    """What a cell says of its value beside the printed one; texts are compared as they are."""
    number = None if isinstance(value, str) else value if how.thousands else value / unit
    text = str(value) if number is None else f"{number:,}" if how.thousands else rounded(number, how.digits)
    compared = number is not None and given is not None
    given_text = rounded(given, how.digits) if compared else "" if given is None else str(given)
    return {
        "printed": float(given) if compared else None,
        "printed_text": given_text,
        "value": number,
        "value_text": text,
        "unit": how.unit,
        "status": "arithmetic",
        "agrees": None if given is None else text == given_text,
    }


def rounded(value: float, digits: int) -> str:
    """Half up, as a person rounds."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
