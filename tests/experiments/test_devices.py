"""The device that settings name. Without a GPU torch's answers are set."""

from __future__ import annotations

import pytest
import torch

from hetfl.errors import HetflError
from hetfl.experiments.plan import ComputeSettings
from hetfl.experiments.schedule import attempt, pick_device
from hetfl.training.memory import reset_peak_memory


@pytest.mark.parametrize(
    ("gpus", "name", "problem"),
    [
        (0, "cuda", "compute.device: 'cuda' but torch sees no GPU; use auto or cpu"),
        (2, "cuda:2", "compute.device: 'cuda:2' but the last GPU is cuda:1"),
    ],
)
def test_a_gpu_that_is_not_there_is_one_line(monkeypatch, gpus, name, problem):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(HetflError) as error:
        pick_device(name)
    assert str(error.value) == f"params.yaml: {problem}"
    assert pick_device("cuda:1" if gpus else "auto") == torch.device("cuda:1" if gpus else "cpu")


@pytest.mark.parametrize(("name", "current"), [("cuda", []), ("cuda:0", [0]), ("cuda:1", [1])])
def test_a_cell_needs_no_number_of_the_gpu(monkeypatch, name, current):
    """Where settings say no number, it is the current GPU; torch makes none the current one without a number."""
    chosen, set_device = list[int](), torch.cuda.set_device
    monkeypatch.setattr(torch._C, "_cuda_setDevice", chosen.append, raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with pytest.raises(ValueError, match="specified index"):
        set_device(torch.device("cuda"))
    assert attempt(lambda *given: None, None, None, torch.device(name), ComputeSettings()) is None
    assert chosen == current


def test_measuring_memory_does_not_need_a_device_that_was_used_before(monkeypatch):
    """torch has no statistics to reset before it is initialised, which a device with a number does not do."""
    done: list[object] = []
    monkeypatch.setattr(torch.cuda, "init", lambda: done.append("init"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", done.append)
    reset_peak_memory(torch.device("cuda:0"))
    assert done == ["init", torch.device("cuda:0")]


def test_after_an_error_of_the_gpu_the_reason_is_told_in_one_line(monkeypatch):
    """Which then refuses everything, also to give memory back."""

    def refuse(*given: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def mistaken(*given: object) -> None:
        raise HetflError("methods/own.py: line 12")

    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(torch.cuda, "empty_cache", refuse)
    for work, told in ((mistaken, "methods/own.py: line 12"), (full, "cuda: memory does not suffice; use fewer")):
        reason = attempt(work, None, None, torch.device("cuda"), ComputeSettings())
        assert reason and reason.startswith(told)
