"""The ways to run clients."""

from __future__ import annotations

from collections.abc import Callable

from hetfl.methods.base import Method
from hetfl.training.batched import Batched
from hetfl.training.federation import Federation
from hetfl.training.local import LocalEngine
from hetfl.training.sequential import Sequential

ENGINES: dict[str, Callable[[Method, Federation], LocalEngine]] = {
    Sequential.name: lambda method, federation: LocalEngine(method, federation, Sequential(method)),
    Batched.name: lambda method, federation: LocalEngine(method, federation, Batched(method, federation)),
}
"""Makes each engine by its name."""

FLOWER = "flower"
"""How records name the engine of a deployment, whose clients are on other machines."""


def make_engine(method: Method, federation: Federation, name: str = "auto") -> LocalEngine:
    """An engine by name; ``auto`` is batched on a GPU, sequential elsewhere.

    On a CPU clients of small networks are faster one by one; see ``benchmarks/gpu-cpu.md``.
    """
    if name == "auto":
        name = "batched" if federation.device.type == "cuda" else "sequential"
    return ENGINES[name](method, federation)
