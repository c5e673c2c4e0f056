"""Forecasts: from records, from a calibration, from counted operations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from record_factory import make_round, write_record
from settings_files import EMBEDDED_PARAMS, PAPER_PARAMS

from hetfl.compact import read_compact
from hetfl.data.catalogue import CATALOGUE
from hetfl.experiments import calibration, forecast, status
from hetfl.experiments.calibration import calibrate, cases, momentary, rates
from hetfl.experiments.forecast import Forecaster, forecasts
from hetfl.experiments.identity import fingerprint
from hetfl.experiments.plan import Cell, Params, Workspace, cells
from hetfl.experiments.record import device_name
from hetfl.experiments.superseded import Superseded
from hetfl.ledger.recording import record_cells
from hetfl.schema import Inputs
from hetfl.training.ray import RaySettings
from hetfl.training.state import ResumePoints, State

CPU = torch.device("cpu")


def reads(cell: Cell, workspace: Workspace | None = None) -> Inputs:
    """What a cell reads; each split and seed has a partition of its own."""
    return Inputs(dataset="d", partition=f"{cell.split}-s{cell.seed}", weights={})


@pytest.fixture(scope="module")
def params() -> Params:
    return PAPER_PARAMS


@pytest.fixture(scope="module")
def table_10(params) -> list[Cell]:
    return cells(params, "fedtgp-htcnn8-fashion-mnist")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr(status, "inputs", reads)
    return Workspace(tmp_path)


def record(
    workspace: Workspace,
    cell: Cell,
    seconds: float | dict[str, float],
    rounds: int,
    state: str = "running",
    best: int | None = None,
    **changes,
) -> None:
    """Write a record of so many rounds, with more right answers from a best one on, and a point to go on from.

    Their seconds are those of training where they are not told by part.
    """
    measured = {"seconds": seconds if isinstance(seconds, dict) else {"train": seconds}, "peak_memory": 7}
    lines = [make_round(0), *(make_round(r, **measured) for r in range(1, rounds + 1))]
    if best:
        lines[best:] = [make_round(r, pooled=1.0, **measured) for r in range(best, rounds + 1)]
    models = [cell.models[k % len(cell.models)] for k in range(cell.partition["clients"])]
    told = {"settings": cell.settings, "models": models, "dataset": cell.dataset, "inputs": reads(cell)}
    told |= {
        "device": device_name(CPU),
        "threads": 1,
        "engine": "sequential",
        "fingerprint": fingerprint(cell, reads(cell)),
    }
    write_record(workspace.runs, cell.path, lines, state, **told | changes)
    if state == "running":
        with ResumePoints(workspace.resume_points(cell.path) / told["fingerprint"]) as points:
            points.save(State(rounds, {"x": torch.zeros(1)}))


def test_seconds_are_those_of_the_cells_own_rounds(workspace, params, table_10):
    record(workspace, table_10[0], seconds=2.0, rounds=10)
    record(workspace, table_10[1], seconds=50.0, rounds=10)
    first, _, third = forecasts(table_10[:3], params, workspace, CPU)
    assert (first.rounds, first.seconds, first.source, first.memory) == (990, 990 * 2.0, "records", 7)
    assert first.basis == "10 rounds of its own" and first.at_most
    # Another seed: the mean of the two records.
    assert (third.rounds, third.seconds) == (1000, 1000 * 26.0) and "other seeds" in third.basis


def test_what_comes_before_the_first_round_counts_with_seconds_of_records_too(workspace, params):
    """FedMD's clients train on public data before the first round, which is a quarter of the work of a run."""
    both = [cell for cell in cells(params, "fedhpl-resnet-cifar10") if cell.row == "fedmd" and cell.seed == 0][:2]
    record(workspace, both[0], seconds=2.0, rounds=10)
    found = Forecaster(params, workspace, CPU).all([both[1]])[0]
    rehearsal = Forecaster(params, workspace, CPU).rehearsal(both[1])
    rounds = sum(rehearsal.rounds(1, found.rounds, 0).operations.values())
    share = sum(found.load.operations.values()) / rounds
    assert share > 1.1 and found.seconds == pytest.approx(found.rounds * 2.0 * share)


def test_only_rounds_that_were_played_as_they_would_be_here_count(workspace, params, table_10):
    here = {"device": device_name(CPU)}
    record(workspace, table_10[0], 2.0, 10, device="cpu: another", changes=[{"round": 6, **here}])
    (found,) = forecasts(table_10[1:2], params, workspace, CPU)
    assert found.basis.startswith("5 rounds of other seeds") and found.seconds == pytest.approx(found.rounds * 2.0)
    record(workspace, table_10[0], 2.0, 10, **here, changes=[{"round": 6, "device": "cpu: another"}])
    (found,) = forecasts(table_10[1:2], params, workspace, CPU)
    assert found.source != "records"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"models": "wrong"}, "params.yaml: models.wrong: unknown model 'htcnn9'"),
        ({"method": "fedhpl", "settings": {"prompts": "frame"}}, "htcnn1 takes no frame"),
    ],
)
def test_a_cell_that_cannot_be_trained_does_not_stop_the_plan_of_others(workspace, params, table_10, changes, why):
    """A training also plans the other cells of its tables, which somebody may just be writing."""
    name = table_10[0].experiment
    experiment = params.experiments[name]
    row = experiment.rows["fedproto"]
    rows = {"fedproto": row, "wrong": row.model_copy(update={"written": "wrong", **changes})}
    broken = params.model_copy(
        update={
            "models": {**params.models, "wrong": ["htcnn9"]},
            "experiments": {name: experiment.model_copy(update={"rows": rows})},
        }
    )
    good, *_, wrong = forecasts(cells(broken, name), broken, workspace, CPU)
    assert good.seconds and good.load
    assert (wrong.cell.row, wrong.seconds, wrong.load) == ("wrong", None, None)
    assert wrong.basis.startswith("that cannot be trained: ") and why in wrong.basis


def test_a_run_that_goes_on_elsewhere_counts_by_its_record_in_git(workspace, params, table_10):
    record(workspace, table_10[0], seconds=2.0, rounds=10, partition=table_10[0].partition)
    record_cells(table_10[:1], workspace, workspace)
    shutil.rmtree(workspace.runs)
    (found,) = forecasts(table_10[1:2], params, workspace, CPU)
    per_round = read_compact(workspace.compact(table_10[0].path)).seconds / 10
    assert found.basis.startswith("10 rounds of other seeds") and found.seconds == pytest.approx(1000 * per_round)


def test_a_setting_that_only_a_record_has_does_not_keep_a_cell_from_being_trained(workspace, params, table_10):
    by = {cell.method: cell for cell in reversed(table_10)}
    record(workspace, by["fml"], seconds=3.0, rounds=4, settings=by["fml"].settings | {"gone": 1})
    machine = Forecaster(params, workspace, CPU)
    for method in ("lg-fedavg", "fml"):
        assert "cannot be trained" not in machine.forecast(by[method]).basis


def test_records_of_other_machines_are_left_out(workspace, params, table_10):
    record(workspace, table_10[0], seconds=2.0, rounds=3, device="cuda: another")
    record(workspace, table_10[1], seconds=2.0, rounds=3, threads=64)
    assert forecasts(table_10[:1], params, workspace, CPU)[0].source == "calibration"


def test_on_a_cpu_the_records_of_engines_that_train_clients_one_by_one_count_for_each_other(
    workspace, params, table_10, monkeypatch
):
    monkeypatch.setattr(forecast, "cpu_count", lambda: 7)
    record(workspace, table_10[0], seconds=2.0, rounds=3, engine="ray")
    record(workspace, table_10[1], seconds=50.0, rounds=3, engine="batched")

    def seconds(engine: str, **compute) -> float | None:
        told = {"engine": engine, **{name: RaySettings(**given) for name, given in compute.items()}}
        changed = params.model_copy(update={"compute": params.compute.model_copy(update=told)})
        return forecasts(table_10[:1], changed, workspace, CPU)[0].seconds

    assert seconds("auto") == seconds("sequential") == 997 * 2.0
    # Its actors share the work.
    assert seconds("ray") == pytest.approx(997 * 2.0 / 7)
    assert seconds("ray", ray={"actors": 2}) == pytest.approx(997 * 2.0 / 2)
    assert seconds("ray", ray={"actors": 500}) == pytest.approx(997 * 2.0 / 20)
    assert seconds("batched") == 997 * 50.0


@pytest.mark.parametrize(("engine", "expected"), [("ray", (10 + 4) / 2 + 3 + 5 + 1), ("sequential", 17 / 2 + 5 + 1)])
def test_processes_share_the_clients_work_and_not_the_servers(
    workspace, params, table_10, monkeypatch, engine, expected
):
    """Tests that one process has timed are shared, too; those of an engine with processes are on the clock."""
    parts = {"train": 10.0, "statistics": 4.0, "evaluate": 3.0, "server": 5.0, "resume": 1.0}
    record(workspace, table_10[0], seconds=parts, rounds=3, engine=engine)
    told = {"engine": "ray", "ray": RaySettings(actors=2)}
    changed = params.model_copy(update={"compute": params.compute.model_copy(update=told)})
    assert forecasts(table_10[:1], changed, workspace, CPU)[0].seconds == pytest.approx(997 * expected)


def test_another_method_is_scaled_by_operations(workspace, params, table_10):
    by = {cell.method: cell for cell in reversed(table_10)}
    record(workspace, by["lg-fedavg"], seconds=3.0, rounds=4)
    machine = Forecaster(params, workspace, CPU)
    fml = machine.forecast(by["fml"])

    def operations(cell: Cell) -> float:
        found = machine.rehearsal(cell)
        assert found is not None
        return sum(found.rounds(1, 1, 0).operations.values())

    share = operations(by["fml"]) / operations(by["lg-fedavg"])
    assert share > 1.2 and fml.seconds == pytest.approx(1000 * 3.0 * share)
    assert "by operations" in fml.basis


def test_finished_runs_tell_how_long_a_run_with_patience_takes(workspace, params, table_10):
    for cell, rounds in zip(table_10[1:4], (110, 130, 160), strict=True):
        record(workspace, cell, seconds=1.0, rounds=rounds, state="complete")
    record(workspace, table_10[0], seconds=1.0, rounds=30)
    first = forecasts(table_10[:1], params, workspace, CPU)[0]
    assert (first.rounds, first.at_most, first.seconds) == (100, False, 100.0)
    # Beyond the usual end its patience counts from its best round so far.
    record(workspace, table_10[0], seconds=1.0, rounds=150, best=90)
    assert table_10[0].settings["patience"] == 100
    assert forecasts(table_10[:1], params, workspace, CPU)[0].rounds == 40
    # So it does while another run, of other settings and with a later best round, is in its place.
    Superseded(workspace, table_10[0].path).make_way("another")
    record(workspace, table_10[0], seconds=1.0, rounds=150, best=120, fingerprint="another")
    assert forecasts(table_10[:1], params, workspace, CPU)[0].rounds == 40


def test_operations_are_taken_at_a_share_of_a_matrix_product(workspace, params, table_10, monkeypatch):
    monkeypatch.setattr(forecast, "matmul_rate", lambda device: 1e10)
    monkeypatch.setattr(calibration, "MOMENT", 0)
    found = forecasts(table_10[:1], params, workspace, CPU)[0]
    assert found.load is not None and found.source == "operations" and "30% of a matrix product" in found.basis
    assert found.seconds == pytest.approx(sum(found.load.operations.values()) / 3e9 + found.load.server)


def test_without_data_the_published_sizes_count(workspace, params, table_10):
    load = Forecaster(params, workspace, CPU).rehearsal(table_10[0]).rounds(1, 1, 0)
    sizes = sum(CATALOGUE["fashion-mnist"].sizes.values())
    assert 0.74 * sizes < load.trained <= 0.75 * sizes  # three quarters of the pool, without incomplete batches
    assert load.seen == pytest.approx(0.25 * sizes, abs=60)
    unknown = forecasts(cells(EMBEDDED_PARAMS, "digits-homogeneous")[:1], EMBEDDED_PARAMS, workspace, CPU)[0]
    assert (unknown.load, unknown.seconds) == (None, None)


def test_a_calibration_is_kept_for_this_machine(workspace, params, table_10, monkeypatch):
    measured = []

    def measure(case, device, compute):
        measured.append(case.key)
        return {"train": 2e9, "look": 1e9}

    monkeypatch.setattr(calibration, "measure", measure)
    wanted = cases(Forecaster(params, workspace, CPU).rehearsal(table_10[0]))
    assert calibrate(wanted, workspace, CPU, params.compute) == 8 == len(set(measured))
    assert calibrate(wanted, workspace, CPU, params.compute) == 0 and len(measured) == 8
    found = forecasts(table_10[:1], params, workspace, CPU)[0]
    by = {"train": 0.0, "look": 0.0}
    for (_, kind), count in found.load.operations.items():
        by[kind] += count
    assert found.source == "calibration"
    assert found.seconds == pytest.approx(by["train"] / 2e9 + by["look"] / 1e9 + found.load.server)
    assert not rates(workspace, CPU, threads=2).known  # another machine


def test_small_networks_are_measured_unasked_and_once(workspace, params, table_10, monkeypatch):
    wanted = cases(Forecaster(params, workspace, CPU).rehearsal(table_10[0]))
    largest = (1 + calibration.STEPS) * max(case.step + calibration.LOOKED * case.forward for case in wanted)
    measured = []
    speeds = {"train": 2e9, "look": 1e9}
    monkeypatch.setattr(calibration, "measure", lambda case, device, compute: measured.append(case.key) or speeds)
    rate = calibration.REACHED * 1e10
    for moment, source, count in ((0.9, "operations", 0), (1.1, "calibration", 8), (1.1, "calibration", 8)):
        monkeypatch.setattr(calibration, "matmul_rate", lambda device, slow=moment: slow * 1e10)
        monkeypatch.setattr(calibration, "MOMENT", largest / rate)
        assert forecasts(table_10[:1], params, workspace, CPU)[0].source == source and len(measured) == count
    assert not momentary(wanted, torch.device("cuda"))


def test_a_plan_needs_to_write_nothing(workspace, params, table_10, monkeypatch):
    monkeypatch.setattr(calibration, "measure", lambda case, device, compute: {"train": 2e9, "look": 1e9})
    workspace.scratch.write_text("no folder")
    assert forecasts(table_10[:1], params, workspace, CPU)[0].source == "operations"


def test_a_calibration_measures_real_steps(workspace, params, table_10):
    case = cases(Forecaster(params, workspace, CPU).rehearsal(table_10[0]))[0]
    speeds = calibration.measure(case, CPU, params.compute)
    assert speeds["train"] > 1e6 and speeds["look"] > 1e6


def test_a_damaged_record_stops_no_forecast(workspace, params, table_10):
    record(workspace, table_10[0], seconds=2.0, rounds=10, state="complete")
    (workspace.runs / table_10[0].path / "rounds.jsonl").write_text("{\n{")
    damaged, other = forecasts(table_10[:2], params, workspace, CPU)
    assert damaged.rounds == other.rounds == 1000 and other.at_most
