"""A stranger's path from a folder of images to its table, with the commands of the documentation and with DVC."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sweep_project
from PIL import Image
from test_remote import IGNORED

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with the committed settings, and a folder of images."""
    root = tmp_path / "project"
    root.mkdir()
    for name in ("params.yaml", "dvc.yaml", "versions.yaml", ".dvcignore"):
        shutil.copy(REPOSITORY / name, root)
    for name in ("src", "pipeline"):
        (root / name).symlink_to(REPOSITORY / name)
    (root / ".gitignore").write_text(IGNORED)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=root, check=True)
    for label, name in enumerate(("cat", "dog", "owl")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.full((40, 30, 3), (80 * label, 200 - 60 * label, 5 * number), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    return root


def tell(project: Path, line: str) -> str:
    environment = sweep_project.environment(project.parent / "tmp")
    done = subprocess.run(line.split(), cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_a_folder_of_images_has_its_table_and_dvc_watches_it(project: Path) -> None:
    tell(project, f"hetfl new dataset pets --from {project.parent / 'pictures'}")
    assert tell(project, "hetfl data pets --check").count("samples of 3 classes") >= 10
    tell(project, "hetfl new experiment mine --dataset pets")
    before = (project / "dvc.yaml").read_text()
    tell(project, "dvc repro mine")
    assert (project / "dvc.yaml").read_text() == before
    table = tell(project, "hetfl show mine")
    assert all(word in table for word in ("FedAvg", "FedProx", "FedBABU")) and "not run" not in table
    assert "up to date" in tell(project, "dvc status mine")
    trained = sweep_project.times(project)
    # Another row is trained alone.
    settings = (project / "params.yaml").read_text()
    more = settings.replace("      fedbabu: {}\n", "      fedbabu: {}\n      fedrep: {}\n")
    (project / "params.yaml").write_text(more)
    tell(project, "dvc repro mine")
    assert "FedRep" in tell(project, "hetfl show mine")
    now = sweep_project.times(project)
    assert {path: now[path] for path in trained} == trained and len(now) > len(trained)
    # One image more, and DVC says so.
    shutil.copy(project.parent / "pictures/cat/0.png", project.parent / "pictures/dog/new.png")
    assert "modified" in tell(project, "dvc status download-pets")
