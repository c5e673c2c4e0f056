"""How many cells a GPU trains at once: a simulated one with a known speed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from record_factory import make_round

from hetfl.experiments.events import Event
from hetfl.experiments.plan import ComputeSettings, Workspace
from hetfl.files import read_json
from hetfl.sweep import local
from hetfl.sweep.local import Local, _Place
from hetfl.sweep.together import ROUNDS, Together


class Device:
    """A device on which n cells at once train ``speed[n]`` times as many rounds a second as one alone."""

    def __init__(self, speed: dict[int, float], known: dict[str, dict[int, float]] | None = None) -> None:
        self.speed, self.now, self.begun = speed, 0.0, 0
        self.together = Together(known or {}, clock=lambda: self.now)
        self.training: list[Path] = []

    def train(self, rounds: int, kind: str = "kind") -> int:
        """Let cells begin as wanted, for some rounds of each; returns how many there are in the end."""
        for _ in range(rounds):
            while len(self.training) < self.together.wanted(kind):
                self.training.append(Path(str(self.begun)))
                self.begun += 1
                self.together.begins(self.training[-1], kind)
            seconds = len(self.training) / self.speed[len(self.training)]
            self.now += seconds
            for folder in self.training:
                self.together.told(
                    Event(folder, None, [make_round(1).model_copy(update={"seconds": {"a": seconds}})])
                )
        return len(self.training)

    def end(self) -> None:
        self.together.ends(self.training.pop(0))


def test_cells_are_doubled_while_that_is_faster():
    device = Device({1: 1, 2: 1.9, 4: 3, 8: 3.1})
    assert device.train(50) == 8
    for _ in range(6):
        device.end()
    # Eight were tried and not kept.
    assert device.train(10) == 4
    assert device.together.speeds["kind"] == pytest.approx({1: 1, 2: 1.9, 4: 3, 8: 3.1})


def test_a_device_that_one_cell_fills_goes_back_to_one():
    device = Device({1: 1, 2: 1.02})
    assert device.train(20) == 2
    device.end()
    device.end()
    assert device.train(20) == 1


def test_nothing_is_tried_before_it_can_be_compared():
    device = Device({1: 1, 2: 2})
    # The first round prepares; the last one of these is told after the others began.
    assert device.train(ROUNDS + 1) == 1
    assert device.train(1) == 2


def test_a_round_in_which_another_cell_began_or_ended_tells_nothing():
    device = Device({1: 1, 2: 2})
    device.train(1)
    device.now += 10
    device.together.begins(Path("other"), "kind")
    for folder, seconds in ((Path("other"), 1.0), (Path("0"), 10.0)):
        device.together.told(Event(folder, None, [make_round(1).model_copy(update={"seconds": {"a": seconds}})]))
    assert device.together._seconds == {}
    device.now += 10
    device.together.told(Event(Path("0"), None, [make_round(2).model_copy(update={"seconds": {"a": 10.0}})]))
    assert device.together._seconds == {(Path("0"), 2): [10.0]}


def test_what_was_measured_is_used_from_the_beginning():
    device = Device({4: 3, 8: 3}, {"kind": {2: 1.9, 4: 3.0, 8: 3.0}})
    assert device.train(1) == 4


def test_kinds_are_measured_apart():
    device = Device({1: 1, 2: 2}, {"big": {2: 1.0}})
    assert device.train(10, "big") == 1


def test_what_two_gpus_of_one_kind_measured_is_kept_together(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "device_name", lambda device: "cuda: one kind")
    many = Local(Workspace(tmp_path), ComputeSettings(device="cpu"))
    first, second = {"big": {1: 1.0, 2: 1.5}}, {"big": {2: 1.4, 4: 2.0}, "small": {1: 1.0}}
    many._keep([_Place(torch.device("cuda", n), 0, Together(known)) for n, known in enumerate((first, second))])
    assert read_json(many._measured)["cuda: one kind"] == {"big": {"1": 1.0, "2": 1.5, "4": 2.0}, "small": {"1": 1.0}}
