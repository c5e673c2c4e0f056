"""Cells in processes of this machine, on all its devices."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

import torch

from hetfl.errors import HetflError
from hetfl.experiments.events import Callback
from hetfl.experiments.plan import ComputeSettings, Workspace
from hetfl.experiments.record import device_name
from hetfl.experiments.schedule import at_once, attempt
from hetfl.experiments.stop import Deadline
from hetfl.experiments.workers import Worker, end, orphaned
from hetfl.files import read_json, write_json
from hetfl.sweep.backend import POLL, train_and_evaluate
from hetfl.sweep.choice import Choice
from hetfl.sweep.devices import devices, held
from hetfl.sweep.together import Together, kind
from hetfl.tracking.follow import Subscriber, following
from hetfl.training.memory import SHARE, free_bytes


class Local:
    """All GPUs of this machine, or its CPU.

    Args:
        workspace: the checkout.
        compute: ``jobs`` is the number of cells at the same time; 0: one per CPU core, or on a GPU as many as a
            measurement says is faster, see :class:`Together`.
        wait: wait for another sweep that holds a device.

    Raises:
        HetflError: a GPU is asked for and there is none.
    """

    def __init__(self, workspace: Workspace, compute: ComputeSettings, wait: bool = False) -> None:
        self._workspace, self._compute, self._wait = workspace, compute, wait
        # Processes that the engine of one cell has for its own use all devices.
        self._devices = devices(compute.device)[: 1 if compute.own_processes else None]
        self.device = self._devices[0]
        self._measured = workspace.scratch / "together.json"

    def at_once(self, cells: int) -> int:
        """As set; where that is measured, one on each device."""
        many = self._compute.jobs or len(self._devices) * at_once(self.device, self._compute)
        return min(cells, many)

    def do(self, order: Sequence[Choice], until: float, subscribers: Sequence[Subscriber]) -> dict[Path, str]:
        """See :class:`hetfl.sweep.backend.Backend`."""
        with held(self._devices, self._workspace.root, self._wait):
            places = [_Place(device, free_bytes(device), self._timing(device)) for device in self._devices]
            timings = [place.timing for place in places if place.timing]
            with following([*subscribers, *timings]) as tell:
                failures = self._train(order, until, places, tell)
            self._keep(places)
        return failures

    def _train(
        self, order: Sequence[Choice], until: float, places: Sequence[_Place], tell: Callback | None
    ) -> dict[Path, str]:
        waiting = list(order)
        failures: dict[Path, str] = {}
        try:
            while True:
                self._fill(places, waiting, until, tell)
                busy = {worker.pipe: (place, worker) for place in places for worker in place.busy}
                if not busy:
                    end(worker for place in places for worker in place.workers)
                    return failures
                for pipe in wait(list(busy), timeout=POLL):
                    place, worker = busy[pipe]  # type: ignore[index]
                    folder = self._workspace.runs / worker.done.cell.path
                    reason = worker.result()
                    place.ends(folder)
                    # After an error a GPU may do nothing more for the process that had it.
                    if not worker.process.is_alive() or (reason and place.device.type != "cpu"):
                        place.workers.remove(worker)
                        end([worker])
                    if reason:
                        failures[folder] = reason
        except BaseException:
            end((worker for place in places for worker in place.workers), interrupted=True)
            raise

    def _fill(self, places: Sequence[_Place], waiting: list[Choice], until: float, tell: Callback | None) -> None:
        """Give out cells while there is time and room."""
        while True:
            in_time = [choice for choice in waiting if time.time() + choice.round < until]
            running = sum(len(place.busy) for place in places)
            if self._compute.jobs and running >= self._compute.jobs:
                return
            emptiest = sorted(places, key=lambda place: len(place.busy))
            able = ((place, choice) for place in emptiest for choice in in_time if self._takes(place, choice))
            place, choice = next(able, (None, None))
            if place is None or choice is None:
                return
            waiting.remove(choice)
            worker = next((worker for worker in place.workers if worker.task is None), None)
            if worker is None:
                do = partial(_do, self._workspace, place.device, self._compute, tell, until)
                worker = Worker(do, self._compute.threads)
                place.workers.append(worker)
            place.begins(self._workspace.runs / choice.cell.path, choice)
            worker.give(choice)

    def _takes(self, place: _Place, choice: Choice) -> bool:
        """Whether a device should train a cell beside those that it trains now."""
        if not place.busy:
            return True  # its engine trains as many clients at once as fit
        if place.timing and not self._compute.jobs:
            many = place.timing.wanted(kind(choice.cell))
        else:
            many = math.ceil(self.at_once(sys.maxsize) / len(self._devices))
        return len(place.busy) < many and place.fits(choice)

    def _timing(self, device: torch.device) -> Together | None:
        if device.type != "cuda" or self._compute.own_processes:
            return None
        known = self._known().get(device_name(device), {})
        return Together({name: {int(n): speed for n, speed in of.items()} for name, of in known.items()})

    def _known(self) -> dict[str, dict[str, dict[str, float]]]:
        try:
            found: dict[str, dict[str, dict[str, float]]] = read_json(self._measured)
        except (OSError, HetflError):
            return {}
        return found

    def _keep(self, places: Sequence[_Place]) -> None:
        """Write what was measured for the next sweep."""
        found: dict[str, dict[str, dict[int, float]]] = {}
        for place in places:
            if place.timing:
                of_kind = found.setdefault(device_name(place.device), {})
                for name, speeds in place.timing.speeds.items():
                    of_kind[name] = {**speeds, **of_kind.get(name, {})}
        if found:
            write_json(self._measured, {**self._known(), **found})


@dataclass
class _Place:
    """A device, and the processes that train on it."""

    device: torch.device
    free: int | None
    timing: Together | None
    workers: list[Worker[Choice]] = field(default_factory=list)

    @property
    def busy(self) -> list[Worker[Choice]]:
        return [worker for worker in self.workers if worker.task]

    def fits(self, choice: Choice) -> bool:
        """Whether memory holds a cell beside the others, as predicted; on a GPU, only if all of it is predicted."""
        sizes = [worker.done.memory for worker in self.busy] + [choice.memory]
        if self.free is None or self.device.type == "cuda" and None in sizes:
            return self.device.type == "cpu"
        return sum(size or 0 for size in sizes) <= SHARE * self.free

    def begins(self, folder: Path, choice: Choice) -> None:
        if self.timing:
            self.timing.begins(folder, kind(choice.cell))

    def ends(self, folder: Path) -> None:
        if self.timing:
            self.timing.ends(folder)


def _do(
    workspace: Workspace,
    device: torch.device,
    compute: ComputeSettings,
    tell: Callback | None,
    until: float,
    choice: Choice,
) -> str | None:
    """Train and evaluate a cell in a process of its own; if the sweep has died, stop at the next resume point."""
    deadline = Deadline(until, choice.round)

    def stop(seconds: float | None) -> bool:
        return deadline(seconds) or orphaned()

    return attempt(partial(train_and_evaluate, callback=tell, stop=stop), choice.cell, workspace, device, compute)
