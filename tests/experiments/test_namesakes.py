"""A run that has finished under one name is not trained again under another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from record_factory import project, trained

from hetfl.experiments import cell as module
from hetfl.experiments import namesakes
from hetfl.experiments.cell import run_cell
from hetfl.experiments.evaluation import evaluate_cell
from hetfl.experiments.plan import Cell, Workspace
from hetfl.experiments.status import status
from hetfl.files import sha256_file
from hetfl.schema import needed_run, read_metrics

CPU = torch.device("cpu")


@pytest.fixture
def finished(tmp_path: Path) -> tuple[Workspace, Cell]:
    """A checkout with one finished cell."""
    trained()
    source, cell = project()
    shutil.copytree(source.root, tmp_path / "checkout")
    return Workspace(tmp_path / "checkout"), cell


@pytest.fixture
def untrained(monkeypatch) -> None:
    """Training anything is an error."""
    monkeypatch.setattr(module, "run_rounds", lambda *arguments: pytest.fail("was trained"))


def renamed(cell: Cell) -> Cell:
    return cell.model_copy(update={"experiment": "other", "row": "mine", "title": "Mine", "paper": ""})


def test_a_renamed_cell_takes_its_finished_record_along(finished, untrained):
    workspace, cell = finished
    other, told = renamed(cell), []
    assert (status(other, workspace).state, (workspace.runs / other.path).exists()) == ("done", False)
    assert run_cell(other, workspace, CPU, callback=told.append)
    first, second = (needed_run(workspace.runs / one.path) for one in (cell, other))
    names = {"experiment": "other", "row": "mine", "title": "Mine", "paper": "", "table": "other"}
    assert second == first.model_copy(update=names | {"copy_of": cell.path.as_posix()})
    for name in ("rounds.jsonl", "model.safetensors"):
        assert sha256_file(workspace.runs / cell.path / name) == sha256_file(workspace.runs / other.path / name)
    assert [event.run.row for event in told] == ["mine"]

    evaluate_cell(other, workspace, CPU)
    metrics = [read_metrics(workspace.evaluations / one.path, run) for one, run in ((cell, first), (other, second))]
    assert metrics[0] == metrics[1] is not None


def test_a_copy_names_the_run_that_was_trained(finished, untrained):
    workspace, cell = finished
    run_cell(renamed(cell), workspace, CPU)
    shutil.rmtree(workspace.runs / cell.path)
    third = cell.model_copy(update={"row": "third"})
    run_cell(third, workspace, CPU)
    assert needed_run(workspace.runs / third.path).copy_of == cell.path.as_posix()
    assert run_cell(cell, workspace, CPU)  # back under the first name


def test_a_damaged_record_is_not_waited_for(finished, monkeypatch):
    """Its own lock is held by whoever trains the cell again."""
    workspace, cell = finished
    (workspace.runs / cell.path / "model.safetensors").unlink()
    waits = []
    monkeypatch.setattr(namesakes, "FileLock", lambda path, timeout: waits.append(path) or FileLock(path))
    assert not namesakes.take_over(cell, workspace, needed_run(workspace.runs / cell.path).fingerprint)
    assert not waits


@pytest.mark.parametrize("damage", ["setting", "cut", "unreadable", "running"])
def test_only_a_whole_record_of_the_same_numbers_is_taken(finished, monkeypatch, damage):
    workspace, cell = finished
    other, folder = renamed(cell), workspace.runs / cell.path
    if damage == "setting":
        other = other.model_copy(update={"settings": other.settings | {"lr": 0.02}})
    elif damage == "cut":
        lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        (folder / "rounds.jsonl").write_text("".join(lines[:-1]))
    elif damage == "unreadable":
        (folder / "run.json").write_text("[")
    else:
        text = (folder / "run.json").read_text()
        (folder / "run.json").write_text(text.replace('"complete"', '"running"'))
    trains = []
    monkeypatch.setattr(module, "run_rounds", lambda *arguments: trains.append(other))
    assert status(other, workspace).state == "not run"
    assert not run_cell(other, workspace, CPU) and trains == [other]


def test_an_unfinished_run_makes_way_for_the_copy_and_another_finished_one_is_kept(finished, untrained):
    workspace, cell = finished
    other = renamed(cell)
    target = workspace.runs / other.path
    shutil.copytree(workspace.runs / cell.path, target)
    text = (target / "run.json").read_text()
    (target / "run.json").write_text(text.replace(needed_run(target).fingerprint, "f" * 64))
    assert run_cell(other, workspace, CPU)
    assert needed_run(target).copy_of == cell.path.as_posix()
    assert [path.name for path in (workspace.runs / ".superseded" / other.path).iterdir()] == ["f" * 64]

    text = (target / "run.json").read_text()
    (target / "run.json").write_text(text.replace('"complete"', '"running"'))
    assert run_cell(other, workspace, CPU)
    assert needed_run(target).complete


def test_nothing_is_left_of_a_run_that_is_finished_by_another_name(finished, untrained):
    workspace, cell = finished
    other = renamed(cell)
    points = workspace.resume_points(other.path) / needed_run(workspace.runs / cell.path).fingerprint
    points.mkdir(parents=True)
    assert run_cell(other, workspace, CPU) and not workspace.resume_points(other.path).exists()


def test_one_damaged_record_hides_no_whole_one(finished, untrained):
    workspace, cell = finished
    first, leftover = (workspace.runs / cell.path.parent / name for name in ("a-copy", ".iid-s0.x1"))
    for folder in (first, leftover):
        shutil.copytree(workspace.runs / cell.path, folder)
        (folder / "model.safetensors").unlink()
    second = cell.model_copy(update={"row": "second"})
    shutil.copytree(workspace.runs / cell.path, workspace.runs / second.path)
    told = (workspace.runs / second.path / "run.json").read_text()
    (workspace.runs / second.path / "run.json").write_text(told.replace('"format": ', '"format": 9'))
    other = renamed(cell)
    assert status(other, workspace).state == "done" and run_cell(other, workspace, CPU)
    assert needed_run(workspace.runs / other.path).copy_of == cell.path.as_posix()


def test_a_record_that_another_process_works_on_is_not_taken(finished, monkeypatch):
    workspace, cell = finished
    monkeypatch.setattr(namesakes, "PATIENCE", 0.1)
    lock = workspace.lock(cell.path)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        assert not namesakes.take_over(renamed(cell), workspace, needed_run(workspace.runs / cell.path).fingerprint)
