"""What runs, what is done, what is stale and why: the cells that have begun, and runs that stand in no table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetfl.compact import read_compact
from hetfl.errors import HetflError
from hetfl.experiments.namesakes import Known, finished
from hetfl.experiments.plan import Cell, Params, Workspace, cells
from hetfl.experiments.status import State, Status, is_locked, status
from hetfl.planning import WORDS
from hetfl.schema import METRICS, Round, Run, read_rounds, read_run, record_folders
from hetfl.targets import cells_of

NAMED = 8
"""How many cells of one state are named."""


@dataclass(frozen=True)
class One:
    """How far one run is.

    Attributes:
        path: below ``runs/``.
        accuracy: after its last tested round, in percent, mean over clients; None before the first.
        evaluated: whether its final model is tested.
    """

    path: str
    status: Status
    accuracy: float | None
    evaluated: bool

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        found = self.status
        return {"cell": self.path, "status": found.state, "round": found.round, "rounds": found.rounds} | {
            "accuracy": self.accuracy,
            "evaluated": self.evaluated,
            "because": found.why,
        }


@dataclass(frozen=True)
class Overview:
    """Cells by experiment, and runs of ``hetfl run``."""

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
        HetflError: a target is unknown.
    """
    if targets:
        chosen = cells_of(targets, params)
    else:
        there = {path.name for place in (workspace.runs, workspace.results) for path in place.glob("[!.]*")}
        names = [name for name, one in params.experiments.items() if one.file == "params.yaml" or name in there]
        chosen = [cell for name in names for cell in cells(params, name)]
    found: dict[str, list[One]] = {}
    known = finished(workspace)
    for cell in chosen:
        found.setdefault(cell.experiment, []).append(_of_cell(cell, workspace, known))
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
        reasons: dict[str, list[str]] = {}
        for one in every:
            if one.status.state == state:
                reasons.setdefault(one.status.why, []).append(one.path)
        several = [f"{some[0]}{f' and {len(some) - 1} more' * (len(some) > 1)}" for some in reasons.values()]
        lines = [f"{names}: {why}" for names, why in zip(several, reasons, strict=True)]
        parts += [_named(WORDS[state], lines)] if lines else []
    if pending := [one.path for one in every if one.status.state == "done" and not one.evaluated]:
        parts.append(_named("trained and not evaluated; hetfl evaluate does it", pending))
    if found.adhoc:
        going = ["running, " if one.status.state == "running" else "" for one in found.adhoc]
        lines = [f"{one.path}: {now}{_far(one)}" for one, now in zip(found.adhoc, going, strict=True)]
        parts.append(_named("in no table (hetfl run)", lines))
    return "\n\n".join(parts) or "nothing has begun; name tables or experiments to see their cells"


def _of_cell(cell: Cell, workspace: Workspace, known: Known) -> One:
    found = status(cell, workspace, known)
    if found.state == "in git":
        kept = read_compact(workspace.compact(cell.path))
        assert kept is not None and kept.metrics is not None  # as it is finished
        return One(cell.path.as_posix(), found, 100 * kept.metrics.average, True)
    accuracy = None if found.state in ("not run", "broken") else _accuracy(workspace.runs / cell.path)
    evaluated = (workspace.evaluations / cell.path / METRICS).is_file()
    return One(cell.path.as_posix(), found, accuracy, evaluated)


def _adhoc(params: Params, workspace: Workspace) -> list[One]:
    """Runs of experiments that the settings do not have."""
    found = []
    for folder in record_folders(workspace.runs):
        path = folder.relative_to(workspace.runs)
        if path.parts[0] in params.experiments:
            continue
        try:
            run = read_run(folder)
        except HetflError as error:
            found.append(One(path.as_posix(), Status("broken", 0, 0, str(error)), None, False))
            continue
        if run is not None:
            evaluated = (workspace.evaluations / path / METRICS).is_file()
            now = _status(run, folder, is_locked(path, workspace))
            found.append(One(path.as_posix(), now, _accuracy(folder), evaluated))
    return found


def _status(run: Run, folder: Path, locked: bool) -> Status:
    played = max((line.round for line in _lines(folder) if not line.fine_tuning), default=0)
    state: State = "done" if run.complete else "running" if locked else "interrupted"
    return Status(state, played, run.rounds)


def _accuracy(folder: Path) -> float | None:
    """After the last tested round, in percent, mean over clients."""
    tested = next((line.accuracy for line in reversed(_lines(folder)) if line.accuracy and line.round), None)
    known = [100 * value for value in tested or () if value is not None]
    return sum(known) / len(known) if known else None


def _lines(folder: Path) -> list[Round]:
    try:
        return read_rounds(folder)
    except HetflError:
        return []


def _range(some: Sequence[One]) -> str:
    known = [one.accuracy for one in some if one.accuracy is not None and one.status.state in ("done", "in git")]
    return f"{min(known):.1f} to {max(known):.1f}" if known else ""


def _far(one: One) -> str:
    accuracy = "" if one.accuracy is None else f", accuracy {one.accuracy:.1f} %"
    if one.status.state == "done":
        return f"done, {one.status.round} rounds{accuracy}"
    return f"round {one.status.round} of {one.status.rounds}{accuracy}"


def _named(title: str, lines: Sequence[str]) -> str:
    more = [f"  and {len(lines) - NAMED} more"] if len(lines) > NAMED else []
    return "\n".join([f"{title}:", *(f"  {line}" for line in lines[:NAMED]), *more])
