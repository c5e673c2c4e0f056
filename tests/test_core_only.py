"""A machine with the training core's dependencies alone trains cells, and gives and takes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml
from record_factory import make_round, write_metrics, write_record
from test_dependencies import PIPELINE, distributions

from hetfl.experiments.identity import fingerprint
from hetfl.experiments.plan import Workspace, cells, load_params
from hetfl.schema import Inputs

ONLY_CORE = """
import sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
sys.argv[0] = "hetfl"
from hetfl.cli import main
main()
"""
PARAMS = {
    "data": {"digits": {"public": 1000, "test": 300}},
    "partitions": {"digits": {"seeds": [0], "splits": {"iid": {"scheme": "iid", "clients": 3}}}},
    "models": {"tiny": ["digits_vit_base"]},
    "experiments": {
        "tiny": {
            "title": "Tiny",
            "paper": "fedhpl",
            "dataset": "digits",
            "models": "tiny",
            "splits": {"iid": "IID"},
            "seeds": 1,
            "defaults": {"rounds": 1},
            "rows": {"fedavg": {"method": "fedavg", "title": "FedAvg", "settings": {}}},
        }
    },
}


def core(root: Path, *arguments: str) -> str:
    refused = {name for name, found in distributions().items() if PIPELINE.intersection(found)}
    assert {"dvc", "mlflow", "matplotlib", "pandas"} <= refused
    code = ONLY_CORE.format(refused=sorted(refused))
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cells_travel_between_machines_without_dvc_and_mlflow(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for root in (here, there):
        root.mkdir()
        (root / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    (cell,) = cells(load_params(here / "params.yaml"), "tiny")
    workspace, reads = Workspace(here), Inputs(dataset="d", partition="p", weights={})
    found = fingerprint(cell, reads)
    lines = [make_round(0), make_round(1)]
    write_record(workspace.runs, cell.path, lines, fingerprint=found, inputs=reads, settings=cell.settings)
    write_metrics(workspace.evaluations, cell.path, fingerprint=found)
    assert "done" in core(here, "cells", "tiny")
    assert "1 of 1 cells" in core(here, "export", "tiny", "-o", "../cells.tar")
    assert "taken over" in core(there, "import", "../cells.tar")
    assert "done" in core(there, "cells", "tiny")
