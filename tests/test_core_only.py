"""A machine with the training core's dependencies alone imports the core, trains cells, and gives and takes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml
from record_factory import make_round, write_metrics, write_record
from settings_files import ROOT
from test_dependencies import PIPELINE, distributions
from test_layers import CORE, modules

from hetfl.experiments.identity import fingerprint
from hetfl.experiments.plan import Workspace, cells, load_params
from hetfl.schema import Inputs

ONLY_CORE = """
import gc, os, sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path

gc.disable()  # it would go through all that is imported, again and again

class Refuse(MetaPathFinder):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse({refused}))
sys.meta_path.insert(0, of_commands := Refuse({of_commands}))
for name in {modules}:
    import_module(name)
from hetfl.experiments.plan import cells, load_params
params = load_params(Path("params.yaml"))
assert cells(params, "digits-homogeneous")
# Commands that list stages know of figures, and start without what draws them.
import hetfl.stages
assert hetfl.stages.figures(params)

sys.meta_path.remove(of_commands)
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
    """What each of some commands prints, where only the core's dependencies are; each is in a folder of ``root``.

    Before them all of the core's modules are imported without what prints for people, as on a GPU machine that has
    torch, timm, scikit-learn, pydantic and little else.
    """
    refused = {name for name, found in distributions().items() if PIPELINE.intersection(found)}
    assert {"dvc", "mlflow", "matplotlib", "pandas"} <= refused
    names = sorted(name for name in modules() if name.split(".")[1:2] and name.split(".")[1] in CORE)
    code = ONLY_CORE.format(
        refused=sorted(refused),
        of_commands=["flwr", "ray", "rich", "typer", "tabulate"],
        modules=names,
        commands=commands,
        root=repr(str(root)),
        end=END,
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(END)[:-1]


def test_the_core_runs_and_cells_travel_between_machines_without_dvc_and_mlflow(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for root in (here, there):
        root.mkdir()
        (root / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    (cell,) = cells(load_params(here / "params.yaml"), "tiny")
    workspace, reads = Workspace(here), Inputs(dataset="d", partition="p", weights={})
    found = fingerprint(cell, reads)
    lines = [make_round(0), make_round(1)]
    of_cell = {"dataset": cell.dataset, "settings": cell.settings, "partition": cell.partition}
    write_record(workspace.runs, cell.path, lines, fingerprint=found, inputs=reads, **of_cell)
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
