"""What a node tells Flower while it works."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from filelock import FileLock
from flwr.supercore.error import ApiErrorCode, FlowerError
from httpx import ConnectError, HTTPStatusError, Request, Response

from hetfl.deploy import link, supervisor
from hetfl.deploy.settings import read_node
from hetfl.deploy.superlink import TAKEN
from hetfl.deploy.supervisor import Supervisor
from hetfl.errors import HetflError


class Task:
    """Stands for Flower's Runtime API; its first heartbeat does not come through."""

    def __init__(self) -> None:
        self.beats, self.enough = 0, threading.Event()

    def SendTaskHeartbeat(self, request: object) -> None:  # noqa: N802 - Flower's name
        self.beats += 1
        if self.beats == 1:
            raise ConnectionError("refused")
        self.enough.set()


def test_flower_hears_of_a_long_answer_and_of_nothing_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "HEARTBEAT", 0.01)
    task = Task()
    with link.at_work(task):
        assert task.enough.wait(60)
    beats = task.beats
    time.sleep(0.1)
    assert task.beats == beats


def test_why_the_server_cannot_be_reached_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    node = SimpleNamespace(name="north", server="fl.example.org:9092")
    invoker = link.soon(node, {})  # type: ignore[arg-type]
    for _ in range(3):
        assert not invoker.should_giveup(ConnectError("All connection attempts failed"))
    assert invoker.should_giveup(ConnectError("certificate verify failed"))
    told = "north: the server at fl.example.org:9092 cannot be reached (ConnectError: {}); trying again"
    reasons = ("All connection attempts failed", "certificate verify failed")
    assert [message for message in caplog.messages if "north" in message] == [told.format(why) for why in reasons]


def refused(details: str | None) -> HTTPStatusError:
    """What Flower raises when a SuperLink does not admit a node."""
    error = FlowerError(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, "", details)
    request = Request("POST", "https://fl.example.org:9092/v1/fleet/activate-node")
    response = Response(412, text=json.dumps(error.to_json("Failed to activate SuperNode.")), request=request)
    return HTTPStatusError("412", request=request, response=response)


def test_a_node_whose_key_another_one_has_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not at once, since the server takes a node that was killed for one that is there."""
    now = 1000.0
    monkeypatch.setattr(link.time, "monotonic", lambda: now)
    node = SimpleNamespace(name="north", server="fl.example.org:9092", key="certs/north.key")
    invoker = link.soon(node, {})  # type: ignore[arg-type]
    assert not invoker.should_giveup(refused(TAKEN))
    now += 2 * link.HEARTBEAT
    assert not invoker.should_giveup(refused(TAKEN))
    assert capsys.readouterr().err == ""
    assert len(caplog.messages) == 1 and TAKEN in caplog.messages[0]
    now += 2 * link.HEARTBEAT
    with pytest.raises(SystemExit) as ended:
        invoker.should_giveup(refused(TAKEN))
    assert ended.value.code == 2
    told = "error: north: node.key: certs/north.key: a node with this key is connected to fl.example.org:9092; end"
    said = capsys.readouterr().err
    assert said.startswith(told) and said.count("\n") == 1


def test_a_node_whose_key_the_server_does_not_know_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(link.time, "monotonic", lambda: now)
    node = SimpleNamespace(name="north", server="fl.example.org:9092", key="certs/north.key")
    invoker = link.soon(node, {})  # type: ignore[arg-type]
    for _ in range(3):
        assert not invoker.should_giveup(refused(None))
        now += 2 * link.OTHER
    assert len(caplog.messages) == 3 and all("does not know this node's key" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("ahead", "told"),
    [
        (90, "this machine's clock is 90 s ahead of the server's"),
        (-3600, "this machine's clock is 3600 s behind the server's"),
        (-60, "it does not know this node's key"),
    ],
)
def test_a_node_whose_clock_is_wrong_is_told_so(ahead: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000
    monkeypatch.setattr(time, "time", lambda: now + ahead)
    headers = {"date": formatdate(now, usegmt=True)}
    response = Response(401, headers=headers, json={"detail": "Invalid SuperNode authentication"})
    error = HTTPStatusError("401", request=Request("POST", "https://fl.example.org"), response=response)
    assert link.refusal(error) == (False, told)


def test_a_node_connects_once_its_worker_is_ready(
    rehearsed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the server's deadline would run while the worker starts."""
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)
    file = rehearsed / "node-0.yaml"
    node = read_node(file).model_copy(update={"folder": tmp_path / "f"})
    starting = Supervisor(file, node, False)
    asked = f"import socket; s = socket.socket(socket.AF_UNIX); path = {str(node.socket)!r}\n"
    ready = f"{asked}import time; time.sleep(1); s.bind(path); s.listen(); time.sleep(60)"
    told = f"{asked}print(s.connect_ex(path), file=open({str(tmp_path / 'told')!r}, 'w')); exit(2)"
    starting._commands = {"worker": [sys.executable, "-c", ready], "link": [sys.executable, "-c", told]}
    assert starting.run() == 2
    assert (tmp_path / "told").read_text() == "0\n"


def test_the_processes_of_a_node_are_asked_to_end(rehearsed: Path, tmp_path: Path) -> None:
    """So that a worker can put down its state, and before anything kills them."""
    file = rehearsed / "node-0.yaml"
    joined, ready, told = Supervisor(file, read_node(file), False), tmp_path / "ready", tmp_path / "told"
    code = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try:
    open({str(ready)!r}, "w")
    time.sleep(60)
except SystemExit:
    open({str(told)!r}, "w")
"""
    joined._running["worker"] = process = subprocess.Popen([sys.executable, "-c", code])
    while process.poll() is None and not ready.exists():
        time.sleep(0.01)
    joined.stop()
    assert process.poll() == 0 and told.exists()


def test_a_node_joins_once(rehearsed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "_run", lambda self: 0)
    file = rehearsed / "node-0.yaml"
    node = read_node(file)
    assert Supervisor(file, node, False).run() == 0
    with (
        FileLock(node.folder / "lock"),
        pytest.raises(HetflError, match="node-0.yaml: node.folder: .*/flower is that of a node that has joined; end"),
    ):
        Supervisor(file, node, False).run()
