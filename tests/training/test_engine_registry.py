"""An engine of one's own is a file and an entry of the registry; settings, commands and records then know it."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from record_factory import CLIENTS, ROUNDS, project, trained
from test_remote_engine import Here, bare

from hetfl.config import validate
from hetfl.deploy.settings import Node
from hetfl.errors import HetflError
from hetfl.experiments.cell import run_cell
from hetfl.experiments.plan import ComputeSettings, Workspace
from hetfl.experiments.record import MODEL
from hetfl.experiments.schedule import at_once
from hetfl.schema import needed_run, read_rounds
from hetfl.training.registry import ENGINES, EngineKind
from hetfl.training.sequential import Sequential

CPU = torch.device("cpu")


class Toy(Sequential):
    """Trains one client after another, and counts them."""

    trained = 0

    def train(self, runs, phases, draws):
        for run in super().train(runs, phases, draws):
            Toy.trained += 1
            yield run


class Apart(Here):
    """Two hosts, as an engine with processes of its own would have."""

    def __init__(self, make, loads, threads, gpu, settings):
        assert (threads, gpu, settings) == (1, False, None)
        assert all(load > 0 for load in loads)
        theirs = make.args[2]
        # What the record says of device and precision was decided before; a process that decides anew may differ.
        assert (theirs.device, theirs.precision) == ("cpu", "float32")
        clients = len(loads)
        super().__init__(make().engine, {"one": range(0, clients, 2), "other": range(1, clients, 2)})
        self.hosts = {name: make() for name in self.clients}


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Toy", "Apart"):
        kind = EngineKind(f"{__name__}:{name}", own_processes=name == "Apart")
        monkeypatch.setitem(ENGINES, name.lower(), kind)


def test_a_cell_is_trained_by_it_and_its_record_names_it(tmp_path: Path) -> None:
    here, cell = project()
    known = trained()
    for name in ("toy", "apart"):
        workspace = Workspace(here.root)
        workspace.runs, workspace.scratch = tmp_path / name, tmp_path / ".hetfl"
        compute = validate(
            ComputeSettings, {"device": "auto", "precision": "auto", "engine": name}, "params.yaml: compute"
        )
        assert run_cell(cell, workspace, CPU, compute)
        folder = workspace.runs / cell.path
        assert needed_run(folder).engine == name
        assert [*map(bare, read_rounds(folder, finished=True))] == [*map(bare, known.rounds)]
        assert (folder / MODEL).read_bytes() == (known.folder / MODEL).read_bytes()
    # FedHPL's clients also look at their data before round 1.
    assert Toy.trained == CLIENTS * (1 + ROUNDS)


@pytest.mark.parametrize("name", ENGINES)
def test_what_makes_an_engine_is_there(name: str) -> None:
    assert callable(resolve_name(ENGINES[name].maker))


def test_settings_and_schedule_know_it() -> None:
    with pytest.raises(HetflError, match="engine: 'toi' should be 'auto', 'sequential', 'batched', 'ray'"):
        validate(ComputeSettings, {"engine": "toi"}, "params.yaml: compute")
    # A node trains its clients in the worker's process.
    node = {"name": "a", "server": "localhost:1", "project": ".", "clients": {0: "a"}, "folder": "b", "engine": "ray"}
    with pytest.raises(HetflError, match="engine: 'ray' should be 'auto', 'sequential', 'batched' or 'toy'"):
        validate(Node, node, "node.yaml: node")
    assert at_once(CPU, ComputeSettings(engine="apart")) == 1
