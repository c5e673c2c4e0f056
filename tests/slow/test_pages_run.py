"""The shell lines of README and documentation, typed one after another in a project whose digits are done."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from settings_files import ROOT

pytestmark = pytest.mark.slow

LEFT_OUT = {
    r"pip install": "the environment has it",
    r"make (repro|test)\b": "continuous integration does it",
    r"make ui\b": "serves until it is stopped; tests/tracking serves it",
    r"\. \.venv": "the environment is that of the test",
    r"export HETFL_MIRROR": "the folder is an example",
    r"hetfl (weights vit|train fedhpl-homogeneous-cifar10)|(dvc repro|hetfl show) fedhpl-table-3": "trains for hours",
    r"hetfl reproduce|dvc repro partition@fashion-mnist": "needs a data set of a paper",
    r"hetfl sweep fedtgp-table-10 --(budget|on)": "trains for hours; tests/sweep sweeps",
    r"hetfl (join|serve)\b": "serves until it is stopped; make test-distributed does it",
    r"cd deployment/server|hetfl cards": "needs the cards of all nodes; tests/deploy makes them",
}
"""Lines that are not typed, with the reason."""


def typed(page: Path) -> list[str]:
    """The lines of a page's shell blocks that can be typed here."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line.partition("   #")[0].strip() for line in "\n".join(blocks).splitlines()]
    chosen = [line for line in lines if line and not any(re.match(pattern, line) for pattern in LEFT_OUT)]
    # Its status says whether something is missing.
    return [f"{line} || [ $? = 1 ]" if line.startswith("hetfl doctor") else line for line in chosen]


PAGES = [page for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))] if typed(page)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout, with its records and DVC's cache, in which git sees no change."""
    if not (ROOT / "runs/digits-homogeneous").exists():
        pytest.skip("needs the digits' records: make repro")
    root = tmp_path_factory.mktemp("finished") / "project"
    left = shutil.ignore_patterns(
        ".venv", "build", "site", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"
    )
    shutil.copytree(ROOT, root, symlinks=True, ignore=left)
    changes = [
        ["add", "--all"],
        ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--allow-empty", "-qm", "a"],
    ]
    for words in changes:
        subprocess.run(["git", *words], cwd=root, check=True)
    return root


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_lines_of_a_page_run_as_they_stand(finished: Path, page: Path, tmp_path: Path) -> None:
    root, home = tmp_path / "project", tmp_path / "home"
    shutil.copytree(finished, root, symlinks=True)
    pictures(home / "pictures/flowers")
    script = tmp_path / "lines.sh"
    script.write_text("set -ex\n" + "\n".join(typed(page)) + "\n")
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(root / "src"),
        "DVC_NO_ANALYTICS": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", script], cwd=root, env=environment, capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr


def pictures(folder: Path) -> None:
    """Small images of three flowers."""
    for label, name in enumerate(("daisy", "rose", "tulip")):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.full((40, 30, 3), (80 * label, 200 - 60 * label, 5 * number), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
