"""Train a recorded cell anew and compare it with its compact record."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hetfl.compact import Compact
from hetfl.config import validate
from hetfl.errors import HetflError
from hetfl.experiments.cell import run_cell
from hetfl.experiments.evaluation import evaluate_cell
from hetfl.experiments.identity import differences, inputs
from hetfl.experiments.namesakes import finished
from hetfl.experiments.needs import check_needs
from hetfl.experiments.plan import Cell, ComputeSettings, Params, Workspace, check_fit, weights_read
from hetfl.experiments.record import libraries
from hetfl.experiments.schedule import pick_device
from hetfl.ledger.recording import KEPT, compact_of, kept_in_git
from hetfl.planning import clock
from hetfl.report.comparison import compare_tables
from hetfl.report.table import build_table
from hetfl.schema import COMPUTED_UNDER, MODEL, Conditions
from hetfl.tables.catalogue import PAPER_TABLES, table_entries, table_names
from hetfl.tables.records import Records
from hetfl.tables.spec import Entry, TableSpec
from hetfl.tracking import Progress, following


@dataclass(frozen=True)
class Plan:
    """What a reproduction trains, and how.

    Attributes:
        cell: the cell.
        record: what it is compared with.
        compute: the record's engine, precision and threads, on this machine's device.
        params: the settings of the checkout.
        workspace: the checkout, with folders of its own for what is trained.
        entries: the printed numbers that the cell stands for, by table, row and column.
    """

    cell: Cell
    record: Compact
    compute: ComputeSettings
    params: Params
    workspace: Workspace
    entries: dict[str, Entry]

    @property
    def command(self) -> str:
        """The command that trains the cell in the checkout itself."""
        cell, compute = self.cell, self.compute
        picked = f"--row {cell.row} --split {cell.split} --seed {cell.seed}"
        return f"hetfl train {cell.experiment} {picked} --engine {compute.engine} --precision {compute.precision}"


def plan_reproduction(cell: Cell, workspace: Workspace, params: Params) -> Plan:
    """Plan the reproduction of a cell.

    Raises:
        HetflError: it has no finished compact record of its settings.
    """
    records = Records(workspace, params)
    record, file = records.compact(cell.path), workspace.compact(cell.path)
    if record is None and not kept_in_git([cell], params):
        raise HetflError(f"{cell.path}: has no record in git, {KEPT}; name a cell of these")
    if record is None or not record.finished:
        lacks = "is not finished" if record else "does not exist"
        make = f"hetfl train {cell.experiment}, then hetfl record {cell.experiment}"
        raise HetflError(f"{file}: {lacks}; make it with {make}")
    if why := records.stale(cell.path):
        raise HetflError(f"{file}: is stale ({why}); check out commit {record.run.commit}")
    run = record.run
    as_recorded = {"engine": run.engine, "precision": run.precision, "threads": run.threads or 1}
    compute = validate(ComputeSettings, params.compute.model_dump() | as_recorded, "params.yaml: compute")
    entries = {
        f"{name}: {number}": entry.model_copy(update={"seeds": [cell.seed]})
        for name in table_names(params)
        if name in PAPER_TABLES
        for number, entry in enumerate(table_entries(name, params))
        if entry.comparable and cell.path in map(entry.path, entry.seeds)
    }
    own = Entry(experiment=cell.experiment, method=cell.method, row=cell.row, split=cell.split, seeds=[cell.seed])
    return Plan(cell, record, compute, params, _apart(workspace, cell), entries or {"average": own})


def _apart(workspace: Workspace, cell: Cell) -> Workspace:
    """The same checkout, except that runs, evaluations, resume points and locks lie in a folder of the cell's own."""
    apart = Workspace(workspace.root)
    apart.scratch = workspace.scratch / "reproduced" / ".".join(cell.path.parts)
    apart.runs, apart.evaluations = apart.scratch / "runs", apart.scratch / "evaluations"
    return apart


def describe(plan: Plan) -> str:
    """What is trained, with what, how long it took when it was recorded, and the command."""
    cell, run = plan.cell, plan.record.run
    weights = ", ".join(weights_read(cell)) or "none"
    lines = [
        f"cell       {cell.path.as_posix()}",
        f"data       {cell.dataset}, partition {cell.split}, seed {cell.seed}",
        f"weights    {weights}",
        f"rounds     {plan.record.played} of at most {run.rounds}, {run.clients} clients",
        f"recorded   {run.started[:10]}, {clock(plan.record.seconds)}, {run.device}, threads {run.threads}",
        f"code       commit {run.commit}, torch {run.versions.get('torch', 'unknown')}",
        f"command    {plan.command}",
    ]
    return "\n".join(lines)


def reproduce(plan: Plan) -> Compact:
    """Train and evaluate the cell in folders of its own; an interrupted training goes on where it was.

    Neither ``runs/`` nor ``results/`` is written.

    Returns:
        The new record.

    Raises:
        HetflError: an input is missing or is not the recorded one; nothing was trained.
    """
    cell, workspace = plan.cell, plan.workspace
    check_fit(plan.params, [cell])
    check_needs([cell], plan.params, workspace)
    reads = inputs(cell, workspace)
    if why := differences(plan.record.run, cell, reads):
        raise HetflError(f"{cell.path.as_posix()}: its record was made with other inputs ({'; '.join(why)})")
    # An earlier reproduction would do for a training.
    for folder in {folder for some in finished(workspace).values() for folder in some}:
        shutil.rmtree(folder)
    device = pick_device(plan.compute.device)
    with following([Progress({cell.path: plan.record.played})]) as callback:
        run_cell(cell, workspace, device, plan.compute, callback)
    evaluate_cell(cell, workspace, device, plan.compute)
    made = compact_of(cell, workspace)
    assert made is not None
    return made


@dataclass(frozen=True)
class Verdict:
    """How a new record compares with the recorded one: what was found, in lines, and whether that is good."""

    good: bool
    lines: list[str]


def compare(plan: Plan, made: Compact, accuracy: float = 1.0, size: float = 0.0) -> Verdict:
    """Compare a new record with the recorded one.

    Trained alike, on the same kind of processor with the same engine, precision, threads and versions, every count of
    correct samples, every size of a message and the model itself must be identical. Otherwise, and on a GPU, which
    leaves the order of sums open, last bits differ, and the cell's numbers are compared by
    :func:`hetfl.report.comparison.compare_tables`.

    Args:
        plan: of the reproduction.
        made: its record.
        accuracy: how far a number of the cell may then move, in percentage points.
        size: how far a message's size that depends on training may then move, as a fraction.
    """
    told = plan.record
    unlike = [*_unlike(told, made)]
    if not unlike:
        differing = [*_differing(told, made)]
        lines = [f"differs: {what}" for what in differing] or ["identical: curves, message sizes and model"]
        return Verdict(not differing, [*lines, *_numbers(plan, made)])
    rows = compare_tables(_table(plan, told), _table(plan, made), accuracy, size, accuracy)
    problems = [f"differs: {row['problem']}" for row in rows if not row["ok"]]
    head = f"not alike: {', '.join(unlike)}; so numbers may move by {accuracy:g} points"
    return Verdict(not problems, [head, *dict.fromkeys(problems), *_numbers(plan, made)])


def _unlike(told: Compact, made: Compact) -> Iterator[str]:
    """What a difference of numbers may come from, other than the code; a run may have gone on elsewhere."""
    parts = {name: [*told.run.throughout(name), *made.run.throughout(name)] for name in Conditions.model_fields}
    yield from (name for name in COMPUTED_UNDER if len({*parts[name]}) > 1)
    found = [libraries(some) for some in parts["versions"]]
    names = {name for some in found for name in some}
    yield from sorted(name for name in names if len({some.get(name) for some in found}) > 1)
    if any(device.startswith("cuda") for device in parts["device"]):
        yield "the order of sums on a GPU"


def _differing(told: Compact, made: Compact) -> Iterator[str]:
    """The parts in which two records differ that should not, and the first round in which they do."""
    for old, new in zip(told.rounds(), made.rounds(), strict=False):
        parts = [
            name
            for name in ("participants", "accuracy", "pooled", "extra", "train_accuracy", "up", "down", "diagnostics")
            if getattr(old, name) != getattr(new, name)
        ]
        if parts:
            yield f"{', '.join(parts)} from round {old.round} on"
            break
    if told.played != made.played:
        yield f"{made.played} rounds, not {told.played}"
    if told.files.get(MODEL) != made.files.get(MODEL):
        yield "the model's SHA-256"


def _table(plan: Plan, record: Compact) -> dict[str, Any]:
    """A table of the cell's numbers alone, from one record."""
    spec = TableSpec(
        name="reproduction",
        title=plan.cell.path.as_posix(),
        rows={place: place for place in plan.entries},
        columns={"value": "value"},
        entries={place: {"value": entry} for place, entry in plan.entries.items()},
    )
    return build_table(spec, _Only(plan, record))


class _Only(Records):
    """One compact record and no other."""

    def __init__(self, plan: Plan, record: Compact) -> None:
        super().__init__(Workspace(plan.workspace.scratch / "nothing"), plan.params)
        self._one = plan.cell, record

    def compact(self, path: Any) -> Compact | None:
        return self._one[1]

    def cell(self, path: Any) -> Cell | None:
        return self._one[0]


def _numbers(plan: Plan, made: Compact) -> list[str]:
    """The cell's numbers: new, recorded and printed."""
    lines = []
    old, new = (_table(plan, record)["cells"] for record in (plan.record, made))
    for told, found in zip(old, new, strict=True):
        printed = "" if told["printed"] is None else f", printed {told['printed']:g} ({found['status']})"
        if found["value"] is None or told["value"] is None:
            continue
        lines.append(f"{told['row'].partition(':')[0]}: {found['value']:.2f}, recorded {told['value']:.2f}{printed}")
    return [*dict.fromkeys(lines)]


def one_cell(cells: Sequence[Cell], target: str) -> Cell:
    """The only cell that a target names.

    Raises:
        HetflError: it names several.
    """
    if len(cells) != 1:
        example = cells[0].path.as_posix() if cells else "<experiment>/<method>/<row>/<split>-s<seed>"
        raise HetflError(f"{target}: is {len(cells)} cells; name one, such as {example}")
    return cells[0]
