import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
from filelock import FileLock, Timeout
from mlflow_helpers import describe, sync_forked, write_cell
from record_factory import write_metrics

from hetfl.errors import FailedCellsError, HetflError
from hetfl.experiments.events import Event
from hetfl.schema import read_run
from hetfl.tracking import MlflowMirror, follow, following, mlflow_mirror, sync, try_sync
from hetfl.tracking.mlflow_content import FORMAT
from hetfl.tracking.mlflow_views import Links


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def racers(tmp_path_factory):
    """How two processes ended that made one database at the same time, and where."""
    # A space in the path must not matter.
    root = tmp_path_factory.mktemp("a checkout")
    folders = [write_cell(root, describe("race", seed=seed)) for seed in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        processes = [sync_forked(root, folder) for folder in folders]
    return root, [process.wait() for process in processes]


@pytest.fixture(scope="module")
def root(racers):
    # One database serves all tests, each with its own experiment.
    return racers[0]


@pytest.fixture(scope="module")
def client(root):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return MlflowMirror(root).open()


def runs_of(client, experiment):
    found = client.get_experiment_by_name(experiment)
    return client.search_runs([found.experiment_id]) if found else []


def history(client, run, name):
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]


def test_two_processes_make_the_database_at_once(racers, client):
    root, ended = racers
    assert ended == [(0, "1\n", "")] * 2
    assert len(runs_of(client, "race")) == 2
    assert sorted(path.name for path in (root / "mlruns").iterdir()) == [".lock", "artifacts", "mlflow.db"]


def test_a_complete_cell(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name))
    partition = root / "partitions" / "digits" / "iid-s0"
    partition.mkdir(parents=True)
    (partition / "card.json").write_text("{}")
    (partition / "samples.png").write_bytes(b"png")
    assert sync([folder, folder.with_name("absent")], root) == 1

    (run,) = runs_of(client, name)
    assert run.info.run_name == "fedhpl/iid-s0"
    assert run.info.status == "FINISHED"
    assert run.info.end_time - run.info.start_time == 60_000
    tags = run.data.tags
    assert tags["models"] == "5 x digits_vit_base"
    assert (tags["seed"], tags["fingerprint"], tags["commit"]) == ("0", "fedhpl-iid-0", "abc123")
    assert "FedHPL on digits" in tags["mlflow.note.content"]
    params = run.data.params
    assert (params["optimizer.lr"], params["optimizer.name"], params["no"]) == ("0.05", "sgd", "null")
    assert params["prompts"] == "[1, 2]" and len(params["long"]) == 6000
    assert params["inputs.weights.digits_vit_base"] == "w1" and params["versions.python"] == "3.11.7"

    accuracy = history(client, run, "accuracy/average")
    assert [step for step, _ in accuracy] == [1, 2, 3, 4, 5]
    assert math.isclose(accuracy[0][1], 53.0) and math.isclose(accuracy[4][1], 57.0)
    final = run.data.metrics
    assert math.isclose(final["accuracy/lowest"], 55.0) and math.isclose(final["accuracy/highest"], 59.0)
    for name in ("bytes/up", "bytes/total"):
        assert history(client, run, name) == [(n, 20 + 35200 * n) for n in range(6)]
    assert history(client, run, "bytes/down")[-1] == (5, 0)
    assert math.isclose(final["loss/training"], 0.5) and math.isclose(final["seconds/total"], 5 * 0.8 + 0.1)
    assert final.keys() == {
        *("accuracy/average", "accuracy/lowest", "accuracy/highest", "accuracy/pooled"),
        *("bytes/up", "bytes/down", "bytes/total", "loss/training", "seconds/total", "memory/peak MiB"),
    }
    (data,) = run.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("digits", "d1")
    assert data.tags[0].value == "training and test"
    # The address is of no folder outside, so that it is right in a moved checkout.
    assert run.info.artifact_uri == f"mlruns/artifacts/{run.info.run_id}/artifacts"
    files = root / run.info.artifact_uri
    assert {path.relative_to(files).as_posix() for path in files.glob("*/*")} == {
        "partition/card.json",
        "partition/samples.png",
        "record/run.json",
        "record/rounds.jsonl",
    }
    assert (files / "record" / "run.json").samefile(folder / "run.json")  # takes no space twice


def test_an_experiment_says_what_it_is_and_links_its_comparisons(root, client, request, monkeypatch):
    name = request.node.name
    cells = [describe(name, split=split, seed=seed) for split in ("dir", "iid") for seed in (0, 1)]
    sync([write_cell(root, cell | {"fingerprint": f"{number} of it"}) for number, cell in enumerate(cells)], root)
    experiment = client.get_experiment_by_name(name)
    tags = experiment.tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert (tags["dataset"], tags["table"], tags["paper"]) == ("digits", name, "fedhpl")
    links = Links(root)
    for split in ("dir", "iid"):
        address = links.comparisons[name, split]
        assert f"#{address.partition('#')[2]}" in tags["mlflow.note.content"]
        view = json.loads(tags[f"mlflow.sharedViewState.split-{split}"])
        assert len(client.search_runs([experiment.experiment_id], view["searchFilter"])) == 2
        assert ("accuracy/average", "bytes/total") in [
            (chart["metricKey"], chart["selectedXAxisMetricKey"]) for chart in view["compareRunCharts"]
        ]
    table = json.loads(tags["mlflow.sharedViewState.table"])
    assert "metrics.`accuracy/average`" in table["selectedColumns"]
    assert "viewStateShareKey=table" in tags["mlflow.note.content"]
    (run,) = client.search_runs([experiment.experiment_id], "tags.fingerprint = '3 of it'")
    assert f"/{run.info.run_id}?" in links.runs["3 of it"]
    assert not Links(root / "elsewhere").runs
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert not Links(root).runs  # nothing fails where the server is away


def test_a_comparison_has_at_most_fifty_runs(root, client, request, monkeypatch):
    name = request.node.name
    monkeypatch.setattr(mlflow_mirror, "MOST", 3)
    folders = [write_cell(root, describe(name, row=row, seed=seed)) for row in ("a", "b") for seed in (1, 2)]
    sync(folders, root)
    experiment = client.get_experiment_by_name(name)
    view = json.loads(experiment.tags["mlflow.sharedViewState.split-iid"])
    found = client.search_runs([experiment.experiment_id], view["searchFilter"])
    assert {run.data.tags["seed"] for run in found} == {"1"} and len(found) == 2


def test_all_metrics_where_they_are_asked_for(root, client, request, monkeypatch):
    name = request.node.name
    folder = write_cell(root, describe(name))
    sync([folder], root)
    monkeypatch.setenv("HETFL_MLFLOW", "all")
    sync([folder], root)
    (run,) = runs_of(client, name)
    final = run.data.metrics
    assert math.isclose(final["accuracy of clients/4"], 59.0) and math.isclose(final["seconds of a round/train"], 0.5)
    assert final["server/valid classes_"] == 10 and final["elements/up"] == 44005
    assert math.isclose(final["server/shrinkage of the global logits"], 0.2) and "server/none" not in final
    assert math.isclose(final["clients/distillation loss"], 0.3)
    assert math.isclose(final["clients/share of logits sent"], 0.5)
    assert "clients/largest distillation loss of a sample" not in final
    assert len(history(client, run, "accuracy/average")) == 5
    monkeypatch.setenv("HETFL_MLFLOW", "most")
    with pytest.raises(HetflError, match="HETFL_MLFLOW: is 'most'; it may be 'all'"):
        MlflowMirror(root)


def test_a_diverged_cell_has_a_tag(root, client, request):
    folder = write_cell(root, describe(request.node.name, status="running"))
    mirror = MlflowMirror(root)
    mirror.mirror(folder)
    write_cell(root, describe(request.node.name), diverged=(2, 3))
    mirror.mirror(folder)
    (run,) = runs_of(client, request.node.name)
    assert run.data.tags["diverged"] == "2"


def test_again_changes_nothing(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name))
    sync([folder], root)
    (before,) = runs_of(client, name)
    sync([folder], root)
    (after,) = runs_of(client, name)
    assert after.to_dictionary() == before.to_dictionary()
    assert len(history(client, after, "seconds/total")) == 6


def test_killed_and_continued(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name, status="running"), rounds=4)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "accu')
    mirror = MlflowMirror(root)
    mirror.mirror(folder)
    (run,) = runs_of(client, name)
    assert run.info.status == "RUNNING"
    assert [step for step, _ in history(client, run, "accuracy/average")] == [1, 2, 3]

    write_cell(root, describe(name, status="running", commit="def456"), rounds=2)
    MlflowMirror(root).mirror(folder)
    write_cell(root, describe(name, commit="def456"))
    MlflowMirror(root).mirror(folder)
    (run,) = runs_of(client, name)
    assert run.info.status == "FINISHED" and run.data.tags["commit"] == "def456"
    assert [step for step, _ in history(client, run, "accuracy/average")] == [1, 2, 3, 4, 5]


def test_killed_between_two_calls(root, client, request, monkeypatch):
    name = request.node.name
    monkeypatch.setitem(mlflow_mirror.CALL, "metrics", 7)
    folder = write_cell(root, describe(name))
    mirror = MlflowMirror(root)
    real, calls = mirror.open(), []

    class Dying:
        def __getattr__(self, method):
            return getattr(real, method)

        def log_batch(self, *run, **entries):
            calls.append(entries)
            if len(calls) == 5:
                raise ConnectionError("gone")
            real.log_batch(*run, **entries)

    mirror._client = Dying()
    with pytest.raises(ConnectionError):
        mirror.mirror(folder)
    sync([folder], root)
    (run,) = runs_of(client, name)
    for metric in run.data.metrics:
        assert len(history(client, run, metric)) in (1, 5, 6)
    assert run.data.params["versions.python"] == "3.11.7"


def test_other_settings_supersede(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name, fingerprint="old"))
    other = write_cell(root, describe(name, seed=1))
    sync([folder, other], root)
    write_cell(root, describe(name, fingerprint="new"))
    sync([folder], root)
    assert {run.data.tags["fingerprint"] for run in runs_of(client, name)} == {"new", "fedhpl-iid-1"}
    # Old results that come back, say from DVC's cache, are the cell's again.
    write_cell(root, describe(name, fingerprint="old"))
    sync([folder], root)
    assert {run.data.tags["fingerprint"] for run in runs_of(client, name)} == {"old", "fedhpl-iid-1"}


def test_another_checkout_s_runs_stay_where_both_write_to_one_database(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'shared' / 'mlflow.db'}")
    roots = [tmp_path / name for name in ("first", "second")]
    for root in roots:
        folder = write_cell(root, describe("both", fingerprint=root.name))
        sync([folder], root)
        shutil.rmtree(root)
    client = MlflowMirror(tmp_path / "third").open()
    found = {run.data.tags["fingerprint"]: run for run in runs_of(client, "both")}
    assert found.keys() == {"first", "second"}
    for run in found.values():
        # The files do not depend on the checkout that came first.
        files = tmp_path / "shared" / "artifacts" / run.info.run_id / "artifacts" / "record"
        assert {path.name for path in files.iterdir()} == {"run.json", "rounds.jsonl"}


def test_a_stopped_run_is_not_shown_as_running(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name, status="running"))
    lock = root / ".hetfl" / "locks" / f"{name}.fedhpl.fedhpl.iid-s0.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        sync([folder], root)
        assert [run.info.status for run in runs_of(client, name)] == ["RUNNING"]
    sync([folder], root)
    assert [run.info.status for run in runs_of(client, name)] == ["KILLED"]

    mirror = MlflowMirror(root)
    mirror.told(Event(folder, read_run(folder)))
    mirror._write(folder)
    assert [run.info.status for run in runs_of(client, name)] == ["RUNNING"]
    mirror.close()
    assert [run.info.status for run in runs_of(client, name)] == ["KILLED"]
    sync([write_cell(root, describe(name))], root)
    assert [run.info.status for run in runs_of(client, name)] == ["FINISHED"]


def test_a_run_of_another_format_is_replaced(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name))
    sync([folder], root)
    (before,) = runs_of(client, name)
    client.set_tag(before.info.run_id, "hetfl.format", "1")
    sync([folder], root)
    (after,) = runs_of(client, name)
    assert after.info.run_id != before.info.run_id and after.data.tags["hetfl.format"] == FORMAT


def test_same_settings_with_other_numbers_supersede(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name))
    sync([folder], root)
    write_cell(root, describe(name), shift=0.1)
    sync([folder], root)
    sync([folder], root)
    (run,) = runs_of(client, name)
    assert round(run.data.metrics["accuracy/average"]) == 67


def test_an_evaluation_of_another_run_is_not_this_one_s(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name))
    write_metrics(root / "evaluations", f"{name}/fedhpl/fedhpl/iid-s0", best_average=0.915, fingerprint="0" * 64)
    sync([folder], root)
    (run,) = runs_of(client, name)
    assert "best round/average" not in run.data.metrics and "evaluation" not in run.data.tags


def test_evaluation_may_come_later(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name))
    sync([folder], root)
    cell = f"{name}/fedhpl/fedhpl/iid-s0"
    evaluation = root / "evaluations" / cell
    for accuracy in (0.915, 0.925):
        found = {"best_average": accuracy, "extra": {"top-2": {"window_pooled": 0.5}}}
        write_metrics(root / "evaluations", cell, fingerprint="fedhpl-iid-0", **found)
        (evaluation / "per_class.csv").write_text("class,accuracy\n")
        sync([folder], root)
        sync([folder], root)
        (run,) = runs_of(client, name)
        assert run.data.metrics["best round/average"] == 100 * accuracy
    assert [value for _, value in history(client, run, "best round/average")] == [91.5, 92.5]
    # The final accuracies stand there once: as those of the last round.
    assert round(run.data.metrics["accuracy/average"]) == 57
    assert run.data.metrics["last rounds/pooled top-2"] == 50
    files = root / run.info.artifact_uri / "evaluation"
    assert {path.name for path in files.iterdir()} == {"metrics.json", "per_class.csv"}


def test_mirrored_while_it_runs(root, client, request, monkeypatch, capfd):
    name = request.node.name
    monkeypatch.setattr(mlflow_mirror, "EVERY", 0.0)
    monkeypatch.setattr(mlflow_mirror, "SHARE", 0.0)
    with following([MlflowMirror(root)]) as callback:
        folder = write_cell(root, describe(name, status="running"), rounds=2)
        callback(Event(folder, read_run(folder)))
        limit = time.monotonic() + 60
        while not (runs := runs_of(client, name)) or "accuracy/average" not in runs[0].data.metrics:
            assert time.monotonic() < limit, capfd.readouterr().err
            time.sleep(0.02)
        assert runs[0].info.status == "RUNNING"
        write_cell(root, describe(name, status="running"), rounds=5)
        callback(Event(folder))
        write_cell(root, describe(name))
        callback(Event(folder, read_run(folder)))
    (run,) = runs_of(client, name)
    assert run.info.status == "FINISHED", capfd.readouterr().err
    assert len(history(client, run, "accuracy/average")) == 5, capfd.readouterr().err


def test_a_mirror_waits_for_another_one_of_the_folder(root, client, request):
    folder, mirror = write_cell(root, describe(request.node.name, status="running")), MlflowMirror(root)
    mirror.open()
    mirror._lock.timeout = 0
    with FileLock(root / "mlruns" / ".lock"), pytest.raises(Timeout):
        mirror.mirror(folder)
    assert mirror.mirror(folder)


def test_what_was_missed_is_read_in_the_end(root, client, request):
    name = request.node.name
    folders = [write_cell(root, describe(name, seed=seed)) for seed in range(2)]
    with following([MlflowMirror(root, [*folders, folders[0].with_name("absent")])]) as callback:
        callback(Event(folders[1], read_run(folders[1])))
    assert sorted(run.data.tags["seed"] for run in runs_of(client, name)) == ["0", "1"]


def test_a_slow_mlflow_is_written_to_less_often(tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow_mirror, "EVERY", 0.01)
    mirror, written, folder = MlflowMirror(tmp_path), [], tmp_path / "cell"

    def mirror_slowly(*record):
        time.sleep(0.02)
        written.append(time.monotonic())

    monkeypatch.setattr(mirror, "_mirror", mirror_slowly)
    monkeypatch.setattr(mlflow_mirror, "_read", lambda folder: (None, {}))
    while len(written) < 3:
        mirror.told(Event(folder))
        time.sleep(0.001)
    assert min(later - earlier for earlier, later in zip(written, written[1:], strict=False)) > 20 * 0.02


def test_many_clients_and_rounds(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name, models=["a", "b"] * 15), rounds=120, clients=30)
    sync([folder], root)
    (run,) = runs_of(client, name)
    assert "accuracy of clients/0" not in run.data.metrics
    assert run.data.tags["models"] == "15 x a, 15 x b"
    assert len(history(client, run, "accuracy/highest")) == 119


def test_a_deleted_experiment_is_named(root, client, request):
    name = request.node.name
    folder = write_cell(root, describe(name))
    client.delete_experiment(client.create_experiment(name))
    with pytest.raises(HetflError, match="was deleted"):
        sync([folder], root)


def test_cost_per_cell(root, client, request):
    folders = [write_cell(root, describe(request.node.name, seed=seed), clients=9) for seed in range(10)]
    begin = time.perf_counter()
    with following([MlflowMirror(root, folders)]):
        pass
    cost = (time.perf_counter() - begin) / len(folders)
    print(f"\nmirror: {cost:.3f} s per cell of 6 rounds x 20 metrics")
    assert len(runs_of(client, request.node.name)) == 10
    assert cost < 1.0


def test_unreachable_server_stops_only_the_mirror(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.setattr(follow, "QUIET", 60)
    folders = [write_cell(tmp_path, describe("away", seed=seed)) for seed in range(3)]
    begin = time.monotonic()
    with following([MlflowMirror(tmp_path, folders)]) as callback:
        callback(Event(folders[0], read_run(folders[0])))
    assert time.monotonic() - begin < 30
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hetfl:")]
    assert line.startswith("hetfl: MLflow stopped (MLflow could not be reached (") and "hetfl sync" in line
    assert "http://127.0.0.1:9/" in line and "secret" not in line
    with pytest.raises(HetflError, match="MLflow could not be reached") as failed:
        sync(folders, tmp_path)
    assert "secret" not in str(failed.value)


def test_links_have_no_password(tmp_path, monkeypatch):
    def ask(self, uri):
        self._add_run(uri, "1", "2")

    monkeypatch.setattr(Links, "_ask", ask)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address := "https://me:secret@host/mlflow/")
    assert Links(tmp_path).runs[address].startswith("https://host/mlflow/#/experiments/1/runs/2?")


def test_of_two_runs_with_one_fingerprint_the_link_is_to_the_newest(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection, connection:
        connection.execute("CREATE TABLE runs (run_uuid, experiment_id, lifecycle_stage, start_time)")
        connection.execute("CREATE TABLE tags (run_uuid, key, value)")
        connection.execute("CREATE TABLE experiments (experiment_id, name, lifecycle_stage)")
        connection.execute("CREATE TABLE experiment_tags (experiment_id, key, value)")
        for run, began in (("new", 2), ("old", 1)):
            connection.execute("INSERT INTO runs VALUES (?, 1, 'active', ?)", (run, began))
            connection.execute("INSERT INTO tags VALUES (?, 'fingerprint', 'f')", (run,))
    assert "/runs/new?" in Links(tmp_path).runs["f"]


def test_sync_mirrors_all_other_cells_where_some_cannot_be(root, client, request, monkeypatch):
    name = request.node.name
    folders = [write_cell(root, describe(name, seed=seed)) for seed in range(4)]
    (folders[0] / "run.json").write_text("{")
    (folders[2] / "run.json").write_text(json.dumps({"status": "complete"}))
    with pytest.raises(FailedCellsError) as caught:
        sync(folders, root)
    first, second = str(caught.value).splitlines()
    assert str(folders[0]) in first and "not mirrored" in first and str(folders[2]) in second
    assert sorted(run.data.tags["seed"] for run in runs_of(client, name)) == ["1", "3"]


def test_a_damaged_record_is_named_and_nothing_else_is_blamed(root, client, request, capsys, monkeypatch):
    monkeypatch.setattr(follow, "QUIET", 60)
    name = request.node.name
    folders = [write_cell(root, describe(name, seed=seed)) for seed in range(2)]
    (folders[0] / "rounds.jsonl").write_text("{")
    try_sync(folders, root)
    (line,) = capsys.readouterr().err.splitlines()
    assert "rounds.jsonl: line 1" in line and "server" not in line and "MLFLOW" not in line
    with following([MlflowMirror(root, folders)]):
        pass
    assert [run.data.tags["seed"] for run in runs_of(client, name)] == ["1"] and not capsys.readouterr().err


def test_sync_stops_where_mlflow_goes_away(root, request, monkeypatch):
    name = request.node.name
    folders = [write_cell(root, describe(name, seed=seed)) for seed in range(3)]
    tried = []

    class Gone:
        def __getattr__(self, method):
            tried.append(method)
            raise ConnectionError("gone")

    monkeypatch.setattr(MlflowMirror, "open", lambda self: self.__dict__.setdefault("_client", None) or Gone())
    with pytest.raises(HetflError, match="gone") as caught:
        sync(folders, root)
    assert not isinstance(caught.value, FailedCellsError)
    assert len(str(caught.value).splitlines()) == 1 and len(tried) <= 2


def test_importing_tracking_is_cheap():
    code = "import sys, hetfl.tracking; assert not {'mlflow', 'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ, cwd=os.sep)
