"""A sweep in processes of this machine: stopped, killed and continued, it gives the records of one that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import sweep_project as project
import torch
from filelock import FileLock
from stage_runner import run_stage

from hetfl.errors import HetflError
from hetfl.experiments.cell import run_cell
from hetfl.experiments.status import status
from hetfl.experiments.stop import Deadline, never, terminable
from hetfl.sweep.backend import Watch
from hetfl.sweep.devices import held
from hetfl.sweep.local import _Place
from hetfl.sweep.sweep import sweep

CPU = torch.device("cpu")
TIMEOUT = 300.0


class After:
    """A stop after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds + 1  # before the first round it is asked, too, and once before the models are built
        self.asked: list[float | None] = []

    def __call__(self, seconds: float | None) -> bool:
        self.asked.append(seconds)
        return len(self.asked) > self.left


@pytest.fixture(scope="session")
def reference(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the cells give without a break."""
    return project.trained(made, tmp_path_factory.mktemp("reference") / "project", seeds=1)


def states(root: Path) -> list[str]:
    workspace, _, cells = project.plan(root)
    return [str(status(cell, workspace)) for cell in cells]


def test_a_training_stops_at_a_resume_point_and_goes_on_with_the_same_numbers(made, reference, tmp_path):
    root = project.copy(made, tmp_path / "project", seeds=1)
    workspace, _, cells = project.plan(root)
    stop = After(1)
    assert not run_cell(cells[0], workspace, CPU, stop=stop)
    assert states(root) == ["interrupted, round 1 of 3", "not run"]
    # Nothing is known of a round before the first one; then its own time is.
    assert stop.asked[:2] == [None, None] and stop.asked[2] > 0
    assert not run_cell(cells[0], workspace, CPU, stop=lambda seconds: True)
    assert states(root)[0] == "interrupted, round 1 of 3"
    assert run_cell(cells[0], workspace, CPU, stop=never)
    name = cells[0].path.as_posix()
    assert project.results(root)[name] == reference[name]


def test_a_cell_that_another_process_trains_is_waited_for_until_the_deadline(made, tmp_path, capsys):
    workspace, _, cells = project.plan(project.copy(made, tmp_path / "project"))
    lock = workspace.lock(cells[0].path)
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        assert not run_cell(cells[0], workspace, CPU, stop=Deadline(time.time() + 2.5))
    assert capsys.readouterr().err == f"hetfl: {cells[0].path}: waiting for another process that trains it\n"


def test_no_round_begins_that_would_end_too_late():
    assert not Deadline()(1e9)
    soon = Deadline(time.time() + 10, round=20)
    assert soon(None) and not soon(5) and soon(15)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_a_training_with_the_statuses_of_shells(number, status):
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores one
    try:
        with pytest.raises(SystemExit) as ended, terminable():
            signal.raise_signal(number)
        assert ended.value.code == status and signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_sweep_made_the_stages_accept(made, reference, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = project.copy(made, tmp_path / "project", seeds=1)
    workspace, _, cells = project.plan(root)
    run_cell(cells[0], workspace, CPU, stop=After(1))
    sweep(root, [project.NAME], dry_run=True)
    assert "2 cells to do, 0 done" in capsys.readouterr().out and states(root)[1:] == ["not run"]
    sweep(root, [project.NAME], budget=TIMEOUT)
    assert "cells: 2 done" in capsys.readouterr().out
    assert project.results(root) == reference
    before = project.times(root)
    assert sum(name.endswith("metrics.json") for name in before) == 2
    for stage in ("train", "evaluate"):
        assert run_stage(root, stage, project.NAME)[0] == 0
    assert project.times(root) == before
    sweep(root, [project.NAME])
    assert "0 cells to do, 2 done" in capsys.readouterr().out


def test_a_cell_that_cannot_begin_is_listed_at_the_end(made, tmp_path, capsys):
    root = project.copy(made, tmp_path / "project", seeds=1)
    (root / "partitions/digits/iid-s0/card.json").unlink()
    with pytest.raises(HetflError, match="2 more|card.json"):
        sweep(root, [project.NAME])
    assert "2 of them cannot begin" in capsys.readouterr().out


def test_two_sweeps_do_not_share_a_device(tmp_path):
    told = rf"cpu: is in use by the sweep of process \d+ in {tmp_path} since"
    with held([CPU], tmp_path, wait=False), pytest.raises(HetflError, match=told), held([CPU], tmp_path, wait=False):
        pass
    with held([CPU], tmp_path, wait=True):
        pass


def test_cells_are_side_by_side_only_if_memory_holds_them_as_predicted():
    class Busy(_Place):
        sizes: tuple[int | None, ...] = ()

        @property
        def busy(self) -> list[Any]:
            return [type("Worker", (), {"done": type("Choice", (), {"memory": size})}) for size in self.sizes]

    def fits(device: str, memory: int | None, *sizes: int | None) -> bool:
        place = Busy(torch.device(device), 100, None)
        place.sizes = sizes
        return place.fits(type("Choice", (), {"memory": memory}))

    assert fits("cuda", 40, 40) and not fits("cuda", 40, 41)
    assert not fits("cuda", None, 1) and not fits("cuda", 1, None)
    assert fits("cpu", None, 1) and not fits("cpu", 81, None)


def test_a_run_on_another_machine_is_told_of_from_its_record(made, tmp_path):
    root = project.copy(made, tmp_path / "project", seeds=1)
    workspace, _, cells = project.plan(root)
    folder, told = workspace.runs / cells[0].path, []
    run_cell(cells[0], workspace, CPU, stop=After(1))
    identity = next(workspace.resume_points(cells[0].path).iterdir()).name
    watch = Watch({folder: identity, workspace.runs / cells[1].path: "none"}, told.append)
    watch.look()
    watch.look()
    run_cell(cells[0], workspace, CPU)
    watch.look()
    watch.look()
    assert [event.run and event.run.status for event in told] == ["running", None, "complete"]
    assert [[line.round for line in event.rounds] for event in told] == [[0, 1], [2, 3], []]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["sweep", "all"])
def test_a_killed_sweep_loses_nothing_that_was_finished(made, tmp_path, victim):
    rounds, kills = 12, 3
    root = project.copy(made, tmp_path / "project", rounds=rounds, jobs=2)
    environment = project.environment(tmp_path / "locks")
    command, drawn = [project.HETFL, "sweep", project.NAME], random.Random(victim)
    for _ in range(kills):
        before = project.last_rounds(root)
        running = subprocess.Popen(command, cwd=root, env=environment, start_new_session=True)
        wait_for(lambda before=before: project.last_rounds(root) != before, running)
        time.sleep(drawn.uniform(0, 2))
        finished = project.results(root)
        if victim == "all":
            os.killpg(running.pid, signal.SIGKILL)
        else:
            running.kill()
        running.wait()
        assert finished.items() <= project.results(root).items()
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.results(root) == project.trained(made, tmp_path / "reference", rounds=rounds)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_sweep_that_is_told_to_end_leaves_resume_points_and_no_process(made, tmp_path, signum):
    root = project.copy(made, tmp_path / "project", rounds=40, jobs=2)
    running = subprocess.Popen(
        [project.HETFL, "sweep", project.NAME],
        cwd=root,
        env=project.environment(tmp_path / "locks"),
        start_new_session=True,
    )
    wait_for(lambda: sorted(project.last_rounds(root).values())[-2:-1] > [3], running)
    running.send_signal(signum)
    assert running.wait(60) == 130
    assert [state.partition(",")[0] for state in states(root)].count("interrupted") == 2


def wait_for(condition: Any, running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
