"""Long runs: memory and files stay where they are, whatever the number of rounds and cells."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import psutil
import pytest
import sweep_project as project
import torch
from fault_table import QUICK, Tries

from hetfl.experiments.cell import run_cell
from hetfl.experiments.events import Event
from hetfl.experiments.plan import Cell, ComputeSettings

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ROUNDS = 60 if QUICK else 500
CELLS = 20 if QUICK else 200
PER_ROUND, PER_CELL = 8 * 2**10, 100 * 2**10
"""Bytes by which the memory of a process may grow: below them, 500 rounds or 200 cells are a few MB."""


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
        self.memory.append(self._process.memory_info().rss)
        self.files.append(sum(path.is_file() for folder in folders for path in folder.rglob("*")))
        self.descriptors.append(self._process.num_fds())
        self.threads.append(self._process.num_threads())

    def slope(self) -> float:
        """Bytes a step, by least squares over the second half: the first fills caches."""
        late = self.memory[len(self.memory) // 2 :]
        return float(np.polyfit(range(len(late)), late, 1)[0])

    def __str__(self) -> str:
        return (
            f"{len(self.memory)} steps: memory {self.memory[0] / 2**20:.0f} to {self.memory[-1] / 2**20:.0f} MiB, "
            f"{self.slope() / 2**10:+.2f} KiB a step; files {self.files[1]} to {self.files[-1]}, open files "
            f"{self.descriptors[1]} to {self.descriptors[-1]}, threads {self.threads[1]} to {self.threads[-1]}"
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


def test_many_rounds(made: Path, tmp_path: Path, tries: Tries, capsys: pytest.CaptureFixture[str]) -> None:
    root, watch = project.copy(made, tmp_path / "project"), Watch()
    cell = quick(project.plan(root)[2][0], rounds=ROUNDS, keep_optimiser=True)

    def look(event: Event) -> None:
        if event.rounds:
            watch.look(root / "runs", root / ".hetfl")

    train(cell, root, look)
    with capsys.disabled():
        print(f"\n  rounds, {watch}")
    with tries.one(f"soak: {ROUNDS} rounds"):
        assert watch.slope() < PER_ROUND
        # The record's files, two resume points and the one that is being written.
        assert max(watch.files) <= 10 and watch.descriptors[-1] <= watch.descriptors[1] + 2
        assert watch.threads[-1] <= watch.threads[1] + 1


def test_many_cells_in_one_process(
    made: Path, tmp_path: Path, tries: Tries, capsys: pytest.CaptureFixture[str]
) -> None:
    root, watch = project.copy(made, tmp_path / "project", seeds=2), Watch()
    first, other = (quick(cell, rounds=1) for cell in project.plan(root)[2][:2])
    for number in range(CELLS):
        cell = (first, other)[number % 2]
        # Other settings each time: the record before is superseded, and only the newest of those stay.
        train(quick(cell, rounds=1, lr=0.01 + number / 1e6), root)
        watch.look(root / "runs", root / ".hetfl")
    with capsys.disabled():
        print(f"\n  cells, {watch}")
    with tries.one(f"soak: {CELLS} cells"):
        assert watch.slope() < PER_CELL
        assert watch.files[-1] <= watch.files[10] and watch.descriptors[-1] <= watch.descriptors[10]
        assert watch.threads[-1] <= watch.threads[10]
