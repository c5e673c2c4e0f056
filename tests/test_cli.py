"""The commands as a person types them, in a small project with two trained cells."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sweep_project
import torch
import yaml
from filelock import FileLock
from record_factory import make_round, make_run, write_metrics, write_record
from settings_files import PAPER_PARAMS
from typer.main import get_command
from typer.testing import CliRunner, Result

import hetfl
import hetfl.train
from hetfl.adhoc import adhoc, assignments
from hetfl.cli import app, base, names
from hetfl.data.catalogue import CATALOGUE, Sources, entry, prepare_dataset
from hetfl.errors import HetflError
from hetfl.experiments.cell import run_cell
from hetfl.experiments.evaluation import evaluate_cell
from hetfl.experiments.plan import load_params
from hetfl.ledger.recording import record_cells
from hetfl.report.terminal import MOST, curves, draw
from hetfl.schema import MODEL, read_rounds
from hetfl.stages import write
from hetfl.sweep.sweep import options
from hetfl.tensors import read_tensors, write_tensors

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose two cells of seed 0 are trained, and one of them evaluated."""
    root = sweep_project.make(tmp_path_factory.mktemp("trained"))
    sweep_project.write(root, rounds=2, seeds=1)
    workspace, params, cells = sweep_project.plan(root)
    write(params, root)
    for cell in cells:
        run_cell(cell, workspace, torch.device("cpu"))
    evaluate_cell(cells[0], workspace, torch.device("cpu"))
    return root


@pytest.fixture
def hetfl_(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command there; its output must be good unless ``fails`` is given."""
    monkeypatch.chdir(trained)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(line: str, fails: bool = False) -> Result:
        done = CliRunner().invoke(app, line.split())
        assert (done.exit_code != 0) == fails, (done.output, done.exception)
        return done

    return run


def found(hetfl_: Run, line: str) -> object:
    return json.loads(hetfl_(f"{line} --json").stdout)


def test_status_says_what_is_done_and_not_evaluated(hetfl_: Run) -> None:
    text = hetfl_("status").stdout
    assert text.splitlines()[2].split()[:3] == ["small", "2", "2"]
    assert "trained and not evaluated; hetfl evaluate does it:\n  small/fedprox/fedprox/iid-s0" in text
    first, second = found(hetfl_, "status small")["experiments"]["small"]
    assert first["status"] == second["status"] == "done" and first["evaluated"] and not second["evaluated"]
    assert first["accuracy"] > 10 and first["round"] == 2


def test_status_tells_what_runs_and_what_is_stale(
    hetfl_: Run, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    sweep_project.write(copy, rounds=3, seeds=1)
    monkeypatch.chdir(copy)
    text = hetfl_("status").stdout
    assert "stale, to be trained anew:" in text and "rounds" in text
    workspace, _, (cell, _) = sweep_project.plan(copy)
    workspace.lock(cell.path).parent.mkdir(parents=True, exist_ok=True)
    with FileLock(workspace.lock(cell.path)):
        shutil.rmtree(copy / "runs")
        assert found(hetfl_, "status small")["experiments"]["small"][0]["status"] == "running"


def test_a_single_run_stands_in_no_table_and_is_like_any_other(
    hetfl_: Run, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hetfl.train, "Apart", lambda make: sweep_project.Nobody())
    monkeypatch.setattr(hetfl.train, "try_sync", lambda *_: None)
    text = hetfl_("run --method fedprox --set mu=0.5 --rounds 1").stdout
    path = "adhoc-digits/fedprox/fedprox-mu-0.5-rounds-1/iid-s0"
    assert f"record: runs/{path}" in text and "1 of 1 cells evaluated" in text and "accuracy (%)" in text
    record = json.loads((trained / "runs" / path / "run.json").read_text())
    assert record["settings"]["mu"] == 0.5 and record["settings"]["rounds"] == 1 and record["status"] == "complete"
    assert "adhoc" not in (trained / "dvc.yaml").read_text() + (trained / "params.yaml").read_text()
    assert f"  {path}: done, 1 rounds, accuracy" in hetfl_("status").stdout
    assert hetfl.load(trained / "runs" / path).class_names[3] == "3"
    again = hetfl_("run --method fedprox --set mu=0.5 --rounds 1").stdout
    assert "plan: 1 done; nothing to train" in again and "1 of 1 cells were complete before" in again
    assert "accuracy (%)" not in again
    shutil.rmtree(trained / "runs" / "adhoc-digits")


@pytest.mark.parametrize(
    ("given", "dataset", "split"),
    [
        ({}, "cifar10", "iid"),
        ({"like": "orderings-fgpt"}, "fashion-mnist", "small-s2"),
        ({"like": "orderings-fgpt", "split": "blocks"}, "fashion-mnist", "blocks"),
        ({"like": "orderings-fgpt", "dataset": "cifar100"}, "cifar100", "iid"),
    ],
)
def test_a_single_run_is_on_the_data_set_and_split_of_the_experiment_that_it_is_like(
    given: dict[str, str], dataset: str, split: str
) -> None:
    _, cell = adhoc(PAPER_PARAMS, "fgpt", models="tiny-vit", **given)
    assert (cell.dataset, cell.split) == (dataset, split)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run --method fedprx", "--method: unknown method 'fedprx'; did you mean 'fedprox'?"),
        ("run --method fedavg --data digit", "--data: unknown data set 'digit'; did you mean 'digits'?"),
        ("run --method fedavg --split idd", "--split: unknown split 'idd'; did you mean 'iid'?"),
        ("run --method fedavg --models smal", "--models: unknown model group 'smal'; did you mean 'small'?"),
        ("run --method fedavg --like smal", "--like: unknown experiment 'smal'; did you mean 'small'?"),
        ("run --method fedavg --set round=1", "--set: fedavg: unknown setting 'round'; did you mean 'rounds'?"),
        ("run --method fedavg --set rounds", "--set: 'rounds' is no setting; write e.g. lr=0.01"),
        ("run --method fedavg --set lr=-1", "--set: lr: -1 should be greater than 0"),
        ("run --method fedavg --set rounds=0", "--set: rounds: 0 should be greater than or equal to 1"),
        ("run --method fedavg --seed 7", "--seed: 7 is not among partitions.digits.seeds [0, 1]; add it there"),
        ("train smal", "unknown experiment 'smal'; did you mean 'small'?"),
        ("train small --row fedpro", "--row: unknown row 'fedpro'; did you mean 'fedprox'?"),
        ("cells smal", "unknown table, experiment or cell 'smal'; did you mean 'small'?"),
        ("table smal", "unknown table 'smal'; did you mean 'small'?"),
        ("show smll", "unknown table 'smll'"),
        ("show small", "tables/small/small.json: is not made; hetfl table small or dvc repro small makes it"),
        ("curve smal", "unknown run 'smal'; did you mean 'small'?"),
        ("curve small --by rounds", "--by: unknown axis 'rounds'; did you mean 'round'?"),
        ("diff small/fedavg/fedavg/iid-s0 small", "is a run, small is a folder of runs; name two of a kind"),
        ("data digit", "unknown data set 'digit'; did you mean 'digits'?"),
        ("doctor smal", "unknown table, experiment or cell 'smal'; did you mean 'small'?"),
        ("sweep small --slurm partition=gpu", "--slurm: is for --on slurm, and this sweep is --on local"),
        ("sweep small --address auto", "--address: is for --on ray, and this sweep is --on local"),
        ("data digits --verify --seed 0", "--verify: checks files, and --check, --split and --seed draw splits"),
        (
            "record small",
            "small: have no record in git, which keeps those of papers' tables and of rows with against only",
        ),
    ],
)
def test_a_mistyped_name_or_option_is_one_line(hetfl_: Run, line: str, message: str) -> None:
    done = hetfl_(line, fails=True)
    assert isinstance(done.exception, HetflError) and message in str(done.exception)
    assert len(str(done.exception).splitlines()) == 1


def test_a_number_out_of_range_is_told_by_its_option(trained: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--method", "fedavg", "--rounds", "0"])
    assert done.exit_code == 2 and "'--rounds': 0 is not in the range" in done.output


def test_evaluate_tests_what_is_trained(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    monkeypatch.chdir(copy)
    monkeypatch.setattr(hetfl.train, "try_sync", lambda *_: None)
    first = CliRunner().invoke(app, ["evaluate", "small"]).stdout
    assert "1 of 1 cells evaluated" in first and "2 of 2 cells are evaluated" in first
    again = CliRunner().invoke(app, ["evaluate", "small"]).stdout
    assert again == "2 of 2 cells are evaluated\n"
    metrics = [*copy.glob("evaluations/small/*/*/*/metrics.json")]
    before = [path.read_text() for path in metrics]
    assert "2 of 2 cells evaluated" in CliRunner().invoke(app, ["evaluate", "small", "--again"]).stdout
    # Without the data nothing is lost, and what is evaluated stays so.
    shutil.rmtree(copy / "data")
    assert CliRunner().invoke(app, ["evaluate", "small"]).stdout == again
    assert CliRunner().invoke(app, ["evaluate", "small", "--again"]).exit_code != 0
    assert [path.read_text() for path in metrics] == before and len(before) == 2
    shutil.rmtree(copy / "runs")
    with pytest.raises(HetflError, match="none of the 2 cells is trained; hetfl train does it"):
        CliRunner().invoke(app, ["evaluate", "small"], catch_exceptions=False)


def test_diff_of_two_runs_names_settings_results_and_where_curves_part(hetfl_: Run) -> None:
    told = hetfl_("diff small/fedavg/fedavg/iid-s0 runs/small/fedprox/fedprox/iid-s0").stdout
    assert "the final models are different" in told and "where they ran: the same" in told
    found_ = found(hetfl_, "diff small/fedavg/fedavg/iid-s0 small/fedprox/fedprox/iid-s0")
    assert {line["name"] for line in found_["settings"]} >= {"method", "mu"}
    assert next(line for line in found_["settings"] if line["name"] == "mu")["second"] == 0.1
    accuracy = found_["results"][1]
    assert accuracy["difference"] == pytest.approx(accuracy["second"] - accuracy["first"])
    same = hetfl_("diff small/fedavg/fedavg/iid-s0 small/fedavg/fedavg/iid-s0").stdout
    assert "settings and inputs: the same" in same and "the final models are the same" in same


def test_diff_of_two_runs_tells_the_bytes_of_each_way(hetfl_: Run, trained: Path) -> None:
    told = found(hetfl_, "diff small/fedavg/fedavg/iid-s0 small/fedprox/fedprox/iid-s0")["results"]
    lines = read_rounds(trained / "runs/small/fedavg/fedavg/iid-s0")
    sent = {line["name"]: line["first"] for line in told}
    assert sent["sent to the server (MB)"] == pytest.approx(sum(line.up.bytes for line in lines) / 1e6)
    assert sent["sent to clients (MB)"] == pytest.approx(sum(line.down.bytes for line in lines) / 1e6)


def test_diff_with_a_deployments_record_compares_what_both_have(hetfl_: Run, trained: Path, tmp_path: Path) -> None:
    """Its final models are without what the clients keep."""
    cell, copy = "small/fedavg/fedavg/iid-s0", tmp_path / "iid-s0"
    shutil.copytree(trained / "runs" / cell, copy)
    whole, metadata = read_tensors(copy / MODEL)
    server = {name: tensor for name, tensor in whole.items() if name.startswith("server/")}
    write_tensors(copy / MODEL, server, metadata)
    some, missing = min(server), sorted(whole.keys() - server.keys())
    lacks = f"lacks {len(missing)} tensors, such as {missing[0]}\n"
    same = f"the final models are the same in the {len(server)} tensors that both have;"
    assert f"{same} B {lacks}" in hetfl_(f"diff {cell} {copy}").stdout
    assert f"{same} A {lacks}" in hetfl_(f"diff {copy} {cell}").stdout
    write_tensors(copy / MODEL, server | {some: server[some] + 1}, metadata)
    assert "the final models are different\n" in hetfl_(f"diff {cell} {copy}").stdout


def test_diff_of_folders_and_tables(hetfl_: Run, trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "runs"
    shutil.copytree(trained / "runs" / "small", copy)
    record = copy / "fedprox" / "fedprox" / "iid-s0" / "run.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"settings": content["settings"] | {"mu": 9.0}}))
    told = hetfl_(f"diff runs/small {copy}").stdout
    assert "fedprox/fedprox/iid-s0  settings: mu" in told and "1 of 2 that are in both differ" in told
    table = {"table": "t", "title": "T", "columns": {"iid": "IID"}, "rows": {"a": "A", "b": "B"}}
    table |= {"cells": [{"row": "a", "column": "iid", "value": 50.0}, {"row": "b", "column": "iid", "value": 1.0}]}
    for side, value in (("one", 50.0), ("two", 52.5)):
        table["cells"][0]["value"] = value
        folder = tmp_path / side / "tables" / "t"
        folder.mkdir(parents=True)
        (folder / "t.json").write_text(json.dumps(table))
    names_ = " ".join(str(tmp_path / side / "tables") for side in ("one", "two"))
    assert "1 of 2 values, by at most 2.50 points" in hetfl_(f"diff {names_}").stdout
    (changed,) = [
        cell for cell in found(hetfl_, "diff " + names_.replace("tables", "tables/t"))["cells"] if cell["difference"]
    ]
    assert changed["difference"] == 2.5
    table["cells"][0] |= {"value": None, "up": {"bytes": 4}}
    (tmp_path / "two/tables/t/t.json").write_text(json.dumps(table))
    assert "\n1 of 2 cells differ" in hetfl_("diff " + names_.replace("tables", "tables/t")).stdout


def test_curves_are_drawn_by_round_bytes_and_seconds(hetfl_: Run) -> None:
    text = hetfl_("curve small").stdout
    assert "round; accuracy in %, mean over clients" in text and "small/fedavg/fedavg/iid-s0  (2 rounds)" in text
    assert any("⠀" < character <= "⣿" for character in text)
    first, _ = found(hetfl_, "curve small --by megabytes --metric loss")
    assert [len(point) for point in first["points"]] == [2, 2] and first["points"][0][0] > 0


def test_the_megabytes_of_a_curve_count_both_ways(hetfl_: Run, trained: Path) -> None:
    (curve,) = found(hetfl_, "curve small/fedavg --by megabytes")
    lines = read_rounds(trained / "runs/small/fedavg/fedavg/iid-s0")
    assert curve["points"][-1][0] == pytest.approx(sum(line.up.bytes + line.down.bytes for line in lines) / 1e6)


def test_finished_runs_in_git_have_curves_and_a_status(
    hetfl_: Run, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a fresh clone, which has the compact records and no run."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    monkeypatch.chdir(copy)
    workspace, _, chosen = sweep_project.plan(copy)
    record_cells(chosen[:1], workspace, workspace)
    before = found(hetfl_, "curve small/fedavg")
    shutil.rmtree(copy / "runs")
    (line,) = found(hetfl_, "curve small")
    assert line["note"] == "2 rounds, in git" and line["points"] == before[0]["points"]
    assert "unknown run 'smal'; did you mean 'small'?" in str(hetfl_("curve smal", fails=True).exception)
    cell, whole = "small/fedavg/fedavg/iid-s0", trained / "runs/small/fedavg/fedavg/iid-s0"
    assert "the final models are the same" in hetfl_(f"diff {cell} {whole}").stdout
    other = trained / "runs/small/fedprox/fedprox/iid-s0"
    assert "the final models are different" in hetfl_(f"diff {cell} {other}").stdout
    *results, time = found(hetfl_, f"diff runs/{cell} {whole}")["results"]
    # A compact record has the seconds of each phase of a round in hundredths.
    rounds = [json.loads(line) for line in (whole / "rounds.jsonl").read_text().splitlines()]
    rounded = sum(round(seconds, 2) - seconds for line in rounds for seconds in line["seconds"].values())
    assert {line["difference"] for line in results} == {0.0}
    assert time["difference"] == pytest.approx(-rounded, abs=1e-9)
    assert hetfl_("status").stdout.splitlines()[2].split()[:4] == ["small", "2", "1", "1"]  # in git, and not run
    first, _ = found(hetfl_, "status small")["experiments"]["small"]
    assert first["status"] == "in git" and first["accuracy"] == pytest.approx(line["points"][-1][1])


def test_where_nothing_is_trained_no_run_is_said_to_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("curve small", "diff small small"):
        done = CliRunner().invoke(app, command.split())
        assert "has no run 'small', nor any other yet" in str(done.exception)


def test_compare_needs_a_folder_of_new_tables(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/made.json").write_text("{}")
    done = CliRunner().invoke(app, ["compare", str(tmp_path), "nothing"])
    assert "nothing: is no folder; name one with new versions" in str(done.exception)


@pytest.mark.parametrize("value", ["nan", "-1", "inf"])
@pytest.mark.parametrize(
    "command", ["compare a b --accuracy", "compare a b --size", "compare a b --elsewhere", "reproduce x --size"]
)
def test_tolerances_are_numbers_of_at_least_0(command: str, value: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), value])
    option = command.split()[-1]
    assert str(done.exception) == f"{option}: {float(value)} should be a number of at least 0"


def test_compare_goes_on_behind_a_table_that_is_missing(hetfl_: Run, tmp_path: Path) -> None:
    hetfl_("table small")
    for name in ("small", "another"):
        (tmp_path / "told" / name).mkdir(parents=True)
        (tmp_path / "told" / name / f"{name}.json").write_text(Path("tables/small/small.json").read_text())
    done = hetfl_(f"compare {tmp_path / 'told'} tables", fails=True)
    assert done.stdout.startswith("small\n")
    assert str(done.exception) == f"tables: lacks another of {tmp_path / 'told'}"


def test_tables_are_as_wide_as_the_terminal(hetfl_: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (70, 110):
        monkeypatch.setenv("COLUMNS", str(columns))
        widest = max(map(len, hetfl_("table small").stdout.splitlines()))
        assert columns - 12 < widest <= columns


def test_a_path_that_no_cell_has_is_told_from_its_first_wrong_part(hetfl_: Run) -> None:
    paths = {"small/fedav/x": "small/fedavg", "smal/fedavg": "'small'", "small/fedavg/x": "small/fedavg/fedavg"}
    paths["/runs/small"] = "'/runs/small'"
    for wrong, right in paths.items():
        told = str(hetfl_(f"cells {wrong}", fails=True).exception)
        assert right in told and len(told) < 200 and len(told.splitlines()) == 1


def test_single_runs_like_two_experiments_are_two(trained: Path) -> None:
    several = [adhoc(PAPER_PARAMS, "fgpt", "cifar100", like=one)[1] for one in ("fgpt-cifar100-s10", "fgpt-share")]
    assert len({cell.path for cell in several}) == 2


def test_many_curves_are_drawn_as_means_of_their_rows(tmp_path: Path) -> None:
    for row in ("a", "b"):
        for seed in range(MOST):
            lines = [make_round(number, accuracy=[number / 10, 0.5]) for number in range(4)]
            write_record(tmp_path, Path("e") / "fedavg" / row / f"iid-s{seed}", lines, row=row, experiment="e")
    lines, _ = curves(["e"], tmp_path, "round", "lowest")
    assert [line.label for line in lines] == ["e/a", "e/b"] and lines[0].note == f"mean of {MOST} runs"
    assert [y for _, y in lines[0].points] == pytest.approx([10, 20, 30])
    assert max(map(len, draw(lines, "round", "lowest", 60).plain.splitlines())) <= 80


def test_curves_of_runs_that_wait_for_their_best_round_are_of_all_samples(tmp_path: Path) -> None:
    settings = make_run().settings
    for row, patience in (("a", None), ("b", 3)):
        lines = [make_round(number, accuracy=[0.25, 0.5], pooled=0.5) for number in range(3)]
        path = Path("e") / "fedavg" / row / "iid-s0"
        write_record(tmp_path, path, lines, row=row, experiment="e", settings=settings | {"patience": patience})

    def drawn(target: str, metric: str | None = None) -> tuple[str, float]:
        lines, shown = curves([target], tmp_path, "round", metric)
        return shown, lines[0].points[-1][1]

    assert drawn("e/fedavg/a") == ("accuracy", 37.5)
    assert drawn("e/fedavg/b") == drawn("e") == ("pooled", 50.0)
    assert drawn("e/fedavg/b", "accuracy") == ("accuracy", 37.5)


@pytest.mark.parametrize("missing", ["partitions", "experiments"])
def test_run_needs_partitions_and_an_experiment(trained: Path, missing: str) -> None:
    params = load_params(trained / "params.yaml").model_copy(update={missing: {}})
    with pytest.raises(HetflError, match=f"params.yaml: {missing}: is empty; add one"):
        adhoc(params, "fedavg", models="small")
    with pytest.raises(HetflError, match=f"params.yaml: {missing}: is empty; add one"):
        adhoc(params, "fedavg", "digits", models="small")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("2024-13-01", "'2024-13-01' is not a value of the type timestamp"),
        ("!!int x", "'x' is not a value of the type int"),
        ("9" * 5000, "has more than 18 digits"),
        ("[" * 5000, "is nested more than 50 levels deep"),
        ("1:30", "'1:30' would be read as a number to the base 60"),
        ("\udcff", "is not valid YAML"),
    ],
)
def test_a_value_that_is_no_yaml_is_one_line(value: str, told: str) -> None:
    for read, key in ((assignments, "--set: lr"), (options, "--slurm: lr")):
        with pytest.raises(HetflError) as failed:
            read([f"lr={value}"])
        assert str(failed.value).startswith(f"{key}: ") and told in str(failed.value)
        assert len(str(failed.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://me:secret@127.0.0.1:9", "http://127.0.0.1:9 cannot be reached"),
        ("http://me:sec@ret@localhost:abc/x", "http://localhost:abc/x is not an address"),
        ("http://localhost:99999", "http://localhost:99999 is not an address"),
        ("http://[::1", "http://[::1 is not an address"),
        ("http://.bad:80", "http://.bad:80 is not an address"),
        ("postgresql://me:secret@host/runs", "postgresql://host/runs"),
    ],
)
def test_doctor_shows_mlflows_address_without_a_password(
    trained: Path, monkeypatch: pytest.MonkeyPatch, address: str, told: str
) -> None:
    monkeypatch.chdir(trained)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    done = CliRunner().invoke(app, ["doctor", "--json"])
    (line,) = [line for line in json.loads(done.stdout)["findings"] if line["what"] == "MLflow"]
    assert line["found"].startswith(told) and "me:" not in done.stdout


def test_doctor_says_what_is_missing_and_how_to_get_it(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    told = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    state = {line["what"]: line for line in told["findings"]}
    assert told["ready"] == ["small"] and told["missing"] == []
    assert state["stages"]["state"] == state["device"]["state"] == "good"
    assert state["DVC"]["state"] == "bad" and not told["good"]  # the test's project has no .dvc
    assert state["MLflow"]["state"] == "note" and "cannot be reached" in state["MLflow"]["found"]
    copy = tmp_path / "copy"
    (copy / ".dvc" / "tmp").mkdir(parents=True)
    (copy / ".dvc" / "tmp" / "rwlock").touch()  # DVC was killed while it wrote the file
    content = sweep_project.settings()
    content["data"]["cifar10"] = {}
    content["partitions"]["cifar10"] = content["partitions"]["digits"]
    content["models"]["large"] = ["vit_base_patch16_224.augreg_in21k_ft_in1k"]
    content["experiments"]["small"] |= {"dataset": "cifar10", "models": "large", "rows": {"fedhpl": {}}}
    (copy / "params.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(copy)
    done = CliRunner().invoke(app, ["doctor", "small"])
    assert done.exit_code == 1
    assert "data set cifar10" in done.stdout and "-> make it with dvc repro download-cifar10" in done.stdout
    assert "run `hetfl weights vit_base_patch16_224.augreg_in21k_ft_in1k`" in done.stdout
    assert "hetfl stages" in done.stdout  # DVC's stages are not written there
    assert "rwlock is damaged" in done.stdout and "when no dvc is running, delete it" in done.stdout


def test_lists_as_json(hetfl_: Run) -> None:
    assert found(hetfl_, "tables") == [{"table": "small", "trains": 2, "prints": 2, "done": 2, "in git": 0}]
    assert hetfl_("tables").stdout.splitlines()[-1].split() == ["small", "2", "2", "2", "0"]
    assert [cell["status"] for cell in found(hetfl_, "cells small")] == ["done", "done"]
    assert found(hetfl_, "cells small --settings")[1]["settings"]["mu"]["value"] == 0.1
    assert found(hetfl_, "superseded") == []
    assert hetfl_("superseded").stdout == "no superseded records\n"
    assert {"method", "title"} <= found(hetfl_, "methods")[0].keys()
    (digits,) = found(hetfl_, "data digits")
    assert digits["prepared"] == "public 1200, train 297, test 300"


def test_every_command_shows_an_example() -> None:
    group = get_command(app)
    commands = {name: command for name, command in group.commands.items() if name != "new"}
    commands |= {f"new {name}": command for name, command in group.commands["new"].commands.items()}
    assert len(commands) > 25
    for name, command in commands.items():
        assert re.search(f"Example: hetfl (--cd papers )?{name}", command.help or ""), name


def test_completion_knows_names_from_files_alone(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    write_metrics(trained / "tables", Path("made"), fingerprint="f")
    assert names.targets("sm") == ["small"] and names.known_experiments("") == ["small"]
    assert names.cells("small/fedavg/fedavg/") == [
        "small/fedavg/fedavg/iid-s0",
        "small/fedprox/fedprox/iid-s0",
    ]
    assert names.targets("runs/small/fedp") == ["runs/small/fedprox/"]
    assert names.datasets("d") == ["digits"] and names.splits("") == ["iid"] and names.model_groups("") == ["small"]
    assert "made" in names.made_tables("") and names.rows("fedp") == ["fedprox"]
    program = "import hetfl.cli.names, sys; assert not {'torch', 'numpy', 'yaml'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": ""}).returncode == 0
    shutil.rmtree(trained / "tables")


def test_the_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"hetfl {hetfl.__version__}\n"


UNTIL_TORCH = """
import os, sys
class Torch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.write(1, b"TORCH")
            os._exit(0)
sys.meta_path.insert(0, Torch())
from hetfl.cli import main
main()
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [("cells small", b"reading params.yaml"), ("check", b"checking settings"), ("train small", b"checking small")],
)
def test_a_person_is_told_what_is_done_before_torch_is_imported(trained: Path, line: str, words: bytes) -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(trained)
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-c", UNTIL_TORCH, *line.split()])
    text = b""
    while b"TORCH" not in text:
        try:
            text += os.read(terminal, 4096)
        except OSError:
            break
    os.waitpid(process, 0)
    assert words in text.partition(b"TORCH")[0]


def test_what_needs_no_torch_does_not_import_it(trained: Path) -> None:
    for line in ("--version", "curve small", "diff small/fedavg/fedavg/iid-s0 small/fedprox/fedprox/iid-s0"):
        done = subprocess.run(
            [sys.executable, "-c", UNTIL_TORCH, *line.split()], cwd=trained, capture_output=True, text=True
        )
        assert done.returncode == 0 and "TORCH" not in done.stdout and done.stdout, done.stderr


def test_data_lists_every_set_and_what_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    digits = tmp_path / "data" / "digits"
    prepare_dataset("digits", entry("digits").settings(), digits, Sources(None, tmp_path))
    shown = CliRunner().invoke(app, ["data", "--verify"]).output
    lines = {line.split()[0]: line for line in shown.splitlines()[2:]}
    assert set(lines) == set(CATALOGUE)
    assert "public 600, train 800, test 397" in lines["digits"] and "bundled with scikit-learn" in lines["digits"]
    assert all("not prepared" in line for name, line in lines.items() if name != "digits")
    assert CliRunner().invoke(app, ["data", "digits"]).output.endswith(f"digits: {entry('digits').citation}\n")

    labels = digits / "test-labels.npy"
    labels.write_bytes(labels.read_bytes()[:-8] + bytes(8))
    assert CliRunner().invoke(app, ["data"]).exit_code == 0
    damaged = CliRunner().invoke(app, ["data", "--verify"])
    assert isinstance(damaged.exception, HetflError)
    assert "test-labels.npy: SHA-256 is" in str(damaged.exception)


def test_a_terminal_without_unicode_shows_what_it_can(trained: Path) -> None:
    terminal = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "hetfl", "curve", "small"]
    done = subprocess.run(command, cwd=trained, env=terminal, capture_output=True, text=True)
    assert done.returncode == 0 and "?" in done.stdout and done.stdout.isascii(), done.stderr


@pytest.mark.parametrize(
    ("line", "plays"),
    [
        ("hetfl show digits-fgpt", False),
        ("pipeline/partition.py digits", False),
        ("hetfl --cd papers train fedtgp-table-10", True),
        ("pipeline/train.py digits-fgpt", True),
    ],
)
def test_only_what_plays_rounds_says_that_it_continues_from_one(
    line: str, plays: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise SystemExit(130)

    monkeypatch.setattr(base.typer.Typer, "__call__", interrupted)
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit):
        base.run(interrupted)
    remark = "; the same command continues from the last completed round" if plays else ""
    assert capsys.readouterr().err == f"interrupted{remark}\n"


@pytest.mark.parametrize(
    ("command", "status"), [("show small --json", 0), ("--help", base.UNREAD), ("run --help", base.UNREAD)]
)
def test_whoever_reads_the_output_may_have_enough_of_it(
    hetfl_: Run, trained: Path, command: str, status: int
) -> None:
    """A command that has done all its work before it finds out has succeeded."""
    hetfl_("table small")
    read, written = os.pipe()
    os.close(read)
    # Python writes at the end what is not read line by line, so that the pipe is broken only then.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", "hetfl", *command.split()],
        stdout=written,
        stderr=subprocess.PIPE,
        text=True,
        cwd=trained,
        env=environment,
    )
    os.close(written)
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize(
    "content", ["[]", "{}", "3", '{"table": "x", "title": "", "columns": [], "rows": [], "cells": 1}']
)
def test_what_is_no_table_is_one_line(hetfl_: Run, tmp_path: Path, content: str) -> None:
    hetfl_("table small")
    path = Path("tables/small/small.json")
    before = path.read_text()
    (tmp_path / "small").mkdir()
    (tmp_path / "small/small.json").write_text(before)
    path.write_text(content)
    for command in (
        "show small",
        f"compare {tmp_path} tables",
        f"diff tables/small/small.json {tmp_path}/small/small.json",
    ):
        told = hetfl_(command, fails=True).exception
        assert isinstance(told, HetflError) and "tables/small/small.json: is not a table" in str(told), command
    path.write_text(before)


def test_not_a_number_agrees_with_nothing(hetfl_: Run, tmp_path: Path) -> None:
    hetfl_("table small")
    told = json.loads(Path("tables/small/small.json").read_text())
    for cell in told["cells"]:
        cell["value"] = float("nan")
    (tmp_path / "small").mkdir()
    (tmp_path / "small/small.json").write_text(json.dumps(told))
    assert "differ" in hetfl_(f"compare {tmp_path} tables", fails=True).stdout


def test_a_setting_is_given_once() -> None:
    with pytest.raises(HetflError, match="^--set: lr is given twice; remove one$"):
        assignments(["lr=0.1", "lr=0.2"])
    with pytest.raises(HetflError, match="^--rounds: rounds are given by --set, too; remove one$"):
        assignments(["rounds=1"], rounds=3)


def test_a_package_that_is_missing_is_named_with_its_remedy(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking() -> None:
        raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

    monkeypatch.setattr(sys, "argv", ["table"])
    with pytest.raises(SystemExit) as end:
        base._run(lacking)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(
        "error: pandas: is not installed, and this command needs it; pip install"
    )


def test_a_stage_whose_reader_has_enough_says_so(tmp_path: Path) -> None:
    """Whatever it had still to do is not done."""
    program = (
        "import sys; sys.argv = ['stage.py']\n"
        "from hetfl.cli.base import run\n"
        "def stage():\n    print('x' * 10**6, flush=True)\n"
        "run(stage)"
    )
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", program], stdout=written, stderr=subprocess.PIPE, text=True)
    os.close(written)
    assert (done.returncode, done.stderr) == (base.UNREAD, "ended: nobody reads its output\n")


@pytest.mark.parametrize(
    ("raised", "status", "told"),
    [
        ("HetflError('own.py:3: no such name')", 2, "error: own.py:3: no such name\n"),
        ("KeyboardInterrupt", 130, "interrupted\n"),
    ],
)
def test_what_ends_the_imports_of_a_stage_is_one_line(raised: str, status: int, told: str) -> None:
    """A stage's script imports the methods, one of which may have a mistake, before it calls ``run``."""
    program = f"from hetfl.cli.base import run\nfrom hetfl.errors import HetflError\nraise {raised}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, told)


def test_a_mistake_of_hetfl_itself_shows_its_traceback() -> None:
    program = "import hetfl.cli.base\n1 / 0"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" in done.stderr and "ZeroDivisionError" in done.stderr
