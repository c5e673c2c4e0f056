"""Clients that do not answer, or send what their method does not declare: the round goes on without them."""

from __future__ import annotations

import pytest
import torch

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.schema import Round
from hetfl.training import rounds
from hetfl.training.engine import Failure
from hetfl.training.local import LocalEngine


class Remote(LocalEngine):
    """An engine whose clients are taken for remote ones, and may answer otherwise than they would.

    Attributes:
        answers: what comes instead of an update, by client.
    """

    remote = True

    def __init__(self, engine: LocalEngine, **answers) -> None:
        super().__init__(engine.method, engine.federation, engine.trainer)
        self.answers = {int(name[1:]): answer for name, answer in answers.items()}

    def train(self, tasks, draws):
        for update in super().train(tasks, draws):
            change = self.answers.get(update.client, lambda update: update)
            if (changed := change(update)) is not None:
                yield changed


def lost(update):
    return Failure(update.client, "did not answer within 60 s")


def without_seconds(line: Round):
    return {**line.as_json(), "seconds": None, "peak_memory": None}


@pytest.mark.parametrize("method", ["fedavg", "fedkd", "fgpt", "fedmix"])
def test_a_round_without_a_client_is_the_round_of_the_others(toy_engine, monkeypatch, method):
    engine = Remote(toy_engine(method, dtype=torch.float64), c1=lost)
    server, _ = rounds.start(engine, Draws(0))
    found, line = rounds.play_round(engine, server, Draws(0).at(1))
    assert line.failed == {"1": "did not answer within 60 s"} and line.participants == [0, 2]
    others = Remote(toy_engine(method, dtype=torch.float64))
    server, _ = rounds.start(others, Draws(0))
    monkeypatch.setattr(rounds, "participants", lambda *given: [0, 2])
    expected, other = rounds.play_round(others, server, Draws(0).at(1))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert [line.loss, line.up, line.clients] == [other.loss, other.up, other.clients]
    assert Round.model_validate_json(line.model_dump_json(exclude_unset=True)).failed == line.failed


def test_a_client_that_never_answers_is_told(toy_engine):
    engine = Remote(toy_engine("fedavg"), c2=lambda update: None)
    server, _ = rounds.start(engine, Draws(0))
    _, line = rounds.play_round(engine, server, Draws(0).at(1))
    assert line.failed == {"2": "did not answer"} and len(line.loss) == 2


def test_too_few_valid_uplinks_end_the_run_with_one_line(toy_engine):
    engine = Remote(toy_engine("fedavg"), c0=lost, c2=lost)
    server, _ = rounds.start(engine, Draws(0))
    rounds.play_round(engine, server, Draws(0).at(1))
    told = "^1 of 3 clients answered as they should, and compute.uplinks_needed wants {}; client 0 did not"
    for needed in (2, None):
        with pytest.raises(HetflError, match=told.format(needed or 3)):
            rounds.play_round(engine, server, Draws(0).at(1), needed=needed)


def test_fine_tuning_needs_as_many_clients_as_a_round(toy_engine, monkeypatch):
    engine = Remote(toy_engine("fedbabu"))
    server, _ = rounds.start(engine, Draws(0))
    tune = engine.fine_tune
    monkeypatch.setattr(engine, "fine_tune", lambda *given: (lost(u) if u.client else u for u in tune(*given)))
    assert rounds.play_fine_tuning(engine, server, Draws(0).at(1)).participants == [0]
    with pytest.raises(HetflError, match="^1 of 3 clients answered as they should, and .* wants 3"):
        rounds.play_fine_tuning(engine, server, Draws(0).at(1), needed=None)


def test_no_more_uplinks_are_needed_than_there_are_participants(toy_engine):
    engine = Remote(toy_engine("fedavg"))
    server, _ = rounds.start(engine, Draws(0))
    _, line = rounds.play_round(engine, server, Draws(0).at(1), needed=5)
    assert line.participants == [0, 1, 2]


def test_a_run_of_which_nothing_failed_says_nothing(toy_engine):
    engine = Remote(toy_engine("fedavg"))
    server, _ = rounds.start(engine, Draws(0))
    _, line = rounds.play_round(engine, server, Draws(0).at(1))
    assert "failed" not in line.as_json()


def test_a_run_begins_once_all_clients_have_registered(toy_engine, monkeypatch):
    engine = Remote(toy_engine("fedavg"))
    introduce = engine.introduce
    monkeypatch.setattr(engine, "introduce", lambda clients, draws: map(lost, introduce(clients, draws)))
    with pytest.raises(HetflError, match="once all clients have registered, but client 0 did not answer within"):
        rounds.start(engine, Draws(0))
