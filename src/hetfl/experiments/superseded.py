"""What a cell trained before: finished records that others have replaced, and interrupted runs that can go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hetfl.experiments.plan import Workspace
from hetfl.experiments.record import Record
from hetfl.files import folder_bytes
from hetfl.schema import RUN, Run
from hetfl.training.state import newest_round

FOLDER = ".superseded"
"""Folder below ``runs/``, beside the experiments' folders, which are DVC's outputs."""

ASIDE = "record"
"""Folder beside the resume points of an interrupted run in whose place another one trains: its record until then."""

KEEP = 2
"""Superseded records of a cell, and interrupted runs, that are kept when its own record is finished."""


class Superseded:
    """The superseded records of one cell, each in a folder named by its fingerprint.

    Each step is either a rename or the removal of something that is not needed. So every finished record stays
    complete if a process is killed, in the cell's folder or here. Callers must hold the cell's lock.

    Args:
        workspace: the checkout.
        path: the cell's path below ``runs/``.
    """

    def __init__(self, workspace: Workspace, path: Path) -> None:
        self.path = path
        self.cell, self.folder = workspace.runs / path, workspace.runs / FOLDER / path
        self._points = workspace.resume_points(path)

    def records(self) -> list[Record]:
        """All superseded records of the cell, the oldest first."""
        return [record for record, _ in self.runs()]

    def runs(self) -> list[tuple[Record, Run]]:
        """The same, each with the content of its ``run.json``."""
        found = ((record, record.read()) for record in map(Record, self.folder.glob("[!.]*")))
        there = [(record, run) for record, run in found if run is not None]
        return sorted(there, key=lambda pair: pair[1].finished or "")

    def make_way(self, fingerprint: str) -> None:
        """Empty the cell's folder for a run with this fingerprint.

        A finished record of another run moves here, and an unfinished one to its resume points.
        """
        found = Record(self.cell).read()
        if found is None or found.fingerprint == fingerprint:
            return
        target = self.folder / found.fingerprint if found.complete else self._points / found.fingerprint / ASIDE
        if not found.complete and newest_round(target.parent) is None:  # it could not go on
            shutil.rmtree(self.cell)
            return
        if target.exists():  # the same run, finished or interrupted twice
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

    def interrupted(self, fingerprint: str) -> Record | None:
        """The record of an interrupted run with this fingerprint if another one took its place; else None."""
        aside = self._points / fingerprint / ASIDE
        return Record(aside) if (aside / RUN).exists() else None

    def go_on(self, fingerprint: str) -> None:
        """Move the record of such a run back to the cell's folder, if there is one; the folder must be empty."""
        if (aside := self.interrupted(fingerprint)) and not (self.cell / RUN).exists():
            if self.cell.exists():
                shutil.rmtree(self.cell)
            self.cell.parent.mkdir(parents=True, exist_ok=True)
            aside.folder.rename(self.cell)

    def trim(self) -> None:
        """If the cell's own record is finished, remove all others and all interrupted runs but the newest ones."""
        if not (own := Record(self.cell)).finished:
            return
        records = self.records()
        for record in records[:-KEEP]:
            self.remove(record)
        run = own.read()
        assert run is not None
        shutil.rmtree(self._points / run.fingerprint, ignore_errors=True)  # a file browser's files may be there
        interrupted = sorted(self._points.glob("[!.]*"), key=lambda folder: folder.stat().st_mtime)
        for folder in interrupted[:-KEEP]:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # it is not empty, or not there
            self._points.rmdir()

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


def superseded(workspace: Workspace) -> Iterator[Superseded]:
    """The superseded records of every cell that has some."""
    root = workspace.runs / FOLDER
    for folder in sorted({path.parent.parent for path in root.rglob(RUN) if path.parent.name[0] != "."}):
        yield Superseded(workspace, folder.relative_to(root))


def prune(workspace: Workspace, everything: bool = False) -> tuple[int, int]:
    """Remove superseded records of cells whose own record is finished.

    Args:
        workspace: the checkout.
        everything: also remove records of cells that have no finished record.

    Returns:
        Number of removed records, and their size in bytes.
    """
    removed, freed = 0, 0
    for cell in superseded(workspace):
        lock = workspace.lock(cell.path)
        # While a cell trains, its superseded records are kept, as it is not finished.
        with suppress(Timeout), FileLock(lock, timeout=0):
            if not everything and not Record(cell.cell).finished:
                continue
            for record in cell.records():
                removed, freed = removed + 1, freed + size(record)
                cell.remove(record)
    return removed, freed


def size(record: Record) -> int:
    """Size of a record's files in bytes."""
    return folder_bytes(record.folder)


def listing(workspace: Workspace) -> list[dict[str, Any]]:
    """Every superseded record: ``cell``, ``fingerprint``, ``finished``, ``bytes``, and ``now``, the cell's status."""
    listed = []
    for cell in superseded(workspace):
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
