"""The tests of a round: accuracies from the scores that an engine gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message, ServerState
from hetfl.methods.mistakes import mistaken
from hetfl.schema import Accuracies
from hetfl.training.engine import Engine, Samples, Task, same_for_all, told


@dataclass(frozen=True)
class Tests:
    """What the clients' tests after a round gave.

    Attributes:
        own: by the method's own inference rule; None where the round has no test.
        extra: by other inference rules, by name.
        training: on the samples that clients train on; None where the run does not ask for it.
    """

    own: Accuracies | None = None
    extra: Mapping[str, Accuracies] = field(default_factory=dict)
    training: Accuracies | None = None


def tests_after(engine: Engine, server: ServerState, draws: Draws) -> Tests:
    """The tests after a round; none where the settings leave them out."""
    method, settings = engine.method, engine.method.settings
    if draws.round % settings.evaluate_every and draws.round < settings.rounds:
        return Tests()
    return Tests(
        tested(engine, server, draws),
        {rule: tested(engine, server, draws, rule) for rule in method.extra_predictors(draws.round)},
        tested(engine, server, draws, samples="train") if settings.train_accuracy else None,
    )


def tested(
    engine: Engine, server: ServerState, draws: Draws, rule: str = "", samples: Samples = "test"
) -> Accuracies:
    """The accuracy on all clients' samples, by an inference rule; see :meth:`Engine.test`.

    A sample whose scores are not finite counts as wrong, and its client stands in ``unscored``.

    Raises:
        HetflError: no client has been tested, with the reasons.
    """
    scores = list(engine.test(scoring_tasks(engine, server, draws.round), draws, rule, samples))
    # Read back once, not client by client.
    correct, missing = torch.stack([score.counts for score in scores], dim=1).tolist()
    totals = [
        # What is no possible score of a remote client is none.
        score.samples if right >= 0 <= lost and right + lost <= score.samples else 0
        for score, right, lost in zip(scores, correct, missing, strict=True)
    ]
    if not any(totals):
        failed = {score.client: score.failed for score in scores if score.failed}
        raise HetflError("no client has been tested" + (f"; {told(engine, failed)}" if failed else ""))
    correct = [right if total else 0 for right, total in zip(correct, totals, strict=True)]
    return Accuracies(
        accuracy=[right / total if total else None for right, total in zip(correct, totals, strict=True)],
        pooled=sum(correct) / sum(totals),
        unscored=[client for client, samples in enumerate(missing) if samples],
    )


def _differ(one: Message, other: Message) -> bool:
    """Whether a tensor that both have differs; what is not a number differs from nothing."""
    return any(not _same(one[name], other[name]) for name in one if name in other)


def _same(one: Tensor, other: Tensor) -> bool:
    if one.is_meta or one.is_set_to(other):  # most methods send all clients the same memory, which costs nothing
        return True
    return one.shape == other.shape and bool(((one == other) | (one != one)).all())


def scoring_tasks(engine: Engine, server: ServerState, round: int) -> list[Task]:
    """The test of every client after a round.

    With a downlink where clients are tested with what the server would send them now; never after fine-tuning.
    """
    method, clients = engine.method, range(len(engine.models))
    if method.evaluates == "client" or round > method.settings.rounds:
        return [Task(client, None) for client in clients]
    if same_for_all(method, engine.models):
        # One that took part: others may be unknown to the server.
        downlink = method.downlink(server, 0)
        last = len(clients) - method.settings.held_out - 1
        if _differ(downlink, method.downlink(server, last)):
            raise mistaken(method, "downlink gives clients different tensors; write personal = True in the class")
        return [Task(client, downlink) for client in clients]
    return [Task(client, method.downlink(server, client)) for client in clients]
