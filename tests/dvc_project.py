"""A checkout with one small experiment and DVC, for tests that run its commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from hetfl import stages
from hetfl.experiments.plan import load_params

REPOSITORY = Path(__file__).parents[1]
PARAMS: dict[str, Any] = {
    "data": {"digits": {"public": 1000, "test": 300}},
    "partitions": {"digits": {"seeds": [0], "splits": {"iid": {"scheme": "iid", "clients": 3}}}},
    "pretrain": {
        "digits": {
            "dataset": "digits",
            "models": ["digits_vit_base"],
            "epochs": 5,
            "batch_size": 32,
            "lr": 0.003,
            "weight_decay": 0.05,
        }
    },
    "models": {"kills": ["digits_resnet_small"], "prompted": ["digits_vit_base"]},
    "experiments": {
        "kills": {
            "title": "Kills",
            "paper": "fedhpl",
            "dataset": "digits",
            "models": "kills",
            "splits": {"iid": "IID"},
            "seeds": [0],
            "defaults": {"rounds": 4},
            "rows": {
                "fedavg": {"settings": {"optimiser": "adam", "lr": 0.004, "batch_size": 8, "keep_optimiser": True}},
                "fedhpl": {"models": "prompted", "settings": {"share": "prompts"}},
            },
        }
    },
}


class Project:
    """A checkout with one small experiment.

    Args:
        root: its folder.
        params: its settings, without how it computes.
    """

    def __init__(self, root: Path, params: Mapping[str, Any] = PARAMS) -> None:
        self.root, self.params = root, params

    @classmethod
    def make(cls, root: Path, params: Mapping[str, Any] = PARAMS) -> Self:
        """Build it; it has a copy of the code, so that edits during the test cannot make other runs of these."""
        project = cls(root, params)
        for name in ("pipeline", "src"):
            shutil.copytree(
                REPOSITORY / name,
                root / name,
                # The papers' experiments stay behind.
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "params.yaml", "dvc.yaml"),
            )
        shutil.copy(REPOSITORY / "versions.yaml", root)
        project.compute(1)
        stages.write(load_params(root / "params.yaml"), root)
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
        subprocess.run(["dvc", "init", "--quiet"], cwd=root, check=True, env=project.environment)
        return project

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.root / "src"),
            "DVC_NO_ANALYTICS": "1",
        }

    def compute(self, jobs: int) -> None:
        """Set how many cells train at once, which is no part of a run's identity."""
        params = {"compute": {"device": "cpu", "jobs": jobs}, **self.params}
        (self.root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
