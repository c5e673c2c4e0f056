"""hetfl: reproducible tables of heterogeneous federated learning.

:func:`run` trains a method on a split of a data set, :func:`load` gives the models of a run, :func:`result` and
:func:`results` read what was trained.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetfl.api import result as result
    from hetfl.api import results as results
    from hetfl.api import run as run
    from hetfl.experiments.loading import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load", "result", "results", "run"]

_HOMES = {
    "load": "hetfl.experiments.loading",
    "result": "hetfl.api",
    "results": "hetfl.api",
    "run": "hetfl.api",
}


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds, and whoever wants only the version need not wait.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
