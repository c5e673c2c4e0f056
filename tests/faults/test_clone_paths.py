"""Clones in folders with names that mean something elsewhere: all stages work, and nothing is written outside."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
import sweep_project as project
from fault_table import QUICK, Tries
from own_disk import in_child
from stage_runner import run_command, run_stage

from hetfl.tracking.mlflow_database import set_environment

pytestmark = [pytest.mark.faults, pytest.mark.slow]

STAGES = ("train", "evaluate", "table")
NAMES = ["per%41cent", "what?is", "hash#tag", "quo'te\"s", "sp ace", "únïcödé", "new\nline", "semi;&=+$,"]


def work(root: Path) -> list[str]:
    """Run the stages; what went wrong."""
    os.chdir(root)
    project.write(root, rounds=1, seeds=1)
    stages = [("download", "digits"), ("partition", "digits"), *((name, project.NAME) for name in STAGES)]
    ended = [(stage, run_stage(root, *stage)) for stage in [*stages, ("report",)]]
    ended.append((("sync",), run_command(root, "sync")))
    wrong = [f"{stage}: {one.stderr}" for stage, one in ended if one.status or "Traceback" in one.stderr]
    last = ended[-1][1].stdout
    return wrong if "2 run records mirrored" in last else [*wrong, last]


@pytest.mark.parametrize("name", NAMES[:2] if QUICK else NAMES)
def test_a_clone_may_lie_in_any_folder(tmp_path: Path, tries: Tries, name: str) -> None:
    set_environment()
    importlib.import_module("mlflow.tracking")
    root = tmp_path / "around" / name / "clone"
    root.mkdir(parents=True)
    with tries.one("path of the clone"):
        assert in_child(lambda: work(root)) == []
        assert [path.name for path in root.parents[1].iterdir()] == [name]
        assert [path.name for path in root.parent.iterdir()] == ["clone"]
        assert (root / "mlruns" / "mlflow.db").stat().st_size and (root / "mlruns" / "artifacts").is_dir()
