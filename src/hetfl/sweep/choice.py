"""Which cells are worth the time, and in which order."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hetfl.errors import HetflError
from hetfl.experiments.evaluation import is_evaluated
from hetfl.experiments.forecast import forecasts
from hetfl.experiments.plan import Cell, Params, Workspace
from hetfl.experiments.schedule import identities
from hetfl.experiments.status import Status
from hetfl.schema import read_run
from hetfl.tables.catalogue import table_entries, table_names

PREFERENCE = 1.25
"""How much more an interrupted cell is worth than one that was not begun: a finished cell is worth more than two
halves."""
LEAST = 1.0
"""Seconds that any cell costs at least, even if only its evaluation is missing."""


@dataclass(frozen=True)
class Choice:
    """A cell with something left to do.

    Attributes:
        status: how far it is.
        value: see :func:`values`.
        seconds: left to train; None if unknown.
        rounds: that its run is expected to have in all.
        round: seconds of one round as measured before; 0 if it never was.
        memory: bytes that its training is predicted to take; None if unknown.
        lacks: why it cannot begin; empty if it can.
    """

    cell: Cell
    status: Status
    value: float
    seconds: float | None
    rounds: int
    round: float = 0.0
    memory: int | None = None
    lacks: str = ""

    @property
    def worth(self) -> float:
        """Value per second that is left."""
        preference = PREFERENCE if self.status.state == "interrupted" else 1.0
        return preference * self.value / max(LEAST, self.seconds) if self.seconds is not None else 0.0


@dataclass(frozen=True)
class Chosen:
    """What is to be done with some cells.

    Attributes:
        order: those with something left to do, the first one first.
        identities: the fingerprints that their records must have, by the folder of the record, if they can begin.
        done: number of cells that are trained and evaluated.
        in_git: number of cells that are not here, and whose numbers tables take from git.
        elsewhere: number of cells that another process trains now.
    """

    order: list[Choice]
    identities: dict[Path, str]
    done: int
    in_git: int
    elsewhere: int


def values(params: Params) -> Mapping[Path, float]:
    """What each cell is worth, by its path: a place of a table counts 1, shared among the seeds that it averages.

    A cell that several tables print counts in each of them.
    """
    found: Counter[Path] = Counter()
    for name in table_names(params):
        for entry in table_entries(name, params):
            for seed in entry.seeds:
                found[entry.path(seed)] += 1 / len(entry.seeds)  # type: ignore[assignment]
    return found


def choose(cells: Sequence[Cell], params: Params, workspace: Workspace, device: torch.device) -> Chosen:
    """Look at how far cells are, and order them by value per second on a device."""
    worth, order = values(params), []
    expected: dict[Path, str] = {}
    done = in_git = elsewhere = 0
    for forecast in forecasts(cells, params, workspace, device):
        cell, now, seconds = forecast.cell, forecast.status, forecast.seconds
        folder, lacks = workspace.runs / cell.path, ""
        if now.state == "running":
            elsewhere += 1
            continue
        if now.state == "in git":
            in_git += 1
            continue
        try:
            identity = identities([cell], workspace)
            run = read_run(folder)
            own = run is not None and run.fingerprint == identity[folder]
            if run and own and now.state == "done" and is_evaluated(cell, workspace, run):
                done += 1
                continue
            expected |= identity
        except HetflError as error:
            lacks = str(error)
        known = seconds and forecast.rounds and forecast.source != "operations"
        measured = seconds / forecast.rounds if seconds and known else 0.0
        value = worth.get(cell.path, 0.0)
        order.append(Choice(cell, now, value, seconds, forecast.total, measured, forecast.memory, lacks))
    return Chosen(sorted(order, key=_rank), expected, done, in_git, elsewhere)


def _rank(choice: Choice) -> tuple[bool, float, bool, int, Path]:
    """The most value per second first; of equals, interrupted cells, then the first seeds of all places."""
    begun = choice.status.state == "interrupted"
    return choice.seconds is None, -choice.worth, not begun, choice.cell.seed, choice.cell.path


def ends(order: Sequence[Choice], at_once: int) -> list[float | None]:
    """Seconds from now until each cell is done, several at once; None from the first cell of unknown length on."""
    free = [0.0] * max(1, at_once)
    found: list[float | None] = []
    for choice in order:
        if choice.seconds is None or None in found:
            found.append(None)
            continue
        end = heapq.heappop(free) + choice.seconds
        heapq.heappush(free, end)
        found.append(end)
    return found
