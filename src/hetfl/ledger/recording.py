"""Writes compact records of trained cells into ``results/``, and one CSV of all of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from hetfl.compact import Compact, compact, read_compact, render
from hetfl.errors import HetflError
from hetfl.experiments.identity import own_differences
from hetfl.experiments.namesakes import renamed
from hetfl.experiments.plan import Cell, Params, Workspace
from hetfl.files import sha256_file, write_text
from hetfl.schema import MODEL, ROUNDS, read_metrics, read_rounds, read_run
from hetfl.tables.notation import PAPERS
from hetfl.tables.spec import Cosine

CSV = "cells.csv"
"""The list of all compact records."""

_NUMBERS = ("average", "lowest", "highest", "pooled", "best_pooled", "best_round", "window_pooled", "window_lowest")
_RUN = ("device", "engine", "precision", "threads", "commit", "started", "finished", "fingerprint")
COLUMNS = ("cell", "state", "round", "rounds", "seconds", *_NUMBERS, *_RUN, "sha256")


@dataclass(frozen=True)
class Recorded:
    """What became of a cell's compact record.

    Attributes:
        outcome: ``written``, ``unchanged``, ``kept`` (``why`` says what is better about it), ``stale`` (the run is of
            other settings or versions than here) or ``not run``.
    """

    cell: str
    outcome: str
    why: str = ""


KEPT = "which keeps those of papers' tables and of rows with against only"
"""Of which cells git keeps records, see :func:`kept_in_git`."""


def kept_in_git(cells: Iterable[Cell], params: Params) -> list[Cell]:
    """The cells that have a compact record: of papers' experiments, and of those that compare rows with others.

    Others, such as those on digits, have none. The ledger shows only what papers print.
    """
    chosen = {
        name
        for name, experiment in params.experiments.items()
        if Path(experiment.file).parent.name in PAPERS or any(row.against for row in experiment.rows.values())
    }
    return [cell for cell in cells if cell.experiment in chosen]


def record_cells(cells: Sequence[Cell], source: Workspace, workspace: Workspace) -> list[Recorded]:
    """Write or update the compact records of some cells, and the CSV. Doing it again changes nothing.

    A record takes the place of one that is less far, or of other settings or versions than here; of two finished runs
    of one identity the one that is recorded stays. A cell without a run gets the finished record of its identity
    under another name, if there is one.

    Args:
        cells: those of :func:`kept_in_git`.
        source: the checkout with their runs and evaluations.
        workspace: the checkout that gets the records.

    Returns:
        What became of each.

    Raises:
        HetflError: a record or an evaluation is damaged; what was written before is whole.
    """
    found = [_record(cell, source, workspace.compact(cell.path)) for cell in cells]
    without = [cell for cell, each in zip(cells, found, strict=True) if each.outcome == "not run"]
    copied = _copy_namesakes([cell for cell in without if not workspace.compact(cell.path).exists()], workspace)
    write_csv(workspace.results)
    return [copied.get(each.cell, each) for each in found]


def compact_of(cell: Cell, workspace: Workspace) -> Compact | None:
    """The compact record of what ``runs/`` and ``evaluations/`` have of a cell; None if they have nothing.

    Raises:
        HetflError: a file is damaged, or missing in a finished run.
    """
    folder = workspace.runs / cell.path
    run = read_run(folder)
    if run is None:
        return None
    files = {name: sha256_file(folder / name) for name in (ROUNDS, MODEL)} if run.complete else {}
    metrics = read_metrics(workspace.evaluations / cell.path, run)
    rounds = read_rounds(folder, finished=run.complete)
    if not run.complete and not any(line.round for line in rounds):
        return None  # nothing is trained
    return compact(run, rounds, metrics, files, get_args(Cosine))


def write_csv(folder: Path) -> None:
    """Write the CSV of all compact records below a folder: a line for each, without numbers while it is not finished.

    Raises:
        HetflError: a record is damaged.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_line(path, folder) for path in sorted(folder.rglob("[!.]*.json")))
    write_text(folder / CSV, buffer.getvalue())


def _record(cell: Cell, source: Workspace, path: Path) -> Recorded:
    name, made = cell.path.as_posix(), compact_of(cell, source)
    if made is None:
        return Recorded(name, "not run")
    if why := own_differences(made.run, cell, source):
        return Recorded(name, "stale", "; ".join(why))
    there = read_compact(path)
    if there is not None and not own_differences(there.run, cell, source):
        if there.progress > made.progress:
            return Recorded(name, "kept", f"is further: {state(there)}")
        same = there.run.fingerprint == made.run.fingerprint and there.files == made.files
        if there.run.complete and made.run.complete and there.progress == made.progress and not same:
            return Recorded(name, "kept", f"is another run, started {there.run.started} on {there.run.device}")
    text = render(made)
    if there is not None and path.read_text() == text:
        return Recorded(name, "unchanged", state(made))
    write_text(path, text)
    return Recorded(name, "written", state(made))


def _copy_namesakes(cells: Sequence[Cell], workspace: Workspace) -> dict[str, Recorded]:
    """Give cells without a record a copy of the finished one that has their identity; return those that got one."""
    kept: dict[tuple[str, int], list[Compact]] = {}
    for path in sorted(workspace.results.glob("*/*/*/[!.]*.json")) if cells else []:
        record = read_compact(path)
        if record is not None and record.finished:
            kept.setdefault((record.run.method, record.run.seed), []).append(record)
    found = {}
    for cell in cells:
        for record in kept.get((cell.method, cell.seed), []):
            if not own_differences(record.run, cell, workspace):
                copy = record.model_copy(update={"run": renamed(record.run, cell)})
                write_text(workspace.compact(cell.path), render(copy))
                name = cell.path.as_posix()
                found[name] = Recorded(name, "written", f"is a copy of {copy.run.copy_of}")
                break
    return found


def state(record: Compact) -> str:
    """How far a record is: ``finished``, ``trained`` (not evaluated) or ``in progress``, with its round."""
    if record.run.complete:
        return "finished" if record.finished else "trained"
    return f"in progress, round {record.played} of {record.run.rounds}"


def _line(path: Path, folder: Path) -> dict[str, Any]:
    record = read_compact(path)
    if record is None:
        raise HetflError(f"{path}: was removed while it was read; run the command again")
    run = record.run
    told: dict[str, Any] = {
        "cell": path.relative_to(folder).with_suffix("").as_posix(),
        "state": state(record).partition(",")[0],
    }
    told |= {"round": record.played, "rounds": run.rounds, "seconds": record.seconds}
    told |= {name: getattr(record.metrics, name, None) for name in _NUMBERS}
    told |= {name: getattr(run, name) for name in _RUN} | {"sha256": sha256_file(path)}
    return {name: "" if value is None else value for name, value in told.items()}
