"""A finished record outlives whatever takes its place, whenever a process is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from record_factory import make_round, write_record

from hetfl.experiments.plan import Workspace
from hetfl.experiments.record import Record
from hetfl.experiments.superseded import FOLDER, Superseded, listing, prune
from hetfl.schema import needed_run
from hetfl.training.state import ResumePoints, State

PATH = Path("x/fedavg/fedavg/iid-s0")


class KilledError(Exception):
    """Stands for the end of the process."""


def write(folder: Path, fingerprint: str, status: str = "complete", finished: str = "2026-01-01") -> None:
    """A record of a run of that name."""
    runs = folder.parents[len(PATH.parts) - 1]
    write_record(runs, folder.relative_to(runs), [make_round(0)], status, finished, fingerprint=fingerprint)


def finished(runs: Path) -> set[str]:
    """Whole finished records, wherever below runs/."""
    found = set()
    for path in runs.rglob("run.json"):
        name = needed_run(path.parent).fingerprint
        whole = all((path.parent / file).exists() for file in ("rounds.jsonl", "model.safetensors"))
        if whole and Record(path.parent).is_complete(name) and not path.parent.name.startswith("."):
            found.add(name)
    return found


def test_the_old_one_moves_aside_and_comes_back(tmp_path):
    earlier = Superseded(Workspace(tmp_path), PATH)
    write(tmp_path / "runs" / PATH, "a")
    earlier.make_way("a")
    assert not (tmp_path / "runs" / FOLDER).exists()  # its own run goes on
    earlier.make_way("b")
    assert not (tmp_path / "runs" / PATH).exists() and finished(tmp_path) == {"a"}
    write(tmp_path / "runs" / PATH, "b")
    assert not earlier.restore("c")
    assert earlier.restore("a")
    assert (Record(tmp_path / "runs" / PATH).is_complete("a"), finished(tmp_path)) == (True, {"a", "b"})
    assert [run.fingerprint for _, run in earlier.runs()] == ["b"]


def test_an_unfinished_one_that_cannot_go_on_is_not_kept(tmp_path):
    earlier = Superseded(Workspace(tmp_path), PATH)
    write(tmp_path / "runs" / PATH, "a", status="running")
    earlier.make_way("b")
    assert list(tmp_path.rglob("run.json")) == []


def test_an_interrupted_one_waits_beside_its_resume_points(tmp_path):
    def interrupt(name: str) -> None:
        write(workspace.runs / PATH, name, status="running")
        with ResumePoints(workspace.resume_points(PATH) / name) as points:
            points.save(State(3, {"x": torch.zeros(1)}))

    workspace = Workspace(tmp_path)
    earlier = Superseded(workspace, PATH)
    for name in "abc":
        interrupt(name)
        earlier.make_way("next")
        assert earlier.interrupted(name).read().fingerprint == name and not (workspace.runs / PATH).exists()
        os.utime(workspace.resume_points(PATH) / name, (ord(name), ord(name)))
    earlier.go_on("b")
    assert needed_run(workspace.runs / PATH).fingerprint == "b" and earlier.interrupted("b") is None
    earlier.go_on("a")  # the folder is not empty
    assert needed_run(workspace.runs / PATH).fingerprint == "b"
    earlier.trim()
    assert len(list(workspace.resume_points(PATH).iterdir())) == 3  # the cell's own run is not finished
    write(workspace.runs / PATH, "b")
    interrupt("d")
    shutil.rmtree(workspace.runs / PATH)
    write(workspace.runs / PATH, "b")
    os.utime(workspace.resume_points(PATH) / "d", (ord("d"), ord("d")))
    earlier.trim()
    assert {path.name for path in workspace.resume_points(PATH).iterdir()} == {"c", "d"}


def test_none_is_removed_before_its_successor_is_finished(tmp_path):
    earlier, workspace = Superseded(Workspace(tmp_path), PATH), Workspace(tmp_path)
    cell = tmp_path / "runs" / PATH
    for number, name in enumerate("abcd"):
        write(cell, name, finished=f"2026-01-0{number + 1}")
        earlier.make_way("next")
    write(cell, "e", status="running")
    earlier.trim()
    assert prune(workspace) == (0, 0)
    assert finished(tmp_path) == set("abcd")
    assert {(found["cell"], found["now"]) for found in listing(workspace)} == {(PATH.as_posix(), "running")}
    write(cell, "e")
    earlier.trim()
    assert finished(tmp_path) == set("cde")  # bounded, the newest stay
    removed, freed = prune(workspace)
    assert removed == 2 and freed > 0
    assert finished(tmp_path) == {"e"}
    assert list((workspace.runs / FOLDER).iterdir()) == []


def test_a_cell_that_trains_is_not_waited_for(tmp_path):
    earlier, workspace = Superseded(Workspace(tmp_path), PATH), Workspace(tmp_path)
    write(tmp_path / "runs" / PATH, "a", finished="2026-01-01")
    earlier.make_way("next")
    workspace.lock(PATH).parent.mkdir(parents=True, exist_ok=True)
    with FileLock(workspace.lock(PATH)):
        assert prune(workspace, everything=True) == (0, 0)
    assert prune(workspace, everything=True)[0] == 1


def test_those_that_nothing_took_the_place_of_need_all(tmp_path):
    workspace = Workspace(tmp_path)
    write(workspace.runs / PATH, "a")
    Superseded(workspace, PATH).make_way("b")
    assert (prune(workspace)[0], finished(tmp_path)) == (0, {"a"})
    assert (prune(workspace, everything=True)[0], finished(tmp_path)) == (1, set())


STEPS = {
    "make way": lambda earlier: earlier.make_way("c"),
    "come back": lambda earlier: earlier.restore("a"),
}


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[None]:
    """Stops at a step: before or after a rename, or before a file of a folder that goes is removed, or after all."""
    count = 0

    def stop() -> None:
        nonlocal count
        count += 1
        if count == at:
            raise KilledError

    rename, rmtree = Path.rename, shutil.rmtree

    def renamed(path, target):
        stop()
        done = rename(path, target)
        stop()
        return done

    def removed(path, ignore_errors=False):
        for file in sorted(Path(path).iterdir()):
            stop()
            file.unlink()
        rmtree(path)
        stop()

    with monkeypatch.context() as patch, suppress(KilledError):
        patch.setattr(Path, "rename", renamed)
        patch.setattr(shutil, "rmtree", removed)
        yield


@pytest.mark.parametrize("killed_at", range(1, 6))
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_between_any_two_steps_loses_nothing_finished(tmp_path, monkeypatch, step, killed_at):
    """Renames are atomic; removing a folder is not, so there a kill leaves the half of it."""
    earlier = Superseded(Workspace(tmp_path), PATH)
    write(tmp_path / "runs" / PATH, "a")
    earlier.make_way("b")
    write(tmp_path / "runs" / PATH, "b", finished="2026-01-02")
    with killed(monkeypatch, killed_at):
        STEPS[step](earlier)
    assert finished(tmp_path) == {"a", "b"}
    STEPS[step](earlier)
    assert finished(tmp_path) == {"a", "b"}
    assert Record(tmp_path / "runs" / PATH).is_complete("a") == (step == "come back")


@pytest.mark.parametrize("killed_at", range(1, 8))
def test_what_a_killed_process_has_begun_to_remove_goes_later(tmp_path, monkeypatch, killed_at):
    earlier = Superseded(Workspace(tmp_path), PATH)

    def replace_all() -> None:
        for number, name in enumerate("abcd"):
            write(tmp_path / "runs" / PATH, name, finished=f"2026-01-0{number + 1}")
            earlier.make_way("next")
        write(tmp_path / "runs" / PATH, "e")

    replace_all()
    with killed(monkeypatch, killed_at):
        earlier.trim()
    assert finished(tmp_path) >= set("cde")
    replace_all()  # the same records come back and go again
    earlier.trim()
    assert finished(tmp_path) == set("cde")
    assert {path.name for path in earlier.folder.iterdir()} == {"c", "d"}
