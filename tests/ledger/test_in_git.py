"""What other commands make of a cell that has its record in git alone."""

from __future__ import annotations

import pytest
import torch
from ledger_helpers import cell_of, checkout, entry_of, record
from table_helpers import CELLS, PARAMS

from hetfl.experiments.forecast import forecasts
from hetfl.experiments.plan import Cell, Workspace
from hetfl.experiments.record import device_name
from hetfl.experiments.status import status
from hetfl.schema import Inputs
from hetfl.sweep.choice import choose

CPU = torch.device("cpu")
ENTRY = entry_of("fedtgp-table-10", "fedproto", "blocks")
OF = cell_of(ENTRY)
HERE = {
    "device": device_name(CPU),
    "engine": "sequential",
    "threads": 1,
    "models": [OF.models[k % len(OF.models)] for k in range(OF.partition["clients"])],
}


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    return checkout(tmp_path)


@pytest.fixture
def cell(workspace) -> Cell:
    """A cell with 60 rounds in git, a hundredth of a second each."""
    return record(workspace, ENTRY, **HERE)


def test_it_is_neither_done_nor_forgotten(workspace, cell):
    found = status(cell, workspace)
    assert (found.state, found.left) == ("in git", 1000)
    assert status(cell_of(ENTRY, seed=1), workspace).state == "not run"
    other = cell.model_copy(update={"settings": {**cell.settings, "lr": 0.5}})
    assert status(other, workspace).state == "not run"


def test_one_that_is_not_finished_is_not_run(workspace):
    cell = record(workspace, ENTRY, status="running")
    assert workspace.compact(cell.path).exists() and status(cell, workspace).state == "not run"


def test_other_data_than_its_own_are_another_cell(workspace, cell, monkeypatch):
    monkeypatch.setattr(
        "hetfl.experiments.status.inputs", lambda cell, workspace: Inputs(dataset="x", partition="y", weights={})
    )
    assert status(cell, workspace).state == "not run"


def test_a_sweep_leaves_it_out(workspace, cell):
    every = [*CELLS[cell.experiment].values()]
    chosen = choose(every, PARAMS, workspace, CPU)
    assert chosen.in_git == 1 and len(chosen.order) == len(every) - 1
    assert cell.path not in {choice.cell.path for choice in chosen.order}


def test_forecasts_know_its_rounds_and_how_long_they_took(workspace, cell):
    own, other = forecasts([cell, cell_of(ENTRY, seed=1)], PARAMS, workspace, CPU)
    # FedTGP's protocol stops early, and the one run that is known had 60 rounds.
    assert (own.rounds, own.at_most, own.source) == (60, False, "records")
    assert (other.rounds, other.at_most, other.source) == (60, False, "records")
    assert own.basis == "60 rounds of its own" and other.basis == "60 rounds of other seeds or splits"
    assert own.seconds == pytest.approx(other.seconds) and own.seconds > 0


def test_a_run_that_diverged_says_nothing_of_other_methods(workspace):
    record(workspace, ENTRY, **HERE, diverged=30)
    own, other = (cell_of(ENTRY, seed=1), cell_of(entry_of("fedtgp-table-10", "fml", "blocks")))
    first, second = forecasts([own, other], PARAMS, workspace, CPU)
    assert (first.rounds, first.at_most) == (60, False)
    assert (second.rounds, second.at_most) == (1000, True)
