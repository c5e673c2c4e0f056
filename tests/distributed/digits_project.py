"""A checkout with the six methods that every way to distribute clients must train to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml
from stage_runner import run_stage

from hetfl.experiments.cell import run_cell
from hetfl.experiments.plan import Cell, ComputeSettings, Workspace, cells, load_params
from hetfl.experiments.record import MODEL
from hetfl.schema import read_rounds

NAME, CLIENTS, ROUNDS = "six", 5, 3
GROUPED = {"shared_blocks": [1], "group_blocks": [2], "prompt_length": 2, "groups": 3, "participation": 0.6}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"models": "resnet"},
    "scaffold": {"models": "resnet", "settings": {"lr": 0.03, "momentum": 0.9}},
    "fedhpl": {"models": "vits"},
    "fedtgp": {"models": "resnets", "settings": {"embedding": 16, "server_epochs": 10}},
    "sgpt": {"models": "vit", "settings": GROUPED},
    "fedmd": {"models": "resnets", "settings": {"public_epochs": 1, "private_epochs": 1, "alignment_samples": 100}},
}
SETTINGS: dict[str, Any] = {
    "compute": {"device": "cpu", "jobs": 1},
    "data": {"digits": {"public": 400, "test": 400}},
    "partitions": {"digits": {"seeds": [0], "splits": {"dir": {"scheme": "dirichlet", "clients": CLIENTS}}}},
    "models": {
        "resnet": ["digits_resnet_small"],
        "resnets": ["digits_resnet_small", "digits_resnet_base"],
        "vit": ["digits_vit_small"],
        "vits": ["digits_vit_small", "digits_vit_base"],
    },
    "pretrain": {
        "digits": {
            "dataset": "digits",
            "models": ["digits_vit_small", "digits_vit_base"],
            "epochs": 2,
            "batch_size": 32,
            "lr": 0.003,
            "weight_decay": 0.05,
        }
    },
    "experiments": {
        NAME: {
            "title": "Six methods",
            "dataset": "digits",
            "models": "resnet",
            "splits": {"dir": "Dirichlet"},
            "seeds": [0],
            "public": {"dataset": "digits", "subset": "public"},
            "defaults": {"rounds": ROUNDS, "local_epochs": 1, "batch_size": 16},
            "rows": METHODS,
        }
    },
}


def make(root: Path) -> Path:
    """A project with data, weights and partitions, nothing trained."""
    (root / "params.yaml").write_text(yaml.safe_dump(SETTINGS, sort_keys=False))
    for stage in ("download", "pretrain", "partition"):
        assert run_stage(root, stage, "digits")[0] == 0
    return root


def cells_of(root: Path) -> dict[str, Cell]:
    """The project's cells by method."""
    return {cell.method: cell for cell in cells(load_params(root / "params.yaml"), NAME)}


def train(root: Path, cell: Cell, runs: Path, **compute: Any) -> None:
    """Train a cell into a folder of its own."""
    workspace = Workspace(root)
    workspace.runs, workspace.scratch = runs / "runs", runs / ".hetfl"
    assert run_cell(cell, workspace, torch.device("cpu"), ComputeSettings(device="cpu", **compute))


def record(runs: Path, cell: Cell) -> tuple[list[dict[str, Any]], bytes]:
    """What must not depend on where clients are: the rounds but for seconds and memory, and the model file."""
    folder = runs / "runs" / cell.path
    bare = {"seconds": {}, "peak_memory": None}
    lines = [line.model_copy(update=bare).model_dump() for line in read_rounds(folder, finished=True)]
    return lines, (folder / MODEL).read_bytes()
