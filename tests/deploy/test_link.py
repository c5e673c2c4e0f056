"""What a node tells Flower while it works."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("flwr")

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
