"""Long runs: memory and files stay where they are, whatever the number of rounds and cells."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import psutil
import pytest
import scipy
import sweep_project as project
import torch
from fault_table import QUICK, Tries

from hetfl.experiments.cell import run_cell
from hetfl.experiments.events import Event
from hetfl.experiments.plan import Cell, ComputeSettings

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ROUNDS = 40 if QUICK else 500
CELLS = 20 if QUICK else 200
WARM_UP = 0.2
"""The share of a run that fills caches, which is not looked at."""
PER_ROUND, PER_CELL = 8 * 2**10, 50 * 2**10
"""Bytes by which the memory of a process may grow: below them, 500 rounds or 200 cells are a few MB."""
LEAK = 50_000
"""Bytes a round that would have to be found."""
LIBC = ctypes.CDLL(None)


class Watch:
    """Measures a process at each step."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.memory: list[int] = []
        self.files: list[int] = []
        self.descriptors: list[int] = []
        self.threads: list[int] = []

    def look(self, *folders: Path) -> None:
        gc.collect()
        LIBC.malloc_trim(0)  # what is free goes back to the system
        self.memory.append(self._own())
        self.files.append(sum(path.is_file() for folder in folders for path in folder.rglob("*")))
        self.descriptors.append(self._process.num_fds())
        self.threads.append(self._process.num_threads())

    @staticmethod
    def _own() -> int:
        """Bytes that the process has written, in memory or swapped; the pages of libraries come and go."""
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        return sum(1024 * int(words[1]) for words in lines if words[0] in ("RssAnon:", "VmSwap:"))

    def slope(self) -> tuple[float, float]:
        """Bytes a step after the warm-up: the median of all pairs of steps, and the end of its 95 % interval."""
        late = self.memory[int(WARM_UP * len(self.memory)) :]
        found = scipy.stats.theilslopes(late)
        return float(found.slope), float(found.high_slope)

    def __str__(self) -> str:
        slope, most = self.slope()
        return (
            f"{len(self.memory)} steps: memory {self.memory[0] / 2**20:.1f} to {self.memory[-1] / 2**20:.1f} MiB, "
            f"after the first {WARM_UP:.0%} {slope / 2**10:+.2f} KiB a step (95 %: at most {most / 2**10:+.2f}); "
            f"files {self.files[1]} to {self.files[-1]}, open files {self.descriptors[1]} to {self.descriptors[-1]}, "
            f"threads {self.threads[1]} to {self.threads[-1]}"
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project.make(tmp_path_factory.mktemp("made"))


def train(cell: Cell, root: Path, tell: object = None) -> None:
    workspace = project.plan(root)[0]
    assert run_cell(cell, workspace, torch.device("cpu"), ComputeSettings(device="cpu", jobs=1), tell)


def quick(cell: Cell, **settings: object) -> Cell:
    """The cell with a round that takes little."""
    return cell.model_copy(update={"settings": {**cell.settings, "batch_size": 100, "local_epochs": 1, **settings}})


def test_many_rounds(made: Path, tmp_path: Path, tries: Tries) -> None:
    root, watch = project.copy(made, tmp_path / "project"), Watch()
    cell = quick(project.plan(root)[2][0], rounds=ROUNDS, keep_optimiser=True)

    def look(event: Event) -> None:
        if event.rounds:
            watch.look(root / "runs", root / ".hetfl")

    train(cell, root, look)
    tries.note(f"rounds, {watch}")
    with tries.one(f"soak: {ROUNDS} rounds"):
        assert watch.slope()[1] < PER_ROUND
        # The record's files, two resume points and the one that is being written.
        assert max(watch.files) <= 10 and watch.descriptors[-1] <= watch.descriptors[1] + 2
        assert watch.threads[-1] <= watch.threads[1] + 1


def test_a_leak_would_be_found(made: Path, tmp_path: Path, tries: Tries) -> None:
    """The bound of the test above is worth something."""
    root, watch, lost = project.copy(made, tmp_path / "project"), Watch(), []

    def look(event: Event) -> None:
        if event.rounds:
            lost.append(bytearray(LEAK))
            watch.look(root / "runs", root / ".hetfl")

    train(quick(project.plan(root)[2][0], rounds=max(30, ROUNDS // 5), keep_optimiser=True), root, look)
    tries.note(f"rounds with a leak of {LEAK} bytes put in, {watch}")
    assert watch.slope()[0] > LEAK / 2 > PER_ROUND


def test_many_cells_in_one_process(made: Path, tmp_path: Path, tries: Tries) -> None:
    root, watch = project.copy(made, tmp_path / "project", seeds=2), Watch()
    first, other = (quick(cell, rounds=1) for cell in project.plan(root)[2][:2])
    for number in range(CELLS):
        cell = (first, other)[number % 2]
        # Other settings each time: the record before is superseded, and only the newest of those stay.
        train(quick(cell, rounds=1, lr=0.01 + number / 1e6), root)
        watch.look(root / "runs", root / ".hetfl")
    tries.note(f"cells in one process, {watch}")
    with tries.one(f"soak: {CELLS} cells"):
        assert watch.slope()[1] < PER_CELL
        assert watch.files[-1] <= watch.files[10] and watch.descriptors[-1] <= watch.descriptors[10]
        assert watch.threads[-1] <= watch.threads[10]
