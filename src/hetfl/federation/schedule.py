"""Many cells on one machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from hetfl.errors import HetflError
from hetfl.federation.cell import run_cell
from hetfl.federation.plan import Cell, ComputeSettings, Workspace, fingerprint, inputs
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


def unfinished(cells: Sequence[Cell], workspace: Workspace) -> list[Cell]:
    """The cells that still need training; checks the inputs of all of them and writes nothing.

    Raises:
        HetflError: an input is missing.
    """
    identities = [fingerprint(cell, inputs(cell, workspace)) for cell in cells]
    return [
        cell
        for cell, identity in zip(cells, identities, strict=True)
        if not Record(workspace.runs / cell.path).is_complete(identity)
    ]


def discard_outdated(pending: Sequence[Cell], workspace: Workspace) -> None:
    """Remove records that were made with other settings, inputs or code than their cells have now."""
    for cell in pending:
        Record(workspace.runs / cell.path).discard_unless(fingerprint(cell, inputs(cell, workspace)))


def run_cells(pending: Sequence[Cell], workspace: Workspace, compute: ComputeSettings) -> None:
    """Train cells, several at once where the device is a CPU.

    Raises:
        HetflError: an input is missing or broken.
    """
    device = pick_device(compute.device)
    jobs = compute.jobs or (max(1, len(os.sched_getaffinity(0)) // compute.threads) if device.type == "cpu" else 1)
    jobs = min(jobs, len(pending))
    if jobs <= 1:
        for cell in pending:
            run_cell(cell, workspace, device, compute.threads)
        return
    from joblib import Parallel, delayed

    # One cell a task: the longest cells are few, and a worker that is free takes the next.
    Parallel(n_jobs=jobs, batch_size=1)(
        delayed(run_cell)(cell, workspace, device, compute.threads) for cell in pending
    )
