"""What a node tells Flower while it works."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from httpx import ConnectError

from hetfl.deploy import link


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
