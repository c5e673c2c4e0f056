"""The committed settings in another folder."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_params(folder: Path) -> None:
    """Copy params.yaml and the papers' experiments."""
    for path in (ROOT / "params.yaml", *ROOT.glob("pipeline/*/params.yaml")):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
