"""Folders in which a deployment's files are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from deployment_files import PARAMS

from hetfl.data.partitions import make_partition, write_partition
from hetfl.data.store import Subset, read_dataset, write_dataset
from hetfl.deploy.certs import make_certificates
from hetfl.deploy.rehearse import write_deployment
from hetfl.draws import Draws
from hetfl.experiments.plan import Workspace, cells, load_params


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With certificates, a project and a prepared data set."""
    root = tmp_path_factory.mktemp("d")
    make_certificates(root / "certs", ["localhost", "127.0.0.1"], ["north", "south"])
    for name in ("project/params.yaml", "data/card.json"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("{}")
    return root


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rehearsed deployment with two nodes."""
    root = tmp_path_factory.mktemp("project")
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMS))
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
