"""Finished records whose cell was trained anew: kept aside, found again where their settings come back, pruned."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from hetfl.experiments.plan import Workspace
from hetfl.experiments.record import Record
from hetfl.schema import RUN, Run

FOLDER = ".superseded"
"""Below ``runs/``, beside the experiments' folders, which DVC owns."""

KEEP = 2
"""Superseded records that a cell keeps once its own record is finished."""


class Superseded:
    """The superseded records of one cell, each in a folder that is named after its fingerprint.

    Every step is one rename or removes what is not needed: a process that is killed at any moment leaves each
    finished record whole, in the cell's folder or here. Whoever calls holds the cell's lock.

    Args:
        runs: the folder of run records.
        path: of the cell below it.
    """

    def __init__(self, runs: Path, path: Path) -> None:
        self.path = path
        self.cell, self.folder = runs / path, runs / FOLDER / path

    def records(self) -> list[Record]:
        """What is there, the oldest first."""
        return [record for record, _ in self.runs()]

    def runs(self) -> list[tuple[Record, Run]]:
        """The same, with what each says."""
        found = ((record, record.read()) for record in map(Record, self.folder.glob("[!.]*")))
        there = [(record, run) for record, run in found if run is not None]
        return sorted(there, key=lambda pair: pair[1].finished or "")

    def make_way(self, fingerprint: str) -> None:
        """Leave the cell's folder to the run of this identity: a finished record of another moves here."""
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
        """Bring the finished record of this identity back to the cell's folder; says whether there is one."""
        if not self.holds(fingerprint):
            return False
        source = self.folder / fingerprint
        self.make_way(fingerprint)
        if self.cell.exists():  # it began anew and did not finish
            shutil.rmtree(self.cell)
        self.cell.parent.mkdir(parents=True, exist_ok=True)
        source.rename(self.cell)
        return True

    def trim(self, keep: int = KEEP) -> None:
        """Remove all but the newest, if the cell's own record is finished."""
        if Record(self.cell).finished:
            records = self.records()
            for record in records[: len(records) - keep]:
                self.remove(record)

    def remove(self, record: Record) -> None:
        """Remove one record, and the folders that it leaves empty."""
        record.folder.rename(self.folder / f".{record.folder.name}")
        for going in self.folder.glob(".*"):  # and what a killed process did not get done with
            shutil.rmtree(going)
        folder = self.folder
        while folder.name != FOLDER and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


def superseded(runs: Path) -> Iterator[Superseded]:
    """Of every cell that has some."""
    root = runs / FOLDER
    for folder in sorted({path.parent.parent for path in root.rglob(RUN) if path.parent.name[0] != "."}):
        yield Superseded(runs, folder.relative_to(root))


def prune(workspace: Workspace, everything: bool = False) -> tuple[int, int]:
    """Remove superseded records of cells whose own record is finished.

    Args:
        workspace: the checkout.
        everything: remove the others, too, which nothing has taken the place of.

    Returns:
        How many were removed, and their bytes.
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
    """Bytes of a record's files."""
    return sum(path.stat().st_size for path in record.folder.rglob("*") if path.is_file())


def listing(runs: Path) -> list[dict[str, Any]]:
    """Every superseded record: ``cell``, ``fingerprint``, when it was ``finished``, ``bytes``, the cell's ``now``."""
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
