"""Many cells on one machine."""

from __future__ import annotations

import shutil
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

import torch
from joblib import cpu_count

from hetfl.errors import HetflError, foreseen, one_line, out_of_memory
from hetfl.experiments.cell import run_cell
from hetfl.experiments.evaluation import evaluate_cell
from hetfl.experiments.events import Callback
from hetfl.experiments.identity import fingerprint, inputs
from hetfl.experiments.plan import Cell, ComputeSettings, Workspace
from hetfl.experiments.record import Record
from hetfl.experiments.workers import Worker, end, orphaned
from hetfl.methods.registry import mistake
from hetfl.training.memory import free_memory


def pick_device(name: str, key: str = "params.yaml: compute.device") -> torch.device:
    """The device of a name; ``auto`` is the GPU if there is one.

    Args:
        name: as settings have it.
        key: the setting, for the error.

    Raises:
        HetflError: a GPU is asked for that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise HetflError(f"{key}: {name!r} but torch sees no GPU; use auto or cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= (there := torch.cuda.device_count()):
        raise HetflError(f"{key}: {name!r} but the last GPU is cuda:{there - 1}")
    return device


def identities(cells: Sequence[Cell], workspace: Workspace) -> dict[Path, str]:
    """The fingerprint that each cell's record must have, by the record's folder; checks the inputs of all cells.

    Raises:
        HetflError: an input is missing; nothing was written.
    """
    return {workspace.runs / cell.path: fingerprint(cell, inputs(cell, workspace)) for cell in cells}


def unfinished(
    cells: Sequence[Cell], workspace: Workspace, identities: Mapping[Path, str], callback: Callback | None = None
) -> list[Cell]:
    """The cells that still need training; the callback is told of the others, and their resume points are removed."""
    pending = []
    for cell in cells:
        record = Record(workspace.runs / cell.path, callback)
        try:
            complete = record.is_complete(identities[record.folder])
        except HetflError:
            complete = False  # training it says what is wrong with its record, and does not stop the others
        if complete:
            record.tell(record.read())
            points = workspace.resume_points(cell.path) / identities[record.folder]
            shutil.rmtree(points, ignore_errors=True)
        else:
            pending.append(cell)
    return pending


def run_cells(
    pending: Sequence[Cell], workspace: Workspace, compute: ComputeSettings, callback: Callback | None = None
) -> dict[Path, str]:
    """Train cells, several at once where the device is a CPU; one that fails does not stop the others.

    Args:
        pending: the cells.
        workspace: the checkout.
        compute: where and how.
        callback: is told what happens in each cell, in the process that trains it.

    Returns:
        What went wrong in one line, by the folder of the cell's record.

    Raises:
        HetflError: there is no such device.
    """
    return _each(partial(run_cell, callback=callback, stop=orphaned), pending, workspace, compute)


def evaluate_cells(
    trained: Sequence[Cell], workspace: Workspace, compute: ComputeSettings, again: bool = False
) -> dict[Path, str]:
    """Test the checkpoints of cells, unless that is done and not wanted again; all else as :func:`run_cells`."""
    return _each(partial(evaluate_cell, again=again), trained, workspace, compute)


Work = Callable[[Cell, Workspace, torch.device, ComputeSettings], object]


def _each(work: Work, chosen: Sequence[Cell], workspace: Workspace, compute: ComputeSettings) -> dict[Path, str]:
    device = pick_device(compute.device)
    do = partial(attempt, work, workspace=workspace, device=device, compute=compute)
    jobs = at_once(device, compute, len(chosen))
    if jobs == 1:
        reasons = {cell.path: do(cell) for cell in chosen}
    else:
        reasons = _side_by_side(do, chosen, jobs, compute.threads)
    return {workspace.runs / cell.path: reason for cell in chosen if (reason := reasons[cell.path])}


def _side_by_side(
    do: Callable[[Cell], str | None], chosen: Sequence[Cell], jobs: int, threads: int
) -> dict[Path, str | None]:
    """Do cells in so many processes. Each takes the next when it is free, since the longest cells are few."""
    waiting, reasons = deque(chosen), dict[Path, str | None]()
    workers: list[Worker[Cell]] = []
    interrupted = True
    try:
        while len(reasons) < len(chosen):
            while waiting and len(workers) < jobs:
                workers.append(Worker(do, threads))
                workers[-1].give(waiting.popleft())
            by_pipe = {worker.pipe: worker for worker in workers}
            for pipe in wait(list(by_pipe)):
                worker = by_pipe[pipe]  # type: ignore[index]
                cell = worker.done
                reasons[cell.path] = worker.result()
                if worker.process.is_alive() and waiting:
                    worker.give(waiting.popleft())
                else:
                    workers.remove(worker)
                    end([worker])
        interrupted = False
    finally:
        end(workers, interrupted)
    return reasons


def at_once(device: torch.device, compute: ComputeSettings, cells: int = sys.maxsize) -> int:
    """How many of some cells are computed at the same time on a device.

    As many as set; else one per CPU core, or one on a GPU or where the engine's own processes have the cores.
    """
    alone = device.type != "cpu" or compute.own_processes
    many = compute.jobs or (1 if alone else cpu_count() // compute.threads)
    return max(1, min(many, cells))


def attempt(
    work: Work, cell: Cell, workspace: Workspace, device: torch.device, compute: ComputeSettings
) -> str | None:
    """Do one cell's work; what went wrong in one line, or None. The cell's memory of a GPU is free afterwards."""
    try:
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # or the first GPU is used a little, too
        work(cell, workspace, device, compute)
    except Exception as error:
        known = foreseen(error) or mistake(error)
        if not known and out_of_memory(error):
            known = HetflError(f"{device}: memory does not suffice; use fewer compute.jobs or a smaller batch_size")
        if not known:
            traceback.print_exc()  # nobody foresaw it, so whoever mends it needs all of it
        return one_line(known or error)
    finally:
        with suppress(RuntimeError):  # after some errors a GPU does nothing more for this process
            free_memory(device)
    return None
