"""Folders in which a deployment's files are right."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployment_files import PARAMS, rehearse

from hetfl.deploy.certs import make_certificates


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
    return rehearse(tmp_path_factory.mktemp("project"), PARAMS)
