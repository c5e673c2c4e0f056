"""Functions that become CUDA graphs: their kernels are recorded once and then replayed.

For small models, launching many small kernels takes longer than running them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hetfl.message import Tensors

EAGER_CALLS = 2
"""Ordinary calls before the recording. In these, libraries choose kernels and optimisers create their state."""


class Captured:
    """A function that updates tensors in place from its inputs, as a CUDA graph; on other devices an ordinary call.

    Every call runs the function once. Its inputs must have the same names, shapes and types in every call. The
    function must not copy values from the device to the host, nor depend on Python values that change.

    Args:
        function: takes the inputs by name, returns nothing.
        pool: memory pool that it shares with other graphs of the same stream; None: a pool of its own.
    """

    def __init__(self, function: Callable[[Tensors], None], pool: Any = None) -> None:
        self._function, self._pool = function, pool
        self._calls = 0
        self._replay: Callable[[], None] | None = None
        self._given: Tensors = {}

    def __call__(self, given: Tensors) -> None:
        """Run the function on these inputs."""
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
    """Whether any of these tensors is on a device that can record graphs."""
    return any(tensor.is_cuda for tensor in given.values())


def record(function: Callable[[], None], pool: Any) -> Callable[[], None]:
    """Record a function's kernels without running them; returns a function that runs them."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        function()
    return graph.replay
