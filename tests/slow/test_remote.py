"""Trained cells travel by DVC: pushed to a remote, they are trained in no clone again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from dvc_project import PARAMS, REPOSITORY, Project

from hetfl.experiments.plan import load_params
from hetfl.stages import write

pytestmark = pytest.mark.slow

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
IGNORED = "/data/\n/weights/\n/partitions/\n/runs/\n/evaluations/\n/.hetfl/\n/mlruns/\n/report/\n__pycache__/\n"


def tell(project: Project, *command: str) -> str:
    done = subprocess.run(command, cwd=project.root, env=project.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def records(project: Project) -> dict[str, bytes]:
    """Every file of every cell's record."""
    found = sorted(path for path in project.root.glob("runs/kills/*/*/*/*"))
    return {path.relative_to(project.root).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with two trained cells, and an experiment that is not trained; committed and pushed to a folder."""
    made = Project.make(tmp_path_factory.mktemp("remote") / "project")
    experiment = PARAMS["experiments"]["kills"] | {"seeds": [0], "defaults": {"rounds": 1}}
    experiments = {"kills": experiment, "untrained": experiment}
    params = PARAMS | {"compute": {"device": "cpu"}, "experiments": experiments}
    (made.root / "params.yaml").write_text(yaml.safe_dump(params))
    (made.root / ".gitignore").write_text(IGNORED)
    shutil.copy(REPOSITORY / ".dvcignore", made.root)
    write(load_params(made.root / "params.yaml"), made.root)
    tell(made, "dvc", "repro", "kills")
    tell(made, "dvc", "remote", "add", "--default", "store", str(made.root.parent / "store"))
    tell(made, "dvc", "push")
    tell(made, "git", "add", "--all")
    tell(made, *GIT, "commit", "--quiet", "--message", "trained")
    return made


def clone(project: Project, where: Path) -> Project:
    subprocess.run(["git", "clone", "--quiet", str(project.root), str(where)], check=True)
    return Project(where)


def test_a_fresh_clone_pulls_what_a_target_needs_and_trains_nothing(pushed: Project, tmp_path: Path) -> None:
    fresh = clone(pushed, tmp_path / "one")
    told = tell(fresh, "dvc", "repro", "--pull", "kills")
    assert "Running stage" not in told
    assert records(fresh) == records(pushed)
    assert tell(fresh, "git", "status", "--short") == ""

    fresh = clone(pushed, tmp_path / "two")
    tell(fresh, "dvc", "pull", "--with-deps", "kills")
    assert "Running stage" not in tell(fresh, "dvc", "repro", "kills")
    assert tell(fresh, "dvc", "status", "kills").endswith("Data and pipelines are up to date.\n")


def test_all_that_was_pushed_comes_at_once_although_some_stages_never_ran(pushed: Project, tmp_path: Path) -> None:
    fresh = clone(pushed, tmp_path / "all")
    tell(fresh, "dvc", "pull", "--allow-missing")
    assert "Running stage" not in tell(fresh, "dvc", "repro", "kills")


def test_a_stage_keeps_the_cells_that_it_finds(pushed: Project, tmp_path: Path) -> None:
    """As after an import or a sweep: the stage runs, since its folder differs, and trains and tests nothing again."""
    fresh = clone(pushed, tmp_path / "cells")
    tell(fresh, "dvc", "pull", "--with-deps", "train-kills", "partition@digits", "pretrain-digits")
    archive = str(tmp_path / "cells.tar")
    tell(pushed, "hetfl", "export", "kills", "-o", archive)
    assert "taken over" not in tell(fresh, "hetfl", "import", archive)
    (fresh.root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {}}))
    # A run that is trained again has other seconds. DVC itself may write a file anew from its cache.
    before = records(fresh)
    assert "nothing to train" in tell(fresh, "dvc", "repro", "evaluate-kills")
    assert records(fresh) == before
