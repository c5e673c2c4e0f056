"""How a counted table is written in a paper's YAML file, and how counts become its cells.

A table has ``columns`` (name -> title, unit and digits) and ``rows`` (name -> the printed numbers in the order of the
columns). ``parts`` are grids that stand one below the other, each with rows and columns of its own; ``prefix`` comes
before the names of a part's columns. ``cells`` holds what a single place says otherwise: its unit, digits or
footnote. A row that is a list has only printed numbers, a row or column that is a text only a title; without a title
it has that of the file's ``titles``, or its name. In footnotes and in the titles of parts ``{name}`` stands for a
number that is computed with the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hetfl.config import Settings, read_yaml, validate

Place = tuple[str, str]
"""Names of a row and a column."""


def _named(written: Any) -> Any:
    """Rows and columns as mappings of mappings, whatever shorthand they are in."""
    names = dict.fromkeys(written, "") if isinstance(written, list) else written
    short: dict[type, str] = {str: "title", list: "printed"}
    return {
        name: {short[type(settings)]: settings} if type(settings) in short else settings
        for name, settings in names.items()
    }


class Column(Settings):
    """A column's title, and how its numbers are shown; in ``cells`` what a single place has otherwise.

    Attributes:
        unit: in which they are shown; the file's ``units`` say how much one is, others are 1.
        digits: decimals.
        thousands: whole numbers with a comma between thousands.
        footnote: on a single place.
    """

    title: str = ""
    unit: str = ""
    digits: int = 0
    thousands: bool = False
    footnote: str = ""


class Row(Settings):
    """A row's title, and what the paper prints in its first columns (null: nothing)."""

    title: str = ""
    printed: list[int | float | str | None] = []


class Part(Settings):
    """A grid of cells."""

    title: str = ""
    prefix: str = ""
    columns: Annotated[dict[str, Column], BeforeValidator(_named), Field(min_length=1)]
    rows: Annotated[dict[str, Row], BeforeValidator(_named)]

    def name(self, column: str) -> str:
        """A column's name in cells."""
        return f"{self.prefix}-{column}" if self.prefix else column


class Layout(Settings):
    """A table: ``head`` says what its rows are, ``models`` maps the paper's names of architectures to ours, and
    versions of ``packages`` may decide a number.
    """

    title: str
    head: str = "Method"
    models: dict[str, str]
    packages: list[str] = ["torch", "timm"]
    parts: list[Part]
    cells: dict[str, dict[str, Column]] = {}
    footnotes: list[str] = []

    @property
    def columns(self) -> dict[str, Column]:
        """All columns, by their names in cells."""
        return {part.name(column): how for part in self.parts for column, how in part.columns.items()}

    @property
    def printed(self) -> dict[Place, Any]:
        """What the paper prints."""
        return {
            (row, part.name(column)): number
            for part in self.parts
            for row, settings in part.rows.items()
            for column, number in zip(part.columns, settings.printed, strict=False)
            if number is not None
        }


class File(Settings):
    """A paper's counted tables: a ``note`` on all, titles of rows in several, and what YAML's anchors refer to."""

    note: str
    units: dict[str, int]
    titles: dict[str, str] = {}
    shared: Any = None
    tables: dict[str, Layout]


@dataclass(frozen=True)
class Counts:
    """What is counted for a table.

    Attributes:
        cells: numbers, or texts that are shown as they are, in the order of the table's JSON.
        facts: what footnotes and the titles of parts name.
        printed: what stands beside a cell instead of the layout's printed number; None: nothing.
        titles: of rows for which the file has none.
    """

    cells: Mapping[Place, int | float | str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    printed: Mapping[Place, float | None] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)


@cache
def file(paper: str) -> File:
    """The file of a paper.

    Raises:
        HetflError: it has something else than the notation; the error names file and key.
    """
    path = Path(__file__).with_name(f"{paper}.yaml")
    content = read_yaml(path)
    for name, table in content["tables"].items():
        # A table without parts is its only part.
        own = {key: table.pop(key) for key in ("columns", "rows") if key in table}
        content["tables"][name] = table | ({"parts": [own]} if own else {})
    return validate(File, content, path.name, source=(path,))


def layout(name: str) -> Layout:
    """The layout of a table, e.g. of ``fgpt-table-2``."""
    return file(name.partition("-")[0]).tables[name]


def laid_out(name: str, counts: Counts) -> dict[str, Any]:
    """A table in the form of :func:`hetfl.report.table.build_table`.

    Its cells have ``printed`` and ``value`` (None where the entry is a text), both also as text with the printed
    number of digits, their ``unit``, whether they agree (None where nothing is printed), and a ``footnote`` where
    there is something to say.
    """
    paper, table = file(name.partition("-")[0]), layout(name)
    titles, given, facts = {**counts.titles, **paper.titles}, {**table.printed, **counts.printed}, counts.facts
    rows = {row: settings.title for part in table.parts for row, settings in part.rows.items()}
    cells = []
    for (row, column), value in counts.cells.items():
        changes = table.cells.get(row, {}).get(column, Column())
        how = table.columns[column].model_copy(update=changes.model_dump(exclude_unset=True))
        told = _cell(value, how, paper.units.get(how.unit, 1), given.get((row, column)))
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
        "note": paper.note,
        "seeds": [],
        "head": table.head,
        "columns": {column: how.title or column for column, how in table.columns.items()},
        "rows": {row: title or titles.get(row, row) for row, title in rows.items()},
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


def _cell(value: int | float | str, how: Column, unit: int, given: Any) -> dict[str, Any]:
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
