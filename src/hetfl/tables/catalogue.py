"""Every table by the name of its stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hetfl.errors import HetflError, unknown
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


def table_names(params: Params) -> list[str]:
    """All tables of a project: the papers', and one for each experiment outside the papers' folders."""
    folders = {name: Path(experiment.file).parent.name for name, experiment in params.experiments.items()}
    own = [name for name, folder in folders.items() if folder not in PAPERS]
    shown = [name for name, make in PAPER_TABLES.items() if _complete(make, params)]
    counted = [name for name in ARITHMETIC_TABLES if name.partition("-")[0] in folders.values()]
    return [*dict.fromkeys([*own, *shown, *counted])]


def check_tables(names: Iterable[str], params: Params) -> None:
    """Check that a project can make some tables: those of :func:`table_names`, and of each experiment by its name.

    Raises:
        HetflError: it does not know one.
    """
    known = dict.fromkeys([*table_names(params), *params.experiments])
    for name in names:
        if name not in known:
            raise unknown("table", name, known)


def _complete(make: Callable[[Params], Any], params: Params) -> bool:
    """Whether the experiments that a table shows exist; a project may leave out a paper's."""
    try:
        make(params)
    except (KeyError, HetflError):
        return False
    return True


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


def table_entries(name: str, params: Params) -> list[Entry]:
    """All cells of a table; a computed table has none."""
    if name in ARITHMETIC_TABLES:
        return []
    return [place for row in table_spec(name, params).entries.values() for place in row.values()]


def printed_by(name: str, params: Params) -> set[Path]:
    """Cells that a table prints, as paths below ``runs/``; a computed table has none."""
    return {place.path(seed) for place in table_entries(name, params) for seed in place.seeds}


CHOSEN: dict[Statistic, str] = {
    "last_pooled": "last round",
    "validated_pooled": "validated round",
    "best_pooled": "best round",
}
"""Ways to choose the round whose accuracy is a run's result."""
_OF_ALL_ROUNDS = ("validated_pooled", "best_pooled")

Ensembles = Mapping[str, Sequence[int]]
"""Row -> numbers of branches that its runs are also tested with, in the last rounds only."""
_Row = tuple[str, str, dict[str, str]]
"""A row of the experiment, its title, and what its cells are besides."""
_Column = tuple[str, Statistic, str]
"""A split, what is read there, and its title."""


def _compared(spec: TableSpec, against: Mapping[str, str], ensembles: Ensembles, own: Sequence[str]) -> TableSpec:
    """The same table with a column for each way to choose a round, and differences in the rows that are compared.

    A test of an ensemble is compared with the row's usual one.

    Args:
        spec: an experiment's table.
        against: row -> the row that it is compared with.
        ensembles: of its rows.
        own: splits whose clients have test samples of their own; on others no sample is left to validate with.
    """
    columns = {
        f"{split}-{statistic.removesuffix('_pooled')}": (split, statistic, f"{title}, {named}" if title else named)
        for split, title in spec.columns.items()
        for statistic, named in CHOSEN.items()
        if split in own or statistic != "validated_pooled"
    }
    rows: dict[str, _Row] = {}
    for row, title in spec.rows.items():
        rows[row] = row, title, {"against": against.get(row, "")}
        for many in ensembles[row]:
            told = {"reading": f"top-{many}", "against": row}
            # After a comma stands what the row itself is compared with.
            rows[f"{row}-top-{many}"] = row, f"Top-{many} ensemble, against {title.partition(',')[0]}", told
    return _with(spec, rows, columns).model_copy(update={"head": "Method, and choices", "curves": False})


def _windowed(spec: TableSpec, ensembles: Ensembles) -> TableSpec:
    """The same table of the window's accuracies, with a row for each ensemble."""
    columns: dict[str, _Column] = {}
    for split, title in spec.columns.items():
        columns[split] = split, "window_pooled", title
        columns[f"{split}-lowest"] = split, "window_lowest", f"{title}, lowest client"
    rows: dict[str, _Row] = {}
    for row, title in spec.rows.items():
        rows[row] = row, title, {}
        for many in ensembles[row]:
            # Behind a title that ends with a setting, the -U would seem to belong to the setting.
            named = f"{title}, top-{many}" if "," in title else f"{title}-U (top-{many})"
            rows[f"{row}-top-{many}"] = row, named, {"reading": f"top-{many}"}
    return _with(spec, rows, columns)


def _with(spec: TableSpec, rows: Mapping[str, _Row], columns: Mapping[str, _Column]) -> TableSpec:
    """An experiment's table with other rows and columns."""
    entries = {
        place: {
            column: spec.entries[row][split].model_copy(update={"statistic": statistic, **told})
            for column, (split, statistic, _) in columns.items()
            if split in spec.entries[row]
            and split in spec.entries[told.get("against") or row]  # without the other row nothing is to be told
            and not ("reading" in told and statistic in _OF_ALL_ROUNDS)
        }
        for place, (row, _, told) in rows.items()
    }
    titles = {"rows": {place: title for place, (_, title, _) in rows.items()}}
    titles["columns"] = {column: title for column, (_, _, title) in columns.items()}
    return spec.model_copy(update={**titles, "entries": entries, "decimals": 2})


def arithmetic_table(name: str, params: Params) -> dict[str, Any]:
    """A table of :data:`ARITHMETIC_TABLES`, computed anew, as its JSON file holds it."""
    # It sees no experiments but those that its stage watches.
    params = params.model_copy(
        update={"experiments": {key: params.experiments[key] for key in ARITHMETIC_TABLES[name]}}
    )
    # What counts builds models; importing that takes seconds that other tables need not wait for.
    # FedHPL's Table 5 is counted by table_5 of counted/fedhpl.py.
    paper, _, number = name.partition("-table-")
    count = getattr(import_module(f"hetfl.tables.counted.{paper}"), f"table_{number}")
    return laid_out(name, count(params))
