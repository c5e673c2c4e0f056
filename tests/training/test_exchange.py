"""Messages are handed on one by one, in order, and then forgotten."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from playing import play_round, start
from toy import LOCAL_ENGINES

from hetfl.draws import Draws
from hetfl.message import Message, ServerState
from hetfl.methods import METHODS
from hetfl.methods.base import Method, Uplinks
from hetfl.training import batched, rounds
from hetfl.training.engine import Update
from hetfl.training.engines import make_engine
from hetfl.training.exchange import Exchange

NOTHING = torch.zeros(())


@pytest.mark.parametrize("name", LOCAL_ENGINES)
def test_fedavg_forgets_each_message_before_the_last_one_is_there(toy_engine, monkeypatch, name):
    monkeypatch.setattr(batched, "COHORT", 1)
    reference = toy_engine("fedavg")
    engine = make_engine(reference.method, reference.federation, name)
    server, _ = rounds.start(engine, Draws(0))
    alive: list[int] = []
    sent: list[weakref.ref] = []
    real = engine.train

    def watched(tasks, draws):
        for update in real(tasks, draws):
            sent.extend(weakref.ref(tensor) for tensor in update.uplink.values())
            gc.collect()
            alive.append(sum(tensor() is not None for tensor in sent))
            yield update

    monkeypatch.setattr(engine, "train", watched)
    gc.freeze()  # so that a collection looks at this round's objects alone
    _, line = rounds.play_round(engine, server, Draws(0).at(1))
    gc.collect()
    tensors = len(sent) // 3
    # Of the three messages that were sent no more than the last two were alive.
    assert len(alive) == 3 and tensors and alive[-1] <= 2 * tensors
    assert not any(tensor() is not None for tensor in sent)
    assert line.up.elements == 3 * engine.models[0].total_elements


def test_of_messages_that_are_compared_the_server_holds_nothing_else(toy_engine, monkeypatch):
    engine = toy_engine("pt-fedavg")
    server, _ = rounds.start(engine, Draws(0))
    heads: list[weakref.ref] = []
    real, found = engine.train, []

    def watched(tasks, draws):
        for update in real(tasks, draws):
            heads.extend(weakref.ref(update.uplink[name]) for name in update.uplink if "head" in name)
            yield update

    def compare(uplinks):
        gc.collect()
        found.append(([set(message) for message in uplinks], sum(head() is not None for head in heads)))
        return {}

    monkeypatch.setattr(engine, "train", watched)
    monkeypatch.setattr(engine.method, "compare", compare)
    _, line = rounds.play_round(engine, server, Draws(0).at(1))
    assert heads and found == [([{"shared", "group"}] * len(line.participants), 0)]


@pytest.mark.parametrize("method", ["fedavg", "fedhpl", "sgpt"])
def test_updates_in_any_order_give_the_same_round(toy_engine, monkeypatch, method):
    """SGPT's participants work one after another by themselves."""
    engine = toy_engine(method, dtype=torch.float64)
    state, _ = start(engine, Draws(0))
    expected, line = play_round(engine, state, Draws(0).at(1))
    real = engine.train
    monkeypatch.setattr(engine, "train", lambda tasks, draws: iter(list(real(tasks, draws))[::-1]))
    found, other = play_round(engine, state, Draws(0).at(1))
    assert list(found.tensors()) == list(expected.tensors())
    assert all(torch.equal(found.tensors()[name], tensor) for name, tensor in expected.tensors().items())
    assert (other.loss, other.clients, other.up, other.down) == (line.loss, line.clients, line.up, line.down)


def test_an_early_message_waits_for_those_before_it(toy_engine, monkeypatch):
    engine = toy_engine("fedavg")
    monkeypatch.setattr(Exchange, "_check", lambda *given: None)
    messages = {k: Message({"x": torch.tensor(k)}) for k in (1, 4, 6)}
    asked: list[int] = []

    def updates():
        for k in (4, 1, 6):
            asked.append(k)
            yield Update(k, messages[k], NOTHING, {"train": 1.0, "statistics": 0.0}, {})

    exchange = Exchange(engine)
    handed = exchange.uplinks(exchange.valid(updates(), [1, 4, 6]), [1, 4, 6])
    assert next(handed) is messages[1] and asked == [4, 1]
    assert next(handed) is messages[4] and asked == [4, 1]
    assert next(handed) is messages[6] and next(handed, None) is None
    assert [update.client for update in exchange.updates] == [1, 4, 6]
    assert (exchange.up.elements, exchange.seconds) == (3, {"train": 3.0, "statistics": 0.0})
    assert not any(update.uplink for update in exchange.updates)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_clients_train_while_the_server_aggregates_without_gradients(toy_engine, monkeypatch, guard):
    engine = toy_engine("fedavg", dtype=torch.float64)
    state, _ = start(engine, Draws(0))
    expected, _ = play_round(engine, state, Draws(0).at(1))
    real = engine.method.aggregate

    def guarded(server, uplinks, draws):
        with guard():
            return ServerState({name: tensor.clone() for name, tensor in real(server, uplinks, draws).items()})

    monkeypatch.setattr(engine.method, "aggregate", guarded)
    found, _ = play_round(engine, state, Draws(0).at(1))
    assert all(torch.equal(found.server[name], tensor) for name, tensor in expected.server.items())


def test_clients_train_even_if_the_server_looks_at_no_message(toy_engine, monkeypatch):
    engine = toy_engine("fedhpl")
    monkeypatch.setattr(engine.method, "aggregate", lambda server, uplinks, draws: server)
    state, _ = start(engine, Draws(0))
    state, line = play_round(engine, state, Draws(0).at(1))
    assert len(line.loss) == 3 and line.up.elements and len(state.clients) == 3


def test_server_seconds_are_without_those_of_clients(toy_engine, monkeypatch):
    engine = toy_engine("fedavg")
    server, _ = rounds.start(engine, Draws(0))
    clock = [0.0]
    monkeypatch.setattr("hetfl.training.rounds.time.perf_counter", lambda: clock[0])
    real, aggregate, downlink = engine.trainer.train_phase, engine.method.aggregate, engine.method.downlink

    def training(*given):
        clock[0] += 100
        real(*given)

    def aggregating(*given):
        clock[0] += 7
        return aggregate(*given)

    def addressing(*given):
        clock[0] += 1
        return downlink(*given)

    monkeypatch.setattr(engine.trainer, "train_phase", training)
    monkeypatch.setattr(engine.method, "aggregate", aggregating)
    server, _ = rounds.play_round(engine, server, Draws(0).at(1))
    monkeypatch.setattr(engine.method, "downlink", addressing)
    _, line = rounds.play_round(engine, server, Draws(0).at(2))
    # The test asks for downlinks of its own.
    assert {**line.seconds, "evaluate": 0} == {"train": 300, "statistics": 0, "server": 7 + 3, "evaluate": 0}


def test_messages_that_came_one_by_one_are_not_there_a_second_time():
    held = Uplinks.of({2: Message(), 0: Message()})
    assert len(list(held)) == len(list(held)) == 2
    passing = Uplinks([0, 2], iter([Message(), Message()]))
    assert len(list(passing)) == 2
    with pytest.raises(RuntimeError, match="make a list"):
        list(passing)


def test_a_method_that_compares_messages_has_all_of_them(toy_engine, monkeypatch):
    engine = toy_engine("fgpt")
    server, _ = rounds.start(engine, Draws(0))
    seen: list[int] = []
    compare = type(engine.method).compare
    monkeypatch.setattr(
        type(engine.method), "compare", lambda self, uplinks: seen.append(len(uplinks)) or compare(self, uplinks)
    )
    rounds.play_round(engine, server, Draws(0).at(1))
    assert seen == [3]


def test_a_method_that_compares_says_of_what():
    for method in METHODS.values():
        assert bool(method.compared) == (method.compare is not Method.compare)


def test_cohorts_of_the_batched_engine_give_the_numbers_of_one(toy_engine, monkeypatch):
    reference = toy_engine("fedproto", dtype=torch.float64)
    ends = []
    for size in (1000, 2):
        monkeypatch.setattr(batched, "COHORT", size)
        engine = make_engine(reference.method, reference.federation, "batched")
        state, _ = start(engine, Draws(0))
        ends.append(play_round(engine, state, Draws(0).at(1))[0].tensors())
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-9, atol=1e-12)
