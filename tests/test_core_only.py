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
import gc, sys
gc.disable()  # it would go through all that is imported, again and again
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
import os
from pathlib import Path
from hetfl.cli import main
for folder, *arguments in {commands}:
    os.chdir(Path({root}) / folder)
    sys.argv = ["hetfl", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, arguments
    print("{end}", flush=True)
"""
END = "end of a command"
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


def core(root: Path, *commands: tuple[str, ...]) -> list[str]:
    """What each of some commands prints, where only the core's dependencies are; each is in a folder of ``root``."""
    refused = {name for name, found in distributions().items() if PIPELINE.intersection(found)}
    assert {"dvc", "mlflow", "matplotlib", "pandas"} <= refused
    code = ONLY_CORE.format(refused=sorted(refused), commands=commands, root=repr(str(root)), end=END)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(END)[:-1]


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
    told = core(
        tmp_path,
        ("here", "cells", "tiny"),
        ("here", "export", "tiny", "-o", "../cells.tar"),
        ("there", "import", "../cells.tar"),
        ("there", "cells", "tiny"),
    )
    for said, expected in zip(told, ("done", "1 of 1 cells", "taken over", "done"), strict=True):
        assert expected in said
