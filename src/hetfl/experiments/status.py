"""How far a cell is: what the next training would do with it, and why."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import hetfl
from hetfl.compact import read_compact
from hetfl.errors import HetflError
from hetfl.experiments import namesakes
from hetfl.experiments.identity import differences, fingerprint, inputs, own_differences
from hetfl.experiments.plan import Cell, Workspace
from hetfl.experiments.record import Record, method_source
from hetfl.experiments.superseded import Superseded
from hetfl.methods import method_class
from hetfl.schema import Inputs, Run
from hetfl.training.state import newest_round

State = Literal["done", "in git", "running", "interrupted", "stale", "broken", "not run"]
"""``done``: the next training keeps it. ``running``: a process that is alive trains it. ``interrupted``: the next
training goes on from a round. ``stale``: its record is of other settings, data or versions, so it is trained anew.
``broken``: its record cannot be read. ``in git``: there is no record here, but the compact one of a finished run with
the same settings, data and versions: tables show its number, and training begins anew. ``not run``: there is none."""


@dataclass(frozen=True)
class Status:
    """Of one cell.

    Attributes:
        state: see :data:`State`.
        round: the last completed round of the run that would go on; 0 where none would.
        rounds: as many as there are at most.
        why: why it is stale or broken, or what its training lacks; empty otherwise.
        elsewhere: whether it is done, and its record lies among the superseded ones or under another name.
        doubt: why it may be of another method although it is done or interrupted, see :func:`doubt`; empty otherwise.
        record: the folder with the record of the run that would go on; None where none would.
    """

    state: State
    round: int
    rounds: int
    why: str = ""
    elsewhere: bool = False
    doubt: str = ""
    record: Path | None = None

    @property
    def because(self) -> str:
        """What is to be told of it: why it is in this state, or else why that may be wrong."""
        return self.why or self.doubt

    @property
    def left(self) -> int:
        """Rounds to train, at most."""
        return 0 if self.state == "done" else self.rounds - self.round

    def __str__(self) -> str:
        return f"{self.state}, round {self.round} of {self.rounds}" if self.round and self.left else self.state


def status(cell: Cell, workspace: Workspace, known: namesakes.Known | None = None) -> Status:
    """How far a cell is, by its record, its resume points and the lock of whoever trains it.

    Args:
        cell: the cell.
        workspace: the checkout.
        known: its finished records by fingerprint, to look at many cells; None: they are looked up.
    """
    rounds, record = int(cell.settings["rounds"]), Record(workspace.runs / cell.path)
    try:
        run = record.read()
    except HetflError as error:
        return Status("broken", 0, rounds, str(error))
    try:
        reads, lacks = inputs(cell, workspace), ""
    except HetflError as error:
        if run is None:
            return Status("in git" if _in_git(cell, workspace) else "not run", 0, rounds, str(error))
        # Without its inputs here, a record is judged by those that it names itself.
        reads, lacks = run.inputs, str(error)
        if run.fingerprint == fingerprint(cell, reads) and (why := own_differences(run, cell, workspace)):
            return Status("stale", 0, rounds, "; ".join(why))
    identity = fingerprint(cell, reads)
    own, earlier = record.is_complete(identity), Superseded(workspace, cell.path)
    kept = own or earlier.holds(identity)
    if kept or namesakes.holds(namesakes.finished(workspace) if known is None else known, identity):
        return Status("done", rounds, rounds, elsewhere=not own, doubt=doubt(run) if own and run else "")
    going = run if run and run.fingerprint == identity else None
    if going is None and (aside := earlier.interrupted(identity)):
        record = aside
        try:
            going = aside.read()
        except HetflError as error:
            return Status("broken", 0, rounds, str(error))
    if going is None:
        if run is not None:
            return Status("stale", 0, rounds, "; ".join(differences(run, cell, reads)))
        begun: State = "in git" if _in_git(cell, workspace, reads) else "not run"
        return Status("running" if is_locked(cell.path, workspace) else begun, 0, rounds, lacks)
    at = newest_round(workspace.resume_points(cell.path) / identity) or 0
    folder = record.folder if at else None
    if is_locked(cell.path, workspace):
        return Status("running", at, rounds, record=folder)
    if going.complete:
        lacks = lacks or "its finished record is damaged or lacks a file"
    if not at:
        return Status("not run", 0, rounds, lacks)
    return Status("interrupted", at, rounds, lacks, doubt=doubt(going), record=folder)


def doubt(run: Run) -> str:
    """Why a record may be of another method than its identity says; empty otherwise.

    A version says which formulas a record is of, and golden numbers hold the version. A method that has none yet is
    compared by its code.
    """
    golden = Path(hetfl.__file__).parents[2] / "tests" / "golden"
    if run.method_source is None or not golden.is_dir() or (golden / f"{run.method}.json").exists():
        return ""
    cls = method_class(run.method)
    if run.method_source == method_source(cls):
        return ""
    file = f"src/{cls.__module__.replace('.', '/')}.py"
    return f"{file} has changed since; if its numbers have, raise numerics of {cls.__name__}, now {cls.numerics}"


def _in_git(cell: Cell, workspace: Workspace, reads: Inputs | None = None) -> bool:
    """Whether the compact record of a cell is finished and, where data are here, of them."""
    try:
        found = read_compact(workspace.compact(cell.path))
    except HetflError:
        return False  # whoever makes tables or the ledger says what is wrong with it
    if found is None or not found.finished:
        return False
    return not (differences(found.run, cell, reads) if reads else own_differences(found.run, cell, workspace))


def is_locked(cell: Path, workspace: Workspace) -> bool:
    """Whether a process that is alive trains the cell of a path: the system gives the locks of others back."""
    try:
        with workspace.lock(cell).open() as file:
            # Shared, so that no look takes another one for a training; to read, since a checkout may be read-only.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    return False
