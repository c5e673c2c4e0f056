"""What a node keeps of runs: the private state of its clients, for how long, and how to be rid of it."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetfl.errors import HetflError
from hetfl.files import folder_bytes, read_json, write_json

ABOUT = "run.json"
"""The file beside a run's state that says which cell it is of, and when the server called it finished."""

GONE = "removed-"
"""Start of the name of a folder that is being removed."""


@dataclass(frozen=True)
class Kept:
    """A run of which a node has its clients' state.

    Attributes:
        folder: with the state.
        cell: the run's cell; empty where the folder does not say it.
        finished: when the server said that the record is complete, in seconds since 1970; None if it has not.
    """

    folder: Path
    cell: str
    finished: float | None

    @property
    def bytes(self) -> int:
        """On disk."""
        return folder_bytes(self.folder)


class KeptRuns:
    """The runs below a folder. Only those that the server has called finished are ever removed.

    Args:
        folder: has one folder for each run, named after its fingerprint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, run: str, cell: str) -> Path:
        """The folder of a run that begins or goes on, which is not finished from then on."""
        write_json(self.folder / run / ABOUT, {"cell": cell, "finished": None})
        return self.folder / run

    def finish(self, run: str, keep: int) -> None:
        """Note that a run is finished: of its state, what the clients have after the last round stays.

        Args:
            run: its fingerprint; one of which there is no state is left alone.
            keep: how many finished runs stay; those that were finished first go.
        """
        folder = self.folder / run
        if not folder.is_dir():
            return
        shutil.rmtree(folder / "answers", ignore_errors=True)
        for old in sorted((folder / "states").glob("round-*"))[:-1]:
            old.unlink()
        if (kept := _read(folder)).finished is None:
            write_json(folder / ABOUT, {"cell": kept.cell, "finished": time.time()})
        self.prune(keep)

    def prune(self, keep: int = 0) -> list[Kept]:
        """Remove the state of all finished runs but the newest; returns what was removed."""
        for broken in self.folder.glob(f"{GONE}*"):
            shutil.rmtree(broken, ignore_errors=True)
        finished = [run for run in self.runs() if run.finished is not None]
        removed = finished[: max(0, len(finished) - keep)]
        for run in removed:
            # In one step, so that a run of which a part is gone is never taken for one that can go on.
            run.folder.rename(away := run.folder.with_name(GONE + run.folder.name))
            shutil.rmtree(away, ignore_errors=True)
        return removed

    def runs(self) -> list[Kept]:
        """All runs; the finished ones in the order in which they were finished, then the others."""
        folders = self.folder.iterdir() if self.folder.is_dir() else ()
        found = [_read(folder) for folder in sorted(folders) if folder.is_dir() and not folder.name.startswith(GONE)]
        return sorted(found, key=lambda run: float("inf") if run.finished is None else run.finished)


def _read(folder: Path) -> Kept:
    try:
        about: Any = read_json(folder / ABOUT)
        return Kept(folder, str(about["cell"]), None if about["finished"] is None else float(about["finished"]))
    except (HetflError, OSError, LookupError, TypeError, ValueError):
        return Kept(folder, "", None)  # whatever it is, nobody has called it finished
