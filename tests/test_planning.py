"""`hetfl plan`, and what training says first."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from settings_files import EMBEDDED_PARAMS, PAPER_PARAMS, copy_params
from typer.testing import CliRunner

from hetfl import planning
from hetfl.cli import app
from hetfl.errors import HetflError
from hetfl.experiments import schedule
from hetfl.experiments.forecast import Forecast
from hetfl.experiments.needs import check_needs, needs
from hetfl.experiments.plan import Cell, Workspace, cells, load_params
from hetfl.experiments.rehearsal import Load
from hetfl.experiments.status import Status
from hetfl.planning import Plan, clock, number, render, short_plan, summary
from hetfl.train import train_experiment


@pytest.fixture(scope="module")
def table_10() -> list[Cell]:
    return cells(PAPER_PARAMS, "fedtgp-htcnn8-fashion-mnist")


def forecast(cell: Cell, status: Status, seconds: float | None = 3600.0, at_most: bool = False) -> Forecast:
    load = Load(trained=5e6, seen=1e6, operations={("htcnn1", "train"): 2e12}, up=10**6, down=2 * 10**6)
    left = status.left
    return Forecast(cell, status, left, at_most, load, seconds if left else 0.0, "records", "10 rounds", 10**9)


def test_a_plan_has_every_state(table_10):
    states = [
        Status("done", 1000, 1000),
        Status("running", 40, 1000),
        Status("interrupted", 7, 1000),
        Status("stale", 0, 1000, "lr 0.5, now 0.01"),
        Status("broken", 0, 1000, "run.json: is not JSON"),
        Status("not run", 0, 1000),
    ]
    made = Plan([forecast(cell, now) for cell, now in zip(table_10, states, strict=False)], [], "cpu: test", 2)
    text = render(made)
    for line in ("1 done", "1 not run", "round 40 of 1000", "round 7 of 1000", "lr 0.5, now 0.01", "is not JSON"):
        assert line in text
    assert "about 5 h 00 min, 2 h 30 min with 2 cells at once" in text
    assert "5 cells by 10 rounds" in text
    assert summary(made).startswith("plan: 1 done, 1 running, 1 interrupted, 1 not run, 1 stale")


@pytest.mark.parametrize(
    ("methods", "compute", "idle"),
    [
        (["fml"], {}, 3),
        (["fml", "fedkd"], {"threads": 2}, 0),
        (["fml", "fedkd"], {}, 2),
        (["fml"], {"jobs": 1}, 0),
        (["fml"], {"engine": "ray"}, 0),
        (["sgpt"], {}, 0),
    ],
)
def test_cores_that_have_no_cell_are_told_of(tmp_path, table_10, monkeypatch, methods, compute, idle):
    monkeypatch.setattr(schedule, "cpu_count", lambda: 4)
    params = PAPER_PARAMS.model_copy(update={"compute": PAPER_PARAMS.compute.model_copy(update=compute)})
    every = {cell.method: cell for cell in [*table_10, *cells(PAPER_PARAMS, "orderings-fgpt")]}
    chosen = [every[method] for method in methods]
    made = short_plan(chosen, params, Workspace(tmp_path), torch.device("cpu"))
    assert made.idle == idle
    assert ("--engine ray" in summary(made)) == ("--engine ray" in render(made)) == bool(idle)


def test_an_unknown_time_is_not_a_small_one(table_10):
    now = Status("not run", 0, 1000)
    made = Plan([forecast(table_10[0], now), forecast(table_10[1], now, None)], [], "cpu: test", 1)
    assert made.seconds is None and "more than 60 min" in summary(made)
    most = Plan([forecast(table_10[0], now, at_most=True)], [], "cpu: test", 1)
    assert ", at most 60 min" in summary(most)
    guessed = Plan([replace(most.left[0], source="operations")], [], "cpu: test", 1)
    assert "roughly at most 60 min" in summary(guessed)
    # A row's images, operations and bytes are unknown if those of one of its cells are, as without its data set.
    unread = replace(made.left[0], cell=table_10[1], load=None)
    (line,) = (
        row for row in render(replace(made, forecasts=[made.left[0], unread])).splitlines() if "fedtgp-" in row
    )
    assert line.count("?") == 5
    done = Plan([forecast(table_10[0], Status("done", 1000, 1000))], [], "cpu: test", 1)
    assert summary(done) == "plan: 1 done; nothing to train"


def test_what_is_missing_is_named_with_size_and_origin(tmp_path):
    papers = copy_params(tmp_path)
    params, workspace = load_params(papers / "params.yaml"), Workspace(papers)
    chosen = cells(params, "fedhpl-homogeneous-cifar10")
    found = {need.name: need for need in needs(chosen, params, workspace)}
    data, backbone = found["cifar10"], found["vit_base_patch16_224.augreg_in21k_ft_in1k"]
    assert (data.there, data.bytes, data.origin) == (False, 170_052_171, "www.cs.toronto.edu")
    assert backbone.origin == "huggingface.co/timm/vit_base_patch16_224.augreg_in21k_ft_in1k"
    assert 340e6 < backbone.bytes < 345e6
    with pytest.raises(HetflError) as refused:
        check_needs(chosen, params, workspace)
    lines = str(refused.value).splitlines()
    assert len(lines) == 2  # the data set, with its partitions, and the weights
    assert "dvc repro download-cifar10 partition@cifar10 (www.cs.toronto.edu, 170.1 MB)" in lines[0]
    assert "hetfl weights vit_base_patch16_224" in lines[1] and "343." in lines[1]


def test_training_refuses_all_that_is_missing_before_anything_starts(tmp_path):
    papers = copy_params(tmp_path)
    with pytest.raises(HetflError) as refused:
        train_experiment(papers, "fedhpl-homogeneous-cifar10", method="fedhpl")
    assert len(str(refused.value).splitlines()) == 2
    assert not (papers / "runs").exists()


def test_pretrained_weights_name_their_stage(tmp_path):
    copy_params(tmp_path)
    params = load_params(tmp_path / "params.yaml")
    found = needs(cells(params, "digits-heterogeneous"), params, Workspace(tmp_path))
    weights = [need for need in found if need.kind == "weights"]
    assert weights and all(need.origin == "trained here" for need in weights)
    assert all(need.lack.endswith("make them with dvc repro pretrain-digits") for need in weights)


def test_the_command_prints_json(tmp_path, monkeypatch):
    monkeypatch.chdir(copy_params(tmp_path))
    told = CliRunner().invoke(app, ["plan", "fedtgp-htcnn8-fashion-mnist/lg-fedavg", "--json"])
    assert told.exit_code == 0, told.output
    content = json.loads(told.stdout)
    assert len(content["cells"]) == 6
    one = content["cells"][0]
    assert one["status"] == "not run" and one["left"] == 1000 and one["at_most"] and one["bytes_up"] > 0
    assert [need["name"] for need in content["needs"]][0] == "fashion-mnist"


def test_the_rest_of_a_table_is_foreseen(tmp_path):
    papers = copy_params(tmp_path)
    params = load_params(papers / "params.yaml")
    own = [cell for cell in cells(params, "fedtgp-htcnn8-fashion-mnist") if cell.method == "fedtgp"]
    where = Workspace(papers), torch.device("cpu")
    rest = planning.rest_of_tables(own, params, *where)
    assert {name: len(plan.left) for name, plan in rest.items()} == {"fedtgp-table-10": 36}
    alone = cells(EMBEDDED_PARAMS, "digits-fedtgp")
    assert planning.rest_of_tables(alone, EMBEDDED_PARAMS, Workspace(tmp_path), torch.device("cpu")) == {}


def test_durations_and_numbers_for_people():
    assert [clock(s) for s in (None, 42, 300, 7500, 86400 * 3)] == ["?", "42 s", "5 min", "2 h 05 min", "3.0 days"]
    assert [number(n) for n in (7, 1234, 2.5e6, 3e12)] == ["7", "1.2 k", "2.5 M", "3.0 T"]
