"""The committed settings of both projects, and copies of them in another folder."""

import shutil
from pathlib import Path

from hetfl.experiments.plan import load_params

ROOT = Path(__file__).parents[1]
PAPERS = ROOT / "papers"
EMBEDDED_PARAMS = load_params(ROOT / "params.yaml")
PAPER_PARAMS = load_params(PAPERS / "params.yaml")


def copy_params(folder: Path) -> Path:
    """Copy the settings of both projects; returns the folder of the papers' one."""
    for path in (ROOT / "params.yaml", PAPERS / "params.yaml", *PAPERS.glob("*/params.yaml")):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    # What makes a folder a project of its own.
    (folder / PAPERS.name / ".dvc").mkdir(exist_ok=True)
    return folder / PAPERS.name
