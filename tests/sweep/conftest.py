"""A small project, made once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sweep_project


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep_project.make(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Device locks of this test's own, since a machine may run several tests at once."""
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "locks"))
    # A process of its own would import MLflow each time.
    monkeypatch.setattr("hetfl.sweep.sweep.Apart", lambda make: make())
    yield
