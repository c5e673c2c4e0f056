"""The order of a sweep: value per second, and what a person reads of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from settings_files import EMBEDDED_PARAMS, PAPER_PARAMS

from hetfl.errors import HetflError
from hetfl.experiments.forecast import Forecast
from hetfl.experiments.identity import fingerprint
from hetfl.experiments.plan import Cell, Params, Workspace, cells
from hetfl.experiments.status import Status
from hetfl.schema import Inputs
from hetfl.sweep import choice as module
from hetfl.sweep.choice import Choice, choose, ends, values
from hetfl.sweep.sweep import duration, make_backend, options

READS = Inputs(dataset="d", partition="p", weights={})
BEGUN = Status("interrupted", 1, 3)


@pytest.fixture(scope="module")
def params() -> Params:
    return PAPER_PARAMS


@pytest.fixture(scope="module")
def every() -> list[Cell]:
    return cells(EMBEDDED_PARAMS, "digits-fedtgp")


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is chosen of some cells with these forecasts of seconds, or of status and seconds."""

    def run(*forecasts: tuple[Any, ...]) -> list[Choice]:
        found = []
        for cell, *rest in forecasts:
            now, seconds = [Status("not run", 0, 3), *rest][-2:]
            found.append(Forecast(cell, now, now.left, False, None, seconds, "records", "", 10))
        monkeypatch.setattr(module, "forecasts", lambda *_: found)
        monkeypatch.setattr(
            module, "identities", lambda some, _: {tmp_path / "runs" / c.path: fingerprint(c, READS) for c in some}
        )
        return choose(
            [cell for cell, *_ in forecasts], EMBEDDED_PARAMS, Workspace(tmp_path), torch.device("cpu")
        ).order

    return run


def test_a_place_shares_its_value_among_its_seeds_and_several_tables_add_up(params):
    worth = values(params)
    # FedHPL's own cell stands in many tables, and one of three seeds of a place that stands once counts a third.
    assert worth[Path("fedhpl-homogeneous-cifar10/fedhpl/fedhpl/iid-s0")] > 5
    assert worth[Path("fedtgp-htcnn8-fashion-mnist/fedtgp/fedtgp/practical-s2")] == pytest.approx(1 / 3)


def test_the_most_valuable_second_comes_first(every, chosen):
    short, long, unknown = every[:3]
    order = chosen((long, 100.0), (unknown, None), (short, 10.0))
    assert [choice.cell for choice in order] == [short, long, unknown]
    assert [choice.round for choice in order] == pytest.approx([10 / 3, 100 / 3, 0])


def test_interrupted_cells_and_first_seeds_come_before_their_equals(every, chosen):
    by_seed = {cell.seed: cell for cell in every if (cell.row, cell.split) == (every[0].row, every[0].split)}
    other = next(cell for cell in every if cell.row != every[0].row and cell.seed == 0)
    order = chosen((by_seed[2], 10.0), (by_seed[1], 10.0), (by_seed[0], 10.0), (other, 10.0))
    assert [choice.cell.seed for choice in order] == [0, 0, 1, 2]
    order = chosen((by_seed[0], 10.0), (by_seed[2], BEGUN, 12.0), (other, BEGUN, 20.0))
    assert [choice.cell for choice in order] == [by_seed[2], by_seed[0], other]


def test_what_is_trained_elsewhere_is_not_chosen(every, chosen):
    assert chosen((every[0], Status("running", 1, 3), 5.0)) == []


def test_expected_ends_are_those_of_cells_side_by_side(every):
    order = [
        Choice(cell, BEGUN, 1.0, seconds, 5) for cell, seconds in zip(every, (5.0, 1.0, 2.0, None), strict=False)
    ]
    assert ends(order, 2) == [5.0, 1.0, 3.0, None]
    assert ends(order, 1)[:3] == [5.0, 6.0, 8.0]


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("25m", 1500), ("1h30m", 5400), ("0.5h", 1800)])
def test_a_budget_is_a_duration(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "25", "25 minutes", "m", "-5m", "1h30", "0m"])
def test_another_budget_is_refused(text):
    with pytest.raises(HetflError, match="--budget: .* is no duration; write one such as 90s"):
        duration(text)


def test_parameters_of_slurm_are_read_as_yaml():
    assert options(["partition=low", "time=5", "gpus-per-node=1"]) == {
        "partition": "low",
        "time": 5,
        "gpus_per_node": 1,
    }
    with pytest.raises(HetflError, match="--slurm: 'fast' is no parameter"):
        options(["fast"])


def test_parameters_of_slurm_in_the_settings_may_be_named_as_by_sbatch(tmp_path, monkeypatch):
    compute = EMBEDDED_PARAMS.compute.model_copy(update={"slurm": {"cpus-per-task": 8, "job-name": "mine"}})
    made = []
    monkeypatch.setattr("hetfl.sweep.slurm.Slurm", lambda workspace, compute, options: made.append(options))
    params = EMBEDDED_PARAMS.model_copy(update={"compute": compute})
    make_backend("slurm", Workspace(tmp_path), params, slurm={"job_name": "other"})
    assert made == [{"cpus_per_task": 8, "job_name": "other"}]
