"""Functions whose kernels are recorded once on CUDA and replayed, since launching many small ones takes longer than
running them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hetfl.message import Tensors

EAGER_CALLS = 2
"""Calls before the recording: libraries choose kernels and optimisers make their state in the first ones."""


class Captured:
    """A function that changes tensors it holds, by tensors it is given; on other devices than CUDA it is just called.

    Every call does the function's work once. What is given must have the same names, shapes and types every time, and
    the function must read nothing back from the device, and no Python value that changes.

    Args:
        function: takes what is given, returns nothing.
        pool: memory that it shares with other functions of the same stream.
    """

    def __init__(self, function: Callable[[Tensors], None], pool: Any = None) -> None:
        self._function, self._pool = function, pool
        self._calls = 0
        self._replay: Callable[[], None] | None = None
        self._given: Tensors = {}

    def __call__(self, given: Tensors) -> None:
        """Do the function's work."""
        if self._replay is None:
            self._calls += 1
            if self._calls <= EAGER_CALLS or not recordable(given):
                self._function(given)
                return
            self._given = {name: tensor.clone() for name, tensor in given.items()}
            self._replay = record(lambda: self._function(self._given), self._pool)
        for name, tensor in given.items():
            self._given[name].copy_(tensor, non_blocking=True)
        self._replay()


def recordable(given: Tensors) -> bool:
    """Whether the device of some tensors can record."""
    return any(tensor.is_cuda for tensor in given.values())


def record(function: Callable[[], None], pool: Any) -> Callable[[], None]:
    """Record a function's kernels without running them; returns what runs them."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        function()
    return graph.replay
