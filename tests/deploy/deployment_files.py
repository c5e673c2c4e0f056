"""A small project, and a server's and a node's part of a deployment's file, as tests change them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hetfl.data.partitions import make_partition, write_partition
from hetfl.data.store import Subset, read_dataset, write_dataset
from hetfl.deploy.rehearse import write_deployment
from hetfl.draws import Draws
from hetfl.experiments.plan import Workspace, cells, load_params

PARAMS = {
    "data": {"digits": {"public": 100, "test": 300}},
    "partitions": {"digits": {"seeds": 1, "splits": {"iid": {"scheme": "iid", "clients": 2}}}},
    "models": {"tiny": ["digits_resnet_small"]},
    "experiments": {
        "tiny": {
            "title": "Tiny",
            "dataset": "digits",
            "models": "tiny",
            "splits": {"iid": "IID"},
            "seeds": 1,
            "rows": {"fedavg": {}},
        }
    },
}
SERVER = {
    "address": "127.0.0.1:9092",
    "project": "project",
    "run": ["digits-homogeneous"],
    "folder": "flower",
    "certificate": "certs/server.crt",
    "key": "certs/server.key",
    "authority": "certs/authority.crt",
    "nodes": {
        "north": {"key": "certs/north.pub", "clients": [0, 1]},
        "south": {"key": "certs/south.pub", "clients": [2]},
    },
}
NODE = {
    "name": "north",
    "server": "fl.example.org:9092",
    "authority": "certs/authority.crt",
    "key": "certs/north.key",
    "project": "project",
    "folder": "flower",
    "clients": {0: "data", 1: "data"},
}


def write(folder: Path, part: str, settings: dict) -> Path:
    """A file with one part."""
    path = folder / f"{part}.yaml"
    path.write_text(yaml.safe_dump({part: settings}))
    return path


def rehearse(root: Path, settings: dict[str, Any]) -> Path:
    """A project with some settings, rehearsed with two nodes; the deployment's folder."""
    (root / "params.yaml").write_text(yaml.safe_dump(settings))
    workspace, params = Workspace(root), load_params(root / "params.yaml")
    subset = Subset(np.zeros((20, 8, 8, 1), dtype=np.uint8), np.arange(20) % 2)
    about = {"name": "digits", "title": "X", "origin": "", "licence": "", "source": [], "settings": {}}
    subsets = {"train": subset, "test": subset}
    write_dataset(workspace.dataset("digits"), **about, class_names=("a", "b"), subsets=subsets)
    dataset, scheme = read_dataset(workspace.dataset("digits")), params.partitions["digits"].splits["iid"]
    partition = make_partition(scheme, dataset, Draws(0))
    write_partition(workspace.partition("digits", "iid", 0), partition, scheme, dataset, 0)
    write_deployment(cells(params, "tiny"), ["tiny"], workspace, root / "deployment", 2, "server:9092")
    return root / "deployment"
