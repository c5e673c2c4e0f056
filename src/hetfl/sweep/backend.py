"""The interface of all backends, and what each of them does with one cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from hetfl.errors import HetflError
from hetfl.experiments.cell import run_cell
from hetfl.experiments.evaluation import evaluate_cell
from hetfl.experiments.events import Callback, Event
from hetfl.experiments.plan import Cell, ComputeSettings, Workspace, load_params
from hetfl.experiments.schedule import attempt, pick_device
from hetfl.experiments.stop import Deadline, Stop, never
from hetfl.schema import ROUNDS, RUN, read_rounds, read_run
from hetfl.sweep.choice import Choice
from hetfl.targets import cells_of
from hetfl.tracking.follow import Subscriber

POLL = 1.0
"""Seconds between two looks at what a cluster does."""


class Backend(Protocol):
    """Whoever has machines."""

    device: torch.device
    """What the forecast of seconds is for."""

    def at_once(self, cells: int) -> int:
        """How many of so many cells run at the same time, as far as that is known before."""

    def do(self, order: Sequence[Choice], until: float, subscribers: Sequence[Subscriber]) -> dict[Path, str]:
        """Train and evaluate cells, the first ones first, each until it is done or the time is over.

        Args:
            order: the cells.
            until: seconds since the epoch; a cell stops at the last resume point before.
            subscribers: are told what happens in the runs.

        Returns:
            What went wrong in one line, by the folder of the cell's record; the other cells went on.
        """


def train_and_evaluate(
    cell: Cell,
    workspace: Workspace,
    device: torch.device,
    compute: ComputeSettings,
    callback: Callback | None = None,
    stop: Stop = never,
) -> None:
    """What the stages of a cell do, unless they have: train it and, if it is complete, evaluate it.

    Raises:
        HetflError: see :func:`run_cell` and :func:`evaluate_cell`.
    """
    if run_cell(cell, workspace, device, compute, callback, stop):
        evaluate_cell(cell, workspace, device, compute)


def do_cell(path: str, root: Path, until: float) -> str | None:
    """Do one cell on another machine, which sees the same checkout; its record says where to go on.

    Args:
        path: the cell's, below ``runs/``.
        root: the checkout.
        until: seconds since the epoch.

    Returns:
        What went wrong in one line, or None.
    """
    try:
        workspace = Workspace(root)
        params = load_params(workspace.params)
        (cell,) = cells_of([path], params)
        device = pick_device(params.compute.device)
    except HetflError as error:
        return str(error)
    return attempt(partial(train_and_evaluate, stop=Deadline(until)), cell, workspace, device, params.compute)


class Watch:
    """Tells of runs that other machines train, from their records on disk.

    Args:
        identities: the fingerprint of each run, by the folder of its record.
        callback: is told; None: nobody is.
    """

    def __init__(self, identities: Mapping[Path, str], callback: Callback | None) -> None:
        self._identities, self._callback = dict(identities), callback
        self._seen: dict[Path, tuple[int, int]] = {}
        self._told: dict[Path, int] = {}

    def look(self) -> None:
        """Tell what is new since the last look."""
        for folder in list(self._identities):
            try:
                stamp = (folder / RUN).stat().st_mtime_ns, (folder / ROUNDS).stat().st_size
                if self._seen.get(folder) != stamp:
                    self._tell(folder)
                    self._seen[folder] = stamp
            except (OSError, HetflError):
                continue  # it has no record yet, or one that is being replaced

    def _tell(self, folder: Path) -> None:
        run = read_run(folder)
        if run is None or run.fingerprint != self._identities[folder] or self._callback is None:
            return
        known = self._told.get(folder)
        lines = [line for line in read_rounds(folder) if known is None or line.round > known]
        if known is None:
            self._callback(Event(folder, run.model_copy(update={"status": "running"}), lines))
        elif lines:
            self._callback(Event(folder, None, lines))
        self._told[folder] = max([-1 if known is None else known, *(line.round for line in lines)])
        if run.complete:
            self._callback(Event(folder, run))
            del self._identities[folder]
