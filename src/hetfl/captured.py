"""Functions that become CUDA graphs: their kernels are recorded once and then replayed.

For small models, launching many small kernels takes longer than running them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from hetfl.errors import one_line, out_of_memory
from hetfl.message import Tensors
from hetfl.torch_private import forget_workspaces

log = logging.getLogger(__name__)

SWITCH = "HETFL_GRAPHS"
"""The environment variable that, as ``0``, has nothing recorded."""
EAGER_CALLS = 2
"""Ordinary calls before the recording. In these, libraries choose kernels and optimisers create their state."""


class Captured:
    """A function that updates tensors in place from its inputs, as a CUDA graph; on other devices an ordinary call.

    Every call runs the function once. Its inputs must have the same names, shapes and types in every call, and be on
    one device. The function must not copy values from there to the host, nor depend on Python values that change.

    Args:
        function: takes the inputs by name, returns nothing.
        pool: memory pool that it shares with other graphs of the same stream; None: a pool of its own.
    """

    def __init__(self, function: Callable[[Tensors], None], pool: Any = None) -> None:
        self._function, self._pool = function, pool
        self._calls, self._fails = 0, False
        self._replay: Callable[[], None] | None = None
        self._given: Tensors = {}

    def __call__(self, given: Tensors) -> None:
        """Run the function on these inputs."""
        if self._replay is None:
            self._calls += 1
            if self._calls <= EAGER_CALLS or self._fails or not recordable(given):
                self._function(given)
                return
            self._given = {name: tensor.clone() for name, tensor in given.items()}
            device = next(iter(given.values())).device
            try:
                self._replay = record(lambda: self._function(self._given), self._pool, device)
            except RuntimeError as error:
                if out_of_memory(error):
                    raise
                # Nothing was run yet, so that the step can be called instead.
                self._fails, self._given = True, {}
                log.warning("a step cannot be recorded on %s, and is slower without (%s)", device, one_line(error))
        if self._replay is None:
            self._function(given)
            return
        for name, tensor in given.items():
            self._given[name].copy_(tensor, non_blocking=True)
        self._replay()


def recordable(given: Tensors) -> bool:
    """Whether any of these tensors is on a device that can record graphs, and :data:`SWITCH` does not forbid it."""
    return any(tensor.is_cuda for tensor in given.values()) and os.environ.get(SWITCH) != "0"


def record(function: Callable[[], None], pool: Any, device: torch.device) -> Callable[[], None]:
    """Record a function's kernels on a device without running them; returns a function that runs them.

    Recordings with different pools may be replayed at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    # Some versions of torch keep a workspace for products of matrices, by stream, and all recordings are made on one
    # stream. Two that run at once would write into the same workspace, and the first one to be deleted would take it
    # from the others. Made anew for a recording, it is in the recording's own pool.
    forget_workspaces()
    try:
        with torch.cuda.graph(graph, pool, _recording_stream(device), capture_error_mode="thread_local"):
            function()
    finally:
        forget_workspaces()
    return graph.replay


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that everything on a device is recorded on; torch's own one is on the device of its first use."""
    return torch.cuda.Stream(device)
