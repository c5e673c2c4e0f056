"""Many cells on one machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from joblib import Parallel, cpu_count, delayed

from hetfl.errors import HetflError
from hetfl.federation.cell import run_cell
from hetfl.federation.evaluation import evaluate_cell
from hetfl.federation.identity import fingerprint, inputs
from hetfl.federation.plan import Cell, ComputeSettings, Workspace
from hetfl.federation.record import Record


def pick_device(name: str) -> torch.device:
    """The device that ``compute.device`` names; ``auto`` is the GPU if there is one.

    Raises:
        HetflError: a GPU is asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise HetflError(f"params.yaml: compute.device: {name!r} but torch sees no GPU; use auto or cpu")
    return torch.device(name)


def identities(cells: Sequence[Cell], workspace: Workspace) -> dict[Path, str]:
    """The fingerprint that each cell's record must have, by the record's folder; checks the inputs of all cells.

    Raises:
        HetflError: an input is missing; nothing was written.
    """
    return {workspace.runs / cell.path: fingerprint(cell, inputs(cell, workspace)) for cell in cells}


def unfinished(cells: Sequence[Cell], workspace: Workspace, identities: Mapping[Path, str]) -> list[Cell]:
    """The cells that still need training; resume points of the others are of no more use and go."""
    pending = []
    for cell in cells:
        folder = workspace.runs / cell.path
        if Record(folder).is_complete(identities[folder]):
            shutil.rmtree(workspace.resume_points(cell), ignore_errors=True)
        else:
            pending.append(cell)
    return pending


def run_cells(pending: Sequence[Cell], workspace: Workspace, compute: ComputeSettings) -> None:
    """Train cells, several at once where the device is a CPU.

    Raises:
        HetflError: an input is missing or broken.
    """
    _each(run_cell, pending, workspace, compute)


def evaluate_cells(trained: Sequence[Cell], workspace: Workspace, compute: ComputeSettings) -> None:
    """Test the checkpoints of cells, several at once where the device is a CPU.

    Raises:
        HetflError: a cell is not trained, or its checkpoint is not what its record says.
    """
    _each(evaluate_cell, trained, workspace, compute)


def _each(
    work: Callable[[Cell, Workspace, torch.device, ComputeSettings], None],
    chosen: Sequence[Cell],
    workspace: Workspace,
    compute: ComputeSettings,
) -> None:
    device = pick_device(compute.device)
    at_once = max(1, cpu_count() // compute.threads) if device.type == "cpu" else 1
    jobs = min(compute.jobs or at_once, len(chosen))
    if jobs <= 1:
        for cell in chosen:
            work(cell, workspace, device, compute)
        return
    # One cell a task: the longest cells are few, and a worker that is free takes the next.
    Parallel(n_jobs=jobs, batch_size=1)(delayed(work)(cell, workspace, device, compute) for cell in chosen)
