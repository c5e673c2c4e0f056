"""A server plays its cells one after another, whatever becomes of one of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

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
    waits: ClassVar[list[float | None]] = []

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

    def wait_for_nodes(self, seconds: float | None) -> None:
        self.waits.append(seconds)

    def nothing(self, *_: object) -> None:
        pass

    settle = finish = close = nothing


class Broken(FedAvg):
    """A method with a mistake that only the server's second round finds."""

    numerics = 1

    def aggregate(self, server, uplinks, draws):
        if draws.round == 2:
            raise ValueError("no such tensor")
        return super().aggregate(server, uplinks, draws)


@pytest.fixture
def deployment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two cells, the first of which stops after its first round."""
    monkeypatch.setitem(METHODS, "broken", Broken)
    monkeypatch.setattr(play, "FlowerTransport", Near)
    monkeypatch.setattr(Near, "waits", [])
    tiny = PARAMS["experiments"]["tiny"] | {"rows": {"broken": {}, "fedavg": {}}, "defaults": {"rounds": 2}}
    # A socket's path must be short.
    return rehearse(tmp_path_factory.mktemp("play"), PARAMS | {"experiments": {"tiny": tiny}})


def test_a_method_with_a_mistake_stops_no_other_cell(deployment: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(("missing", "patience"), [("go-on", 600.0), ("wait", None)])
def test_a_run_begins_with_all_nodes_and_goes_on_without_those_that_stay_away(
    deployment: Path, missing: str, patience: float | None
) -> None:
    server = read_server(deployment / "server.yaml").model_copy(update={"missing": missing})

    def waits() -> list[float | None]:
        Near.waits.clear()
        with pytest.raises(FailedCellsError):
            play.serve(server, insecure=False)
        return [*Near.waits]

    assert waits() == [None, None], "before each registration"
    assert waits() == [patience, patience], "for those to be told of the finished run, and before the other goes on"
    shutil.rmtree(server.project / "runs" / "tiny" / "fedavg")
    assert waits() == [patience, None], "before one goes on, and before one begins"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch_size": 2000, "drop_last": True}, "drop_last leaves out every batch, since batch_size is 2000"),
        ({"batch_size": 1}, "batch_size is 1, and the batch normalisation of"),
    ],
)
def test_settings_that_do_not_fit_the_samples_are_refused_before_nodes_are_asked(
    changes: dict[str, Any], told: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "FlowerTransport", Near)
    monkeypatch.setattr(Near, "waits", [])
    tiny = PARAMS["experiments"]["tiny"] | {"rows": {"fedavg": {"settings": changes}}}
    folder = rehearse(tmp_path_factory.mktemp("play"), PARAMS | {"experiments": {"tiny": tiny}})
    server = read_server(folder / "server.yaml")
    with pytest.raises(FailedCellsError, match=told):
        play.serve(server, insecure=False)
    assert not Near.waits and not (server.project / "runs").exists()
