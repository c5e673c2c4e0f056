"""Processes that begin with nothing of the one that starts them."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from hetfl.process import quick

SPAWN = multiprocessing.get_context("spawn")
"""A process that has used a GPU or has threads cannot be forked."""


def start(target: Callable[..., object], *arguments: Any) -> BaseProcess:
    """Start a process that ends with this one at the latest; function and arguments are pickled.

    It needs nothing of the script that runs here, which may not be ready to be imported a second time.
    """
    process = SPAWN.Process(target=_begin, args=(target, *arguments), daemon=True)
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
    return process


def _begin(target: Callable[..., object], *arguments: Any) -> None:
    with quick():
        target(*arguments)
