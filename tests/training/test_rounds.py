"""Resume, record and schedule."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from playing import accuracies, play_round, start, train
from record_factory import make_round, make_run

from hetfl.draws import Draws
from hetfl.experiments.cell import run_rounds
from hetfl.experiments.record import Record
from hetfl.schema import Accuracies, read_run
from hetfl.tensors import read_tensors
from hetfl.training import rounds, scoring
from hetfl.training import state as states
from hetfl.training.state import ClientState, ResumePoints, State, newest_round


class KilledError(Exception):
    """Stands for the end of the process."""


def play(engine, folder: Path, seen: Callable[[str], None] = lambda moment: None) -> State:
    """Run all rounds; ``seen`` is called with ``append:<round>`` and ``save:<round>`` once these are on disk."""
    record, resume = Record(folder / "run"), ResumePoints(folder / "resume")

    def watch(target, name: str) -> None:
        original = getattr(target, name)

        def call(value) -> None:
            original(value)
            resume.flush()  # waits for the thread that writes
            seen(f"{name}:{value.round}")

        setattr(target, name, call)

    watch(record, "append")
    watch(resume, "save")
    with resume:
        return run_rounds(engine, Draws(0), record, resume, make_run())


def killed(at: str) -> Callable[[str], None]:
    """Ends a run at a moment."""

    def seen(moment: str) -> None:
        if moment == at:
            raise KilledError

    return seen


def numbers(folder: Path) -> list[dict]:
    lines = [line.as_json() for line in Record(folder / "run").lines()]
    return [{name: value for name, value in line.items() if name not in ("seconds", "peak_memory")} for line in lines]


ROUNDS = 3
KILLED = {
    "fedhpl": {"share": "prompts"},
    "fedavg": {"optimiser": "adam"},
    "fedproto": {"optimiser": "adam"},
    "fedgen": {},  # an optimiser on the server
    "fedmd": {},  # work before the first round
    "fedrep": {"finetune_epochs": 1},  # and after the last
    "scaffold": {},  # a memory
    "fedkd": {},  # a second network
}
CASES = [
    *itertools.product(["fedhpl"], ["append:0", "append:1", "save:2", "append:3", "save:3"]),
    *((method, "save:2") for method in KILLED if method != "fedhpl"),
    *itertools.product(["fedmd"], ["append:0", "append:1"]),
    *itertools.product(["fedrep"], ["append:3", "save:3", "append:4", "save:4"]),
]
"""Every moment of one method; of the others what a method's own state and phases may change."""


@pytest.fixture(scope="module")
def whole(toy_engine, tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a method's uninterrupted run; below ``at`` is what was on disk at every moment of it."""

    @cache
    def played(method: str) -> Path:
        folder = tmp_path_factory.mktemp("whole")

        def keep(moment: str) -> None:
            for part in ("run", "resume"):
                if (folder / part).exists():
                    shutil.copytree(folder / part, folder / "at" / moment / part)

        play(toy_engine(method, rounds=ROUNDS, **KILLED[method]), folder, keep)
        return folder

    return played


@pytest.mark.parametrize(("method", "moment"), CASES)
def test_a_killed_run_ends_like_an_uninterrupted_one(toy_engine, tmp_path, whole, method, moment):
    expected, folder = whole(method), tmp_path / "killed"
    shutil.copytree(expected / "at" / moment, folder)
    assert json.loads((folder / "run/run.json").read_text())["status"] == "running"
    play(toy_engine(method, rounds=ROUNDS, **KILLED[method]), folder)
    assert numbers(folder) == numbers(expected)
    checkpoints = [(path / "run/model.safetensors").read_bytes() for path in (expected, folder)]
    assert checkpoints[0] == checkpoints[1]
    assert json.loads((folder / "run/run.json").read_text())["status"] == "complete"
    assert not (folder / "resume").exists()


def test_fine_tuning_is_a_round_without_uplinks(whole):
    last = numbers(whole("fedrep"))[-1]
    assert (last["round"], last["fine_tuning"], last["up"]["elements"]) == (ROUNDS + 1, True, 0)


def test_the_checkpoint_of_a_fine_tuned_run_gives_its_last_accuracy(toy_engine, whole):
    engine = toy_engine("fedrep", rounds=ROUNDS, **KILLED["fedrep"])
    tensors, metadata = read_tensors(whole("fedrep") / "run/model.safetensors")
    state = State.from_tensors(int(metadata["round"]), tensors)
    last = numbers(whole("fedrep"))[-1]
    assert accuracies(engine, state, Draws(0).at(state.round)).accuracy == last["accuracy"]


@pytest.fixture
def stopped(whole, tmp_path) -> Path:
    """A run of FedHPL that was killed once its second resume point was on disk."""
    return shutil.copytree(whole("fedhpl") / "at" / "save:2", tmp_path / "killed")


def continued(toy_engine, folder: Path) -> None:
    play(toy_engine("fedhpl", rounds=ROUNDS, **KILLED["fedhpl"]), folder)


def test_a_resumed_run_starts_at_the_last_completed_round(toy_engine, stopped, monkeypatch):
    played = []
    original = rounds.play_round
    monkeypatch.setattr(rounds, "play_round", lambda e, s, d, n: played.append(d.round) or original(e, s, d, n))
    continued(toy_engine, stopped)
    assert played == [3]


def test_a_half_written_line_is_dropped(toy_engine, stopped, whole):
    with (stopped / "run/rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    continued(toy_engine, stopped)
    assert numbers(stopped) == numbers(whole("fedhpl"))


DAMAGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "NUL bytes at the end": lambda lines: [*lines[:2], b"\0" * len(lines[2])],
    "NUL bytes in a line": lambda lines: [lines[0], lines[1][:9] + b"\0\0" + lines[1][11:], lines[2]],
    "half a line": lambda lines: [*lines[:2], lines[2][: len(lines[2]) // 2]],
    "half a line within": lambda lines: [lines[0], lines[1][: len(lines[1]) // 2] + b"\n", lines[2]],
    "a repeated line": lambda lines: [*lines, lines[2]],
    "a repeated first line": lambda lines: [lines[0], *lines],
    "a line that is gone": lambda lines: [lines[0], lines[2]],
    "not UTF-8": lambda lines: [*lines[:2], lines[2].replace(b"round", b"\xff\xfeund")],
    "another kind of value": lambda lines: [*lines[:2], b"[1]\n"],
    "a huge number": lambda lines: [*lines[:2], b'{"round": ' + b"9" * 5000 + b"}\n"],
    "deep nesting": lambda lines: [*lines[:2], b"[" * 100_000 + b"\n"],
    "no line": lambda lines: [],
}
"""What a power cut or another program leaves of the lines of rounds 0, 1 and 2."""


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_is_replayed_from_its_first_bad_line(toy_engine, stopped, whole, damage):
    path = stopped / "run/rounds.jsonl"
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    sound = len(Record(stopped / "run").lines())
    kept = path.read_bytes().splitlines(keepends=True)[:sound]
    continued(toy_engine, stopped)
    assert numbers(stopped) == numbers(whole("fedhpl"))
    if sound >= 2:  # there is a resume point of its last round, so that its lines are the very same
        assert path.read_bytes().splitlines(keepends=True)[:sound] == kept
    assert not (stopped / "resume").exists()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_finished_record_with_damaged_lines_is_not_complete(whole, tmp_path, damage):
    folder = shutil.copytree(whole("fedhpl") / "run", tmp_path / "run")
    record, path = Record(folder), folder / "rounds.jsonl"
    fingerprint = make_run().fingerprint
    assert record.is_complete(fingerprint)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *damage(lines[1:])]))
    assert not record.is_complete(fingerprint)


def test_a_cut_model_or_line_leaves_no_complete_record(toy_engine, whole, tmp_path):
    folder = tmp_path / "cut"
    fingerprint = make_run().fingerprint
    for name, size in itertools.product(("model.safetensors", "rounds.jsonl"), (0, 1, 100, -100, -1)):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole("fedhpl") / "run", folder / "run")
        path = folder / "run" / name
        path.write_bytes(path.read_bytes()[:size])
        assert not Record(folder / "run").is_complete(fingerprint), (name, size)
    # The lines of another run of the same length are those of another checkpoint.
    lines = (whole("fedhpl") / "run/rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "run/rounds.jsonl").write_bytes(b"".join(lines[:-1]))
    assert not Record(folder / "run").is_complete(fingerprint)
    continued(toy_engine, folder)
    assert numbers(folder) == numbers(whole("fedhpl"))
    assert Record(folder / "run").is_complete(fingerprint)


def test_a_line_that_no_reader_takes_is_not_written(tmp_path):
    record = Record(tmp_path)
    record.begin(make_run(), 0)
    record.append(make_round(0))
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.append(make_round(1).model_copy(update={"nodes": {"north": {"worked": math.nan}}}))
    record.append(make_round(1))
    assert [line.round for line in record.lines()] == [0, 1]


def test_files_of_others_in_the_folders_do_no_harm(toy_engine, stopped, whole):
    strays = [".DS_Store", ".nfs0000000012", "._round-000002-0123.safetensors", "round-x-y.safetensors", "round-3"]
    for name in strays:
        (stopped / "resume" / name).write_bytes(b"x")
    (stopped / "run/.DS_Store").write_bytes(b"x")
    (stopped / "run/.rounds.jsonl.x1y2z3_4.jsonl").write_bytes(b"x")
    (stopped / "run/.folder").mkdir()
    continued(toy_engine, stopped)
    assert numbers(stopped) == numbers(whole("fedhpl"))
    assert not (stopped / "run/.rounds.jsonl.x1y2z3_4.jsonl").exists()


def test_resume_points_beyond_the_record_are_removed(tmp_path):
    with ResumePoints(tmp_path / "points") as points:
        for number in (3, 4):
            points.save(State(number, {"x": torch.tensor([number])}))
    found = points.load(torch.device("cpu"), {0, 1, 2, 3})
    assert found is not None and found.round == 3
    assert newest_round(points.folder) == 3
    assert points.load(torch.device("cpu"), set()) is None and not list(points.folder.iterdir())


def test_two_resume_points_are_kept_and_a_broken_one_is_passed_over(tmp_path):
    with ResumePoints(tmp_path / "points") as points:
        for number in range(1, 5):
            points.save(State(number, {"x": torch.tensor([number])}, {3: ClientState({"w": torch.ones(2)})}))
    assert len(list(points.folder.iterdir())) == 2
    assert points.load(torch.device("cpu")).round == 4
    newest = max(points.folder.iterdir())
    newest.write_bytes(newest.read_bytes()[:-3])
    state = points.load(torch.device("cpu"))
    assert state.round == 3
    assert state.server["x"].item() == 3
    assert state.clients[3].params["w"].tolist() == [1, 1]
    points.clear()
    assert points.load(torch.device("cpu")) is None


def test_states_that_take_long_to_write_are_written_seldom_and_the_last_one_always(tmp_path, monkeypatch):
    clock, write = [100.0], states.write_tensors

    def slow(path, *content):
        clock[0] += 2
        write(path, *content)

    monkeypatch.setattr(states, "write_tensors", slow)
    monkeypatch.setattr(states.time, "monotonic", lambda: clock[0])

    def written(**given):
        seen = []
        with pytest.raises(KeyboardInterrupt), ResumePoints(tmp_path / str(given), **given) as points:
            for number in range(1, 13):
                points.save(State(number, {"x": torch.tensor([number])}))
                points.flush()
                seen.append(newest_round(points.folder))
                clock[0] += 3
            raise KeyboardInterrupt
        return [*seen, newest_round(points.folder)]

    assert written() == [1] * 6 + [7] * 6 + [12]
    assert written(all=True) == [*range(1, 13), 12]


def test_a_resume_point_that_cannot_be_written_stops_the_run_at_the_next_one(tmp_path):
    (tmp_path / "points").write_text("a file in place of the folder")
    points = ResumePoints(tmp_path / "points")
    points.save(State(1, {"x": torch.zeros(1)}))
    with pytest.raises(OSError, match="points"):
        points.save(State(2, {"x": torch.zeros(1)}))


@pytest.mark.parametrize("method", KILLED)
def test_a_round_leaves_the_state_before_it_as_it_was(toy_engine, method):
    """It is being written meanwhile."""
    engine = toy_engine(method, **KILLED[method])
    state, _ = start(engine, Draws(0))
    for number in (1, 2):
        before = {name: tensor.clone() for name, tensor in state.tensors().items()}
        following, _ = play_round(engine, state, Draws(0).at(number))
        assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items())
        state = following


def test_a_lost_record_starts_the_run_again(toy_engine, stopped, whole):
    """Resume points without their lines would leave a record with a gap."""
    (stopped / "run/rounds.jsonl").unlink()
    continued(toy_engine, stopped)
    assert numbers(stopped) == numbers(whole("fedhpl"))


def test_a_run_that_diverges_is_recorded_as_such(toy_engine, tmp_path):
    play(toy_engine("fedavg", rounds=4, lr=1e20), tmp_path)
    last = numbers(tmp_path)[-1]
    assert last["loss"] == [None, None, None]
    assert all(0 <= value <= 1 for value in last["accuracy"])
    json.loads((tmp_path / "run/rounds.jsonl").read_text().splitlines()[-1], parse_constant=pytest.fail)


@pytest.mark.parametrize("kill_after", ["", "save:2", "append:3"])
def test_a_run_with_patience_ends_when_no_client_has_a_finite_loss(toy_engine, tmp_path, monkeypatch, kill_after):
    real = rounds.play_round

    def scripted(engine, server, draws, needed):
        server, line = real(engine, server, draws, needed)
        # In round 2 one client is lost, whose prototypes spoil all scores of round 3; in round 4 nothing is left.
        lost = {2: [1], 3: [1], 4: [0, 1, 2]}.get(draws.round, [])
        told = {"loss": [None if client in lost else 1.0 for client in range(3)], "diverged": lost}
        if draws.round >= 3:
            told |= {"accuracy": [0.0] * 3, "pooled": 0.0, "diverged": [0, 1, 2]}
        return server, line.model_copy(update=told)

    monkeypatch.setattr(rounds, "play_round", scripted)
    settings = {"rounds": 9, "patience": 5}
    if kill_after:
        with pytest.raises(KilledError):
            play(toy_engine("fedproto", **settings), tmp_path, killed(kill_after))
    play(toy_engine("fedproto", **settings), tmp_path)
    assert [line["round"] for line in numbers(tmp_path)] == [0, 1, 2, 3, 4]
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert (run["status"], run["diverged"]) == ("complete", 2)


def test_a_run_without_patience_plays_its_rounds_whatever_happens(toy_engine, tmp_path):
    play(toy_engine("fedavg", rounds=4, lr=1e20), tmp_path)
    assert [line["round"] for line in numbers(tmp_path)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kill_after", ["", "save:2"])
def test_a_run_without_progress_stops_early_and_is_still_fine_tuned(toy_engine, tmp_path, monkeypatch, kill_after):
    scores = {1: 0.4, 2: 0.6, 3: 0.5, 4: 0.6}
    real = rounds.play_round

    def scripted(engine, server, draws, needed):
        server, line = real(engine, server, draws, needed)
        return server, line.model_copy(update={"pooled": scores[draws.round]})

    monkeypatch.setattr(rounds, "play_round", scripted)
    settings = {"rounds": 9, "patience": 2, "finetune_epochs": 1}
    if kill_after:
        with pytest.raises(KilledError):
            play(toy_engine("fedbabu", **settings), tmp_path, killed(kill_after))
    play(toy_engine("fedbabu", **settings), tmp_path)
    assert [line["round"] for line in numbers(tmp_path)] == [0, 1, 2, 3, 4, 10]
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "complete"


@pytest.fixture(scope="module")
def always_tested(toy_engine, tmp_path_factory) -> Path:
    """A run that is tested after each of five rounds."""
    play(toy_engine("fedavg", rounds=5), folder := tmp_path_factory.mktemp("always"))
    return folder


@pytest.mark.parametrize("kill_after", ["", "append:3", "save:4"])
def test_rounds_without_a_test_are_the_same_rounds(toy_engine, tmp_path, always_tested, kill_after):
    settings = {"rounds": 5, "evaluate_every": 2, "train_accuracy": True}
    if kill_after:
        with pytest.raises(KilledError):
            play(toy_engine("fedavg", **settings), tmp_path, killed(kill_after))
    play(toy_engine("fedavg", **settings), tmp_path)
    tests = {"accuracy", "pooled"}
    for whole, line in zip(numbers(always_tested), numbers(tmp_path), strict=True):
        tested = line["round"] in (2, 4, 5)  # the last one in any case
        assert line.keys() & tests == (tests if tested else set())
        assert ("train_accuracy" in line) == tested
        assert line == {name: whole.get(name, line[name]) for name in line}
    ends = [(folder / "run/model.safetensors").read_bytes() for folder in (always_tested, tmp_path)]
    assert ends[0] == ends[1]


def test_a_run_with_few_tests_stops_after_one_of_them(toy_engine, tmp_path, monkeypatch):
    scores = {2: 0.6, 4: 0.5, 6: 0.6}
    monkeypatch.setattr(
        scoring, "tested", lambda engine, server, draws: Accuracies(accuracy=[0.5], pooled=scores[draws.round])
    )
    play(toy_engine("fedavg", rounds=9, patience=4, evaluate_every=2), tmp_path)
    assert [line["round"] for line in numbers(tmp_path)] == [0, 1, 2, 3, 4, 5, 6]


def test_a_round_tells_the_pooled_and_the_training_accuracy(toy_engine, toy_data):
    from hetfl.data.partitions import Partition

    partition = Partition((np.arange(20), np.arange(20, 60)), (np.arange(4), np.arange(4, 30)))
    engine = toy_engine("fedproto", partition=partition, train_accuracy=True)
    state, _ = start(engine, Draws(0))
    state, line = play_round(engine, state, Draws(0).at(1))
    assert line.pooled == pytest.approx((4 * line.accuracy[0] + 26 * line.accuracy[1]) / 30)
    received = engine.method.receive(engine.method.downlink(state.server, 0), {})
    for k, expected in enumerate(line.train_accuracy):
        data, client = engine.federation.data[k], engine.federation.clients[k]
        batch = data.train_images.batch(data.train)
        scores = engine.method.predict(client.model, state.clients[k].params, batch, received)
        assert (scores.argmax(dim=1) == batch.labels).float().mean().item() == pytest.approx(expected)


def test_a_record_tells_how_many_parameters_the_server_learns(toy_engine, tmp_path):
    engine = toy_engine("fedtgp", rounds=1)
    learned = engine.method.server_parameters(play(engine, tmp_path).server).values()
    assert read_run(tmp_path / "run").parameters.server == sum(tensor.numel() for tensor in learned) > 0


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_is_in_the_partitions_order_unless_shuffled(toy_engine, monkeypatch, shuffle):
    engine = toy_engine("fedavg", shuffle=shuffle, local_epochs=2, drop_last=True)
    seen = []
    objective = engine.method.objective

    def watched(model, params, batch, received, phase):
        seen.append(batch.images.clone())
        return objective(model, params, batch, received, phase)

    monkeypatch.setattr(engine.method, "objective", watched)
    state, _ = start(engine, Draws(0))
    train(engine, {1: engine.method.downlink(state.server, 1)}, Draws(0).at(1))
    data = engine.federation.data[1]  # 19 samples: two batches of 8 an epoch
    in_order = data.train_images.batch(data.train[:16]).images
    epochs = [torch.cat(seen[:2]), torch.cat(seen[2:])]
    assert len(seen) == 4
    assert [torch.equal(epoch, in_order) for epoch in epochs] == [not shuffle] * 2


def test_a_run_that_goes_on_under_other_conditions_says_from_which_round(tmp_path):
    def go_on(completed: int, **conditions) -> dict:
        record = Record(tmp_path)
        record.begin(make_run(**conditions), completed)
        for number in range(completed + (completed > 0), completed + 3):
            record.append(make_round(number))
        return json.loads((tmp_path / "run.json").read_text())

    first = {"engine": "sequential", "threads": 1, "precision": "float32"}
    assert "changes" not in go_on(0, **first)
    found = go_on(2, **first, started="later")
    assert "changes" not in found and found["started"] == make_run().started
    found = go_on(3, **{**first, "threads": 4})
    assert found["changes"] == [{"round": 4, "threads": 4}] and found["threads"] == 1
    found = go_on(5, **{**first, "threads": 4, "engine": "batched"})
    assert found["changes"] == [{"round": 4, "threads": 4}, {"round": 6, "engine": "batched"}]
    found = go_on(6, **first)
    assert found["changes"][-1] == {"round": 7, "engine": "sequential", "threads": 1}
    # Rounds that are played again under the first conditions.
    assert go_on(3, **first).get("changes", []) == []
    assert "changes" not in go_on(0, **{**first, "threads": 2})
