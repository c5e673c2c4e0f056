"""Optimisers that live as long as their clients, of several phases, in both engines."""

from __future__ import annotations

import pytest
import torch

from hetfl.draws import Draws
from hetfl.federation.engines import ENGINES
from hetfl.federation.rounds import play_round, start
from hetfl.federation.sequential import order_of
from hetfl.methods.base import cross_entropy

OPTIMISERS = {
    "momentum": {"optimiser": "sgd", "lr": 0.05, "momentum": 0.9},
    "adam": {"optimiser": "adam", "lr": 0.01},
}


def played(reference, engine: str, rounds: int):
    """The state after some rounds, as an engine plays them."""
    chosen = ENGINES[engine](reference.method, reference.federation)
    state, _ = start(chosen, Draws(0))
    for round in range(1, rounds + 1):
        state, _ = play_round(chosen, state, Draws(0).at(round))
    return state


def persistent(leaves, phase) -> torch.optim.Optimizer:
    if phase.optimiser == "adam":
        return torch.optim.Adam(leaves, phase.lr, weight_decay=phase.weight_decay)
    return torch.optim.SGD(leaves, phase.lr, phase.momentum, weight_decay=phase.weight_decay)


def assert_close(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if name.endswith("qkv.bias"):
        # The bias of the keys has a gradient of rounding errors only, of which Adam makes whole steps.
        found, expected = (torch.cat([tensor.chunk(3)[part] for part in (0, 2)]) for tensor in (found, expected))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("settings", OPTIMISERS.values(), ids=OPTIMISERS)
@pytest.mark.parametrize(
    ("method", "more"),
    [("fedrep", {"head_epochs": 2}), ("pfedpt", {"prompt_epochs": 2, "prompt_momentum": 0.5, "drop_last": False})],
)
def test_alternating_phases_are_persistent_optimisers_of_torchs(toy_engine, engine, settings, method, more):
    """Two phases over three rounds, each client written out with one optimiser of torch's a phase."""
    reference = toy_engine(method, dtype=torch.float64, keep_optimiser=True, local_epochs=1, **settings, **more)
    state = played(reference, engine, 3)

    made, federation = reference.method, reference.federation
    model = federation.clients[0].model
    shared = model.names(made.shares())
    server = {name: tensor.clone() for name, tensor in model.init(Draws(0).at(0), -1).items() if name in shared}
    clients, optimisers = [], []
    for k in range(3):
        params = {**model.init(Draws(0).at(0), k), **{name: server[name].clone() for name in shared}}
        clients.append({name: tensor.clone().requires_grad_() for name, tensor in params.items()})
        optimisers.append(
            [persistent([clients[k][n] for n in model.names(phase.trains)], phase) for phase in made.phases(1)]
        )
    for round in (1, 2, 3):
        for k, params in enumerate(clients):
            data = federation.data[k]
            with torch.no_grad():
                for name in shared:
                    params[name].copy_(server[name])
            for number, (phase, optimiser) in enumerate(zip(made.phases(round), optimisers[k], strict=True)):
                for epoch in range(phase.epochs):
                    order = order_of(len(data.train), phase, Draws(0).at(round), k, number, epoch)
                    for batch in data.train_images.batches(data.train[order], phase.batch_size):
                        cross_entropy(model(params, batch.images).logits, batch).backward()
                        optimiser.step()
                        for value in params.values():
                            value.grad = None
        with torch.no_grad():
            weights = [len(data.train) for data in federation.data]
            for name in shared:
                server[name] = sum(w * params[name] for w, params in zip(weights, clients, strict=True)) / sum(
                    weights
                )
    for name in shared:
        assert_close(name, state.server[f"model/{name}"], server[name])
    for k, params in enumerate(clients):
        for name, tensor in state.clients[k].params.items():
            assert_close(name, tensor, params[name].detach())
        kept = {slot.split("/")[0] for slot in state.clients[k].optimiser}
        assert kept == {phase.name for phase in made.phases(1)}
