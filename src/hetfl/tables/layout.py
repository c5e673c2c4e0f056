"""Tables that show runs: how their cells are made of what a paper's YAML file says.

:mod:`hetfl.tables.notation` has the notation. Settings of a cell that are fields of an
:class:`~hetfl.tables.spec.Entry` become its own. The others are variables: ``{dataset}`` in a setting stands for the
variable of that name, ``{table_row}`` and ``{table_column}`` for the place's row and column. Unless it is set, a
cell's ``row`` is the table's row, and its ``split`` the table's column. ``after_rounds_of`` names an experiment: the
cell is read after that many rounds. A place with null has no cell.

Printed numbers are written as in the paper: ``89.7``, with a deviation over trials ``89.7±0.3``, with a variance
between rounds ``89.7 (0.40)``. A count that ends with a zero is in quotes, ``"89.360"``, since its digits decide the
verdict and YAML would leave the zero out. A table without a title has the title and the note of the experiment of its
name.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from hetfl.errors import HetflError, unknown
from hetfl.experiments.plan import Params
from hetfl.experiments.settings import Experiment
from hetfl.tables.notation import PAPERS, CellSettings, Layout, content, read_layouts, variables
from hetfl.tables.spec import PRINTED, Block, Entry, TableSpec, entry

_NUMBER = re.compile(r"(?P<printed>-?[\d.]+)(±(?P<printed_std>[\d.]+)| \((?P<printed_variance>[\d.]+)\))?")
_FOUND = {"method", "seeds", *PRINTED}
"""Fields of an entry that are not settings."""


class RunLayout(Layout):
    """A table of runs; its fields are those of a :class:`TableSpec`."""

    meant = frozenset({*Entry.model_fields, "after_rounds_of"} - _FOUND)

    decimals: int = 2
    curves: bool = False


@cache
def layouts() -> dict[str, RunLayout]:
    """The tables of all papers that show runs, by name.

    Raises:
        HetflError: a file has something else than the notation; the error names file and key.
    """
    found: dict[str, RunLayout] = {}
    for paper in PAPERS:
        told = content(paper)
        found |= read_layouts(RunLayout, told, f"{paper}.yaml", told["titles"])
    return found


def paper_table(name: str, params: Params) -> TableSpec:
    """What a table of :func:`layouts` prints.

    Raises:
        HetflError: it shows an experiment or a row that there is not, or its settings name no cell.
    """
    layout = layouts()[name]
    entries: dict[str, dict[str, Entry]] = {row: {} for row in layout.rows}
    for part in layout.parts:
        for row, column, number in part.places:
            if number is not None:
                settings: CellSettings = {"row": "{table_row}", "split": "{table_column}"}
                settings |= layout.settings(part, row, column) | {"table_row": row, "table_column": column}
                entries[row][column] = _entry(params, settings, str(number), f"table {name}, {row}, {column}")
    own = {} if layout.title else _experiment(params, name).model_dump(include={"title", "note"})
    blocks = [Block(title=part.title, rows=[*part.rows], columns=[*part.columns]) for part in layout.parts]
    return TableSpec(
        name=name,
        rows=layout.rows,
        columns=layout.columns,
        entries=entries,
        blocks=blocks if len(blocks) > 1 else [],
        **layout.model_dump(include={"title", "head", "footnotes", "decimals", "curves"}) | own,
    )


def _experiment(params: Params, name: str) -> Experiment:
    if name not in params.experiments:
        raise unknown("experiment", name, params.experiments)
    return params.experiments[name]


def _entry(params: Params, settings: CellSettings, number: str, place: str) -> Entry:
    """The cell with these settings, beside a printed number."""
    if not (match := _NUMBER.fullmatch(number)):
        raise HetflError(f"{place}: prints {number!r}; write 89.7, 89.7±0.3 or 89.7 (0.40)")
    if missing := variables([settings]) - settings.keys():
        raise unknown("variable", min(missing), settings, place)
    told: dict[str, Any] = {
        name: value.format_map(settings) if isinstance(value, str) else value
        for name, value in settings.items()
        if name in RunLayout.meant
    }
    if other := told.pop("after_rounds_of", None):
        told["round"] = _experiment(params, other).defaults["rounds"]
    told |= {name: float(text) for name, text in match.groupdict().items() if text}
    return entry(params, **told, digits=len(match["printed"].partition(".")[2]))
