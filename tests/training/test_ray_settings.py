"""The engine ray before it starts anything; the rest is in tests/distributed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hetfl.config import validate
from hetfl.data.inputs import InputSettings
from hetfl.errors import HetflError
from hetfl.experiments.cell import loads
from hetfl.experiments.plan import ComputeSettings
from hetfl.experiments.schedule import at_once
from hetfl.methods import create
from hetfl.training.host import Question, Request
from hetfl.training.ray import Actors, Worker, cluster, dealt


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HetflError, match=r"^ray: is not installed; pip install 'hetfl\[ray\]'$"):
        cluster(None, 1)


@pytest.mark.parametrize("wrong", [{"actors": -1}, {"actors": 1.5}, {"address": ""}, {"nodes": 2}])
def test_its_settings_are_checked(wrong):
    with pytest.raises(HetflError, match=r"^params.yaml: compute\.ray"):
        validate(ComputeSettings, {"engine": "ray", "ray": wrong}, "params.yaml: compute")


def test_one_cell_at_a_time_has_all_actors_unless_jobs_says_otherwise():
    cpu = torch.device("cpu")
    assert at_once(cpu, ComputeSettings(engine="ray")) == 1
    assert at_once(cpu, ComputeSettings(engine="ray", jobs=3)) == 3


def test_a_worker_tells_of_a_missing_input_and_answers_part_by_part():
    class Two:
        def parts(self, request):
            yield from (reply for reply in (Said(b"one"), Said(b"two")))

    class Said:
        def __init__(self, content):
            self.to_bytes = lambda: content

    def missing():
        raise HetflError("data/digits: does not exist")

    worker = Worker(1)
    assert worker.load(missing) == "data/digits: does not exist"
    assert worker.load(Two) is None
    request = Request(Question(kind="train", round=1)).to_bytes()
    worker.ask(request)
    worker.ask(request)
    assert [worker.part() for _ in range(5)] == [b"one", b"two", b"one", b"two", None]


def test_equal_clients_are_dealt_in_turn_and_others_by_their_work():
    assert dealt([1] * 5, 2) == [[0, 2, 4], [1, 3]]
    assert dealt([1, 1, 1, 9], 2) == [[3], [0, 1, 2]]
    assert dealt([1, 2, 3, 9], 2) == [[3], [0, 1, 2]]
    # Every second one is large, and in turn one of two actors would have 76 % of the work.
    sizes = [2_365_770, 582_026, 2_628_426, 844_682, 5_250_378, 1_631_626, 5_513_034, 1_894_282]
    loads = [sizes[client % 8] for client in range(20)]
    sums = [sum(loads[client] for client in own) for own in dealt(loads, 2)]
    assert max(sums) < 1.01 * min(sums)


def test_clients_change_actors_where_that_shortens_a_round(monkeypatch):
    monkeypatch.setattr(Actors, "__init__", lambda self: None)
    actors = Actors()
    actors._options = {"num_cpus": 1, "num_gpus": 0}
    actors.clients = first = {"actor 0": [0, 1], "actor 1": [2, 3]}
    assert not actors.deal([1.0, 1.0, 1.0, 1.03]) and actors.clients is first
    actors._options["num_gpus"] = 0.5
    assert not actors.deal([3.0, 3.0, 1.0, 1.0]) and actors.clients is first
    actors._options["num_gpus"] = 0
    assert actors.deal([3.0, 3.0, 1.0, 1.0])
    assert actors.clients == {"actor 0": [0, 2], "actor 1": [1, 3]}


def test_a_clients_work_counts_its_samples_and_the_operations_of_all_its_networks():
    samples = {"htcnn1": 100, "htcnn4": 200, "htcnn7": 50}
    federation = SimpleNamespace(
        num_classes=10,
        data=[SimpleNamespace(train=range(many)) for many in samples.values()],
        models=[SimpleNamespace(name=name) for name in samples],
    )
    cell: Any = SimpleNamespace(input=InputSettings())

    def of_each(method: str, **settings: Any) -> list[float]:
        setup: Any = SimpleNamespace(method=create(method, settings, 10, 0), federation=federation)
        return [work / many for work, many in zip(loads(cell, setup), samples.values(), strict=True)]

    alone = of_each("lg-fedavg")
    # Twice the products of a convolution of 5x5, of a linear layer behind its pool, and of the head.
    assert alone[0] == 2 * (24 * 24 * 25 * 32 + 12 * 12 * 32 * 512 + 512 * 10)
    # FML's common network is the same for all.
    second = {both - one for both, one in zip(of_each("fml", auxiliary="htcnn2"), alone, strict=True)}
    assert len(second) == 1 and second.pop() > 0
