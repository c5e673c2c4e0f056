"""Optimisers that live as long as their clients, or through a round's phases, in both engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from playing import play_round, start, train
from toy import LOCAL_ENGINES

from hetfl.draws import Draws
from hetfl.message import Message
from hetfl.training.client_run import epoch_order, phase_data
from hetfl.training.engines import make_engine
from hetfl.training.local import LocalEngine
from hetfl.training.state import ClientState, State

OPTIMISERS = {
    "momentum": {"optimiser": "sgd", "lr": 0.05, "momentum": 0.9},
    "adam": {"optimiser": "adam", "lr": 0.01},
}


def persistent(leaves, phase) -> torch.optim.Optimizer:
    if phase.optimiser == "adam":
        return torch.optim.Adam(leaves, phase.lr, weight_decay=phase.weight_decay)
    return torch.optim.SGD(leaves, phase.lr, phase.momentum, weight_decay=phase.weight_decay)


def train_by_hand(engine: LocalEngine, k: int, round: int, params, received, optimisers) -> None:
    """A client's phases of a round, in place, with optimisers of torch's that are made when a name is met first."""
    method, model, data = engine.method, engine.federation.clients[k].model, engine.federation.data[k]
    draws = Draws(0).at(round)
    for number, phase in enumerate(method.phases(round)):
        leaves = [params[name] for name in model.names(phase.trains)]
        optimiser = optimisers.setdefault(phase.name, persistent(leaves, phase))
        images, index = phase_data(method, data, phase, draws)
        for epoch in range(phase.epochs):
            order = epoch_order(len(index), phase, draws, k, number, epoch)
            rows = order.split(phase.batch_size)
            for batch, part in zip(images.batches(index[order], phase.batch_size), rows, strict=True):
                batch = replace(batch, rows=part) if phase.data == "alignment" else batch
                for value in params.values():
                    value.grad = None
                method.objective(model, params, batch, received, phase).backward()
                for value in set(params.values()) - set(leaves):
                    value.grad = None
                optimiser.step()


def leaves_of(params) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone().requires_grad_() for name, tensor in params.items()}


def assert_close(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if name.endswith("qkv.bias"):
        # The bias of the keys has a gradient of rounding errors only, of which Adam makes whole steps.
        found, expected = (torch.cat([tensor.chunk(3)[part] for part in (0, 2)]) for tensor in (found, expected))
    torch.testing.assert_close(found, expected.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "settings", "more"),
    [
        ("fedrep", "adam", {"head_epochs": 2}),
        ("pfedpt", "momentum", {"prompt_epochs": 2, "prompt_momentum": 0.5, "drop_last": False}),
    ],
)
def test_alternating_phases_are_persistent_optimisers_of_torchs(toy_engine, method, settings, more):
    """Two phases over two rounds in both engines; the server overwrites what is shared in between, as ``copy_`` does.

    Between the rounds the state goes through its flat form, as a resume point has it.
    """
    shared = {"keep_optimiser": True, "local_epochs": 1, "batch_size": 16}
    reference = toy_engine(method, dtype=torch.float64, **shared, **OPTIMISERS[settings], **more)
    made, model = reference.method, reference.federation.clients[0].model
    engines = [make_engine(made, reference.federation, engine) for engine in LOCAL_ENGINES]
    states = [start(engine, Draws(0))[0] for engine in engines]
    clients = [leaves_of(made.initial(model, Draws(0).at(0), k)) for k in range(3)]
    optimisers: list[dict] = [{}, {}, {}]
    for round in (1, 2):
        # Equal in both engines but for rounding, or the comparison after the round before would have failed.
        for k, params in enumerate(clients):
            with torch.no_grad():
                for name, tensor in made.downlink(states[0].server, k).items():
                    params[name].copy_(tensor)
            train_by_hand(reference, k, round, params, {}, optimisers[k])
        for place, engine in enumerate(engines):
            state, _ = play_round(engine, states[place], Draws(0).at(round))
            states[place] = state = State.from_tensors(round, state.tensors())
            for k, own in state.clients.items():
                assert {slot.split("/")[0] for slot in own.optimiser} == set(optimisers[k])
                for name, tensor in own.params.items():
                    assert_close(name, tensor, clients[k][name])
            for name in model.names(made.shares()):
                mean = sum(len(reference.federation.data[k].train) * clients[k][name] for k in range(3)) / 60
                assert_close(name, state.server[f"model/{name}"], mean)


@pytest.mark.parametrize("engine", LOCAL_ENGINES)
def test_sgpts_second_stage_has_one_momentum(toy_engine, engine):
    """Also in the epochs in which keys stand still, the seventh and eighth."""
    settings = {"local_epochs": 8, "shared_blocks": (1,), "group_blocks": (2,), "groups": 3}
    reference = toy_engine("sgpt", dtype=torch.float64, **settings)
    chosen = make_engine(reference.method, reference.federation, engine)
    state, _ = start(chosen, Draws(0))
    received = reference.method.downlink(state.server, 1)
    (update,) = train(chosen, {1: received}, Draws(0).at(1))
    params = leaves_of({name: tensor for name, tensor in received.items() if name != "picks"})
    train_by_hand(reference, 1, 1, params, received, {})
    for name, tensor in params.items():
        assert_close(name, update.uplink[name], tensor)
    assert not update.state.optimiser


@pytest.mark.parametrize("kept", [True, False])
def test_fedmds_two_networks_keep_an_adam_each(toy_engine, kept):
    """As the authors' do, that of own data from before the first round on; or every phase has a new one."""
    reference = toy_engine("fedmd", dtype=torch.float64, keep_optimiser=kept, batch_size=20)
    made, model = reference.method, reference.federation.clients[0].model
    engines = [make_engine(made, reference.federation, engine) for engine in LOCAL_ENGINES]
    states = [start(engine, Draws(0))[0] for engine in engines]
    clients = [leaves_of(made.initial(model, Draws(0).at(0), k)) for k in range(3)]
    optimisers: list[dict] = [{}, {}, {}]
    for round in (0, 1, 2):
        received = made.downlink(states[0].server, 0) if round else {}
        for k, params in enumerate(clients):
            train_by_hand(reference, k, round, params, received, optimisers[k])
            if not kept:
                optimisers[k].clear()
        for place, engine in enumerate(engines):
            if round:
                state, _ = play_round(engine, states[place], Draws(0).at(round))
                states[place] = State.from_tensors(round, state.tensors())
            names = {"own", "digest"} if round else {"own"}
            for k, own in states[place].clients.items():
                assert {slot.split("/")[0] for slot in own.optimiser} == (names if kept else set())
                for name, tensor in own.params.items():
                    assert_close(name, tensor, clients[k][name])


def test_adam_counts_each_clients_steps_whoever_trained_before_with_the_same_buffers(toy_engine):
    """Clients with 15, 19 and 26 samples in batches of 8, of which the last one alone goes on after the first's end.

    At that step its segment has just counted as many steps of the second client.
    """
    settings = {"keep_optimiser": True, "local_epochs": 1, "batch_size": 8, "drop_last": False}
    reference = toy_engine("fedproto", dtype=torch.float64, **settings, **OPTIMISERS["adam"])
    ends = []
    for name in LOCAL_ENGINES:
        engine = make_engine(reference.method, reference.federation, name)
        states: dict[int, ClientState] = {}
        for round, clients in enumerate([(0, 2), (0,), (1,), (0, 2)], start=1):
            found = train(engine, dict.fromkeys(clients, Message()), Draws(0).at(round), states)
            states |= {update.client: update.state for update in found}
        ends.append(states)
    for k, expected in ends[0].items():
        for slot, tensor in expected.optimiser.items():
            if slot.endswith("/step"):
                assert float(ends[1][k].optimiser[slot]) == float(tensor) == {0: 6, 1: 3, 2: 8}[k]
        for parameter, tensor in expected.params.items():
            assert_close(parameter, ends[1][k].params[parameter], tensor)
