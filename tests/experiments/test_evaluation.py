"""What an evaluation stores of a state besides its accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from filelock import FileLock
from playing import params_for_test, play_round, start
from record_factory import make_round, make_run, rewrite_rounds, rewrite_run

from hetfl.data.partitions import Partition
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments import evaluation
from hetfl.experiments.cell import Setup, check_samples, run_rounds
from hetfl.experiments.cell import _class_counts as class_counts
from hetfl.experiments.evaluation import evaluate_cell, groups, of_groups, of_window, representations
from hetfl.experiments.plan import Cell, Workspace
from hetfl.experiments.record import Record, device_name
from hetfl.schema import needed_run, read_rounds
from hetfl.tensors import read_tensors
from hetfl.training.local import LocalEngine
from hetfl.training.state import ResumePoints, State

DRAWS = Draws(0)


def played(engine: LocalEngine, last: int = 2) -> State:
    state, _ = start(engine, DRAWS)
    for number in range(1, last + 1):
        state, _ = play_round(engine, state, DRAWS.at(number))
    return state


def features(engine: LocalEngine, state: State, client: int, index: torch.Tensor, train: bool) -> torch.Tensor:
    """One image at a time."""
    data, model = engine.federation.data[client], engine.federation.clients[client].model
    images = data.train_images if train else data.test_images
    params = state.clients[client].params
    rows = [model(params, images.batch(place[None]).images).features for place in index]
    return torch.cat(rows)


@pytest.mark.parametrize("method", ["fedproto", "fedtgp"])
def test_stored_prototypes_are_the_means_of_features(toy_engine, method: str) -> None:
    engine = toy_engine(method, "resnets")
    state = played(engine)
    stored = representations(engine, state, DRAWS.at(2), samples=20)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in stored.items()} == {
        "features": ((20, 16), torch.float32),
        "labels": ((20,), torch.int16),
        "client": ((20,), torch.int16),
        "clients": ((3, 3, 16), torch.float32),
        "owned": ((3, 3), torch.bool),
        "global": ((3, 16), torch.float32),
        "global_valid": ((3,), torch.bool),
    }
    # The first client has no sample of the last class.
    assert stored["owned"].tolist() == [[True, True, False], [True] * 3, [True] * 3]
    for k, data in enumerate(engine.federation.data):
        labels = data.train_images.labels[data.train]
        for label in range(3):
            places = data.train[labels == label]
            expected = features(engine, state, k, places, train=True).mean(0) if len(places) else torch.zeros(16)
            torch.testing.assert_close(stored["clients"][k, label], expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(stored["global"], state.server["means"])
    assert stored["global_valid"].all()


def test_stored_samples_are_those_of_each_client_and_the_same_for_every_method(toy_engine, toy_data) -> None:
    # Clients with 5, 0 and 21 test samples of their own.
    parts = tuple(np.arange(60)[start::3] for start in range(3))
    own = Partition(parts, (np.arange(5), np.arange(0), np.arange(5, 26)))
    engines = {method: toy_engine(method, "resnets", partition=own) for method in ("fedproto", "lg-fedavg")}
    # A state of another round: the draw knows only the seed.
    stored = {
        method: representations(engine, played(engine, rounds), DRAWS.at(rounds), samples=12)
        for rounds, (method, engine) in enumerate(engines.items(), start=1)
    }
    assert set(stored["lg-fedavg"]) == {"features", "labels", "client"}
    for name in ("labels", "client"):
        assert torch.equal(stored["fedproto"][name], stored["lg-fedavg"][name])
    clients = stored["fedproto"]["client"].tolist()
    assert clients == sorted(clients)
    assert set(clients) == {0, 2}
    state = played(engines["fedproto"], 1)
    rows = {k: features(engines["fedproto"], state, k, torch.from_numpy(own.test[k]), False) for k in (0, 2)}
    labels = toy_data.subset("test").labels
    seen = set()
    for row, label, k in zip(*(stored["fedproto"][name] for name in ("features", "labels", "client")), strict=True):
        place = int((rows[int(k)] - row).abs().sum(dim=1).argmin())
        torch.testing.assert_close(rows[int(k)][place], row, rtol=1e-5, atol=1e-6)
        assert labels[own.test[int(k)][place]] == label
        seen.add((int(k), place))
    assert len(seen) == 12, "drawn without replacement"


def test_fewer_test_samples_than_wanted_are_all_stored(toy_engine) -> None:
    engine = toy_engine("fedproto", "resnets")
    stored = representations(engine, played(engine, 1), DRAWS, samples=1000)
    # All three clients are tested on the same thirty.
    assert torch.bincount(stored["client"].int()).tolist() == [30, 30, 30]


def test_before_the_first_round_there_is_nothing_global(toy_engine) -> None:
    engine = toy_engine("fedproto", "resnets")
    state, _ = start(engine, DRAWS)
    assert set(representations(engine, state, DRAWS, 5)) == {"features", "labels", "client"}


@pytest.fixture
def finished(toy_engine, toy_data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Trains a cell of the toy federation; returns the cell with some features, and its workspace."""

    def train(method: str, features: int, **settings) -> tuple[Cell, Workspace]:
        engine = toy_engine(method, "resnets", **settings)
        cell = Cell.model_construct(
            experiment="toy", row=method, method=method, split="iid", seed=0, features=features, settings=settings
        )
        workspace = Workspace(tmp_path)
        record, resume = Record(workspace.runs / cell.path), ResumePoints(tmp_path / "resume")
        setup = Setup(engine.method, engine.federation, DRAWS, toy_data)
        counts = class_counts(setup).model_dump()
        run_rounds(engine, DRAWS, record, resume, make_run(fingerprint="f", device="cpu", class_counts=counts))
        monkeypatch.setattr(evaluation, "set_up", lambda *_: setup)
        return cell, workspace

    return train


def test_an_evaluation_writes_prototypes_where_features_are_wanted(finished) -> None:
    cell, workspace = finished("fedtgp", features=7)
    folder = workspace.evaluations / cell.path
    written = []
    for _ in range(2):
        evaluate_cell(cell, workspace, torch.device("cpu"))
        written.append((folder / "prototypes.safetensors").read_bytes())
    assert written[0] == written[1]
    assert len(read_tensors(folder / "prototypes.safetensors")[0]["features"]) == 7
    assert json.loads((folder / "metrics.json").read_text())["fingerprint"] == "f"
    evaluate_cell(cell.model_copy(update={"features": 0}), workspace, torch.device("cpu"))
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.json", "per_class.csv"]


def test_two_processes_do_not_write_one_evaluation_at_once(finished) -> None:
    """Each removes what killed writes have left, which may be what the other one is writing."""
    cell, workspace = finished("fedproto", features=0)
    folder, lock = workspace.evaluations / cell.path, workspace.lock(cell.path)
    lock.parent.mkdir(parents=True)
    beside = folder / ".metrics.json.x1y2z3.json"
    with FileLock(lock):
        folder.mkdir(parents=True)
        beside.touch()
        other = Thread(target=evaluate_cell, args=(cell, workspace, torch.device("cpu")))
        other.start()
        other.join(1.0)
        assert [*folder.iterdir()] == [beside]
    other.join()
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.json", "per_class.csv"]


def test_a_deployment_is_not_evaluated_where_its_clients_are_not(finished) -> None:
    cell, workspace = finished("fedproto", features=0)
    folder = workspace.runs / cell.path
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "engine": "flower"}))
    with pytest.raises(HetflError, match="run.*: cannot be evaluated here, since .* are on their nodes") as caught:
        evaluate_cell(cell, workspace, torch.device("cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "field", "told"),
    [
        (2, "pooled", "round 2 has the pooled accuracy .*its clients give"),
        (1, "pooled", "round 1 has the pooled accuracy .*its clients give"),
        (2, "accuracy", "model.safetensors: gives accuracies"),
        (1, "accuracy", "round 1 has the pooled accuracy .*its clients give"),
    ],
)
def test_numbers_that_a_recount_contradicts_are_refused(finished, number: int, field: str, told: str) -> None:
    cell, workspace = finished("fedproto", features=0, rounds=2)
    folder = workspace.runs / cell.path
    lines = read_rounds(folder)
    true = getattr(lines[number], field)
    false = true + 0.01 if field == "pooled" else [true[0] + 0.05, *true[1:]]
    changed = [*lines[:number], lines[number].model_copy(update={field: false}), *lines[number + 1 :]]
    rewrite_rounds(folder, changed)
    with pytest.raises(HetflError, match=told) as caught:
        evaluate_cell(cell, workspace, torch.device("cpu"))
    assert "\n" not in str(caught.value)
    assert not (workspace.evaluations / cell.path / "metrics.json").exists()
    rewrite_rounds(folder, lines)
    evaluate_cell(cell, workspace, torch.device("cpu"))
    assert (workspace.evaluations / cell.path / "metrics.json").exists()


def test_only_the_processor_of_the_training_must_give_the_very_accuracies(finished) -> None:
    cell, workspace = finished("fedproto", features=0, rounds=2)
    folder = workspace.runs / cell.path
    lines = read_rounds(folder)
    shares = [lines[2].accuracy[0] - 0.005, *lines[2].accuracy[1:]]
    samples = [sum(counts) for counts in needed_run(folder).class_counts.test]
    pooled = sum(share * many for share, many in zip(shares, samples, strict=True)) / sum(samples)
    rewrite_rounds(folder, [*lines[:2], lines[2].model_copy(update={"accuracy": shares, "pooled": pooled})])
    rewrite_run(folder, {"device": device_name(torch.device("cpu"))})
    with pytest.raises(HetflError, match="gives accuracies"):
        evaluate_cell(cell, workspace, torch.device("cpu"))
    versions = needed_run(folder).versions
    for other in (
        {"device": "cpu: another one"},
        {"changes": [{"round": 2, "device": "cuda: another one"}]},
        {"changes": [{"round": 2, "versions": {**versions, "torch": "0.1"}}]},
    ):
        rewrite_run(folder, {"device": device_name(torch.device("cpu")), "changes": [], **other})
        evaluate_cell(cell, workspace, torch.device("cpu"), again=True)


def test_one_sample_may_be_on_the_edge_of_a_client_with_few(finished) -> None:
    cell, workspace = finished("fedproto", features=0, rounds=2)
    folder = workspace.runs / cell.path
    lines = read_rounds(folder)
    samples = [sum(counts) for counts in needed_run(folder).class_counts.test]
    assert samples[0] < 50
    rewrite_run(folder, {"device": "cuda: another one"})
    for flipped, good in ((1, True), (2, False)):
        shares = [
            share + (flipped / many if share < 0.5 else -flipped / many)
            for share, many in zip(lines[2].accuracy, samples, strict=True)
        ]
        pooled = sum(share * many for share, many in zip(shares, samples, strict=True)) / sum(samples)
        rewrite_rounds(folder, [*lines[:2], lines[2].model_copy(update={"accuracy": shares, "pooled": pooled})])
        if good:
            evaluate_cell(cell, workspace, torch.device("cpu"), again=True)
        else:
            with pytest.raises(HetflError, match="gives accuracies"):
                evaluate_cell(cell, workspace, torch.device("cpu"), again=True)


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        ("fedavg", {"drop_last": True, "batch_size": 27}, "drop_last leaves out every batch, since batch_size is 27"),
        ("fedavg", {"batch_size": 1}, "batch_size is 1, and the batch normalisation of"),
        ("fedmd", {"alignment_samples": 10**5}, "alignment_samples is 100000, the public set has"),
        ("fedavg", {"drop_last": True, "batch_size": 26}, None),
        ("fedhpl", {"batch_size": 1}, None),
        ("fedmd", {"alignment_samples": 10}, None),
    ],
)
def test_settings_that_do_not_fit_the_samples_are_refused(toy_engine, method, settings, told) -> None:
    # The clients have 15, 19 and 26 samples, and the public set 103.
    engine = toy_engine(method, "homogeneous" if method == "fedhpl" else "resnets", **settings)
    public = 103 if method == "fedmd" else None
    resolved = engine.method.settings.model_dump()
    cell = Cell.model_construct(experiment="toy", row=method, method=method, split="iid", seed=0, settings=resolved)
    if told is None:
        check_samples(cell, engine.method, engine.federation.clients, public)
        return
    with pytest.raises(HetflError, match=told) as caught:
        check_samples(cell, engine.method, engine.federation.clients, public)
    assert "\n" not in str(caught.value)


def test_features_of_several_sizes_are_refused(finished) -> None:
    cell, workspace = finished("feddistill", features=7)
    with pytest.raises(
        HetflError, match=r"experiments\.toy\.features: the models of row feddistill have features of"
    ):
        evaluate_cell(cell, workspace, torch.device("cpu"))
    assert not workspace.evaluations.exists()


@pytest.mark.parametrize("method", ["fgpt", "fed-dualprompt", "sgpt"])
def test_groups_are_those_of_the_inference_rule(toy_engine, method: str) -> None:
    settings = {"shared_blocks": (1,), "group_blocks": (2,), "groups": 4, "participation": 1.0}
    engine = toy_engine(method, **settings)
    state = played(engine)
    found = groups(engine, state, DRAWS.at(2))
    assert {name: (len(values), values.dtype) for name, values in found.items()} == dict.fromkeys(
        ("group", "label", "client", "cluster"), (60, torch.int16)
    )
    params, received = params_for_test(engine, state, DRAWS.at(2), 0)
    for k, data in enumerate(engine.federation.data):
        batch, mine = data.train_images.batch(data.train), found["client"] == k
        assert torch.equal(found["group"][mine].long(), engine.method.choose(params, batch, received))
        assert torch.equal(found["label"][mine].long(), batch.labels)
    told = of_groups(found, settings)
    assert 0 <= told["group_entropy"] <= 1 and told["congruence"] > 0


def test_methods_that_do_not_sort_have_no_groups(toy_engine) -> None:
    engine = toy_engine("fedavg")
    assert groups(engine, played(engine), DRAWS.at(2)) == {} and of_groups({}, {}) == {}


def test_a_window_is_reported_where_the_method_has_one() -> None:
    other = [{"accuracy": [share, 0.5], "pooled": share} for share in (0.1, 0.3)]
    lines = [
        make_round(1, accuracy=[0.0, 1.0], pooled=0.9),
        *(make_round(2 + n, accuracy=[0.2, None], pooled=0.2, extra={"top-2": one}) for n, one in enumerate(other)),
    ]
    assert of_window(lines, {}) == {}
    tuned = make_round(4, accuracy=[1.0, 1.0], pooled=1.0, fine_tuning=True, extra={"top-2": other[0]})
    assert of_window([*lines, tuned], {"window": 2}) == of_window(lines, {"window": 2})
    # A round without a test between the other rule's two: its window of two has the last one only.
    untested = make_round(3, accuracy=None, pooled=None)
    apart = [*lines[:2], untested, lines[2].model_copy(update={"round": 4})]
    assert of_window(apart, {"window": 2})["extra"]["top-2"]["window_rounds"] == 1
    found = of_window(lines, {"window": 2})
    assert (found["window_pooled"], found["window_variance"], found["window_rounds"]) == (0.2, 0.0, 2)
    assert found["extra"]["top-2"]["window_pooled"] == pytest.approx(0.2)
    assert found["extra"]["top-2"]["window_variance"] == pytest.approx(0.01)
    assert found["extra"]["top-2"]["window_lowest"] == pytest.approx(0.2)
