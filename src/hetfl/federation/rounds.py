"""The round loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from hetfl.draws import Draws
from hetfl.federation.record import Record, peak_memory
from hetfl.federation.sampling import participants
from hetfl.federation.sequential import Sequential, Update, Visit
from hetfl.federation.state import ClientState, ResumePoints, State
from hetfl.message import Message, Size, Tensors


def start(engine: Sequential, draws: Draws) -> tuple[State, dict[str, Any]]:
    """Registration and the server's first state; returns them with round 0's line of the record."""
    method, federation = engine.method, engine.federation
    updates = list(engine.introduce(draws))
    began = time.perf_counter()
    registrations = {update.client: update.uplink for update in updates}
    server = method.initial_server(federation.models, registrations, draws.at(0))
    server = {name: tensor.to(federation.device) for name, tensor in server.items()}
    line: dict[str, Any] = {
        "round": 0,
        "participants": list(registrations),
        "up": _size(registrations.values()),
        "down": asdict(Size()),
        "seconds": {"server": time.perf_counter() - began},
    }
    # Who only looked at its data is as it was, and is made anew when it takes part.
    state = State(0, server, {update.client: update.state for update in updates} if method.phases(0) else {})
    if method.phases(0) or method.sweep(0) != "none":
        line["seconds"] = {**_seconds(updates), **line["seconds"]}
        line |= {**_tested(evaluate(engine, state, draws)), "clients": _observed(updates)}
    return state, line


def play_round(engine: Sequential, state: State, draws: Draws) -> tuple[State, dict[str, Any]]:
    """One global round: downlink, local training, uplink, aggregation, evaluation.

    Returns:
        The next state and its line of the record.
    """
    method, federation = engine.method, engine.federation
    chosen = participants(len(federation.clients), method.settings.participation, draws)
    visits = [Visit(k, state.clients.get(k, ClientState()), method.downlink(state.server, k)) for k in chosen]
    updates = sorted(engine.train(visits, draws), key=lambda update: update.client)
    clients = {**state.clients, **{update.client: update.state for update in updates}}

    began = time.perf_counter()
    server = method.aggregate(state.server, {update.client: update.uplink for update in updates}, draws)
    aggregated = time.perf_counter()
    following = State(draws.round, server, clients)
    tested = _tested(evaluate(engine, following, draws))
    if method.settings.train_accuracy:
        tested["train_accuracy"] = accuracies(evaluate(engine, following, draws, training=True))
    evaluated = time.perf_counter()
    line = {
        "round": draws.round,
        "participants": chosen,
        **tested,
        "loss": [_finite(loss) for loss in torch.stack([update.loss for update in updates]).tolist()],
        "up": _size(update.uplink for update in updates),
        "down": _size(visit.downlink for visit in visits),
        "seconds": {**_seconds(updates), "server": aggregated - began, "evaluate": evaluated - aggregated},
        "peak_memory": peak_memory(federation.device),
        "diagnostics": method.diagnostics(server),
        "clients": _observed(updates),
    }
    return following, line


def play_closing(engine: Sequential, state: State, draws: Draws) -> tuple[State, dict[str, Any]]:
    """What every client does after the last round with what the server would send it next, and its test.

    Returns:
        The final state, whose clients hold all their parameters, and its line of the record.
    """
    method, federation = engine.method, engine.federation
    everyone = range(len(federation.clients))
    visits = [Visit(k, state.clients.get(k, ClientState()), method.downlink(state.server, k)) for k in everyone]
    updates = list(engine.close(visits, draws))
    final = State(draws.round, state.server, {update.client: update.state for update in updates})
    began = time.perf_counter()
    tested = _tested(evaluate(engine, final, draws))
    line = {
        "round": draws.round,
        "closing": True,
        "participants": [update.client for update in updates],
        **tested,
        "loss": [_finite(loss) for loss in torch.stack([update.loss for update in updates]).tolist()],
        "up": asdict(Size()),
        "down": _size(visit.downlink for visit in visits),
        "seconds": {**_seconds(updates), "server": 0.0, "evaluate": time.perf_counter() - began},
        "peak_memory": peak_memory(federation.device),
        "diagnostics": {},
        "clients": {},
    }
    return final, line


def run_rounds(engine: Sequential, draws: Draws, record: Record, resume: ResumePoints, run: dict[str, Any]) -> State:
    """Play the rounds, from the newest resume point if there is one, and complete the record.

    A round counts once its line is in the record and its state in a resume point; a kill in between repeats it
    with the same numbers.
    """
    state = resume.load(engine.federation.device)
    done = {line["round"] for line in record.lines()}
    fresh = None
    if state is None or not set(range(state.round + 1)) <= done:
        state, fresh = start(engine, draws)
    learned = sum(tensor.numel() for tensor in engine.method.learned(state.server).values())
    run = {**run, "parameters": {**run.get("parameters", {}), "server": learned}}
    record.begin(run, completed=state.round)
    if fresh:
        record.append(fresh)
    settings = engine.method.settings
    pooled = [line["pooled"] for line in record.lines() if 1 <= line["round"] <= settings.rounds]
    while state.round < settings.rounds and not stalls(pooled, settings.patience):
        state, line = play_round(engine, state, draws.at(state.round + 1))
        pooled.append(line["pooled"])
        record.append(line)
        resume.save(state)
    if engine.method.closing() and state.round <= settings.rounds:
        state, line = play_closing(engine, state, draws.at(settings.rounds + 1))
        record.append(line)
        resume.save(state)
    record.finish(state)
    resume.clear()
    return state


def stalls(pooled: Sequence[float], patience: int | None) -> bool:
    """Whether the best of some rounds' accuracies is more than ``patience`` rounds old; never without one."""
    return patience is not None and bool(pooled) and len(pooled) - 1 - pooled.index(max(pooled)) > patience


def evaluate(engine: Sequential, state: State, draws: Draws, training: bool = False) -> Tensor:
    """Every client's confusion matrix on its test (or training) samples: [K, C, C] int64, rows are true classes."""
    method, federation = engine.method, engine.federation
    own = any(client.model.names([*method.keeps(), "buffers"]) for client in federation.clients)
    shared = not training and all(data.test is None for data in federation.data)
    one_for_all = takes_global(engine, state) and not method.personal and not own and shared
    clients = range(1 if one_for_all else len(federation.clients))
    results = [engine.evaluate(k, *tested_with(engine, state, draws, k), training) for k in clients]
    if one_for_all:
        results *= len(federation.clients)
    return torch.stack(results).cpu()


def takes_global(engine: Sequential, state: State) -> bool:
    """Whether clients are tested with what the server would send them now; not after a closing."""
    return engine.method.evaluates == "global" and state.round <= engine.method.settings.rounds


def tested_with(engine: Sequential, state: State, draws: Draws, client: int) -> tuple[dict[str, Tensor], Tensors]:
    """The parameters that a client is tested with, and what it received for the test."""
    kept = state.clients.get(client, ClientState())
    params: dict[str, Tensor] = kept.params or engine.initial_params(client, draws)
    if not takes_global(engine, state):
        return params, {}
    received = engine.method.receive(engine.method.downlink(state.server, client), {})
    return engine.method.adopt(params, received), received


def accuracies(confusion: Tensor) -> list[float]:
    """Each client's share of correct predictions, from [K, C, C]."""
    correct = confusion.diagonal(dim1=1, dim2=2).sum(dim=1).double()
    return (correct / confusion.sum(dim=(1, 2))).tolist()


def _tested(confusion: Tensor) -> dict[str, Any]:
    """Accuracy of each client and of all test samples together, from [K, C, C]."""
    correct = int(confusion.diagonal(dim1=1, dim2=2).sum())
    return {"accuracy": accuracies(confusion), "pooled": correct / int(confusion.sum())}


def _size(messages: Iterable[Message]) -> dict[str, int]:
    return asdict(sum((message.size for message in messages), Size()))


def _seconds(updates: Sequence[Update]) -> dict[str, float]:
    return {part: sum(update.seconds[part] for update in updates) for part in ("train", "statistics")}


def _observed(updates: Sequence[Update]) -> dict[str, list[Any]]:
    """Each figure's values in the order of the participants."""
    names = dict.fromkeys(name for update in updates for name in update.observed)
    return {name: [update.observed.get(name) for update in updates] for name in names}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
