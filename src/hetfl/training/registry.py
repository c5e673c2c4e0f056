"""Every engine and precision by name. What makes an engine is imported only once it is used."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal

Precision = Literal["float32", "tf32", "bfloat16"]
"""Of products: ``tf32`` and ``bfloat16`` have float32's factors rounded to 10 bits on a GPU's tensor cores, as torch
does by default in convolutions; ``bfloat16`` also has frozen blocks computed in that type."""


@dataclass(frozen=True)
class EngineKind:
    """An engine that settings can name.

    Attributes:
        maker: ``module:name`` of what it is made of. If clients are in the process that runs the cell, that is a
            :class:`hetfl.training.client_run.Trainer`, made from the method and the federation. If they are in
            processes of the engine's own, it is a :class:`hetfl.training.remote.Transport` to these, made from what
            :class:`hetfl.training.ray.Actors` is made from.
        own_processes: whether clients are in such processes, which take the cores and GPUs of the machine or cluster.
        together: whether several clients are trained at once on a GPU, so that all of them need memory there.
    """

    maker: str
    own_processes: bool = False
    together: bool = True

    def make(self, *given: Any) -> Any:
        """Make the trainer or transport."""
        return resolve_name(self.maker)(*given)


ENGINES: dict[str, EngineKind] = {
    "sequential": EngineKind("hetfl.training.sequential:Sequential", together=False),
    "batched": EngineKind("hetfl.training.batched:Batched"),
    "ray": EngineKind("hetfl.training.ray:Actors", own_processes=True),
}
"""Every engine but that of a deployment, which no setting chooses. A new one is a file and a line here."""

FLOWER = "flower"
"""How records name the engine of a deployment, whose clients are on other machines."""


def choices(own_processes: bool = True) -> list[str]:
    """What settings may give as the engine; without ``own_processes``, those whose clients are in one process."""
    return ["auto", *(name for name, kind in ENGINES.items() if own_processes or not kind.own_processes)]


def resolve(name: str, device: str) -> str:
    """The engine that a setting stands for; ``auto`` is batched on a GPU, sequential elsewhere.

    On a CPU clients of small networks are faster one by one; see ``benchmarks/gpu-cpu.md``.

    Args:
        name: one of :func:`choices`.
        device: its type, such as ``cuda``.
    """
    if name != "auto":
        return name
    return "batched" if device == "cuda" else "sequential"


def within(name: str, device: str) -> str:
    """The engine that trains the clients of one process: in an engine's own processes, the one of ``auto``."""
    return resolve("auto", device) if ENGINES[name].own_processes else name
