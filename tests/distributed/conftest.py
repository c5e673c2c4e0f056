"""The project that all tests here train, made once, and what one process makes of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import digits_project
import pytest

Record = tuple[list[dict[str, Any]], bytes]


@pytest.fixture(scope="session", autouse=True)
def _terminable() -> Iterator[None]:
    """Tests that are terminated end as with Ctrl-C, so that no server or node outlives them."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_project.make(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def sequential(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Record]:
    """The record of a method's cell, its clients trained one after another in this process."""

    @cache
    def trained(method: str) -> Record:
        cell, runs = digits_project.cells_of(digits)[method], tmp_path_factory.mktemp(method)
        digits_project.train(digits, cell, runs, engine="sequential")
        return digits_project.record(runs, cell)

    return trained
