"""`hetfl reproduce` trains a recorded cell anew beside all others, and says whether it is the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ledger_helpers import checkout, entry_of, record
from stage_runner import run_stage
from table_helpers import PARAMS as COMMITTED
from typer.testing import CliRunner, Result

from hetfl.cli import app
from hetfl.experiments import cell
from hetfl.experiments.identity import fingerprint
from hetfl.experiments.plan import Workspace, cells, load_params
from hetfl.experiments.schedule import evaluate_cells, run_cells
from hetfl.ledger.reproduce import Plan, compare, plan_reproduction
from hetfl.schema import MODEL, Change, Inputs

CELL = "fedtgp-toy/fedavg/fedavg/iid-s0"
PARAMS = {
    "compute": {"device": "cpu", "jobs": 1},
    "data": {"digits": {"public": 1200, "test": 300}},
    "partitions": {"digits": {"seeds": [0], "splits": {"iid": {"scheme": "iid", "clients": 3}}}},
    "models": {"tiny": ["digits_resnet_small"]},
}
EXPERIMENTS = {
    "fedtgp-toy": {
        "title": "A paper's cell",
        "paper": "fedtgp",
        "dataset": "digits",
        "models": "tiny",
        "splits": {"iid": "IID"},
        "seeds": [0],
        "defaults": {"rounds": 2},
        "rows": {"fedavg": {}},
    }
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which a cell was trained and recorded, as in a fresh clone: only its record is there."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    paper = root / "fedtgp/params.yaml"
    paper.parent.mkdir(parents=True)
    paper.write_text(yaml.safe_dump({"experiments": EXPERIMENTS}))
    for stage in ("download", "partition"):
        assert run_stage(root, stage, "digits").status == 0
    workspace = Workspace(root)
    params = load_params(workspace.params)
    for work in (run_cells, evaluate_cells):
        assert not work(cells(params, "fedtgp-toy"), workspace, params.compute)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr("hetfl.ledger.page.write_ledger", lambda *given: [])  # of the papers' experiments, not of these
        shown = CliRunner().invoke(app, ["record", "fedtgp-toy"])
        assert shown.exit_code == 0, shown.output
        assert CliRunner().invoke(app, ["table", "fedtgp-toy"]).exit_code == 0
    shutil.move(root / "tables", root / "from-runs")
    for folder in ("runs", "evaluations"):
        shutil.rmtree(root / folder)
    return root


@pytest.fixture
def hetfl(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command line in a copy of that checkout."""
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [*arguments])


def change(old: str, new: str) -> None:
    """Change the record in the current folder."""
    path = Path("results", f"{CELL}.json")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def files(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def test_a_cell_that_is_trained_again_is_identical(hetfl, monkeypatch):
    before = files("results")
    monkeypatch.setattr(cell, "run_rounds", lambda *given, play=cell.run_rounds: played.append(1) or play(*given))
    played: list[int] = []
    dry = hetfl("reproduce", CELL, "--dry-run")
    assert dry.exit_code == 0 and not Path("runs").exists() and not Path(".hetfl/reproduced").exists()
    command = "hetfl train fedtgp-toy --row fedavg --split iid --seed 0 --engine sequential --precision float32"
    assert " hours" not in dry.output and " s, cpu" in dry.output  # of a cell of seconds
    assert command in dry.output and "rounds     2 of at most 2, 3 clients" in dry.output
    for _ in range(2):  # a second time it is trained again
        shown = hetfl("reproduce", CELL)
        assert shown.exit_code == 0, shown.output
        assert "identical: curves, message sizes and model" in shown.output
    assert len(played) == 2
    assert files("results") == before and not Path("runs").exists()


def test_another_number_is_found(hetfl):
    path = Path("results", f"{CELL}.json")
    told = json.loads(path.read_text())
    told["curves"]["test"]["pooled"][1] -= 1
    path.write_text(json.dumps(told))
    shown = hetfl("reproduce", CELL)
    assert "differs: pooled from round 1 on" in shown.output
    assert "differs from its record by more than it may" in str(shown.exception)


def test_elsewhere_a_limit_is_kept(hetfl):
    change('"torch": "', '"torch": "0.')
    average = json.loads(Path("results", f"{CELL}.json").read_text())["metrics"]["average"]
    shown = hetfl("reproduce", CELL)
    assert shown.exit_code == 0, shown.output
    assert "not alike: torch; so numbers may move by 1 points" in shown.output
    change(f'"average": {average}', f'"average": {average - 0.02}')
    shown = hetfl("reproduce", CELL)
    assert "differs: an accuracy moved by 2.00 points" in shown.output and shown.exit_code
    assert hetfl("reproduce", CELL, "--accuracy", "3").exit_code == 0


def test_what_cannot_be_reproduced_is_one_line(hetfl):
    shutil.rmtree("partitions")
    lacking = str(hetfl("reproduce", CELL).exception)
    assert "the partition is missing; make it with dvc repro partition@digits" in lacking
    shutil.rmtree("data")
    assert "make it with dvc repro download-digits partition@digits" in str(hetfl("reproduce", CELL).exception)
    assert hetfl("reproduce", CELL, "--dry-run").exit_code == 0
    change('"rounds": 2', '"rounds": 3')
    change('"fingerprint": "', '"fingerprint": "0')
    assert "is stale (rounds 3, now 2); check out commit" in str(hetfl("reproduce", CELL).exception)
    own = Path("params.yaml")
    experiments = yaml.safe_load(Path("fedtgp/params.yaml").read_text())["experiments"]
    mine = CELL.replace("fedtgp-toy", "mine")
    own.write_text(
        yaml.safe_dump({**yaml.safe_load(own.read_text()), "experiments": {"mine": experiments.popitem()[1]}})
    )
    assert f"{mine}: has no record in git, which keeps those of" in str(hetfl("reproduce", mine).exception)
    Path("results", f"{CELL}.json").unlink()
    assert "hetfl train fedtgp-toy, then hetfl record fedtgp-toy" in str(hetfl("reproduce", CELL).exception)


def test_a_record_made_with_other_inputs_is_refused(hetfl):
    path, (chosen,) = Path("results", f"{CELL}.json"), cells(load_params(Path("params.yaml")), "fedtgp-toy")
    told = json.loads(path.read_text())
    told["run"]["inputs"]["dataset"] = "0" * 64
    told["run"]["fingerprint"] = fingerprint(chosen, Inputs.model_validate(told["run"]["inputs"]))
    path.write_text(json.dumps(told))
    said = str(hetfl("reproduce", CELL).exception)
    assert "its record was made with other inputs (dataset 00000000, now " in said
    assert not [*Path().glob(".hetfl/reproduced/**/run.json")]


def test_a_table_from_git_alone_is_the_table_from_the_runs(both_formats: None, hetfl):
    shown = hetfl("table", "fedtgp-toy")
    assert shown.exit_code == 0 and "FedAvg" in shown.output
    made = {name.removeprefix("tables/"): content for name, content in files("tables").items()}
    assert made == {name.removeprefix("from-runs/"): content for name, content in files("from-runs").items()}
    assert not Path("runs").exists()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """What is to be trained again of a recorded cell of a paper."""
    workspace = checkout(tmp_path)
    cell = record(workspace, entry_of("fedtgp-table-10", "fedproto", "blocks"))
    return plan_reproduction(cell, workspace, COMMITTED)


def test_the_printed_number_stands_beside_both(plan):
    found = compare(plan, plan.record)
    assert found.good
    assert found.lines == [
        "identical: curves, message sizes and model",
        "fedtgp-table-10: 71.50, recorded 71.50, printed 99.48 (worse)",
    ]


def test_another_model_is_found(plan):
    other = plan.record.model_copy(update={"files": {**plan.record.files, MODEL: "0" * 64}})
    found = compare(plan, other)
    assert not found.good and found.lines[0] == "differs: the model's SHA-256"


def test_another_number_of_rounds_is_found(plan):
    found = compare(plan, plan.record.model_copy(update={"played": 61}))
    assert not found.good and found.lines[0] == "differs: 61 rounds, not 60"


def test_the_order_of_sums_on_a_gpu_is_never_alike(plan):
    run = plan.record.run.model_copy(update={"device": "cuda: one"})
    both = plan.record.model_copy(update={"run": run})
    assert compare(replace(plan, record=both), both).lines[0].startswith("not alike: the order of sums on a GPU; so")


def test_a_run_that_went_on_under_other_conditions_is_not_alike(plan):
    run = plan.record.run.model_copy(update={"changes": [Change(round=9, threads=7)]})
    found = compare(plan, plan.record.model_copy(update={"run": run}))
    assert found.good and found.lines[0].startswith("not alike: threads; so")
