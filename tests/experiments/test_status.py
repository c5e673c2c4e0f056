"""What is said of a cell is what the next training does with it."""

from __future__ import annotations

import fcntl
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from filelock import FileLock
from record_factory import make_round, write_record

from hetfl.errors import HetflError
from hetfl.experiments import status as module
from hetfl.experiments.identity import fingerprint
from hetfl.experiments.plan import Cell, Workspace, cells, load_params
from hetfl.experiments.record import method_source
from hetfl.experiments.status import status
from hetfl.experiments.superseded import Superseded
from hetfl.methods import METHODS
from hetfl.overview import overview
from hetfl.schema import Inputs
from hetfl.training.state import ResumePoints, State

READS = Inputs(dataset="d", partition="p", weights={})


@pytest.fixture(scope="module")
def cell() -> Cell:
    return cells(load_params(Path("params.yaml")), "digits-homogeneous")[0]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr(module, "inputs", lambda cell, workspace: READS)
    return Workspace(tmp_path)


def write(
    workspace: Workspace, cell: Cell, state: str = "complete", rounds: int = 2, reads: Inputs = READS, **changes: Any
) -> str:
    found = fingerprint(cell, reads)
    lines = [make_round(number) for number in range(rounds + 1)]
    changes = {"dataset": cell.dataset, "partition": cell.partition, **changes}
    changes |= {"fingerprint": found, "inputs": reads, "settings": cell.settings}
    write_record(workspace.runs, cell.path, lines, state, **changes)
    if state == "running":
        with ResumePoints(workspace.resume_points(cell.path) / found) as points:
            points.save(State(rounds, {"x": torch.zeros(1)}))
    return found


def test_a_cell_from_its_beginning_to_its_end(workspace, cell):
    rounds = cell.settings["rounds"]
    assert (status(cell, workspace).state, status(cell, workspace).left) == ("not run", rounds)
    write(workspace, cell, "running", rounds=1)
    found = status(cell, workspace)
    assert (found.state, found.left, str(found)) == ("interrupted", rounds - 1, f"interrupted, round 1 of {rounds}")
    lock = workspace.lock(cell.path)
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        assert status(cell, workspace).state == "running"
    assert status(cell, workspace).state == "interrupted"  # the file of a dead process's lock says nothing
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # another look
        assert status(cell, workspace).state == "interrupted"
    write(workspace, cell)
    assert (status(cell, workspace).state, status(cell, workspace).left) == ("done", 0)


def test_a_record_of_other_settings_is_not_done(workspace, cell):
    write(workspace, cell.model_copy(update={"settings": {**cell.settings, "lr": 0.5}}))
    found = status(cell, workspace)
    assert found.state == "stale" and "lr 0.5, now" in found.why and found.left == cell.settings["rounds"]
    (workspace.runs / cell.path / "run.json").write_text("{")
    assert status(cell, workspace).state == "broken"


def test_a_finished_record_that_training_would_bring_back_is_done(workspace, cell):
    write(workspace, cell)
    Superseded(workspace, cell.path).make_way("another")
    write(workspace, cell, reads=READS.model_copy(update={"dataset": "e"}))
    assert status(cell, workspace).state == "done"


METHOD = """
from hetfl.methods.base import register_method
from hetfl.methods.fedavg import FedAvg


@register_method("fedmine")
class FedMine(FedAvg):
    numerics = 1
    title = "FedMine"{comment}

    def aggregate(self, server, uplinks, draws):
        {formula}
"""


@mock.patch.dict(METHODS)
@pytest.mark.parametrize("state", ["complete", "running"])
def test_a_record_from_before_its_methods_formula_changed_is_doubted(workspace, cell, state, tmp_path, monkeypatch):
    path = tmp_path / "fedmine.py"

    def becomes(formula: str = "return server", comment: str = "") -> str:
        path.write_text(METHOD.format(formula=formula, comment=comment))
        spec = spec_from_file_location("hetfl.methods.fedmine", path)
        monkeypatch.setitem(sys.modules, spec.name, found := module_from_spec(spec))
        spec.loader.exec_module(found)
        return method_source(found.FedMine)

    mine = cell.model_copy(update={"method": "fedmine"})
    first = becomes()
    write(workspace, mine, state, method="fedmine", method_source=first)
    assert status(mine, workspace).doubt == ""
    becomes(comment="  # as in the paper")
    assert status(mine, workspace).doubt == ""
    becomes("return server | {'model': {}}")
    told = "src/hetfl/methods/fedmine.py has changed since; if its numbers have, raise numerics of FedMine, now 1"
    assert status(mine, workspace).doubt == told
    assert status(mine, workspace).state == {"complete": "done", "running": "interrupted"}[state]
    if state == "running":
        Superseded(workspace, mine.path).make_way("another")
        write(workspace, mine.model_copy(update={"settings": {**mine.settings, "lr": 0.5}}))
        assert status(mine, workspace).doubt == told


def test_an_interrupted_run_is_judged_by_its_own_record_while_another_one_has_its_place(workspace, cell):
    identity = write(workspace, cell, "running")
    assert status(cell, workspace).record == workspace.runs / cell.path
    Superseded(workspace, cell.path).make_way("another")
    assert status(cell, workspace).state == "interrupted"  # nothing has its place
    write(workspace, cell.model_copy(update={"settings": {**cell.settings, "lr": 0.5}}))
    found = status(cell, workspace)
    assert (found.state, found.round, found.why, found.doubt) == ("interrupted", 2, "", "")
    assert found.record == workspace.resume_points(cell.path) / identity / "record"
    (found.record / "run.json").write_text("{")
    assert status(cell, workspace).state == "broken"


@pytest.mark.parametrize("state", ["complete", "running"])
def test_an_overview_is_of_the_run_that_is_judged(workspace, cell, state):
    """And not of the one that has its place."""
    write(workspace, cell, state)
    Superseded(workspace, cell.path).make_way("another")
    write(workspace, cell.model_copy(update={"settings": {**cell.settings, "lr": 0.5}}), rounds=1)
    experiments = overview([cell.path.as_posix()], load_params(Path("params.yaml")), workspace).experiments
    [one] = experiments[cell.experiment]
    if state == "complete":  # it is shown once it is back
        assert (one.status.state, one.accuracy.last, one.evaluated) == ("done", None, False)
    else:
        last = make_round(2).accuracy
        assert (one.status.state, one.status.round) == ("interrupted", 2)
        assert one.accuracy.last == pytest.approx(100 * sum(last) / len(last))


def test_a_method_with_golden_numbers_is_not_doubted(workspace, cell):
    write(workspace, cell, method=cell.method, method_source="of another code")
    assert status(cell, workspace) == module.Status("done", *[cell.settings["rounds"]] * 2)


def test_without_the_data_a_record_is_judged_by_what_it_names(workspace, cell, monkeypatch):
    def missing(cell: Cell, workspace: Workspace) -> Inputs:
        raise HetflError("data/digits/card.json: the data set is missing")

    monkeypatch.setattr(module, "inputs", missing)
    assert status(cell, workspace).why == "data/digits/card.json: the data set is missing"
    write(workspace, cell)
    assert status(cell, workspace) == module.Status("done", *[cell.settings["rounds"]] * 2)


def test_without_the_data_the_partition_is_judged_by_its_settings(workspace, cell, monkeypatch):
    def missing(cell: Cell, workspace: Workspace) -> Inputs:
        raise HetflError("data/digits/card.json: the data set is missing")

    monkeypatch.setattr(module, "inputs", missing)
    write(workspace, cell, partition={**cell.partition, "clients": 4})
    found = status(cell, workspace)
    assert (found.state, found.why) == ("stale", f"partition's clients 4, now {cell.partition['clients']}")
