"""Every table by the name of its stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from hetfl.errors import unknown
from hetfl.experiments.plan import Params, cells
from hetfl.tables.counted.layout import laid_out
from hetfl.tables.counted.layout import layouts as counted_layouts
from hetfl.tables.layout import layouts, paper_table
from hetfl.tables.notation import PAPERS
from hetfl.tables.spec import Entry, Statistic, TableSpec, entry

PAPER_TABLES: dict[str, Callable[[Params], TableSpec]] = {name: partial(paper_table, name) for name in layouts()}
"""The tables of the papers that show runs."""

ARITHMETIC_TABLES: dict[str, list[str]] = {
    name: layout.experiments for paper in PAPERS for name, layout in counted_layouts(paper).items()
}
"""The tables of the papers that are computed, each with the experiments whose settings it counts with."""


def table_spec(name: str, params: Params) -> TableSpec:
    """What a table prints; an experiment's own name stands for the table of all its rows and splits.

    Where rows are compared with others, it shows what they change by each way to choose a round. Else, where all
    methods report a window of rounds, it shows that window's accuracy, and of each round's lowest client; a run that
    is also tested with ensembles has a row for each of them.

    Raises:
        HetflError: there is no table of that name.
    """
    if name in PAPER_TABLES:
        return PAPER_TABLES[name](params)
    if name not in params.experiments:
        raise unknown("table", name, [*PAPER_TABLES, *ARITHMETIC_TABLES, *params.experiments])
    experiment = params.experiments[name]
    splits = {row: settings.splits or [*experiment.splits] for row, settings in experiment.rows.items()}
    columns = experiment.splits | {s: s for some in splits.values() for s in some if s not in experiment.splits}
    spec = TableSpec(
        name=name,
        title=experiment.title,
        rows={row: settings.title for row, settings in experiment.rows.items()},
        columns=columns,
        entries={row: {split: entry(params, name, row, split) for split in some} for row, some in splits.items()},
        note=experiment.note,
        curves=all(list(some) == list(columns) for some in splits.values()),
    )
    settings = {cell.row: cell.settings for cell in cells(params, name)}
    ensembles = {row: of_row.get("ensembles", ()) for row, of_row in settings.items()}
    against = {row: of_row.against for row, of_row in experiment.rows.items() if of_row.against}
    if against:
        schemes = params.partitions[experiment.dataset].splits
        own = [split for split in columns if schemes[split].test == "own"]
        return _compared(spec, against, ensembles, own)
    windowed = all("window" in of_row for of_row in settings.values())
    return _windowed(spec, ensembles) if windowed else spec


CHOSEN: dict[Statistic, str] = {
    "last_pooled": "last round",
    "validated_pooled": "validated round",
    "best_pooled": "best round",
}
"""Ways to choose the round whose accuracy is a run's result."""


def _compared(
    spec: TableSpec, against: Mapping[str, str], ensembles: Mapping[str, Sequence[int]], own: Sequence[str]
) -> TableSpec:
    """The same table with a column for each way to choose a round, and differences in the rows that are compared.

    Args:
        spec: an experiment's table.
        against: row -> the row that it is compared with.
        ensembles: row -> numbers of branches that its runs are also tested with, in the last rounds only. Such a test
            is compared with the row's usual one.
        own: splits whose clients have test samples of their own; on others no sample is left to validate with.
    """
    places = {
        f"{split}-{statistic.removesuffix('_pooled')}": (split, statistic, f"{title}, {named}" if title else named)
        for split, title in spec.columns.items()
        for statistic, named in CHOSEN.items()
        if split in own or statistic != "validated_pooled"
    }
    rows, entries = {}, {}
    for row, shown in spec.entries.items():
        rows[row] = spec.rows[row]
        other = {"against": against.get(row, "")}
        entries[row] = {
            column: shown[split].model_copy(update={"statistic": statistic, **other})
            for column, (split, statistic, _) in places.items()
            if split in shown
        }
        for many in ensembles[row]:
            place, told = f"{row}-top-{many}", {"reading": f"top-{many}", "against": row}
            rows[place] = f"{spec.rows[row]}: top-{many} ensemble"
            entries[place] = {
                column: cell.model_copy(update=told)
                for column, cell in entries[row].items()
                if cell.statistic == "last_pooled"
            }
    columns = {column: title for column, (_, _, title) in places.items()}
    update = {"rows": rows, "columns": columns, "entries": entries, "head": "Method, and choices"}
    return spec.model_copy(update={**update, "decimals": 2, "curves": False})


def _windowed(spec: TableSpec, ensembles: Mapping[str, Sequence[int]]) -> TableSpec:
    """The same table of the window's accuracies.

    Args:
        spec: an experiment's table.
        ensembles: row -> numbers of branches that its runs are also tested with.
    """
    rows, entries = {}, {}
    for row, title in spec.rows.items():
        also = {f"top-{many}": f"{title}-U (top-{many})" for many in ensembles[row]}
        for reading, name in {"": title, **also}.items():
            shown: dict[str, Entry] = {}
            for split, cell in spec.entries[row].items():
                for column, statistic in ((split, "window_pooled"), (f"{split}-lowest", "window_lowest")):
                    shown[column] = cell.model_copy(update={"statistic": statistic, "reading": reading})
            place = f"{row}-{reading}".rstrip("-")
            rows[place], entries[place] = name, shown
    columns = {
        column: name
        for split, title in spec.columns.items()
        for column, name in ((split, title), (f"{split}-lowest", f"{title}, lowest client"))
    }
    return spec.model_copy(update={"rows": rows, "columns": columns, "entries": entries, "decimals": 2})


def arithmetic_table(name: str, params: Params) -> dict[str, Any]:
    """A table of :data:`ARITHMETIC_TABLES`, computed anew, as its JSON file holds it."""
    # It sees no experiments but those that its stage watches.
    params = params.model_copy(
        update={"experiments": {key: params.experiments[key] for key in ARITHMETIC_TABLES[name]}}
    )
    # What counts builds models; importing that takes seconds that other tables need not wait for.
    counting = import_module(f"hetfl.tables.counted.{name.partition('-')[0]}")
    return laid_out(name, counting.TABLES[name](params))
