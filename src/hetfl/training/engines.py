"""Makes engines by their names in :mod:`hetfl.training.registry`."""

from __future__ import annotations

from hetfl.methods.base import Method
from hetfl.training.federation import Federation
from hetfl.training.local import LocalEngine
from hetfl.training.registry import ENGINES, resolve


def make_engine(method: Method, federation: Federation, name: str = "auto") -> LocalEngine:
    """An engine with its clients in this process, by one of the names that :func:`choices` gives for these."""
    name = resolve(name, federation.device.type)
    return LocalEngine(method, federation, ENGINES[name].make(method, federation), name)
