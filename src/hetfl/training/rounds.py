"""The round loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from hetfl.draws import Draws
from hetfl.message import Message, Size, Tensors
from hetfl.methods.base import NONE, Method, Uplinks
from hetfl.schema import Accuracies, Round, Traffic
from hetfl.training.memory import peak_memory
from hetfl.training.sampling import participants
from hetfl.training.sequential import Sequential, Update, Visit
from hetfl.training.state import ClientState, State


def start(engine: Sequential, draws: Draws) -> tuple[State, Round]:
    """Registration and the server's first state; returns them with round 0 of the record."""
    method, federation = engine.method, engine.federation
    updates = list(engine.introduce(draws))
    began = time.perf_counter()
    registrations = {update.client: update.uplink for update in updates}
    server = method.initial_server([client.model for client in engine.members], registrations, draws.at(0))
    server = server.to(federation.device)
    seconds = {"server": time.perf_counter() - began}
    # Who only looked at its data is as it was, and is made anew when it takes part.
    state = State(0, server, {update.client: update.state for update in updates} if method.phases(0) else {})
    found: dict[str, Any] = {}
    if method.phases(0) or method.statistics_source(0) != "none":
        seconds = {**_seconds(updates), **seconds}
        found = {**_told(tested(engine, state, draws)), "clients": _finite(_observed(updates))}
    size = _size(registrations.values())
    return state, Round(round=0, participants=[*registrations], up=size, down=_size([]), seconds=seconds, **found)


def play_round(engine: Sequential, state: State, draws: Draws) -> tuple[State, Round]:
    """One global round: downlink, local training, uplink, aggregation, evaluation.

    Returns:
        The next state and the round of the record.
    """
    method, federation = engine.method, engine.federation
    chosen = participants(len(engine.members), method.settings.participation, draws)
    visits, updates = _trained(engine, state, chosen, draws)
    clients = state.clients | {update.client: update.state for update in updates}
    clients = {client: own for client, own in clients.items() if not own.empty}
    uplinks = Uplinks.of({update.client: update.uplink for update in updates})

    began = time.perf_counter()
    server = method.aggregate(state.server, uplinks, draws)
    aggregated = time.perf_counter()
    following = State(draws.round, server, clients)
    tests = _evaluation(engine, following, draws)
    evaluated = time.perf_counter()
    return following, Round(
        round=draws.round,
        participants=chosen,
        up=_size(update.uplink for update in updates),
        down=_size(visit.downlink for visit in visits),
        seconds={**_seconds(updates), "server": aggregated - began, "evaluate": evaluated - aggregated},
        peak_memory=peak_memory(federation.device),
        diagnostics=_finite({**method.compare(list(uplinks)), **method.diagnostics(server)}),
        clients=_finite(_observed(updates)),
        **_told(**tests, updates=updates),
    )


def _trained(
    engine: Sequential, state: State, chosen: Sequence[int], draws: Draws
) -> tuple[list[Visit], list[Update]]:
    """The visits of a round's participants and what came of them, both by client."""
    method, server = engine.method, state.server
    visits: list[Visit] = []
    updates: list[Update] = []
    for turn in [[k] for k in chosen] if method.in_turn() else [chosen]:
        visits += (begun := [Visit(k, state.clients.get(k, ClientState()), method.downlink(server, k)) for k in turn])
        updates += (done := list(engine.train(begun, draws)))
        if method.in_turn():
            server = method.after_turn(server, done[0].uplink)
    return visits, sorted(updates, key=lambda update: update.client)


def _evaluation(engine: Sequential, state: State, draws: Draws) -> dict[str, Any]:
    """The tests after a round, as :func:`_told` takes them; nothing where there is none."""
    method, settings = engine.method, engine.method.settings
    if draws.round % settings.evaluate_every and draws.round < settings.rounds:
        return {}
    others = method.extra_predictors(draws.round)
    return {
        "test": tested(engine, state, draws),
        "also": {name: tested(engine, state, draws, method=other) for name, other in others.items()},
        "training": tested(engine, state, draws, training=True) if settings.train_accuracy else None,
    }


def play_fine_tuning(engine: Sequential, state: State, draws: Draws) -> tuple[State, Round]:
    """What every client does after the last round with what the server would send it next, and its test.

    Returns:
        The final state, whose clients hold all their parameters, and the round of the record.
    """
    method, federation = engine.method, engine.federation
    everyone = [client.index for client in engine.members]
    visits = [Visit(k, state.clients.get(k, ClientState()), method.downlink(state.server, k)) for k in everyone]
    updates = list(engine.close(visits, draws))
    final = State(draws.round, state.server, {update.client: update.state for update in updates})
    began = time.perf_counter()
    test = tested(engine, final, draws)
    return final, Round(
        round=draws.round,
        closing=True,
        participants=[update.client for update in updates],
        up=_size([]),
        down=_size(visit.downlink for visit in visits),
        seconds={**_seconds(updates), "server": 0.0, "evaluate": time.perf_counter() - began},
        peak_memory=peak_memory(federation.device),
        **_told(test, updates=updates),
    )


def stalls(pooled: Mapping[int, float], patience: int | None) -> bool:
    """Whether the best of some rounds' accuracies is at least ``patience`` rounds old; never without one."""
    return patience is not None and bool(pooled) and max(pooled) - max(pooled, key=pooled.__getitem__) >= patience


def predictions(
    engine: Sequential, state: State, draws: Draws, training: bool = False, method: Method | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Predicted and true classes, both [n] int64, of each client's test (or training) samples, client by client.

    Where all clients are tested with the same parameters, every image is looked at once, whoever has it.

    Args:
        engine: the run's.
        state: after some round.
        draws: of the run.
        training: on the samples that clients train on instead.
        method: whose inference rule predicts; None: the run's own.
    """
    method = method or engine.method
    federation = engine.federation
    samples = [(d.train_images, d.train) if training else (d.test_images, d.test) for d in federation.data]
    if not one_for_all(engine, state) or len({images for images, _ in samples}) > 1:
        for k, (images, index) in enumerate(samples):
            params, received = tested_with(engine, state, draws, k)
            yield engine.predict(k, params, received, images, index, method), images.labels[index]
        return
    images = samples[0][0]
    shares = {id(index): index for _, index in samples}
    union, places = torch.cat(list(shares.values())).unique(return_inverse=True)
    predicted = engine.predict(0, *tested_with(engine, state, draws, 0), images, union, method)
    sizes = [len(index) for index in shares.values()]
    of_clients = zip(predicted[places].split(sizes), images.labels[union[places]].split(sizes), strict=True)
    found = dict(zip(shares, of_clients, strict=True))
    for _, index in samples:
        yield found[id(index)]


def one_for_all(engine: Sequential, state: State) -> bool:
    """Whether all clients are tested with the same model and parameters."""
    models = dict.fromkeys(engine.federation.models)
    own = any(model.names([*engine.method.keeps(), "buffers"]) for model in models)
    return len(models) == 1 and takes_global(engine, state) and not engine.method.personal and not own


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


def tested(
    engine: Sequential, state: State, draws: Draws, training: bool = False, method: Method | None = None
) -> Accuracies:
    """The accuracy on all clients' test (or training) samples.

    A sample whose scores are not finite counts as wrong, and its client stands in ``unscored``.
    """
    found = [
        (torch.stack([predicted == true, predicted == NONE]).sum(dim=1), len(true))
        for predicted, true in predictions(engine, state, draws, training, method)
    ]
    # Read back once, not client by client.
    correct, missing = torch.stack([counts for counts, _ in found], dim=1).tolist()
    totals = [samples for _, samples in found]
    return Accuracies(
        accuracy=[right / samples if samples else None for right, samples in zip(correct, totals, strict=True)],
        pooled=sum(correct) / sum(totals),
        unscored=[client for client, samples in enumerate(missing) if samples],
    )


def _told(
    test: Accuracies | None = None,
    also: Mapping[str, Accuracies] = {},  # noqa: B006, it is never changed
    training: Accuracies | None = None,
    updates: Sequence[Update] = (),
) -> dict[str, Any]:
    """What a round says of its tests and losses, and of the clients that diverged in them; only what there is."""
    found: dict[str, Any] = {}
    if test:
        found |= {"accuracy": test.accuracy, "pooled": test.pooled}
    if also:
        found["also"] = dict(also)
    if training:
        found["train_accuracy"] = training.accuracy
    if updates:
        found["loss"] = _finite(torch.stack([update.loss for update in updates]).tolist())
    lost = {update.client for update, loss in zip(updates, found.get("loss", ()), strict=True) if loss is None}
    unscored = {client for each in (test, *also.values()) if each for client in each.unscored}
    if diverged := sorted(lost | unscored):
        found["diverged"] = diverged
    return found


def _size(messages: Iterable[Message]) -> Traffic:
    return Traffic(**asdict(sum((message.size for message in messages), Size())))


def _seconds(updates: Sequence[Update]) -> dict[str, float]:
    return {part: sum(update.seconds[part] for update in updates) for part in ("train", "statistics")}


def _observed(updates: Sequence[Update]) -> dict[str, list[Any]]:
    """Each figure's values in the order of the participants."""
    names = dict.fromkeys(name for update in updates for name in update.observed)
    return {name: [update.observed.get(name) for update in updates] for name in names}


def _finite(value: Any) -> Any:
    """A figure, or lists and mappings of figures, with None for what is not finite and so is no JSON."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
