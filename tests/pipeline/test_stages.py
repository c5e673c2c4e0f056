"""The stages one after another on a tiny experiment, and what a person sees where something is wrong."""

from __future__ import annotations

import copy
import csv
import json
import os
import runpy
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import stage_runner
import torch
import yaml
from forked import Forked
from settings_files import copy_params
from typer.testing import CliRunner

import hetfl
from hetfl.cli import app
from hetfl.data.partitions import make_partition
from hetfl.data.store import read_dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments.cell import run_cell
from hetfl.experiments.events import Event
from hetfl.experiments.plan import ComputeSettings, Workspace, cells, load_params
from hetfl.experiments.schedule import run_cells
from hetfl.experiments.status import status as status_of
from hetfl.experiments.superseded import listing
from hetfl.experiments.versions import ENGINE
from hetfl.files import read_json
from hetfl.models.registry import creator
from hetfl.schema import METRICS, needed_run
from hetfl.tensors import read_tensors, write_tensors
from hetfl.tracking.mlflow_mirror import sync
from hetfl.tracking.mlflow_model import _load_pyfunc
from hetfl.training import rounds
from hetfl.training.state import ResumePoints

PIPELINE = Path(__file__).parents[2] / "pipeline"
ROUNDS = 3
PARAMS: dict[str, Any] = {
    "compute": {"device": "cpu", "jobs": 1},
    "data": {"digits": {"public": 1400, "test": 300}},
    "partitions": {"digits": {"seeds": [0], "splits": {"iid": {"scheme": "iid", "clients": 3}}}},
    "pretrain": {
        "digits": {
            "dataset": "digits",
            "models": ["digits_vit_small"],
            "epochs": 1,
            "batch_size": 32,
            "lr": 0.003,
            "weight_decay": 0.05,
        }
    },
    "models": {"tiny": ["digits_vit_small"]},
    "experiments": {
        "tiny": {
            "title": "A tiny table",
            "paper": "fedhpl",
            "dataset": "digits",
            "models": "tiny",
            "splits": {"iid": "IID"},
            "seeds": [0],
            "defaults": {"rounds": ROUNDS, "embedding": 16},
            "rows": {
                "fedhpl": {"method": "fedhpl", "title": "FedHPL", "settings": {"share": "prompts"}},
                "fedavg": {"method": "fedavg", "title": "FedAvg", "settings": {"optimiser": "adam", "lr": 0.004}},
            },
        }
    },
}
STAGES = [
    ("download", "digits"),
    ("pretrain", "digits"),
    ("partition", "digits"),
    ("train", "tiny"),
    ("evaluate", "tiny"),
    ("table", "tiny"),
    ("report",),
]
ROWS = list(PARAMS["experiments"]["tiny"]["rows"])
CELLS = [Path("tiny") / row / row / "iid-s0" for row in ROWS]


def run_stage(root: Path, name: str, *arguments: str, tracking: str | None = None) -> tuple[int, str]:
    """A stage's exit status and stderr."""
    ended = stage_runner.run_stage(root, name, *arguments, tracking=tracking)
    return ended.status, ended.stderr


def write_params(root: Path, **changes: Any) -> None:
    """Write params.yaml; ``a__b=value`` changes the value at a.b."""
    params = copy.deepcopy(PARAMS)
    for keys, value in changes.items():
        *path, last = keys.split("__")
        place = params
        for key in path:
            place = place[key]
        place[last] = value
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which every stage has run; not to be changed."""
    root = tmp_path_factory.mktemp("finished")
    write_params(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetfl.site.build._vega", lambda scratch: "")  # bundling it takes seconds
        for stage in STAGES:
            assert run_stage(root, *stage) == (0, ""), stage
    return root


@pytest.fixture
def project(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished project, in which tables are made without new pictures."""
    monkeypatch.setattr("hetfl.report.make.accuracy_curves", lambda *given: [])
    monkeypatch.setattr("hetfl.report.make.communication_figure", lambda *given: [])
    return shutil.copytree(finished, tmp_path / "project")


@pytest.fixture
def untrained(project: Path) -> Path:
    """A project whose inputs are ready and in which nothing has been trained; it keeps MLflow's new database."""
    return without_training(project)


def without_training(root: Path) -> Path:
    for name in ("runs", "evaluations", "tables", "report", ".hetfl"):
        shutil.rmtree(root / name)
    return root


def times(root: Path) -> dict[str, int]:
    """Every file with the time of its last change."""
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


def lines(root: Path, cell: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "runs" / cell / "rounds.jsonl").read_text().splitlines()]


def result(root: Path, cell: Path) -> Any:
    """What a run gave: the rounds without the times they took, the model's bytes, the names of the files."""
    folder = root / "runs" / cell
    assert read_json(folder / "run.json")["status"] == "complete"
    told = [{k: v for k, v in line.items() if k not in ("seconds", "peak_memory")} for line in lines(root, cell)]
    return told, (folder / "model.safetensors").read_bytes(), sorted(path.name for path in folder.iterdir())


def test_stages_leave_what_a_person_looks_for(finished: Path) -> None:
    expected = [
        "data/digits/card.json",
        "weights/digits_vit_small.safetensors",
        "partitions/digits/iid-s0/card.json",
        "partitions/digits/iid-s0/samples.png",
        *(f"runs/{cell}/{name}" for cell in CELLS for name in ("run.json", "rounds.jsonl", "model.safetensors")),
        *(f"evaluations/{cell}/{name}" for cell in CELLS for name in ("metrics.json", "per_class.csv")),
        *(f"tables/tiny/tiny.{suffix}" for suffix in ("json", "md", "csv", "tex")),
        *(f"tables/tiny/tiny-{kind}.{suffix}" for kind in ("curves", "communication") for suffix in ("svg", "png")),
        "report/index.html",
        "mlruns/mlflow.db",
    ]
    assert [path for path in expected if not (finished / path).stat().st_size] == []
    assert not any((finished / ".hetfl" / "resume").glob("*"))


@pytest.mark.parametrize("cell", CELLS, ids=ROWS)
def test_record_evaluation_and_table_agree(finished: Path, cell: Path) -> None:
    last = lines(finished, cell)[-1]
    metrics = read_json(finished / "evaluations" / cell / "metrics.json")
    table = read_json(finished / "tables/tiny/tiny.json")
    printed = next(entry for entry in table["cells"] if entry["row"] == cell.parts[1])
    assert last["round"] == ROUNDS
    assert metrics["accuracy"] == last["accuracy"]
    assert metrics["average"] == pytest.approx(mean(last["accuracy"]), abs=1e-12)
    assert printed["value"] == printed["last"] == pytest.approx(100 * metrics["average"], abs=1e-6)
    assert printed["seeds"] == [0]
    assert printed["provenance"][0]["fingerprint"] == read_json(finished / "runs" / cell / "run.json")["fingerprint"]


@pytest.mark.parametrize("cell", CELLS, ids=ROWS)
def test_dvc_is_given_the_numbers_and_the_curves_of_the_table(finished: Path, cell: Path) -> None:
    folder, row = finished / "tables/tiny", cell.parts[1]
    printed = next(entry for entry in read_json(folder / "tiny.json")["cells"] if entry["row"] == row)
    sent = sum(printed[way]["total"]["bytes"] for way in ("up", "down")) / 1e6
    metrics = yaml.safe_load((folder / "metrics.yaml").read_text())[row]
    assert metrics == {printed["column"]: round(printed["value"], 2), "megabytes": round(sent, 3)}
    with (folder / "curves.csv").open() as file:
        curve = [line for line in csv.DictReader(file) if line["row"] == row]
    assert [int(line["round"]) for line in curve] == [*range(1, ROUNDS + 1)]
    assert float(curve[-1]["accuracy"]) == pytest.approx(printed["last"], abs=1e-4)
    assert float(curve[-1]["megabytes"]) == pytest.approx(sent, abs=1e-6)


def test_recall_of_every_client_and_class_adds_up_to_the_accuracy(finished: Path) -> None:
    for cell in CELLS:
        with (finished / "evaluations" / cell / "per_class.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [(row["client"], row["class"]) for row in rows] == [(k, c) for k in "012" for c in "0123456789"]
        for client, accuracy in enumerate(lines(finished, cell)[-1]["accuracy"]):
            own = [row for row in rows if row["client"] == str(client)]
            correct = sum(float(row["accuracy"]) * int(row["samples"]) for row in own)
            assert correct / sum(int(row["samples"]) for row in own) == pytest.approx(accuracy, abs=1e-6)


def test_mlflow_shows_one_finished_run_per_cell(finished: Path) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{finished}/mlruns/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    shown = {run.data.tags["row"]: run for run in client.search_runs([experiment.experiment_id])}
    assert len(client.search_runs([experiment.experiment_id])) == len(CELLS)
    for row, cell in zip(ROWS, CELLS, strict=True):
        average = 100 * mean(lines(finished, cell)[-1]["accuracy"])
        assert shown[row].info.status == "FINISHED"
        assert shown[row].data.metrics["accuracy/average"] == pytest.approx(average)
        assert shown[row].data.metrics["best round/average"] >= average - 1e-9


def test_mlflow_loads_a_runs_model_also_where_the_checkout_was_moved(finished: Path, tmp_path: Path) -> None:
    import mlflow

    moved = tmp_path / "moved"
    shutil.copytree(finished, moved, symlinks=True)
    uri = f"sqlite:///{moved}/mlruns/mlflow.db"
    ((number, place),) = sqlite3.connect(moved / "mlruns/mlflow.db").execute(
        "SELECT run_uuid, artifact_location FROM runs JOIN logged_models ON source_run_id = run_uuid "
        "WHERE runs.name = ?",
        ("fedhpl/iid-s0",),
    )
    assert place.startswith("mlruns/")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(moved)
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        model = mlflow.pyfunc.load_model(f"runs:/{number}/model")
        images = np.load(moved / "data/digits/test-images.npy")[:20]
        said = model.predict(images, params={"client": 1})
        assert model.input_example.shape == (1, 8, 8, 1)
    own = hetfl.load(finished / "runs" / CELLS[0]).predict(images, client=1)
    assert said["class"].tolist() == own.names and said["label"].tolist() == own.labels.tolist()
    assert np.array_equal(np.array(said["probabilities"].tolist(), dtype=np.float32), own.probabilities)
    # The checkpoint is there once.
    assert not list((moved / "mlruns").rglob("*.safetensors"))
    (moved / "runs" / CELLS[0] / "model.safetensors").write_bytes(b"other")
    with pytest.raises(HetflError, match="is of another training than this model"):
        _load_pyfunc(str(next((moved / place).rglob("reference.json")).parent))


def test_report_names_the_table_and_its_numbers(finished: Path) -> None:
    assert 'href="tables/tiny.html">A tiny table' in (finished / "report/index.html").read_text()
    page = (finished / "report/tables/tiny.html").read_text()
    for cell in CELLS:
        assert f"{100 * mean(lines(finished, cell)[-1]['accuracy']):.1f}" in page


def test_second_training_changes_nothing(project: Path) -> None:
    before = times(project / "runs")
    assert run_stage(project, "train", "tiny") == (0, "")
    assert times(project / "runs") == before


def test_changed_setting_trains_its_row_only_and_the_finished_record_comes_back(project: Path) -> None:
    before = times(project / "runs")
    was = result(project, CELLS[1])
    write_params(project, experiments__tiny__rows__fedavg__settings={"optimiser": "adam", "lr": 0.002, "rounds": 1})
    assert run_stage(project, "train", "tiny") == (0, "")
    trained = times(project / "runs")
    assert {path: time for path, time in trained.items() if path in before and "fedhpl/" in path} == {
        path: time for path, time in before.items() if "fedhpl/" in path
    }
    assert read_json(project / "runs" / CELLS[1] / "run.json")["settings"]["lr"] == 0.002
    assert result(project, CELLS[1])[0][1] != was[0][1]
    (aside,) = listing(Workspace(project))
    assert (aside["cell"], aside["now"]) == (CELLS[1].as_posix(), "complete")
    write_params(project)
    assert run_stage(project, "train", "tiny") == (0, "")
    now = {path: time for path, time in times(project / "runs").items() if not path.startswith(".")}
    assert now == before  # nothing was trained again
    assert run_stage(project, "table", "tiny")[0] == 0
    sync([path.parent for path in (project / "runs").glob("[!.]*/**/run.json")], project)


def test_a_record_tells_what_is_no_part_of_its_identity(finished: Path) -> None:
    run = read_json(finished / "runs" / CELLS[1] / "run.json")
    assert run["numerics"].keys() == {"engine", "methods.fedavg", "models.vit"}
    assert len(run["source"]) == 64 and run["threads"] == 1
    assert {"versions", "device", "engine", "precision", "commit"} <= run.keys()


def test_versions_that_dvc_has_not_seen_stop_the_training(project: Path) -> None:
    (project / "versions.yaml").write_text("engine: 0\n")
    status, message = run_stage(project, "train", "tiny")
    assert status == 2
    assert message == f"error: versions.yaml: engine is 0, the code says {ENGINE}; run hetfl versions\n"


def test_engine_and_precision_are_recorded_and_change_little(finished: Path, untrained: Path) -> None:
    compute = {"device": "cpu", "jobs": 1, "engine": "batched", "precision": "bfloat16"}
    write_params(untrained, compute=compute, experiments__tiny__defaults__rounds=1)
    for stage in STAGES[3:6]:
        assert run_stage(untrained, *stage) == (0, "")
    # FedAvg trains the whole network: nothing is frozen that could be in bfloat16.
    for cell, precision in zip(CELLS, ("bfloat16", "float32"), strict=True):
        run = read_json(untrained / "runs" / cell / "run.json")
        assert (run["engine"], run["precision"]) == ("batched", precision)
        there, here = (np.array(lines(root, cell)[1]["accuracy"]) for root in (finished, untrained))
        assert np.abs(there - here).max() < 0.05
    assert "bfloat16" in (untrained / "tables/tiny/tiny.md").read_text()


def test_one_method_is_trained_and_evaluated_alone(untrained: Path) -> None:
    for stage in ("train", "evaluate"):
        assert run_stage(untrained, stage, "tiny", "fedavg") == (0, "")
    for kind in ("runs", "evaluations"):
        assert [path.name for path in (untrained / kind / "tiny").iterdir()] == ["fedavg"]
    assert run_stage(untrained, "table", "tiny") == (0, "")
    shown = read_json(untrained / "tables/tiny/tiny.json")["cells"]
    assert {cell["row"]: cell["status"] for cell in shown} == {"fedhpl": "not run", "fedavg": "ours"}


class Told:
    """A subscriber that notes which evaluations there are when it is told of a complete run."""

    def __init__(self) -> None:
        self.evaluated: list[tuple[str, bool]] = []

    def told(self, event: Event) -> None:
        if event.run and event.run.complete:
            path = event.run.path
            there = (event.folder.parents[len(path.parts)] / "evaluations" / path / METRICS).exists()
            self.evaluated.append((path.as_posix(), there))

    def close(self) -> None: ...


def test_the_command_evaluates_what_it_trains_and_the_stage_does_not(
    untrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Told()
    monkeypatch.setattr("hetfl.train.MlflowMirror", lambda *arguments: mirror)
    assert run_stage(untrained, "train", "tiny", "fedavg") == (0, "")
    assert not (untrained / "evaluations").exists()

    def train() -> str:
        ended = stage_runner.run_command(untrained, "train", "tiny")
        assert ended.status == 0, ended.stderr
        return ended.stdout

    # One was trained before, the other is by the command.
    mirror.evaluated.clear()
    assert "2 of 2 cells evaluated" in train()
    assert [cell for cell, there in mirror.evaluated if there][-2:] == [cell.as_posix() for cell in CELLS]
    before = times(untrained / "evaluations")
    assert {Path(name).parent for name in before} == set(CELLS)
    assert "evaluated" not in train()
    assert times(untrained / "evaluations") == before
    assert run_stage(untrained, "table", "tiny") == (0, "")
    cells = read_json(untrained / "tables/tiny/tiny.json")["cells"]
    assert {cell["row"]: cell["status"] for cell in cells} == dict.fromkeys(ROWS, "ours")


def test_paper_tables_are_laid_out_where_nothing_has_run(tmp_path: Path) -> None:
    papers = copy_params(tmp_path)
    for name in ("fedhpl-table-3", "fedhpl-table-8", "fedtgp-table-2", "fashion-mnist-short"):
        assert run_stage(papers, "table", name) == (0, "")
        assert (papers / f"tables/{name}/{name}.md").exists()
    assert not (papers / "runs").exists()


@pytest.mark.parametrize("name", ["fedtgp-table-5", "fedtgp-table-10", "tinny"])
def test_a_table_of_another_project_is_one_line(untrained: Path, name: str) -> None:
    status, stderr = run_stage(untrained, "table", name)
    assert status == 2 and stderr.startswith(f"error: unknown table '{name}'; ") and "Traceback" not in stderr
    assert not (untrained / "tables").exists()


def test_clients_of_the_digits_have_test_samples_of_their_own_in_fedtgps_settings(tmp_path: Path) -> None:
    copy_params(tmp_path)
    assert run_stage(tmp_path, "download", "digits") == (0, "")
    params, dataset = load_params(tmp_path / "params.yaml"), read_dataset(tmp_path / "data/digits")
    labels = dataset.labels(("train", "test"))
    experiment = params.experiments["digits-fedtgp"]
    for split in experiment.splits:
        partition = make_partition(params.partitions["digits"].splits[split], dataset, Draws(0))
        assert partition.clients == len(params.models[experiment.models]) == 8
        held = [np.concatenate(both) for both in zip(partition.train, partition.test or (), strict=True)]
        # All 1,197 images are somebody's, and nobody has fewer than the published minimum.
        assert sorted(np.concatenate(held)) == list(range(len(labels)))
        assert min(map(len, held)) >= 40
    classes = [len(np.unique(labels[part])) for part in held]
    assert (split, min(classes), max(classes)) == ("practical-8", 3, 8)


def forget(*paths: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for path in paths:
            shutil.rmtree(root / path) if (root / path).is_dir() else (root / path).unlink()

    return change


def truncate(path: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        content = (root / path).read_bytes()
        (root / path).write_bytes(content[: len(content) // 2])

    return change


def settings(**changes: Any) -> Callable[[Path], None]:
    return lambda root: write_params(root, **changes)


def other_weights(root: Path) -> None:
    write_tensors(root / "weights/digits_vit_small.safetensors", creator("digits_vit_base")().state_dict())


PATHOLOGICAL = {"scheme": "pathological", "clients": 5, "classes_per_client": 11}
MISTAKES: dict[str, tuple[str, str, Callable[[Path], None], list[str]]] = {
    "unknown experiment": (
        "train",
        "tinny",
        settings(),
        ["params.yaml: experiments: ", "'tinny'", "did you mean 'tiny'"],
    ),
    "unknown data set": ("download", "digit", settings(), ["params.yaml: data: ", "'digit'", "'digits'"]),
    "unknown method": (
        "train",
        "tiny fedag",
        settings(),
        ["--method: unknown method 'fedag'", "did you mean 'fedavg'"],
    ),
    "data set missing": (
        "train",
        "tiny",
        forget("data/digits"),
        ["data/digits/card.json", "dvc repro download-digits"],
    ),
    "data set truncated": (
        "train",
        "tiny",
        truncate("data/digits/train-images.npy"),
        ["data/digits/train-images.npy", "bytes", "dvc repro download-digits"],
    ),
    "partition missing": (
        "train",
        "tiny",
        forget("partitions/digits/iid-s0"),
        ["partitions/digits/iid-s0/card.json", "dvc repro partition@digits"],
    ),
    "partition truncated": (
        "train",
        "tiny",
        truncate("partitions/digits/iid-s0/indices.npz"),
        ["partitions/digits/iid-s0/indices.npz", "SHA-256", "dvc repro"],
    ),
    "weights missing": (
        "train",
        "tiny",
        forget("weights/digits_vit_small.safetensors"),
        ["weights/digits_vit_small.safetensors", "missing", "dvc repro pretrain"],
    ),
    "more clients than samples": (
        "partition",
        "digits",
        settings(partitions__digits__splits__iid__clients=98),
        ["params.yaml: partitions.digits.splits.iid.clients: 98", "97 training samples"],
    ),
    "more classes for a client than there are": (
        "partition",
        "digits",
        settings(partitions__digits__splits__iid=PATHOLOGICAL),
        ["params.yaml: partitions.digits.splits.iid.classes_per_client: 11", "10 classes"],
    ),
    "setting out of range": (
        "train",
        "tiny",
        settings(experiments__tiny__defaults={"rounds": 0}),
        ["params.yaml: experiments.tiny.defaults.rounds: 0", "greater than or equal to 1"],
    ),
    "table of an unknown experiment": ("table", "tinny", settings(), ["unknown", "'tinny'", "did you mean 'tiny'"]),
    "evaluation before training": (
        "evaluate",
        "tiny",
        settings(),
        ["runs/tiny/fedhpl/fedhpl/iid-s0/run.json", "dvc repro"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_line_and_leaves_nothing_behind(untrained: Path, mistake: str) -> None:
    stage, argument, change, expected = MISTAKES[mistake]
    change(untrained)
    before = times(untrained)
    status, stderr = run_stage(untrained, stage, *argument.split())
    assert status == 2
    said = stderr.splitlines()
    assert all(line.startswith("error: ") for line in said)
    # What is wrong with all cells is said once.
    assert len(said) == (len(CELLS) if mistake == "evaluation before training" else 1), stderr
    assert [part for part in expected if part not in stderr] == [], stderr
    # Locks are empty, and what was verified of data is nobody's result.
    beside = (".hetfl/locks/", ".hetfl/verified/")
    assert {path: time for path, time in times(untrained).items() if not path.startswith(beside)} == before


def test_broken_checkpoint_keeps_no_other_cell_from_its_evaluation(project: Path) -> None:
    shutil.rmtree(project / "evaluations")  # as DVC does before the stage
    truncate(f"runs/{CELLS[0]}/model.safetensors")(project)
    status, stderr = run_stage(project, "evaluate", "tiny")
    (line,) = stderr.splitlines()
    assert status == 2 and line.startswith("error: ") and f"runs/{CELLS[0]}/model.safetensors" in line
    assert (project / "evaluations" / CELLS[1] / "metrics.json").exists()
    assert run_stage(project, "table", "tiny") == (0, "")
    shown = {cell["row"]: cell for cell in read_json(project / "tables/tiny/tiny.json")["cells"]}
    assert (shown["fedhpl"]["status"], shown["fedavg"]["status"]) == ("not evaluated", "ours")
    assert "not evaluated" in (project / "tables/tiny/tiny.md").read_text()


WEIGHTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncate("weights/digits_vit_small.safetensors"), "not a valid safetensors"),
    "of another model": (other_weights, "does not fit digits_vit_small"),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_broken_weights_keep_no_other_cell_from_its_training(untrained: Path, kind: str) -> None:
    harm, reason = WEIGHTS[kind]
    harm(untrained)
    status, stderr = run_stage(untrained, "train", "tiny")
    (line,) = stderr.splitlines()
    assert status == 2 and line.startswith("error: ")
    assert "weights/digits_vit_small.safetensors" in line and reason in line
    # FedAvg starts from random weights.
    assert [path.parent for path in untrained.glob("runs/*/*/*/*/run.json")] == [untrained / "runs" / CELLS[1]]


def test_damaged_record_keeps_no_other_cell_from_its_training(
    finished: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "runs" / CELLS[0] / "run.json").write_text("{")
    shutil.rmtree(project / "runs" / CELLS[1])
    status, stderr = run_stage(project, "train", "tiny")
    (line,) = stderr.splitlines()
    assert status == 2 and f"error: runs/{CELLS[0]}/run.json: is not JSON" in line
    assert result(project, CELLS[1]) == result(finished, CELLS[1])
    assert run_stage(project, "table", "tiny") == (0, "")
    shown = {cell["row"]: cell for cell in read_json(project / "tables/tiny/tiny.json")["cells"]}
    assert (shown["fedhpl"]["status"], shown["fedavg"]["status"]) == ("broken", "ours")
    assert f"runs/{CELLS[0]}/run.json: is not JSON" in shown["fedhpl"]["footnote"]
    monkeypatch.chdir(project)
    listed = CliRunner().invoke(app, ["cells", "tiny"]).output.splitlines()
    assert [line.split()[4] for line in listed[2:]] == ["broken", "done"]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_unforeseen_error_keeps_no_other_cell_from_its_training(
    finished: Path, untrained: Path, jobs: int, capfd: pytest.CaptureFixture[str]
) -> None:
    workspace = Workspace(untrained)
    chosen = cells(load_params(workspace.params), "tiny")
    # A setting that validation would have refused stands for a mistake in the code.
    chosen[0] = chosen[0].model_copy(update={"models": []})
    compute = ComputeSettings(device="cpu", jobs=jobs)
    failures = run_cells(chosen, workspace, compute)
    assert list(failures) == [untrained / "runs" / CELLS[0]]
    (reason,) = failures.values()
    assert "Error: " in reason and "\n" not in reason
    assert "Traceback" in capfd.readouterr().err
    assert result(untrained, CELLS[1]) == result(finished, CELLS[1])


def test_without_mlflow_everything_else_works(finished: Path, untrained: Path) -> None:
    away = "http://127.0.0.1:9"
    for stage in ("train", "evaluate"):
        status, stderr = run_stage(untrained, stage, "tiny", tracking=away)
        (line,) = stderr.splitlines()
        assert status == 0 and line.startswith("hetfl: ")
        assert "MLflow could not be reached" in line and "`hetfl sync`" in line
    assert run_stage(untrained, "table", "tiny", tracking=away) == (0, "")
    there, here = (read_json(root / "tables/tiny/tiny.json")["cells"] for root in (finished, untrained))
    assert [cell["value"] for cell in here] == [cell["value"] for cell in there]


def test_command_line_says_the_same(untrained: Path) -> None:
    def main() -> None:
        sys.argv = ["train.py", "tinny"]
        runpy.run_path(str(PIPELINE / "train.py"), run_name="__main__")

    said = "error: params.yaml: experiments: unknown experiment 'tinny'; did you mean 'tiny'?\n"
    assert Forked(untrained, main).wait() == (2, "", said)


class StoppedError(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def stopped_once(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose first cell was stopped after round 2: it has resume points of rounds 1 and 2; to be copied."""
    root = without_training(shutil.copytree(finished, tmp_path_factory.mktemp("stopped") / "project"))
    save = ResumePoints.save

    def save_and_stop(self: ResumePoints, state: Any) -> None:
        save(self, state)
        if state.round == 2:
            raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResumePoints, "save", save_and_stop)
        with pytest.raises(StoppedError):
            train_first_cell(root)
    return root


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped_once, tmp_path / "project")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds that are really played."""
    numbers: list[int] = []
    play = rounds.play_round

    def play_and_tell(engine: Any, state: Any, draws: Any, needed: int) -> Any:
        numbers.append(draws.round)
        return play(engine, state, draws, needed)

    monkeypatch.setattr(rounds, "play_round", play_and_tell)
    return numbers


def train_first_cell(root: Path) -> None:
    workspace = Workspace(root)
    run_cell(cells(load_params(workspace.params), "tiny")[0], workspace, torch.device("cpu"))


def resume_points(root: Path) -> list[Path]:
    return sorted((root / ".hetfl/resume").glob("*/*/round-*"))


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def half_line(root: Path) -> None:
    with (root / "runs" / CELLS[0] / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "participants": [0, 1')


DAMAGES: dict[str, tuple[Callable[[Path], None], list[int]]] = {
    "nothing": (lambda root: None, [3]),
    "half a line in the record": (half_line, [3]),
    "newest resume point truncated": (lambda root: os.truncate(resume_points(root)[-1], 100), [2, 3]),
    "newest resume point empty": (lambda root: os.truncate(resume_points(root)[-1], 0), [2, 3]),
    "newest resume point altered": (lambda root: alter(resume_points(root)[-1]), [2, 3]),
    "both resume points altered": (lambda root: [alter(p) for p in resume_points(root)] and None, [1, 2, 3]),
    "rounds of the record lost": (lambda root: (root / "runs" / CELLS[0] / "rounds.jsonl").unlink(), [1, 2, 3]),
    "run.json lost": (lambda root: (root / "runs" / CELLS[0] / "run.json").unlink(), [3]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_interruption_ends_with_the_right_numbers(
    finished: Path, stopped: Path, played: list[int], damage: str
) -> None:
    harm, expected = DAMAGES[damage]
    harm(stopped)
    train_first_cell(stopped)
    assert played == expected
    assert result(stopped, CELLS[0]) == result(finished, CELLS[0])
    assert not any((stopped / ".hetfl/resume").glob("*"))


@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_a_long_stage_imports_what_takes_seconds_where_ctrl_c_is_one_line(stage: str) -> None:
    script = Path(__file__).parents[2] / "pipeline" / f"{stage}.py"
    code = f"import runpy, sys; runpy.run_path({str(script)!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_interrupted_run_goes_on_after_another_one_in_its_place(
    finished: Path, stopped: Path, played: list[int]
) -> None:
    workspace = Workspace(stopped)
    cell = cells(load_params(workspace.params), "tiny")[0]
    other = cell.model_copy(update={"settings": {**cell.settings, "rounds": 1}})
    run_cell(other, workspace, torch.device("cpu"))
    assert played == [1] and needed_run(workspace.runs / CELLS[0]).rounds == 1
    assert str(status_of(cell, workspace)) == "interrupted, round 2 of 3"
    train_first_cell(stopped)
    assert played == [1, 3]
    assert result(stopped, CELLS[0]) == result(finished, CELLS[0])
    assert status_of(other, workspace).state == "done"  # as superseded


def test_cells_of_another_machine_are_taken_over_and_not_trained_again(
    finished: Path, untrained: Path, stopped_once: Path, played: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def called(root: Path, *arguments: str) -> str:
        monkeypatch.chdir(root)
        done = CliRunner().invoke(app, [*arguments])
        assert done.exit_code == 0, done.output
        return done.output

    archive = str(untrained / "cells.tar")
    # One run is finished here, the other was stopped in its second round.
    assert "1 of 1 cells" in called(stopped_once, "export", CELLS[0].as_posix(), "-o", archive)
    assert "taken over  round 2, not finished" in called(untrained, "import", archive)
    assert "2 of 2 cells" in called(finished, "export", "tiny", "-o", archive.replace("cells", "all"))
    assert called(untrained, "import", archive.replace("cells", "all")).count("taken over") == 2
    assert run_stage(untrained, "train", "tiny") == (0, "") and played == []
    assert [result(untrained, cell) for cell in CELLS] == [result(finished, cell) for cell in CELLS]
    called(untrained, "import", archive)
    listed = called(untrained, "cells", "tiny").splitlines()
    assert [line.split()[4] for line in listed[2:]] == ["done", "done"]


def test_train_stage_continues_a_damaged_run_and_mirrors_it(finished: Path, stopped: Path, played: list[int]) -> None:
    half_line(stopped)
    assert run_stage(stopped, "train", "tiny") == (0, "")
    assert played == [3, 1, 2, 3]
    assert [result(stopped, cell) for cell in CELLS] == [result(finished, cell) for cell in CELLS]


@pytest.mark.parametrize("kind", ["altered", "truncated"])
def test_evaluation_reports_a_checkpoint_that_was_tampered_with(project: Path, kind: str) -> None:
    path = project / "runs" / CELLS[0] / "model.safetensors"
    if kind == "altered":
        tensors, metadata = read_tensors(path)
        write_tensors(path, {name: tensor.flip(0) for name, tensor in tensors.items()}, metadata)
    else:
        truncate(str(path))(project)
    before = times(project / "evaluations" / CELLS[0])
    status, stderr = run_stage(project, "evaluate", "tiny")
    assert status == 2
    assert stderr.startswith("error: ") and stderr.count("\n") == 1
    assert f"{CELLS[0]}/model.safetensors" in stderr and "delete" in stderr
    assert times(project / "evaluations" / CELLS[0]) == before


def test_lost_checkpoint_is_trained_again(finished: Path, project: Path) -> None:
    (project / "runs" / CELLS[0] / "model.safetensors").unlink()
    assert run_stage(project, "train", "tiny") == (0, "")
    assert result(project, CELLS[0]) == result(finished, CELLS[0])


def test_half_written_files_of_a_killed_process_do_not_stay_in_the_record(finished: Path, stopped: Path) -> None:
    # What an atomic write leaves that was killed before it could rename.
    (stopped / "runs" / CELLS[0] / ".run.json.k1lled.json").touch()
    train_first_cell(stopped)
    assert result(stopped, CELLS[0]) == result(finished, CELLS[0])


@pytest.mark.parametrize("stage", ["evaluate", "table"])
def test_half_written_files_of_a_killed_process_do_not_stay_in_what_dvc_keeps(project: Path, stage: str) -> None:
    folder = project / ("tables/tiny" if stage == "table" else f"evaluations/{CELLS[0]}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").unlink(missing_ok=True)  # so that the cell is evaluated again
    (folder / ".metrics.json.k1lled00.json").touch()
    assert run_stage(project, stage, "tiny")[0] == 0
    assert not [path.name for path in folder.glob(".*")]


def test_kill_just_after_completion_leaves_no_resume_points(untrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: ResumePoints) -> None:
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(ResumePoints, "clear", stop)
        with pytest.raises(StoppedError):
            train_first_cell(untrained)
    assert run_stage(untrained, "train", "tiny") == (0, "")
    assert not resume_points(untrained)


@pytest.mark.slow
def test_two_trainers_at_once_make_one_record(finished: Path, untrained: Path) -> None:
    shutil.rmtree(untrained / "mlruns")
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, PIPELINE / "train.py", "tiny"]
    both = [
        subprocess.Popen(command, cwd=untrained, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in both]
    assert ends == [(b"", 0), (b"", 0)]
    assert [result(untrained, cell) for cell in CELLS] == [result(finished, cell) for cell in CELLS]
    assert not resume_points(untrained)
