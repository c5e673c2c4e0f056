"""Finished runs of one identity under several names: a row was renamed, or two experiments have the same cell.

Names decide no number, so such a cell is not trained again: it gets a copy of the finished record.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from hetfl.experiments.plan import Cell, Workspace
from hetfl.experiments.record import Record
from hetfl.experiments.superseded import Superseded
from hetfl.files import atomic_folder, write_json
from hetfl.schema import RUN


def finished(workspace: Workspace) -> dict[str, Path]:
    """The folders of finished records by fingerprint, the first one by name of each. Damaged ones are left out."""
    found: dict[str, Path] = {}
    for path in sorted(workspace.runs.glob(f"[!.]*/*/*/*/{RUN}")):
        try:
            run = json.loads(path.read_bytes())
            if run["status"] == "complete":
                found.setdefault(run["fingerprint"], path.parent)
        except (OSError, ValueError, TypeError, KeyError):
            continue  # whatever is wrong with it, its own cell's status says so
    return found


def holds(known: Mapping[str, Path], fingerprint: str) -> bool:
    """Whether one of the records found before is whole, and is still the finished run of this identity."""
    return fingerprint in known and Record(known[fingerprint]).is_complete(fingerprint)


def take_over(cell: Cell, workspace: Workspace, fingerprint: str) -> bool:
    """Give a cell a copy of the finished record that has its identity under another name.

    The copy says which record it is of; everything else in it, such as device and commit, is the original's. Callers
    must hold the cell's lock.

    Returns:
        Whether there is such a record.
    """
    known = finished(workspace)
    if not holds(known, fingerprint):
        return False
    source, target = known[fingerprint], workspace.runs / cell.path
    run = Record(source).read()
    assert run is not None
    names = {
        "experiment": cell.experiment,
        "row": cell.row,
        "title": cell.title,
        "paper": cell.paper,
        "table": cell.experiment,
        "split": cell.split,
        "copy_of": run.copy_of or source.relative_to(workspace.runs).as_posix(),
    }
    Superseded(workspace.runs, cell.path).make_way(fingerprint)
    with atomic_folder(target) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        write_json(folder / RUN, run.model_copy(update=names).as_json())
    return True
