"""How the tests run: options, order, the garbage collector. Fixtures are in ``toy_federation.py``."""

from __future__ import annotations

import atexit
import gc
import os
from importlib import import_module
from pathlib import Path

import pytest
from fault_table import pytest_runtest_logreport, pytest_runtest_setup, pytest_terminal_summary, tries

from hetfl.process import leave

__all__ = ["pytest_runtest_logreport", "pytest_runtest_setup", "pytest_terminal_summary", "tries"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="record golden numbers, and run no other test")
    parser.addoption("--update-certificates", action="store_true", help="rewrite docs/certificates.md")


def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures, and with them torch, in processes that run tests; with ``-n`` one only hands these out."""
    atexit.unregister(leave)  # commands that run in here are not the end of this process
    gc.disable()  # until all is imported and collected: it would look through all of that again and again
    hands_out = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if not hands_out or config.option.collectonly:
        config.pluginmanager.register(import_module("toy_federation"))
        # MLflow reads it when it is imported, whichever test is the first to do so.
        import_module("hetfl.tracking.mlflow_database").set_environment()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--update-golden"):
        items[:] = [item for item in items if item.get_closest_marker("golden")]
    # Files that look at the same rounds come one after another, so that one process plays these.
    alike = {item.path for item in items if "two_rounds" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in alike)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where none of them runs, tests of several processes are not even read: they import Ray and Flower."""
    return collection_path.name == "distributed" and "not distributed" in config.option.markexpr or None


def pytest_collection_finish() -> None:
    """From here on the garbage collector looks at what tests make, and seldom: little of it is in cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000_000, 20, 20)
    gc.enable()


def pytest_sessionfinish() -> None:
    """At its end pytest collects garbage five times, which takes a second if it looks at everything."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """One of several test processes has told all it has to: taking torch and MLflow apart takes seconds."""
    if hasattr(config, "workerinput"):
        os._exit(0)
    gc.unfreeze()  # libraries report what is still frozen at the end as leaks
