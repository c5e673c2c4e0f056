"""What runs, what is done, what is stale and why: the cells that have begun, and runs that stand in no table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetfl.compact import read_compact
from hetfl.errors import HetflError
from hetfl.experiments.namesakes import Known, finished
from hetfl.experiments.plan import Cell, Params, Workspace, cells
from hetfl.experiments.standing import Standing, standing
from hetfl.experiments.status import State, Status, is_locked, status
from hetfl.planning import WORDS, by_reason
from hetfl.schema import Round, Run, in_words, read_metrics, read_rounds, read_run, record_folders, troubles
from hetfl.targets import needed_cells
from hetfl.training.registry import FLOWER

NAMED = 8
"""How many cells of one state are named."""
ENDED: tuple[State, ...] = ("done", "in git")


@dataclass(frozen=True)
class One:
    """How far one run is.

    Attributes:
        path: below ``runs/``.
        accuracy: how accurate it is so far.
        evaluated: whether its final model is tested; None where that cannot be, with clients on other machines.
        troubles: the rounds in which first something went wrong, see :func:`hetfl.schema.troubles`.
    """

    path: str
    status: Status
    accuracy: Standing
    evaluated: bool | None
    troubles: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        found = self.status
        return {"cell": self.path, "status": found.state, "round": found.round, "rounds": found.rounds} | {
            "accuracy": self.accuracy.last,
            "best": self.accuracy.best,
            "best_round": self.accuracy.best_round,
            "evaluated": self.evaluated,
            **self.troubles,
            "because": found.because,
        }


@dataclass(frozen=True)
class Overview:
    """Cells by experiment, and runs that are of no cell, such as those of ``hetfl run``."""

    experiments: dict[str, list[One]]
    adhoc: list[One]

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "experiments": {name: [one.as_json() for one in some] for name, some in self.experiments.items()},
            "adhoc": [one.as_json() for one in self.adhoc],
        }


def overview(targets: Sequence[str], params: Params, workspace: Workspace) -> Overview:
    """The state of some cells; without targets, of all experiments of params.yaml and of all that have records.

    Raises:
        HetflError: a target is unknown, or the targets have no cells.
    """
    if targets:
        chosen = needed_cells(targets, params)
    else:
        there = {path.name for place in (workspace.runs, workspace.results) for path in place.glob("[!.]*")}
        names = [name for name, one in params.experiments.items() if one.file == "params.yaml" or name in there]
        chosen = [cell for name in names for cell in cells(params, name)]
    found: dict[str, list[One]] = {}
    records = finished(workspace)
    for cell in chosen:
        found.setdefault(cell.experiment, []).append(_of_cell(cell, workspace, records))
    return Overview(found, [] if targets else _adhoc(params, workspace))


def render(found: Overview) -> str:
    """For a terminal."""
    from tabulate import tabulate

    rows = []
    for name, some in found.experiments.items():
        counts = Counter(one.status.state for one in some)
        rows.append((name, len(some), *(counts[state] or "" for state in WORDS), _range(some)))
    heads = ["experiment", "cells", *WORDS, "accuracy (%)"]
    parts = [tabulate(rows, headers=heads, disable_numparse=True)] if rows else []
    every = [one for some in found.experiments.values() for one in some]
    for state, title in (("running", "running"), ("interrupted", "interrupted; training goes on from there")):
        some = [one for one in every if one.status.state == state]
        parts += [_named(title, [f"{one.path}: {_far(one)}" for one in some])] if some else []
    wrong: tuple[State, ...] = ("stale", "broken")
    for state in wrong:
        lines = by_reason((one.path, one.status.why) for one in every if one.status.state == state)
        parts += [_named(WORDS[state], lines)] if lines else []
    if doubted := by_reason((one.path, one.status.doubt) for one in every if one.status.doubt):
        parts.append(_named("from before their method changed", doubted))
    if pending := [one.path for one in every if one.status.state == "done" and one.evaluated is False]:
        parts.append(_named("trained and not evaluated; hetfl evaluate does it", pending))
    ended = [one for one in every if one.status.state in ENDED]
    if wrong_since := [f"{one.path}: {in_words(one.troubles)}" for one in ended if one.troubles]:
        parts.append(_named("something went wrong in", wrong_since))
    if found.adhoc:
        going = ["running, " if one.status.state == "running" else "" for one in found.adhoc]
        lines = [f"{one.path}: {now}{_far(one)}" for one, now in zip(found.adhoc, going, strict=True)]
        parts.append(_named("in no table (of hetfl run, or of cells that params.yaml does not have)", lines))
    return "\n\n".join(parts) or "nothing has begun; name tables or experiments to see their cells"


def _of_cell(cell: Cell, workspace: Workspace, records: Known) -> One:
    found = status(cell, workspace, records)
    if found.state == "in git":
        kept = read_compact(workspace.compact(cell.path))
        assert kept is not None and kept.metrics is not None  # as it is finished
        ended = kept.metrics
        accuracy = Standing(last=100 * ended.average)
        if (patience := cell.settings["patience"]) is not None:
            assert ended.pooled is not None and ended.best_pooled is not None
            accuracy = Standing(patience, 100 * ended.pooled, 100 * ended.best_pooled, ended.best_round)
        told = {name: value for name in ("diverged", "failed") if (value := getattr(kept.run, name)) is not None}
        return One(cell.path.as_posix(), found, accuracy, True, told)
    if found.elsewhere:  # the cell's own folder has another run
        return One(cell.path.as_posix(), found, Standing(), False)
    folder = found.record or workspace.runs / cell.path
    rounds = _lines(folder) if found.state not in ("not run", "broken") else []
    evaluated = _is_evaluated(cell.path, workspace)
    return One(cell.path.as_posix(), found, standing(rounds, cell.settings["patience"]), evaluated, troubles(rounds))


def _is_evaluated(path: Path, workspace: Workspace) -> bool | None:
    try:
        run = read_run(workspace.runs / path)
        if run is not None and run.engine == FLOWER:
            return None
        return run is not None and read_metrics(workspace.evaluations / path, run) is not None
    except HetflError:
        return False


def _adhoc(params: Params, workspace: Workspace) -> list[One]:
    """Runs of cells that the settings do not have."""
    found, planned = [], dict[str, set[Path]]()
    for folder in record_folders(workspace.runs):
        path = folder.relative_to(workspace.runs)
        experiment = path.parts[0]
        if experiment not in planned:
            there = cells(params, experiment) if experiment in params.experiments else []
            planned[experiment] = {cell.path for cell in there}
        if path in planned[experiment]:
            continue
        try:
            run = read_run(folder)
        except HetflError as error:
            found.append(One(path.as_posix(), Status("broken", 0, 0, str(error)), Standing(), False))
            continue
        if run is not None:
            rounds = _lines(folder)
            now = _status(run, rounds, is_locked(path, workspace))
            accuracy, evaluated = standing(rounds, run.settings.get("patience")), _is_evaluated(path, workspace)
            found.append(One(path.as_posix(), now, accuracy, evaluated, troubles(rounds)))
    return found


def _status(run: Run, rounds: Sequence[Round], locked: bool) -> Status:
    played = max((line.round for line in rounds if not line.fine_tuning), default=0)
    state: State = "done" if run.complete else "running" if locked else "interrupted"
    return Status(state, played, run.rounds)


def _lines(folder: Path) -> list[Round]:
    try:
        return read_rounds(folder)
    except HetflError:
        return []


def _range(some: Sequence[One]) -> str:
    ended = [one for one in some if one.status.state in ENDED]
    found = [counts for one in ended if (counts := one.accuracy.counts) is not None]
    return f"{min(found):.1f} to {max(found):.1f}" if found else ""


def _far(one: One) -> str:
    accuracy = f", accuracy {one.accuracy}" if str(one.accuracy) else ""
    accuracy += f", {in_words(one.troubles)}" if one.troubles else ""
    if one.status.state == "done":
        return f"done, {one.status.round} rounds{accuracy}"
    return f"round {one.status.round} of {one.status.rounds}{accuracy}"


def _named(title: str, lines: Sequence[str]) -> str:
    more = [f"  and {len(lines) - NAMED} more"] if len(lines) > NAMED else []
    return "\n".join([f"{title}:", *(f"  {line}" for line in lines[:NAMED]), *more])
