"""What DVC calls changed: versions and settings, never source."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from dvc_project import PARAMS, Project

from hetfl.experiments.plan import load_params
from hetfl.stages import write

pytestmark = pytest.mark.slow

METHOD = '''"""One's own."""

from hetfl.methods.base import register_method
from hetfl.methods.fedavg import FedAvg


@register_method("mine")
class Mine(FedAvg):
    """FedAvg by another name."""

    numerics = 1
    title, source, travels = "Mine", "nobody", "all parameters"
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with its two cells trained and evaluated, and committed."""
    made = Project.make(tmp_path_factory.mktemp("stale") / "project")
    experiment = PARAMS["experiments"]["kills"] | {"seeds": [0], "defaults": {"rounds": 1}}
    params = PARAMS | {"compute": {"device": "cpu"}, "experiments": {"kills": experiment}}
    (made.root / "params.yaml").write_text(yaml.safe_dump(params))
    write(load_params(made.root / "params.yaml"), made.root)
    shutil.copy(Path(__file__).parents[2] / ".dvcignore", made.root)
    tell(made, "dvc", "repro", "evaluate-kills")
    return made


def tell(project: Project, *command: str) -> str:
    done = subprocess.run(command, cwd=project.root, env=project.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def edit(project: Project, file: str, pattern: str, replacement: str) -> None:
    path = project.root / "src/hetfl" / file
    text, count = re.subn(pattern, replacement, path.read_text())
    assert count, (file, pattern)
    path.write_text(text)


def records(project: Project) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in project.root.glob("runs/kills/*/*/*/*")}


def test_only_versions_and_settings_are_changes(project: Project):
    stages = ["train-kills", "evaluate-kills", "pretrain-digits"]
    clean = "Data and pipelines are up to date.\n"
    assert tell(project, "dvc", "status", *stages) == clean
    before = records(project)
    (project.root / "src/hetfl/methods/mine.py").write_text(METHOD)
    for file in ("methods/fedprox.py", "experiments/evaluation.py"):
        edit(project, file, r'\A"""', '"""Edited: ')
    edit(project, "training/scoring.py", r" # ", " # Edited: ")
    edit(project, "methods/parts/theorem.py", r"\b_of_label\b", "_own_label")
    assert "methods.mine: new -> 1.1" in tell(project, "hetfl", "versions")
    assert tell(project, "dvc", "status", *stages) == clean
    assert "stale" not in tell(project, "hetfl", "cells", "kills")
    tell(project, "python", "pipeline/train.py", "kills")
    assert records(project) == before

    edit(project, "methods/fedavg.py", "numerics = 1", "numerics = 2")
    assert "methods.fedprox: 1.1 -> 2.1" in tell(project, "hetfl", "versions")
    assert "methods.fedavg" in (told := tell(project, "dvc", "status", *stages)) and "methods.fedhpl" not in told
    told = tell(project, "hetfl", "cells", "kills")
    assert [line.split()[-6:] for line in told.splitlines() if "stale" in line] == [
        ["0", "stale", "methods.fedavg", "1,", "now", "2"]
    ]
    tell(project, "dvc", "repro", "evaluate-kills")
    after = records(project)
    assert {path for path in after if after[path] == before.get(path)} == {p for p in before if "/fedhpl/" in p}
    assert "fedavg/fedavg/iid-s0" in tell(project, "hetfl", "superseded")

    # Back at the old version the old record is back, and the new one waits in its place.
    edit(project, "methods/fedavg.py", "numerics = 2", "numerics = 1")
    tell(project, "hetfl", "versions")
    tell(project, "dvc", "repro", "evaluate-kills")
    assert records(project) == before
    assert "1 superseded records removed" in tell(project, "hetfl", "prune")
