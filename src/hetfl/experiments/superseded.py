"""Superseded records: finished records that a retrained cell has replaced. They are kept, reused and pruned."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from hetfl.experiments.plan import Workspace
from hetfl.experiments.record import Record
from hetfl.files import folder_bytes
from hetfl.schema import RUN, Run

FOLDER = ".superseded"
"""Folder below ``runs/``, beside the experiments' folders, which are DVC's outputs."""

KEEP = 2
"""Number of superseded records of a cell that are kept when its own record is finished."""


class Superseded:
    """The superseded records of one cell, each in a folder named by its fingerprint.

    Each step is either a rename or the removal of something that is not needed. So every finished record stays
    complete if a process is killed, in the cell's folder or here. Callers must hold the cell's lock.

    Args:
        runs: the folder of run records.
        path: the cell's path below it.
    """

    def __init__(self, runs: Path, path: Path) -> None:
        self.path = path
        self.cell, self.folder = runs / path, runs / FOLDER / path

    def records(self) -> list[Record]:
        """All superseded records of the cell, the oldest first."""
        return [record for record, _ in self.runs()]

    def runs(self) -> list[tuple[Record, Run]]:
        """The same, each with the content of its ``run.json``."""
        found = ((record, record.read()) for record in map(Record, self.folder.glob("[!.]*")))
        there = [(record, run) for record, run in found if run is not None]
        return sorted(there, key=lambda pair: pair[1].finished or "")

    def make_way(self, fingerprint: str) -> None:
        """Empty the cell's folder for a run with this fingerprint: a finished record of another run moves here."""
        found = Record(self.cell).read()
        if found is None or found.fingerprint == fingerprint:
            return
        if not found.complete:
            shutil.rmtree(self.cell)
            return
        target = self.folder / found.fingerprint
        if target.exists():  # the same run, finished twice
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.cell.rename(target)

    def holds(self, fingerprint: str) -> bool:
        """Whether the finished record of this identity is here."""
        return Record(self.folder / fingerprint).is_complete(fingerprint)

    def restore(self, fingerprint: str) -> bool:
        """Move the finished record with this fingerprint back to the cell's folder; returns whether there is one."""
        if not self.holds(fingerprint):
            return False
        source = self.folder / fingerprint
        self.make_way(fingerprint)
        if self.cell.exists():  # an unfinished run with this fingerprint
            shutil.rmtree(self.cell)
        self.cell.parent.mkdir(parents=True, exist_ok=True)
        source.rename(self.cell)
        return True

    def trim(self) -> None:
        """Remove all but the newest :data:`KEEP` records, if the cell's own record is finished."""
        if Record(self.cell).finished:
            records = self.records()
            for record in records[: len(records) - KEEP]:
                self.remove(record)

    def remove(self, record: Record) -> None:
        """Remove one record, and folders that become empty."""
        self._clear()
        record.folder.rename(self.folder / f".{record.folder.name}")
        self._clear()
        folder = self.folder
        while folder.name != FOLDER and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent

    def _clear(self) -> None:
        """Remove what is no record any more, such as what a killed process has begun to remove."""
        for going in self.folder.glob(".*"):
            shutil.rmtree(going, ignore_errors=True)


def superseded(runs: Path) -> Iterator[Superseded]:
    """The superseded records of every cell that has some."""
    root = runs / FOLDER
    for folder in sorted({path.parent.parent for path in root.rglob(RUN) if path.parent.name[0] != "."}):
        yield Superseded(runs, folder.relative_to(root))


def prune(workspace: Workspace, everything: bool = False) -> tuple[int, int]:
    """Remove superseded records of cells whose own record is finished.

    Args:
        workspace: the checkout.
        everything: also remove records of cells that have no finished record.

    Returns:
        Number of removed records, and their size in bytes.
    """
    removed, freed = 0, 0
    for cell in superseded(workspace.runs):
        lock = workspace.lock(cell.path)
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            if not everything and not Record(cell.cell).finished:
                continue
            for record in cell.records():
                removed, freed = removed + 1, freed + size(record)
                cell.remove(record)
    return removed, freed


def size(record: Record) -> int:
    """Size of a record's files in bytes."""
    return folder_bytes(record.folder)


def listing(runs: Path) -> list[dict[str, Any]]:
    """Every superseded record: ``cell``, ``fingerprint``, ``finished``, ``bytes``, and ``now``, the cell's status."""
    listed = []
    for cell in superseded(runs):
        own = Record(cell.cell).read()
        listed += [
            {
                "cell": cell.path.as_posix(),
                "fingerprint": run.fingerprint,
                "finished": run.finished,
                "bytes": size(record),
                "now": own.status if own else "not run",
            }
            for record, run in cell.runs()
        ]
    return listed
