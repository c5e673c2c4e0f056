"""The round loop: messages and the server's state. Clients are behind the engine."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message, ServerState, Size
from hetfl.methods.base import Uplinks
from hetfl.schema import Round, Traffic
from hetfl.training.engine import Engine, Update
from hetfl.training.exchange import Exchange
from hetfl.training.memory import peak_memory
from hetfl.training.sampling import participants
from hetfl.training.scoring import Tests, tested, tests_after


def start(engine: Engine, draws: Draws) -> tuple[ServerState, Round]:
    """Registration and the server's first state; returns it with round 0 of the record.

    Raises:
        HetflError: a client did not register; servers know all clients from then on.
    """
    method, clients, exchange = engine.method, members(engine), Exchange(engine)
    updates = exchange.valid(engine.introduce(clients, draws), clients, "registration")
    messages = {update.client: update.uplink for update in updates}
    exchange.agree()
    if exchange.failed:
        raise HetflError(f"a run begins once all clients have registered, but {exchange.told()}")
    registrations = {client: messages[client] for client in clients}
    began = _now(engine)
    models = [engine.models[client] for client in clients]
    server = method.initial_server(models, registrations, draws.at(0)).to(engine.device)
    seconds = {**exchange.seconds, "server": _now(engine) - began}
    found: dict[str, Any] = {}
    if exchange.seconds:
        found = {**_findings(Tests(tested(engine, server, draws.at(0)))), "clients": _observed(exchange.updates)}
    return server, Round(
        round=0, participants=list(clients), up=_traffic(exchange.up), down=_traffic(Size()), seconds=seconds, **found
    )


def play_round(
    engine: Engine, server: ServerState, draws: Draws, needed: int | None = 1
) -> tuple[ServerState, Round]:
    """One global round: downlink, local training, uplink, aggregation, evaluation.

    Args:
        engine: whose clients are as the round before left them, or have already played a part of this one.
        server: its state after the round before.
        draws: keyed randomness of the round.
        needed: how many valid uplinks the round needs; None: those of all participants.

    Returns:
        The server's next state and the round of the record. Participants whose uplink is missing or not valid are in
        its ``failed``, and everything else goes on as if they had not been chosen.

    Raises:
        HetflError: fewer uplinks are valid, or those of remote clients leave the server a state that is not finite.
    """
    method, exchange = engine.method, Exchange(engine)
    chosen = participants(len(members(engine)), method.settings.participation, draws)

    began = _now(engine)
    updates = exchange.training(server, chosen, draws)
    uplinks, compared = exchange.received(updates, chosen, needed), list[Message]()
    following = method.aggregate(server, noting(uplinks, method.compared, compared), draws)
    for _ in updates:
        pass  # of a method that does not look at them
    exchange.check_state(following)
    aggregated = _now(engine)
    tests = tests_after(engine, following, draws)
    evaluated = _now(engine)

    seconds = {"server": aggregated - began - exchange.waited, "evaluate": evaluated - aggregated}
    diagnostics = {**(method.compare(compared) if compared else {}), **method.diagnostics(following)}
    return following, Round(
        round=draws.round,
        participants=uplinks.clients,
        **_failures(exchange),
        up=_traffic(exchange.up),
        down=_traffic(exchange.down),
        seconds={**exchange.seconds, **seconds},
        peak_memory=peak_memory(engine.device),
        diagnostics=_finite(diagnostics),
        clients=_observed(exchange.updates),
        **_findings(tests, exchange.updates),
    )


def play_fine_tuning(engine: Engine, server: ServerState, draws: Draws, needed: int | None = 1) -> Round:
    """What every client does after the last round with what the server would send it next, and its test.

    Raises:
        HetflError: fewer clients than ``needed`` answer, see :func:`play_round`; nothing is sent.
    """
    everyone, exchange = members(engine), Exchange(engine)
    tuned = exchange.valid(engine.fine_tune(exchange.tasks(server, everyone), draws), everyone, "nothing")
    exchange.suffice(sum(1 for _ in tuned), len(everyone), needed)
    began = _now(engine)
    test = tested(engine, server, draws)
    seconds = {**exchange.seconds, "server": exchange.made, "evaluate": _now(engine) - began}
    return Round(
        round=draws.round,
        fine_tuning=True,
        participants=[client for client in everyone if client not in exchange.failed],
        **_failures(exchange),
        up=_traffic(exchange.up),
        down=_traffic(exchange.down),
        seconds=seconds,
        peak_memory=peak_memory(engine.device),
        **_findings(Tests(test), exchange.updates),
    )


def members(engine: Engine) -> range:
    """The clients that may take part: all but those held out."""
    return range(len(engine.models) - engine.method.settings.held_out)


def noting(uplinks: Uplinks, names: Collection[str], noted: list[Message]) -> Uplinks:
    """The same uplinks; what each has of some tensors is noted when it is handed on, and the rest is forgotten."""

    def handed_on() -> Iterator[Message]:
        for message in uplinks:
            noted.append(Message({name: message[name] for name in names if name in message}))
            yield message

    return Uplinks(uplinks.clients, handed_on()) if names else uplinks


def _now(engine: Engine) -> float:
    """Seconds, once a GPU has done what it was asked for; without waiting, the next part would seem to do it."""
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    return time.perf_counter()


def _failures(exchange: Exchange) -> dict[str, Any]:
    """The field of a round about the participants without a valid uplink; nothing where there are none."""
    failed = {str(client): reason for client, reason in sorted(exchange.failed.items())}
    return {"failed": failed} if failed else {}


def _findings(tests: Tests, updates: Sequence[Update] = ()) -> dict[str, Any]:
    """Fields of a round about its tests and losses, and the clients that diverged in them; only those there are."""
    found: dict[str, Any] = {}
    if tests.own:
        found |= {"accuracy": tests.own.accuracy, "pooled": tests.own.pooled}
    if tests.extra:
        found["extra"] = dict(tests.extra)
    if tests.training:
        found["train_accuracy"] = tests.training.accuracy
    if updates:
        found["loss"] = _finite(torch.stack([update.loss for update in updates]).tolist())
    lost = {update.client for update, loss in zip(updates, found.get("loss", ()), strict=True) if loss is None}
    unscored = {client for each in (tests.own, *tests.extra.values()) if each for client in each.unscored}
    if diverged := sorted(lost | unscored):
        found["diverged"] = diverged
    return found


def _traffic(size: Size) -> Traffic:
    return Traffic(**asdict(size))


def _observed(updates: Sequence[Update]) -> dict[str, list[Any]]:
    """Each figure's values in the order of the participants."""
    names = dict.fromkeys(name for update in updates for name in update.observed)
    return {name: [_finite(update.observed.get(name)) for update in updates] for name in names}


def _finite(value: Any) -> Any:
    """A figure, or lists and mappings of figures, with None for what is not finite and so is no JSON."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
