"""A checkout with one small experiment that sweeps can train, and what came of its cells."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from stage_runner import run_stage

from hetfl.experiments.cell import run_cell
from hetfl.experiments.plan import Cell, Params, Workspace, cells, load_params

BIN = Path(sys.executable).parent
HETFL = str(BIN / "hetfl")
NAME = "small"


def settings(rounds: int = 3, seeds: int = 2, long: int = 0, **compute: Any) -> dict[str, Any]:
    """The content of params.yaml: FedAvg and FedProx on digits, from scratch; ``long``: rounds of FedProx."""
    return {
        "compute": {"device": "cpu", "jobs": 1, **compute},
        "data": {"digits": {"public": 1200, "test": 300}},
        "partitions": {"digits": {"seeds": [0, 1], "splits": {"iid": {"scheme": "iid", "clients": 3}}}},
        "models": {"small": ["digits_resnet_small"]},
        "experiments": {
            NAME: {
                "title": "A small table",
                "dataset": "digits",
                "models": "small",
                "splits": {"iid": "IID"},
                "seeds": [*range(seeds)],
                "defaults": {"rounds": rounds},
                "rows": {"fedavg": {}, "fedprox": {"settings": {"mu": 0.1, "rounds": long or rounds}}},
            }
        },
    }


def write(root: Path, **changes: Any) -> None:
    """Write params.yaml, see :func:`settings`."""
    (root / "params.yaml").write_text(yaml.safe_dump(settings(**changes), sort_keys=False))


def make(root: Path) -> Path:
    """A project with data and partitions, nothing trained."""
    write(root)
    for stage in ("download", "partition"):
        assert run_stage(root, stage, "digits")[0] == 0
    return root


def copy(project: Path, root: Path, **changes: Any) -> Path:
    """The same project elsewhere, with other settings."""
    shutil.copytree(project, root)
    write(root, **changes)
    return root


def trained(project: Path, root: Path, **changes: Any) -> dict[str, Any]:
    """What the cells give if this process trains them one after another, without a break."""
    workspace, _, cells = plan(copy(project, root, **changes))
    for cell in cells:
        assert run_cell(cell, workspace, torch.device("cpu"))
    return results(root)


def plan(root: Path) -> tuple[Workspace, Params, list[Cell]]:
    """A project's workspace, settings and cells."""
    workspace = Workspace(root)
    params = load_params(workspace.params)
    return workspace, params, cells(params, NAME)


def results(root: Path) -> dict[str, Any]:
    """All there is of every finished cell besides when, where from and how fast it ran."""
    found = {}
    for path in sorted((root / "runs").glob("[!.]*/*/*/*/run.json")):
        run, folder = json.loads(path.read_text()), path.parent
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        if run["status"] == "complete":
            found[folder.relative_to(root / "runs").as_posix()] = {
                "run": {key: value for key, value in run.items() if key not in ("started", "finished", "commit")},
                "rounds": [
                    {key: value for key, value in line.items() if key not in ("seconds", "peak_memory")}
                    for line in lines
                ],
                "model": (folder / "model.safetensors").read_bytes(),
            }
    return found


def last_rounds(root: Path) -> dict[str, int]:
    """The last round in each cell's record, finished or not."""
    files = (root / "runs").glob("[!.]*/*/*/*/rounds.jsonl")
    return {path.parent.relative_to(root / "runs").as_posix(): path.read_bytes().count(b"\n") - 1 for path in files}


def times(root: Path) -> dict[str, int]:
    """Every file of runs and evaluations with the time of its last change."""
    folders = (root / "runs", root / "evaluations")
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in files}


def environment(folder: Path) -> dict[str, str]:
    """Of commands: device locks, MLflow and bytecode of their own."""
    kept = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    folder.mkdir(exist_ok=True)
    return {**kept, "TMPDIR": str(folder), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


class Nobody:
    """Follows a training without a word, instead of MLflow, whose database takes seconds to make."""

    def told(self, event: object) -> None: ...

    def close(self) -> None: ...
