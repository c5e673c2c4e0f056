"""How a table is written in a paper's YAML file, and how its cells are made of that.

A table is a grid. It has ``columns`` (name -> settings) and ``rows`` (name -> settings), and each row holds in
``printed`` the numbers of the paper in the order of the columns::

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
place itself in ``cells``, put together; the later ones win. Fields of an :class:`~hetfl.tables.spec.Entry` become its
own. The others are variables: ``{dataset}`` in a setting stands for the variable of that name, ``{table_row}`` and
``{table_column}`` for the place's row and column. Unless it is set, a cell's ``row`` is the table's row, and its
``split`` the table's column. ``after_rounds_of`` names an experiment: the cell is read after that many rounds.

*Printed numbers* are written as in the paper: ``89.7``, with a deviation over trials ``89.7±0.3``, with a variance
between rounds ``89.7 (0.40)``. A place with null has no cell.

*Shorthand.* A row that is a list has only printed numbers, a column that is a text only a title. A row without a
title has that of its name in the file's ``titles``, or its name. Columns may be a list of mappings, one after the
other. ``parts`` are grids that stand one below the other, each with a title, rows and columns of its own. A table
without a title has the title and the note of the experiment of its name. ``shared`` holds what tables of the file
refer to by YAML's anchors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from string import Formatter
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hetfl.config import Settings, validate
from hetfl.errors import HetflError, unknown
from hetfl.experiments.plan import Params
from hetfl.experiments.settings import Experiment
from hetfl.tables.printed import PAPERS, content
from hetfl.tables.spec import Block, Entry, TableSpec, entry

Setting = str | bool | int | float
CellSettings = dict[str, Setting]
_FIELDS = {*Entry.model_fields, "after_rounds_of"} - {"method", "seeds", "printed", "printed_std", "printed_variance"}
"""Settings of a cell that are no variables."""
_NUMBER = re.compile(r"(?P<printed>-?[\d.]+)(±(?P<printed_std>[\d.]+)| \((?P<printed_variance>[\d.]+)\))?")


def _named(written: Any) -> Any:
    """Rows and columns as mappings of mappings, whatever shorthand they are in."""
    if isinstance(written, list) and all(isinstance(some, dict) for some in written):
        written = {name: settings for some in written for name, settings in some.items()}
    if not isinstance(written, dict):
        return written
    short: dict[Any, str] = {str: "title", list: "printed"}
    return {
        name: {short[type(settings)]: settings} if type(settings) in short else settings
        for name, settings in written.items()
    }


class Column(Settings, extra="allow"):
    """A column: its title, and settings of its cells."""

    title: str
    __pydantic_extra__: CellSettings

    @property
    def cell(self) -> CellSettings:
        """The settings of its cells."""
        return self.__pydantic_extra__


class Row(Column):
    """A row: its title, the printed numbers, and settings of its cells."""

    title: str = ""
    printed: list[str | float | None]


class Part(Settings):
    """A grid of cells with the title that stands above it."""

    title: str
    cell: CellSettings = {}
    columns: Annotated[dict[str, Column], BeforeValidator(_named), Field(min_length=1)]
    rows: Annotated[dict[str, Row], BeforeValidator(_named), Field(min_length=1)]
    cells: dict[str, dict[str, CellSettings]] = {}


class Layout(Settings):
    """A table: one part, or several with a title each; the other fields are those of a :class:`TableSpec`."""

    title: str = ""
    head: str = "Method"
    footnotes: list[str] = []
    decimals: int = 2
    curves: bool = False
    cell: CellSettings = {}
    parts: Annotated[list[Part], Field(min_length=1)]


@cache
def layouts() -> dict[str, Layout]:
    """The tables of all papers that show runs, by name.

    Raises:
        HetflError: a file has something else than the notation; the error names file and key.
    """
    found = {}
    for paper in PAPERS:
        told = content(paper)
        for name, table in told["tables"].items():
            # A table without parts is its only part.
            own = {key: table[key] for key in ("columns", "rows", "cells") if key in table and "parts" not in table}
            parts = {"parts": [{"title": "", **own}]} if own else {}
            rest = {key: value for key, value in table.items() if key not in own}
            rest["cell"] = told.get("cell", {}) | table.get("cell", {})
            layout = validate(Layout, rest | parts, f"{paper}.yaml: tables.{name}")
            _check_settings(layout, f"{paper}.yaml: tables.{name}")
            titled = [_titled(part, told["titles"], f"{paper}.yaml: tables.{name}") for part in layout.parts]
            found[name] = layout.model_copy(update={"parts": titled})
    return found


def paper_table(name: str, params: Params) -> TableSpec:
    """What a table of :func:`layouts` prints.

    Raises:
        HetflError: it shows an experiment or a row that there is not, or its settings name no cell.
    """
    layout = layouts()[name]
    rows: dict[str, str] = {}
    columns: dict[str, str] = {}
    entries: dict[str, dict[str, Entry]] = {}
    for part in layout.parts:
        rows |= {row: settings.title for row, settings in part.rows.items()}
        columns |= {column: settings.title for column, settings in part.columns.items()}
        for row, column, number, settings in _places(layout, part):
            place = f"table {name}, {row}, {column}"
            entries.setdefault(row, {})[column] = _entry(params, settings, number, place)
    own = {} if layout.title else _experiment(params, name).model_dump(include={"title", "note"})
    blocks = [Block(title=part.title, rows=[*part.rows], columns=[*part.columns]) for part in layout.parts]
    return TableSpec(
        name=name,
        rows=rows,
        columns=columns,
        entries={row: entries.get(row, {}) for row in rows},
        blocks=blocks if len(blocks) > 1 else [],
        **layout.model_dump(include={"title", "head", "footnotes", "decimals", "curves"}) | own,
    )


def _experiment(params: Params, name: str) -> Experiment:
    if name not in params.experiments:
        raise unknown("experiment", name, params.experiments)
    return params.experiments[name]


def _variables(settings: Iterable[CellSettings]) -> set[str]:
    """The names in braces."""
    texts = (value for some in settings for value in some.values() if isinstance(value, str))
    return {name for text in texts for _, name, *_ in Formatter().parse(text) if name}


def _check_settings(layout: Layout, where: str) -> None:
    """Settings that are neither a cell's nor used as a variable are misspelt."""
    every = [layout.cell]
    for part in layout.parts:
        every += [part.cell, *(some for columns in part.cells.values() for some in columns.values())]
        every += [settings.cell for settings in (*part.columns.values(), *part.rows.values())]
    used = _variables(every)
    for name in {name for some in every for name in some} - used - _FIELDS:
        raise unknown("setting", name, [*_FIELDS, *used], where)


def _titled(part: Part, titles: Mapping[str, str], where: str) -> Part:
    """The part with all its rows' titles, and its places checked."""
    for row, settings in part.rows.items():
        if len(settings.printed) != len(part.columns):
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
    rows = {
        row: settings.model_copy(update={"title": settings.title or titles.get(row, row)})
        for row, settings in part.rows.items()
    }
    return part.model_copy(update={"rows": rows})


def _places(layout: Layout, part: Part) -> Iterator[tuple[str, str, str, CellSettings]]:
    """Row, column, printed number and settings of every cell of a part."""
    for row, of_row in part.rows.items():
        for (column, of_column), number in zip(part.columns.items(), of_row.printed, strict=True):
            if number is None:
                continue
            settings: CellSettings = {"row": "{table_row}", "split": "{table_column}"}
            settings |= layout.cell | part.cell | of_column.cell | of_row.cell
            settings |= part.cells.get(row, {}).get(column, {})
            yield row, column, str(number), settings | {"table_row": row, "table_column": column}


def _entry(params: Params, settings: CellSettings, number: str, place: str) -> Entry:
    """The cell with these settings, beside a printed number."""
    if not (match := _NUMBER.fullmatch(number)):
        raise HetflError(f"{place}: prints {number!r}; write 89.7, 89.7±0.3 or 89.7 (0.40)")
    if missing := _variables([settings]) - settings.keys():
        raise unknown("variable", min(missing), settings, place)
    told: dict[str, Any] = {
        name: value.format_map(settings) if isinstance(value, str) else value
        for name, value in settings.items()
        if name in _FIELDS
    }
    if other := told.pop("after_rounds_of", None):
        told["round"] = _experiment(params, other).defaults["rounds"]
    told |= {name: float(text) for name, text in match.groupdict().items() if text}
    return entry(params, **told)
