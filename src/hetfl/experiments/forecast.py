"""What the training of cells will take: rounds, seconds and memory, before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch

from hetfl.errors import HetflError
from hetfl.experiments.plan import Cell, Params, Workspace
from hetfl.experiments.record import device_name
from hetfl.experiments.status import Status, status
from hetfl.schema import RUN, read_rounds, read_run

Source = Literal["records", "calibration", "operations"]
"""Where seconds come from: measured rounds of records, measured steps on this machine, or counted operations."""


@dataclass(frozen=True)
class Forecast:
    """Of one cell.

    Attributes:
        status: how far it is.
        seconds: left to train, on the device; None if unknown.
        source: of the seconds.
        memory: bytes that training takes; None if unknown.
    """

    cell: Cell
    status: Status
    seconds: float | None
    source: Source
    memory: int | None


def forecasts(cells: Sequence[Cell], params: Params, workspace: Workspace, device: torch.device) -> list[Forecast]:
    """What each cell still takes on a device, in the order of the cells."""
    seconds: dict[tuple[str, ...], list[float]] = {}
    memory: dict[tuple[str, ...], int] = {}
    for path in sorted(workspace.runs.glob(f"[!.]*/*/*/*/{RUN}")):
        try:
            run, lines = read_run(path.parent), read_rounds(path.parent)
        except HetflError:
            continue
        if run is None or run.device != device_name(device):
            continue
        key = run.method, run.dataset, *run.models
        played = [line for line in lines if line.round and not line.fine_tuning]
        seconds.setdefault(key, []).extend(sum(line.seconds.values()) for line in played)
        memory[key] = max([memory.get(key, 0), *(line.peak_memory or 0 for line in played)])
    found = []
    for cell in cells:
        clients = int(cell.partition["clients"])
        key = cell.method, cell.dataset, *(cell.models[k % len(cell.models)] for k in range(clients))
        now, measured = status(cell, workspace), seconds.get(key)
        taken = now.left * median(measured) if measured else None
        source: Source = "records" if measured else "operations"
        found.append(Forecast(cell, now, taken if now.left else 0.0, source, memory.get(key) or None))
    return found
