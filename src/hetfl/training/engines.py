"""The ways to run clients."""

from __future__ import annotations

from hetfl.methods.base import Method
from hetfl.training.batched import Batched
from hetfl.training.federation import Federation
from hetfl.training.sequential import Sequential

ENGINES: dict[str, type[Sequential]] = {engine.name: engine for engine in (Sequential, Batched)}


def make_engine(method: Method, federation: Federation, name: str = "auto") -> Sequential:
    """An engine by name; ``auto`` is batched on a GPU, sequential elsewhere.

    On a CPU clients of small networks are faster one by one; see ``benchmarks/gpu-cpu.md``.
    """
    if name == "auto":
        name = "batched" if federation.device.type == "cuda" else "sequential"
    return ENGINES[name](method, federation)
