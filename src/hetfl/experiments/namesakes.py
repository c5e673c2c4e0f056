"""Finished runs of one identity under several names: a row was renamed, or two experiments have the same cell.

Names decide no number, so such a cell is not trained again: it gets a copy of the finished record.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from hetfl.errors import HetflError
from hetfl.experiments.plan import Cell, Workspace
from hetfl.experiments.record import Record
from hetfl.experiments.superseded import Superseded
from hetfl.files import atomic_folder, write_json
from hetfl.schema import RUN, Run, needed_run, record_folders

PATIENCE = 10.0
"""Seconds to wait for a record that another process holds."""


Known = Mapping[str, Sequence[Path]]
"""The folders of finished records by fingerprint."""


def finished(workspace: Workspace) -> Known:
    """The finished records of a checkout, by name. Those whose description is damaged are left out."""
    found: dict[str, list[Path]] = {}
    for folder in record_folders(workspace.runs):
        try:
            run = json.loads((folder / RUN).read_bytes())
            if run["status"] == "complete":
                found.setdefault(run["fingerprint"], []).append(folder)
        except (OSError, ValueError, TypeError, KeyError):
            continue  # whatever is wrong with it, its own cell's status says so
    return found


def holds(known: Known, fingerprint: str) -> bool:
    """Whether one of the records found before is whole, and is still the finished run of this identity."""
    return any(_is_whole(folder, fingerprint) for folder in known.get(fingerprint, ()))


def _is_whole(folder: Path, fingerprint: str) -> bool:
    try:
        return Record(folder).is_complete(fingerprint)
    except HetflError:
        return False  # as above


def take_over(cell: Cell, workspace: Workspace, fingerprint: str) -> bool:
    """Give a cell a copy of the finished record that has its identity under another name.

    The copy says which record it is of; everything else in it, such as device and commit, is the original's. Callers
    must hold the cell's lock.

    Returns:
        Whether there is such a record.
    """
    for source in finished(workspace).get(fingerprint, ()):
        if source == workspace.runs / cell.path:
            continue  # it is damaged, and its lock is held
        lock = workspace.lock(source.relative_to(workspace.runs))
        try:
            with FileLock(lock, timeout=PATIENCE):
                if _is_whole(source, fingerprint):
                    _copy(source, cell, workspace, fingerprint)
                    return True
        except Timeout:
            continue  # somebody works on it
    return False


def _copy(source: Path, cell: Cell, workspace: Workspace, fingerprint: str) -> None:
    run = renamed(needed_run(source), cell)
    Superseded(workspace, cell.path).make_way(fingerprint)
    with atomic_folder(workspace.runs / cell.path) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        write_json(folder / RUN, run.as_json())


def renamed(run: Run, cell: Cell) -> Run:
    """The description of a cell's run of another name, as one of this cell, with the cell that was trained."""
    names = {
        "experiment": cell.experiment,
        "row": cell.row,
        "title": cell.title,
        "paper": cell.paper,
        "table": cell.experiment,
        "split": cell.split,
        "partition": cell.partition,
        "copy_of": run.copy_of or run.path.as_posix(),
    }
    return run.model_copy(update=names)
