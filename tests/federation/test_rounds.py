"""Resume, record and schedule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hetfl.draws import Draws
from hetfl.federation import rounds
from hetfl.federation.record import Record
from hetfl.federation.state import ClientState, ResumePoints, State

RUN = {"fingerprint": "f", "rounds": 4}


class KilledError(Exception):
    """Stands for the end of the process."""


def play(engine, folder: Path, kill_after: str = "") -> None:
    """Run all rounds; ``kill_after`` is ``append:<round>`` or ``save:<round>``."""
    record, resume = Record(folder / "run"), ResumePoints(folder / "resume")
    what, _, number = kill_after.partition(":")

    def hook(target, name):
        original = getattr(target, name)

        def call(value):
            original(value)
            if (value["round"] if isinstance(value, dict) else value.round) == int(number):
                raise KilledError

        setattr(target, name, call)

    if what:
        hook({"append": record, "save": resume}[what], what)
    rounds.run_rounds(engine, Draws(0), record, resume, RUN)


def numbers(folder: Path) -> list[dict]:
    drop = ("seconds", "peak_memory")
    return [{k: v for k, v in line.items() if k not in drop} for line in Record(folder / "run").lines()]


KILLED = {
    "fedhpl": {"share": "prompts"},
    "fedavg": {"optimiser": "adam"},
    "fedproto": {"optimiser": "adam"},
    "fedgen": {},  # an optimiser on the server
    "fedmd": {},  # work before the first round
    "fedrep": {"finetune_epochs": 1},  # and after the last
    "scaffold": {},  # a memory
}


@pytest.mark.parametrize("method", KILLED)
@pytest.mark.parametrize("kill_after", ["append:0", "append:1", "save:2", "append:3", "save:4"])
def test_a_killed_run_ends_like_an_uninterrupted_one(toy_engine, tmp_path, method, kill_after):
    settings = {"rounds": 4, **KILLED[method]}
    play(toy_engine(method, **settings), tmp_path / "whole")
    with pytest.raises(KilledError):
        play(toy_engine(method, **settings), tmp_path / "killed", kill_after)
    play(toy_engine(method, **settings), tmp_path / "killed")
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    checkpoints = [(tmp_path / name / "run" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert checkpoints[0] == checkpoints[1]
    assert json.loads((tmp_path / "killed/run/run.json").read_text())["status"] == "complete"
    assert not (tmp_path / "killed" / "resume").exists()


@pytest.mark.parametrize("kill_after", ["append:5", "save:5"])
def test_a_run_killed_after_its_closing_ends_with_it(toy_engine, tmp_path, kill_after):
    settings = {"rounds": 4, "finetune_epochs": 1}
    play(toy_engine("fedbabu", **settings), tmp_path / "whole")
    with pytest.raises(KilledError):
        play(toy_engine("fedbabu", **settings), tmp_path / "killed", kill_after)
    play(toy_engine("fedbabu", **settings), tmp_path / "killed")
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    last = numbers(tmp_path / "whole")[-1]
    assert (last["round"], last["closing"], last["up"]["elements"]) == (5, True, 0)


def test_the_checkpoint_of_a_closed_run_gives_its_last_accuracy(toy_engine, tmp_path):
    from hetfl.tensors import read_tensors

    engine = toy_engine("fedrep", rounds=2, finetune_epochs=1)
    play(engine, tmp_path)
    tensors, metadata = read_tensors(tmp_path / "run" / "model.safetensors")
    state = State.from_tensors(int(metadata["round"]), tensors)
    confusion = rounds.evaluate(engine, state, Draws(0).at(state.round))
    assert rounds.accuracies(confusion) == numbers(tmp_path)[-1]["accuracy"]


def test_a_resumed_run_starts_at_the_last_completed_round(toy_engine, tmp_path, monkeypatch):
    with pytest.raises(KilledError):
        play(toy_engine("fedhpl", rounds=4), tmp_path, "save:3")
    played = []
    original = rounds.play_round
    monkeypatch.setattr(rounds, "play_round", lambda e, s, d: played.append(d.round) or original(e, s, d))
    play(toy_engine("fedhpl", rounds=4), tmp_path)
    assert played == [4]


def test_a_half_written_line_is_dropped(toy_engine, tmp_path):
    play(toy_engine("fedhpl", rounds=4), tmp_path / "whole")
    with pytest.raises(KilledError):
        play(toy_engine("fedhpl", rounds=4), tmp_path / "killed", "save:2")
    with (tmp_path / "killed/run/rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    play(toy_engine("fedhpl", rounds=4), tmp_path / "killed")
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")


def test_two_resume_points_are_kept_and_a_broken_one_is_passed_over(tmp_path):
    points = ResumePoints(tmp_path / "points")
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


def test_a_lost_record_starts_the_run_again(toy_engine, tmp_path):
    """Resume points without their lines would leave a record with a gap."""
    play(toy_engine("fedhpl", rounds=4), tmp_path / "whole")
    with pytest.raises(KilledError):
        play(toy_engine("fedhpl", rounds=4), tmp_path / "killed", "save:2")
    (tmp_path / "killed/run/rounds.jsonl").unlink()
    play(toy_engine("fedhpl", rounds=4), tmp_path / "killed")
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")


def test_a_run_that_diverges_is_recorded_as_such(toy_engine, tmp_path):
    play(toy_engine("fedavg", rounds=4, lr=1e20), tmp_path)
    last = numbers(tmp_path)[-1]
    assert last["loss"] == [None, None, None]
    assert all(0 <= value <= 1 for value in last["accuracy"])
    json.loads((tmp_path / "run/rounds.jsonl").read_text().splitlines()[-1], parse_constant=pytest.fail)
