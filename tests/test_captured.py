"""Recorded steps. Without a GPU a tape of the operations stands for the recording: it knows no Python either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from playing import play_round, start
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from toy import VARIANTS, groups

from hetfl import captured
from hetfl.captured import EAGER_CALLS, Captured
from hetfl.draws import Draws
from hetfl.errors import out_of_memory
from hetfl.methods import METHODS
from hetfl.training.engines import make_engine

WAITS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "lift_fresh"}
WAITS |= {"_unique", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"}
"""Operations whose values or sizes the host must know, or that copy from it: no CUDA graph can have them."""


def waits(operation: Any, args: tuple) -> bool:
    """Whether an operation has the host wait for a GPU, as an index of truth values does."""
    name = operation.name().partition("::")[2].partition(".")[0]
    indices = tree_leaves(args[1]) if "index" in name and len(args) > 1 else []
    return name in WAITS or any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices)


class Tape(TorchDispatchMode):
    """Lets a function's operations run, and then runs the same ones again on the tensors as they are by then."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple, dict[str, Any], Any]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        assert not waits(operation, args), f"{operation} cannot be recorded"
        result = operation(*args, **(kwargs or {}))
        self._calls.append((operation, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def play(self) -> None:
        made: dict[int, Any] = {}  # by the tensor that stood there in the recording

        def current(value: Any) -> Any:
            return made.get(id(value), value) if isinstance(value, Tensor) else value

        for operation, args, kwargs, result in self._calls:
            found = operation(*tree_map(current, args), **tree_map(current, kwargs))
            made |= {id(was): now for was, now in zip(tree_leaves(result), tree_leaves(found), strict=True)}


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records on the CPU; the replays of each recording."""
    replays: list[int] = []

    def record(function: Callable[[], None], pool: Any, device: torch.device) -> Callable[[], None]:
        place = len(replays)
        replays.append(0)
        with Tape() as tape:
            function()

        def replay() -> None:
            if replays[place]:  # the recording was the first one
                tape.play()
            replays[place] += 1

        return replay

    monkeypatch.setattr(captured, "recordable", lambda given: True)
    monkeypatch.setattr(captured, "record", record)
    return replays


def test_every_call_works_once_on_what_it_is_given(recordings):
    total = torch.zeros(2)
    add = Captured(lambda given: total.add_(given["x"]))
    for value in range(6):
        add({"x": torch.tensor([1.0, value])})
        assert total.tolist() == [value + 1, value * (value + 1) / 2]
    assert recordings == [6 - EAGER_CALLS]


def test_recordings_are_made_on_their_device_and_share_no_workspace(monkeypatch):
    """torch's own stream for recordings is on the first device that records, and so is what other devices record."""
    told: list[Any] = []

    @contextmanager
    def graph(of: Any, pool: Any, stream: Any, **options: Any) -> Iterator[None]:
        told.append(("begins", pool, stream))
        yield
        told.append("ends")

    captured._recording_stream.cache_clear()
    monkeypatch.setattr(captured, "forget_workspaces", lambda: told.append("forgets"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"a stream of {device}")
    monkeypatch.setattr(torch.cuda, "graph", graph)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        told.clear()
        captured.record(lambda: told.append("works"), "pool", torch.device(device))
        assert told == ["forgets", ("begins", "pool", f"a stream of {device}"), "works", "ends", "forgets"]
    assert captured._recording_stream.cache_info().misses == 2
    captured._recording_stream.cache_clear()


def test_a_step_that_cannot_be_recorded_is_called(recordings, monkeypatch, caplog):
    def refuse(*given: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captured, "record", refuse)
    total = torch.zeros(1)
    add = Captured(lambda given: total.add_(given["x"]))
    for _ in range(6):
        add({"x": torch.ones(1)})
    assert total.item() == 6
    assert [record.getMessage() for record in caplog.records] == [
        "a step cannot be recorded on cpu, and is slower without "
        "(RuntimeError: operation not permitted when stream is capturing)"
    ]


def test_too_little_memory_for_a_recording_is_told(recordings, monkeypatch):
    """Torch ends the recording, and tells of that alone."""

    def fill(*given: Any) -> None:
        try:
            raise torch.OutOfMemoryError
        finally:
            raise RuntimeError("the recording is not valid")

    monkeypatch.setattr(captured, "record", fill)
    add = Captured(lambda given: None)
    with pytest.raises(RuntimeError) as raised:
        for _ in range(6):
            add({"x": torch.ones(1)})
    assert out_of_memory(raised.value)


def test_recordings_can_be_switched_off(monkeypatch):
    on_gpu = {"x": Mock(is_cuda=True)}
    assert captured.recordable(on_gpu)
    monkeypatch.setenv(captured.SWITCH, "0")
    assert not captured.recordable(on_gpu)


def test_without_cuda_nothing_is_recorded(monkeypatch):
    monkeypatch.setattr(captured, "record", None)
    calls = []
    count = Captured(lambda given: calls.append(1))
    for _ in range(5):
        count({"x": torch.zeros(1)})
    assert len(calls) == 5


@pytest.mark.parametrize("apart", [0, 9])
@pytest.mark.parametrize(
    ("method", "group", "settings"),
    [
        ("fedhpl", "two vits", {"local_epochs": 2}),
        ("fedtgp", "two resnets", {"server_epochs": 5, "server_batch": 2}),  # running statistics, a recorded server
        ("fedproto", "homogeneous", {"optimiser": "adam", "keep_optimiser": True}),  # a count of steps
        ("fedgen", "homogeneous", {"batch_size": 4, "local_epochs": 2}),  # what is drawn for each batch
        ("sgpt", "homogeneous", {"local_epochs": 3}),  # several phases, statistics of the training passes
        ("pfedpg", "homogeneous", {}),
    ],
)
def test_recorded_steps_train_like_called_ones(toy_engine, recordings, monkeypatch, method, group, settings, apart):
    """Over two rounds, in which the same recordings serve again."""

    def run(recorded: bool) -> tuple:
        monkeypatch.setattr(captured, "EAGER_CALLS", EAGER_CALLS if recorded else 10**9)
        reference = toy_engine(method, group, torch.float64, **{"batch_size": 5, **settings})
        engine = make_engine(reference.method, reference.federation, "batched")
        engine.trainer.apart = apart
        state, _ = start(engine, Draws(0))
        for number in (1, 2):
            state, line = play_round(engine, state, Draws(0).at(number))
        return state.tensors(), line.loss

    (expected, losses), (found, again) = run(False), run(True)
    assert recordings and sum(recordings) > len(recordings)
    assert losses == pytest.approx(again)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("wrong", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x + torch.tensor([1.0])])
def test_a_step_that_waits_for_the_host_is_found(recordings, wrong):
    step = Captured(lambda given: wrong(given["x"]))
    for _ in range(EAGER_CALLS):
        step({"x": torch.ones(2)})
    with pytest.raises(AssertionError, match="cannot be recorded"):
        step({"x": torch.ones(2)})


@pytest.mark.slow
@pytest.mark.parametrize("apart", [0, 9])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_steps_of_every_method_can_be_recorded(toy_engine, recordings, variant, apart):
    method, settings = VARIANTS[variant]
    # On a GPU FedTGP's server fills up an incomplete batch; here there is none.
    even = {"server_batch": 100} if method == "fedtgp" else {}
    for group in groups(variant):
        reference = toy_engine(method, group, **{"batch_size": 5, "local_epochs": 2, **settings, **even})
        engine = make_engine(reference.method, reference.federation, "batched")
        engine.trainer.apart = apart
        state, _ = start(engine, Draws(0))
        play_round(engine, state, Draws(0).at(1))
    assert recordings or not METHODS[method].vmappable
