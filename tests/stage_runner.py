"""A stage as its command line runs it, without the seconds that a new interpreter takes."""

from __future__ import annotations

import io
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hetfl.cli import app, run

PIPELINE = Path(__file__).parents[1] / "pipeline"


class Ended(NamedTuple):
    """How a stage ended."""

    status: int
    stdout: str
    stderr: str


def run_stage(root: Path, name: str, *arguments: str, tracking: str | None = None) -> Ended:
    """Run ``pipeline/<name>.py`` with these arguments in a folder."""
    return _run(root, lambda: runpy.run_path(str(PIPELINE / f"{name}.py"))["main"], f"{name}.py", arguments, tracking)


def run_command(root: Path, *arguments: str, tracking: str | None = None) -> Ended:
    """Run ``hetfl`` with these arguments in a folder."""
    return _run(root, lambda: app, "hetfl", arguments, tracking)


def _run(root: Path, command: Callable[[], Any], name: str, arguments: Sequence[str], tracking: str | None) -> Ended:
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(stderr), redirect_stdout(stdout):
        patch.chdir(root)
        patch.setattr(sys, "argv", [name, *arguments])
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        # A process of its own would import MLflow each time.
        patch.setattr("hetfl.train.Apart", lambda make: make())
        patch.setattr("hetfl.tracking.follow.QUIET", 60.0)  # nor is it told how long that takes
        if tracking:
            patch.setenv("MLFLOW_TRACKING_URI", tracking)
        with pytest.raises(SystemExit) as end:
            run(command())
    return Ended(int(end.value.code or 0), stdout.getvalue(), stderr.getvalue())
