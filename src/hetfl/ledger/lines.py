"""The lines of the ledger: every number that the papers print in a table, with ours beside it.

Everything here is read from git alone: the compact records in ``results/``, the settings, the printed numbers, and
the committed tables. So every checkout gets the same ledger, whatever its machine has in ``runs/``, ``data/`` or
``weights/``. Only finished runs of a cell's own settings give a number; one that was scaled down has other settings,
so its record is stale, and one that is not finished gives its round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from hetfl.compact import Compact
from hetfl.data.sets import CATALOGUE
from hetfl.errors import HetflError
from hetfl.experiments.plan import Cell, Params, Workspace, cells, weights_read
from hetfl.files import read_json
from hetfl.ledger.doubts import Place, check_places, found_doubts, known_doubts
from hetfl.schema import TROUBLES
from hetfl.tables.catalogue import ARITHMETIC_TABLES, PAPER_TABLES, arithmetic_table, table_names
from hetfl.tables.notation import PAPERS
from hetfl.tables.records import Record, Records, so_far
from hetfl.tables.results import counted, value_of
from hetfl.tables.spec import Entry, TableSpec, as_printed
from hetfl.tables.verdict import pooled_noise, verdict

TRAINED = ("match", "better", "worse", "differs")
VERDICTS = (*TRAINED, "in progress", "counted", "not run")
"""In the order in which they are told. ``differs`` is for cosines, which are neither better nor worse; ``counted``
for numbers that are computed from models and messages."""

REASONS = ("weights", "data", "hours")
"""What is between a cell and its number: pre-trained weights or a data set that no record or committed table of this
project has been made with yet; otherwise only time."""


@dataclass(frozen=True)
class Tried:
    """What a cell gives with one other choice, from a row that is compared with this very cell.

    Attributes:
        experiment, title: of that row.
        says: the mean over the seeds that are finished, its difference to the printed number, how many seeds these
            are and what diverged; or how far they are, and how the furthest compares so far.
    """

    experiment: str
    title: str
    says: str


@dataclass(frozen=True)
class Line:
    """One printed number.

    Attributes:
        paper, table, row, column: where it stands, by name.
        printed: the number as printed, with its deviation.
        ours: the mean over seeds with its deviation, in the unit of the table; empty without one.
        value, std, number: ours and the printed one as numbers; None where there is none.
        done, wanted: how many seeds are finished, and how many there are.
        verdict: one of :data:`VERDICTS`.
        because: of a cell that is not run, what it needs, the chief reason first; of one in progress, its round; of a
            counted one, whether it agrees.
        reason: one of :data:`REASONS`, of a cell that is not run.
        rounds, hours: that the finished runs went through and took, or those in progress so far, all seeds together.
        device, commit: of the finished runs; the commit is that of the newest one.
        diverged: of runs in which a loss or scores were not finite, the first such round: ``seed 0 diverged in round
            2``; and of those that went on without a client; empty where there is none.
        tried: the same cell with other choices that the paper and its code leave.
        doubts: what is known against the printed number, and the footnotes of counted ones.
        method: that is trained for it; empty where it is counted.
    """

    paper: str
    table: str
    row: str
    column: str
    printed: str
    unit: str
    number: float | None
    number_std: float | None
    ours: str = ""
    value: float | None = None
    std: float | None = None
    done: int = 0
    wanted: int = 0
    verdict: str = "not run"
    because: str = ""
    reason: str = ""
    rounds: int | None = None
    hours: float | None = None
    device: str = ""
    commit: str = ""
    diverged: str = ""
    tried: tuple[Tried, ...] = ()
    doubts: tuple[str, ...] = ()
    method: str = ""

    @property
    def place(self) -> Place:
        """Where it stands."""
        return self.table, self.row, self.column

    @property
    def difference(self) -> float | None:
        """Ours less the printed number."""
        return None if self.value is None or self.number is None else round(self.value - self.number, 6)

    @property
    def says(self) -> str:
        """The verdict with its reason or round, and what diverged: ``not run (weights)``, ``in progress (round 3)``,
        ``match; seed 0 diverged in round 2``."""
        more = {"not run": self.reason, "in progress": self.because}.get(self.verdict, "")
        said = f"{self.verdict} ({more})" if more else self.verdict
        return f"{said}; {self.diverged}" if self.diverged else said


@dataclass(frozen=True)
class Ledger:
    """All lines, and what they were judged by.

    Attributes:
        lines: by paper, table, row and column.
        titles: of tables, and of their rows and columns, and the parts that they consist of: ``title``, ``rows``,
            ``columns`` and ``blocks``.
        repeated: of each protocol, the accuracies of each cell that has several runs which did not diverge, in
            points.
    """

    lines: list[Line]
    titles: dict[str, dict[str, Any]]
    repeated: dict[str, list[list[float]]]


def ledger(workspace: Workspace, params: Params) -> Ledger:
    """Everything that the papers' tables print, and what git knows of it.

    Raises:
        HetflError: a compact record or a committed table is damaged, or ``tables/doubts.yaml`` names a place that has
            no printed number.
    """
    compacts = Records(workspace, params)
    names = printed_tables(params)
    specs = {name: PAPER_TABLES[name](params) for name in names if name in PAPER_TABLES}
    entries: dict[Place, Entry] = {
        (name, row, column): entry
        for name, spec in specs.items()
        for row, some in spec.entries.items()
        for column, entry in some.items()
        if entry.printed is not None and entry.comparable
    }
    had = _had(workspace, compacts, entries.values())
    repeated = _repeated(entries.values(), params, compacts)
    noise = {protocol: pooled_noise(values) for protocol, values in repeated.items()}
    lines = [_line(place, entry, params, compacts, noise, had, specs) for place, entry in entries.items()]
    choices = _choices(params)
    lines = [replace(line, tried=_tried(line, entries[line.place], choices, compacts)) for line in lines]
    titles: dict[str, dict[str, Any]] = {name: _titles(spec.model_dump()) for name, spec in specs.items()}
    for name in filter(ARITHMETIC_TABLES.__contains__, names):
        path = workspace.table(name) / f"{name}.json"
        table = read_json(path) if path.exists() else arithmetic_table(name, params)
        titles[name] = _titles(table)
        lines += [_counted(name, cell) for cell in table["cells"] if cell["agrees"] is not None]
    check_places(line.place for line in lines)
    own = found_doubts(entries, params)
    lines = [
        replace(line, doubts=(*known_doubts().get(line.place, ()), *own.get(line.place, ()), *line.doubts))
        for line in lines
    ]
    return Ledger(sorted(lines, key=lambda line: (PAPERS.index(line.paper), order(line.table))), titles, repeated)


def printed_tables(params: Params) -> list[str]:
    """The tables of papers that have a stage; a project of experiments of one's own has none, and so no ledger."""
    return [name for name in table_names(params) if name.partition("-")[0] in PAPERS]


def order(table: str) -> tuple[int, str]:
    """Sorts a paper's tables by their numbers; those without one come last."""
    number = table.partition("-table-")[2].partition("-")[0]
    return int(number) if number.isdigit() else 99, table


def _titles(table: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: table[name] for name in ("title", "rows", "columns")}
    whole = {"title": "", "rows": [*told["rows"]], "columns": [*told["columns"]]}
    return told | {"blocks": table.get("blocks") or [whole]}


def _line(
    place: Place,
    entry: Entry,
    params: Params,
    compacts: Records,
    noise: Mapping[str, float | None],
    had: set[str],
    specs: Mapping[str, TableSpec],
) -> Line:
    """The line of a number that is trained for."""
    table, row, column = place
    digits = specs[table].decimals if entry.unit == "%" else 3 if entry.unit else 4
    line = Line(
        *(table.partition("-")[0], table, row, column),
        printed=as_printed(entry.in_print, entry.unit, digits),
        unit=entry.unit,
        number=entry.printed,
        number_std=entry.printed_std,
        wanted=len(entry.seeds),
        method=entry.method,
    )
    if (value := counted(entry, compacts)) is not None:
        agrees = verdict(value, None, entry.printed, entry.statistic, digits=entry.digits) == "match"
        return replace(
            line,
            value=round(value, 6),
            ours=f"{value:.{digits}f}",
            wanted=0,
            verdict="counted",
            because="agrees" if agrees else "differs",
            doubts=(entry.footnote,) if entry.footnote else (),
            method="",
        )
    if known := _values(entry, compacts):
        values, kept = zip(*known, strict=True)
        value, std = mean(values), stdev(values) if len(values) > 1 else None
        newest = max(kept, key=lambda found: found.run.finished or "")
        judged = verdict(
            value, std, entry.printed, entry.statistic, entry.printed_std, noise[_protocol(entry, params)]
        )
        return replace(
            line,
            value=round(value, 6),
            std=None if std is None else round(std, 6),
            ours=f"{value:.{digits}f}" + ("" if std is None else f"±{std:.{digits}f}"),
            done=len(known),
            verdict=judged,
            commit=newest.run.commit,
            **_course(kept, entry.round),
        )
    own = {seed: found for seed in entry.seeds if (found := _own(entry, seed, compacts)) is not None}
    if begun := [found for found in own.values() if not found.finished]:
        furthest = max(begun, key=lambda found: found.played)
        at = f"round {furthest.played}"
        return replace(line, verdict="in progress", because=at, **_course(begun))
    cell = compacts.cell(entry.path(entry.seeds[0]))
    reason, needs = _needs(cell, had) if cell else ("hours", "")
    stale = [why for seed in entry.seeds if (why := compacts.stale(entry.path(seed)))]
    lacking = [f"a record is stale: {why}" for why in stale] + [f"seed {seed} is run and lacks this" for seed in own]
    ran = _course([*own.values()]) if own else {}
    return replace(line, reason=reason, because="; ".join([needs, *lacking]), **ran)


def _course(records: Sequence[Compact], last: int | None = None) -> dict[str, Any]:
    """What runs went through: fields of a line. What happened after the round that is read last is not told."""
    runs = [found.run for found in records]
    return {
        "rounds": sum(found.played for found in records),
        "hours": round(sum(found.seconds for found in records) / 3600, 2),
        "device": ", ".join(dict.fromkeys(device for run in runs for device in run.throughout("device"))),
        "diverged": ", ".join(
            f"seed {run.seed} {told} in round {first}"
            for run in runs
            for trouble, told in TROUBLES.items()
            for first in [getattr(run, trouble)]
            if first is not None and (last is None or first <= last)
        ),
    }


def _own(entry: Entry, seed: int, compacts: Records) -> Compact | None:
    """A compact record of the cell's own settings, finished or not."""
    path = entry.path(seed)
    return None if compacts.stale(path) else compacts.compact(path)


def _values(entry: Entry, compacts: Records, paths: Iterable[Path] = ()) -> list[tuple[float, Compact]]:
    """What a cell reads from the finished runs at some paths, by default those of its seeds, each with its run."""
    found = []
    for path in paths or map(entry.path, entry.seeds):
        record, kept = compacts.from_compact(path), compacts.compact(path)
        if record is not None and entry.round is not None:
            record = record.until(entry.round)
        if record is not None and kept is not None and (value := _value(entry, record)) is not None:
            found.append((value, kept))
    return found


def _value(entry: Entry, record: Record) -> float | None:
    """What a cell reads from a run; None if the run lacks it, as one that diverged lacks cosines."""
    try:
        return value_of(entry, record)
    except HetflError:
        return None


def _what(cell: Cell) -> str:
    """All of a cell but its names."""
    return cell.model_dump_json(exclude={"experiment", "row", "title", "paper", "features"})


def _choices(params: Params) -> dict[str, list[Cell]]:
    """The cells of rows that are compared with another one, by the content of that one's cell."""
    found: dict[str, list[Cell]] = defaultdict(list)
    for name, experiment in params.experiments.items():
        if any(row.against for row in experiment.rows.values()):
            own = {(cell.row, cell.split, cell.seed): cell for cell in cells(params, name)}
            for (row, split, seed), cell in own.items():
                other = own.get((experiment.rows[row].against or "", split, seed))
                if other:  # which may have fewer splits or seeds
                    found[_what(other)].append(cell)
    return found


def _tried(line: Line, entry: Entry, choices: Mapping[str, list[Cell]], compacts: Records) -> tuple[Tried, ...]:
    """What becomes of a cell with other choices, as far as any of these has begun."""
    rows: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for seed in entry.seeds:
        own = compacts.cell(entry.path(seed))
        for cell in choices.get(_what(own), []) if own else []:
            rows[cell.experiment, cell.title].append(cell)
    found = []
    for (experiment, title), some in rows.items():
        begun = [kept for cell in some if not compacts.stale(cell.path) and (kept := compacts.compact(cell.path))]
        if (known := _values(entry, compacts, [cell.path for cell in some])) and line.number is not None:
            values = [value for value, _ in known]
            diverged = _course([kept for _, kept in known], entry.round)["diverged"]
            told = filter(None, (f"{len(known)} of {line.wanted} seeds", diverged))
            says = f"{mean(values):.2f} ({mean(values) - line.number:+.2f}; {', '.join(told)})"
            found.append(Tried(experiment, title, says))
        elif begun:
            furthest = max(begun, key=lambda kept: kept.played)
            base = _own(entry, furthest.run.seed, compacts)
            # Both are read as the cell is.
            rules = entry.reading, entry.reading
            compared = so_far(furthest.rounds(), base.rounds() if base else [], "this cell", rules)
            says = "; ".join(filter(None, (f"in progress, round {furthest.played}", compared)))
            found.append(Tried(experiment, title, says))
    return tuple(found)


def _protocol(entry: Entry, params: Params) -> str:
    experiment = params.experiments[entry.experiment]
    return experiment.protocol or experiment.paper


def _repeated(entries: Iterable[Entry], params: Params, compacts: Records) -> dict[str, list[list[float]]]:
    """See :class:`Ledger`."""
    repeated: dict[str, dict[tuple[Any, ...], list[float]]] = defaultdict(dict)
    for entry in entries:
        cells = repeated[_protocol(entry, params)]
        key = entry.path(0), entry.statistic, entry.reading, entry.round
        if entry.unit == "%" and key not in cells:
            cells[key] = [value for value, kept in _values(entry, compacts) if kept.run.diverged is None]
    return {
        protocol: [values for values in cells.values() if len(values) > 1] for protocol, cells in repeated.items()
    }


def _had(workspace: Workspace, compacts: Records, entries: Iterable[Entry]) -> set[str]:
    """The data sets and weights that a record or a committed table was made with."""
    found: set[str] = set()
    for entry in entries:
        for seed in entry.seeds:
            kept = compacts.compact(entry.path(seed))
            if kept is not None:
                found |= {kept.run.dataset, *kept.run.inputs.weights}
                found |= {kept.run.public["dataset"]} if kept.run.public else set()
    for path in workspace.tables.glob("*/*.json"):
        if path.parent.name == path.stem:
            shared = read_json(path)["provenance"]
            found |= {*shared["datasets"], *shared["weights"]}
    return found


def _needs(cell: Cell, had: set[str]) -> tuple[str, str]:
    """The chief reason why a cell is not run, and all that it needs."""
    weights = [name for name in dict.fromkeys(weights_read(cell)) if not name.endswith(".random")]
    data = [cell.dataset, *([cell.public.dataset] if cell.public else [])]
    lacking = {"weights": [*filter(lambda name: name not in had, weights)]}
    lacking |= {"data": [*filter(lambda name: name not in had, data)]}
    reason = next((kind for kind, names in lacking.items() if names), "hours")
    needs = [f"weights {', '.join(weights)}"] if weights else []
    needs += [f"data {', '.join(CATALOGUE[name].title for name in dict.fromkeys(data))}"]
    return reason, "; ".join([*needs, f"{cell.settings['rounds']} rounds"])


def _counted(table: str, cell: Mapping[str, Any]) -> Line:
    """The line of a number that is computed."""
    differs = cell["agrees"] is False
    return Line(
        *(table.partition("-")[0], table, cell["row"], cell["column"]),
        printed=cell["printed_text"],
        unit=cell["unit"] or "",
        number=cell["printed"],
        number_std=None,
        ours=cell["value_text"],
        value=None if cell["printed"] is None else cell["value"],
        verdict="counted",
        because="differs" if differs else "agrees",
        doubts=(cell["footnote"],) if cell["footnote"] else (),
    )
