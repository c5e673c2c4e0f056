"""hetfl: reproducible tables of heterogeneous federated learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetfl.experiments.loading import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds, and whoever wants only the version need not wait.
    if name == "load":
        from hetfl.experiments.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
