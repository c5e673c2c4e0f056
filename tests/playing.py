"""Rounds as functions from one state of a whole run to the next, for tests that look at server and clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.schema import Accuracies, Round
from hetfl.training import rounds, scoring
from hetfl.training.engine import Task, Update
from hetfl.training.local import LocalEngine
from hetfl.training.scoring import scoring_tasks
from hetfl.training.state import ClientState, State


def start(engine: LocalEngine, draws: Draws) -> tuple[State, Round]:
    server, line = rounds.start(engine, draws)
    return State(0, server, engine.client_states()), line


def play_round(engine: LocalEngine, state: State, draws: Draws) -> tuple[State, Round]:
    engine.restore(state.clients)
    server, line = rounds.play_round(engine, state.server, draws)
    return State(draws.round, server, engine.client_states()), line


def run(engine: LocalEngine, rounds: int = 2, seed: int = 0) -> tuple[State, list[Round]]:
    """The state after some rounds, and their lines of the record, the registration's first."""
    state, line = start(engine, Draws(seed))
    lines = [line]
    for number in range(1, rounds + 1):
        state, line = play_round(engine, state, Draws(seed).at(number))
        lines.append(line)
    return state, lines


def play_fine_tuning(engine: LocalEngine, state: State, draws: Draws) -> tuple[State, Round]:
    engine.restore(state.clients)
    line = rounds.play_fine_tuning(engine, state.server, draws)
    return State(draws.round, state.server, engine.client_states()), line


@dataclass(frozen=True)
class Trained(Update):
    """An update with the client's state after it."""

    state: ClientState


def train(
    engine: LocalEngine, downlinks: Mapping[int, Message], draws: Draws, states: Mapping[int, ClientState] = {}
) -> list[Trained]:
    """Some clients' work in a round, given what they are sent and what they have."""
    engine.restore(states)
    return with_states(engine, engine.train([Task(k, downlink) for k, downlink in downlinks.items()], draws))


def with_states(engine: LocalEngine, updates: Iterable[Update]) -> list[Trained]:
    done = list(updates)
    after = engine.client_states()
    return [Trained(**vars(update), state=after.get(update.client, ClientState())) for update in done]


def assert_close(found: Tensors, expected: Tensors) -> None:
    """Equal names; values equal but for 1e-7 of a tensor's largest one, and what Adam makes of gradients that are all
    rounding."""
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        largest = float(tensor.double().abs().max()) if tensor.numel() else 0.0
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-7 * largest + 2e-8)


def downlinks(engine: LocalEngine, state: State) -> dict[int, Message]:
    """What the server would send each client."""
    return {k: engine.method.downlink(state.server, k) for k in range(len(engine.models))}


def accuracies(engine: LocalEngine, state: State, draws: Draws) -> Accuracies:
    engine.restore(state.clients)
    return scoring.tested(engine, state.server, draws)


def predictions(engine: LocalEngine, state: State, draws: Draws) -> Iterator[tuple[Tensor, Tensor]]:
    """Predicted and true classes of each client's test samples."""
    engine.restore(state.clients)
    for found in engine.predictions(scoring_tasks(engine, state.server, state.round), draws):
        yield found.predicted, found.true


def params_for_test(
    engine: LocalEngine, state: State, draws: Draws, client: int
) -> tuple[dict[str, Tensor], Tensors]:
    """The parameters that a client is tested with, and what it received for the test."""
    engine.restore(state.clients)
    return engine.tested_with(scoring_tasks(engine, state.server, state.round)[client], draws)
