"""A server plays its cells one after another, whatever becomes of one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployment_files import PARAMS, rehearse

pytest.importorskip("flwr")

from hetfl.deploy import play  # noqa: E402
from hetfl.deploy.settings import Server, read_node, read_server  # noqa: E402
from hetfl.deploy.worker import Worker  # noqa: E402
from hetfl.errors import FailedCellsError, HetflError  # noqa: E402
from hetfl.experiments.plan import Workspace, cells, load_params  # noqa: E402
from hetfl.methods import METHODS  # noqa: E402
from hetfl.methods.fedavg import FedAvg  # noqa: E402
from hetfl.schema import read_run  # noqa: E402


class Near:
    """Stands for the transport: the nodes' workers are in this process."""

    trusted = False

    def __init__(self, server: Server, *_: object) -> None:
        files = server.project.parent
        self.server, self.clients = server, {name: one.clients for name, one in server.nodes.items()}
        self.headers: dict[str, dict[str, Any]] = {}
        self.workers = {name: Worker(read_node(files / f"{name}.yaml")) for name in self.clients}
        self.answers: list[tuple[str, bytes]] = []

    def send(self, host: str, request: bytes, most: int = 0) -> None:
        self.answers.append((host, self.workers[host].answer(self.headers[host], bytearray(request))))

    def receive(self, hosts: list[str], timeout: float | None) -> tuple[str, bytes]:
        return self.answers.pop(0)

    def forget(self) -> None:
        self.answers.clear()

    def take_carried(self) -> dict[str, Any]:
        return {}

    def nothing(self, *_: object) -> None:
        pass

    wait_for_nodes = settle = finish = close = nothing


class Broken(FedAvg):
    """A method with a mistake that only the server's second round finds."""

    numerics = 1

    def aggregate(self, server, uplinks, draws):
        if draws.round == 2:
            raise ValueError("no such tensor")
        return super().aggregate(server, uplinks, draws)


def test_a_method_with_a_mistake_stops_no_other_cell(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(METHODS, "broken", Broken)
    monkeypatch.setattr(play, "FlowerTransport", Near)
    tiny = PARAMS["experiments"]["tiny"] | {"rows": {"broken": {}, "fedavg": {}}, "defaults": {"rounds": 2}}
    # A socket's path must be short.
    deployment = rehearse(tmp_path_factory.mktemp("play"), PARAMS | {"experiments": {"tiny": tiny}})
    server = read_server(deployment / "server.yaml")
    with pytest.raises(FailedCellsError) as told:
        play.serve(server, insecure=False)
    runs = server.project / "runs" / "tiny"
    assert str(told.value).startswith(f"{runs}/broken/") and "\n" not in str(told.value)
    assert str(told.value).endswith("in Broken.aggregate: ValueError: no such tensor")
    assert "Traceback" not in capsys.readouterr().err
    (finished,) = (runs / "fedavg").glob("*/*/run.json")
    run = read_run(finished.parent)
    assert run is not None and run.complete


def test_a_server_needs_as_many_clients_as_the_split_has(rehearsed: Path) -> None:
    workspace = Workspace(rehearsed / "server")
    params, server = load_params(workspace.params), read_server(rehearsed / "server.yaml")
    play.check(cells(params, "tiny"), params, workspace, server)
    fewer = server.model_copy(update={"nodes": {"node-0": server.nodes["node-0"]}})
    with pytest.raises(HetflError, match="^server.nodes: have 1 clients, tiny/.* has 2$"):
        play.check(cells(params, "tiny"), params, workspace, fewer)
