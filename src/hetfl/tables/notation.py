"""How a table is written in a paper's YAML file.

A table is a grid. It has ``columns`` (name -> settings) and ``rows`` (name -> settings), and each row holds in
``printed`` the numbers of the paper in the order of the columns, with null where it prints nothing::

    fedtgp-table-11:
      title: "FedTGP, Table 11: homogeneous models, test accuracy (%)"
      cell: {experiment: "fedtgp-same-{table_column}", split: practical, statistic: best_pooled}
      columns: {resnet10: ResNet10, resnet18: {title: ResNet18, footnote: As printed.}}
      rows:
        fedkd: [45.29±0.12, 41.13±0.13]
        fml: {title: FML, experiment: fedtgp-fml, printed: [46.71±0.08, null]}
      cells:
        fedkd: {resnet10: {row: fedkd-clipped}}

*Settings of a cell* are those of the file's ``cell``, the table's ``cell``, the part's, the column, the row and the
place itself in ``cells``, put together; the later ones win. What they mean depends on the kind of table:
:mod:`hetfl.tables.layout` has those of tables that show runs, :mod:`hetfl.tables.counted.layout` those of tables that
are counted.

*Shorthand.* A row that is a list has only printed numbers, a row or column that is a text only a title. Rows may be a
list of names. A row or column without a title has that of its name in the file's ``titles``, or its name. Columns may
be a list of mappings, one after the other. ``parts`` are grids that stand one below the other, each with a title,
rows and columns of its own; ``prefix`` comes before the names of a part's columns. ``shared`` holds what tables of
the file refer to by YAML's anchors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BeforeValidator, Field

from hetfl.config import Settings, read_yaml, validate
from hetfl.errors import HetflError, unknown

PAPERS = ("fedhpl", "fedtgp", "fgpt")

CellSettings = dict[str, str | bool | int | float]


@cache
def content(paper: str) -> dict[str, Any]:
    """All that the file of a paper's tables of runs says."""
    return read_yaml(Path(__file__).with_name(f"{paper}.yaml"))


def methods(paper: str) -> dict[str, str]:
    """The paper's methods in the order of its tables: row -> title."""
    titles: dict[str, str] = content(paper)["titles"]
    return titles


def _named(written: Any) -> Any:
    """Rows and columns as mappings of mappings, whatever shorthand they are in."""
    if isinstance(written, list):
        named = [some if isinstance(some, dict) else {some: ""} for some in written]
        written = {name: settings for some in named for name, settings in some.items()}
    if not isinstance(written, dict):
        return written
    short: dict[Any, str] = {str: "title", list: "printed"}
    return {
        name: {short[type(settings)]: settings} if type(settings) in short else settings
        for name, settings in written.items()
    }


class Column(Settings, extra="allow"):
    """A column: its title, and settings of its cells."""

    title: str = ""
    __pydantic_extra__: CellSettings

    @property
    def cell(self) -> CellSettings:
        """The settings of its cells."""
        return self.__pydantic_extra__


class Row(Column):
    """A row: its title, the printed numbers, and settings of its cells."""

    printed: list[str | int | float | None] = []


class Part(Settings):
    """A grid of cells with the title that stands above it."""

    title: str = ""
    prefix: str = ""
    cell: CellSettings = {}
    columns: Annotated[dict[str, Column], BeforeValidator(_named), Field(min_length=1)]
    rows: Annotated[dict[str, Row], BeforeValidator(_named), Field(min_length=1)]
    cells: dict[str, dict[str, CellSettings]] = {}

    def name(self, column: str) -> str:
        """A column's name in the table."""
        return f"{self.prefix}-{column}" if self.prefix else column

    @property
    def places(self) -> Iterator[tuple[str, str, str | int | float | None]]:
        """Row, column and printed number of every place."""
        for row, settings in self.rows.items():
            numbers = settings.printed or [None] * len(self.columns)
            for column, number in zip(self.columns, numbers, strict=True):
                yield row, column, number


class Layout(Settings):
    """A table: one part, or several with a title each."""

    meant: ClassVar[frozenset[str]]
    """Settings of a cell that the kind of table knows; others are variables."""

    title: str = ""
    head: str = "Method"
    footnotes: list[str] = []
    cell: CellSettings = {}
    parts: Annotated[list[Part], Field(min_length=1)]

    @property
    def rows(self) -> dict[str, str]:
        """The titles of all rows."""
        return {row: settings.title for part in self.parts for row, settings in part.rows.items()}

    @property
    def columns(self) -> dict[str, str]:
        """The titles of all columns."""
        return {part.name(column): how.title for part in self.parts for column, how in part.columns.items()}

    def settings(self, part: Part, row: str, column: str) -> CellSettings:
        """The settings of a cell of a part."""
        own = part.cells.get(row, {}).get(column, {})
        return self.cell | part.cell | part.columns[column].cell | part.rows[row].cell | own


L = TypeVar("L", bound=Layout)


def read_layouts(kind: type[L], told: Mapping[str, Any], file: str, titles: Mapping[str, str]) -> dict[str, L]:
    """The tables of a file, by name.

    Args:
        kind: what they are.
        told: what the file says.
        file: its name.
        titles: of rows and columns that have none.

    Raises:
        HetflError: the file has something else than the notation; the error names file and key.
    """
    found = {}
    for name, table in told["tables"].items():
        where = f"{file}: tables.{name}"
        # A table without parts is its only part.
        own = {key: table[key] for key in ("columns", "rows", "cells") if key in table and "parts" not in table}
        rest = {key: value for key, value in table.items() if key not in own}
        rest["cell"] = told.get("cell", {}) | table.get("cell", {})
        layout = validate(kind, rest | ({"parts": [own]} if own else {}), where)
        _check_settings(layout, where)
        parts = [_titled(part, titles, where) for part in layout.parts]
        found[name] = layout.model_copy(update={"parts": parts})
    return found


def variables(settings: Iterable[CellSettings]) -> set[str]:
    """The names in braces."""
    texts = (value for some in settings for value in some.values() if isinstance(value, str))
    return {name for text in texts for _, name, *_ in Formatter().parse(text) if name}


def _check_settings(layout: Layout, where: str) -> None:
    """Settings that the table does not know and no variable uses are misspelt."""
    every = [layout.cell]
    for part in layout.parts:
        every += [part.cell, *(some for columns in part.cells.values() for some in columns.values())]
        every += [settings.cell for settings in (*part.columns.values(), *part.rows.values())]
    used = variables(every)
    for name in {name for some in every for name in some} - used - layout.meant:
        raise unknown("setting", name, [*layout.meant, *used], where)


def _titled(part: Part, titles: Mapping[str, str], where: str) -> Part:
    """The part with all titles of its rows and columns, and its places checked."""
    for row, settings in part.rows.items():
        if settings.printed and len(settings.printed) != len(part.columns):
            raise HetflError(
                f"{where}: row {row} prints {len(settings.printed)} numbers, there are {len(part.columns)} columns; "
                "write null where the paper prints nothing"
            )
    for row, columns in part.cells.items():
        if row not in part.rows:
            raise unknown("row", row, part.rows, f"{where}.cells")
        for column in columns:
            if column not in part.columns:
                raise unknown("column", column, part.columns, f"{where}.cells.{row}")

    def titled(named: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: settings.model_copy(update={"title": settings.title or titles.get(name, name)})
            for name, settings in named.items()
        }

    return part.model_copy(update={"rows": titled(part.rows), "columns": titled(part.columns)})
