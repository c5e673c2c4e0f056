"""Clients in the actors of a Ray cluster give the record that they give in one process."""

from __future__ import annotations

import digits_project
import pytest

from hetfl.training.ray import Actors

pytestmark = pytest.mark.distributed
pytest.importorskip("ray")


@pytest.mark.parametrize("method", digits_project.METHODS)
def test_two_actors_give_the_same_record(digits, sequential, tmp_path, method):
    cell = digits_project.cells_of(digits)[method]
    digits_project.train(digits, cell, tmp_path, engine="ray", ray={"actors": 2})
    assert digits_project.record(tmp_path, cell) == sequential(method)
    print(f"\nray, 2 actors, {method}: the record of one process", end="")


@pytest.mark.parametrize("method", ["scaffold", "fedmd"])
def test_an_actor_killed_twice_changes_nothing(digits, sequential, tmp_path, monkeypatch, method):
    """Once in the middle of round 1, and its successor in round 2; SCAFFOLD's clients remember something."""
    killed, received, receive = [], [], Actors.receive

    def deadly(self, hosts, timeout):
        received.append(1)
        if len(received) in (7, 20):
            self._ray.kill(self._actors["actor 1"])
            killed.append(1)
        return receive(self, hosts, timeout)

    monkeypatch.setattr(Actors, "receive", deadly)
    cell = digits_project.cells_of(digits)[method]
    digits_project.train(digits, cell, tmp_path, engine="ray", ray={"actors": 2})
    assert len(killed) == 2
    assert digits_project.record(tmp_path, cell) == sequential(method)
    print(f"\nray, 2 actors, one killed twice, {method}: the record of one process", end="")
