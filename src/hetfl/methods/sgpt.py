"""SGPT: FGPT with learned keys, balanced selection, and training of shared and group prompts in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch, class_counts
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import Phase, Query, Statistics, StatisticsSource, Uplinks, cross_entropy, register_method
from hetfl.methods.fgpt import FGPT, GroupSettings
from hetfl.models.base import Model, ModelOptions

PICKS = "picks"
"""v: how often each group was picked in training so far, by all clients."""
KEY_EPOCHS = 6
"""Epochs of a visit in which keys learn, in the authors' code."""
NEVER = 5e-4
"""Added to a group's share of the picks."""


@register_method("sgpt")
class SGPT(FGPT):
    """CVPR 2024, Algorithms 1-3 and Eq. 5-8, as the authors' code has them.

    In a visit first shared prompts and the head train without groups, then group prompts, keys and the head on fixed
    shared prompts; there the class token and the groups' tokens are read together. In training a group is the less
    likely the more often it was picked.
    """

    numerics = 1
    title = "SGPT"
    source = "CVPR 2024"
    travels = "prompts, keys, heads and counts of the groups"

    class Settings(GroupSettings):
        """Defaults are those of CIFAR-100 with ten classes a client.

        Attributes:
            long_blocks: whether the first shared block alone has ``prompt_length`` prompts and every other one a
                single prompt, as in the authors' code, or all have as many.
            query_block: after which the query is taken; None: the last.
            vote: whether a whole training batch takes the group that most of its samples pick.
            key_momentum, group_momentum: share of the old values in the server's new keys and group prompts.
            balance: picks by which a participant evens out the groups: those of earlier rounds, as in the paper; or
                with ``client`` also those of the round's earlier participants, as in the authors' main loop. They
                train one after another then, in ascending order.
            few: picks of a group in a round up to which its keys are averaged plainly.
            readout: what the head reads where group prompts are there.
        """

        shared_blocks: tuple[int, ...] = (1, 2, 3, 4)
        prompt_length: int = Field(default=1, ge=1)
        long_blocks: Literal["first", "all"] = "first"
        group_blocks: tuple[int, ...] = (5, 6, 7)
        query_block: int | None = Field(default=None, ge=1)
        vote: bool = False
        key_momentum: float = Field(default=0.5, ge=0, le=1)
        group_momentum: float = Field(default=0.5, ge=0, le=1)
        balance: Literal["round", "client"] = "round"
        few: int = Field(default=50, ge=0)
        readout: Literal["class", "mean"] = "mean"

    def model_options(self) -> ModelOptions:
        s = self.settings
        more: dict[str, Any] = {"keys": "orthogonal", "shared_init": "zero", "readout": s.readout}
        if s.long_blocks == "first":
            more["shared_lengths"] = tuple(1 if later else s.prompt_length for later in range(len(s.shared_blocks)))
        return super().model_options().model_copy(update=more)

    def queries(self) -> Query | None:
        return Query(self.settings.encoder, self.settings.query_block)

    def trains(self) -> tuple[str, ...]:
        return ("shared", "group", "keys", "head")

    def phases(self, round: int) -> Sequence[Phase]:
        if not round:
            return []
        epochs = self.settings.local_epochs
        groups = ("group", "keys", "head")
        stages = [
            self.phase(name="shared", trains=("shared", "head"), gathers=False),
            self.phase(name="groups", trains=groups, epochs=min(epochs, KEY_EPOCHS)),
        ]
        if epochs > KEY_EPOCHS:
            stages.append(self.phase(name="groups", trains=groups[::2], epochs=epochs - KEY_EPOCHS))
        return stages

    def points(self, batch: Batch) -> Tensor:
        assert batch.queries is not None
        return F.normalize(batch.queries.relu(), dim=1)

    def keys(self, params: Tensors, like: Tensor) -> Tensor:
        return params["keys"]

    def picks(self, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """The group of each training sample [B]: near, and seldom picked before."""
        picked = received[PICKS].to(torch.float64)
        share = torch.where(picked.sum() > 0, picked / picked.sum().clamp(min=1) + NEVER, 1.0)
        chosen = ((1 - self.similarity(params, batch)) * share).argmin(dim=1)
        if not self.settings.vote:
            return chosen
        return class_counts(chosen, len(picked), batch.weight).argmax().expand_as(chosen)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        if "group" not in phase.trains:
            return cross_entropy(model(params, batch.images).logits, batch)
        with torch.no_grad():
            chosen = self.picks(params, batch, received)
        loss = cross_entropy(model(params, batch.images, chosen).logits, batch)
        if "keys" not in phase.trains:
            return loss
        return loss - batch.mean(self.similarity(params, batch).gather(1, chosen[:, None])[:, 0])

    def statistics_source(self, round: int) -> StatisticsSource:
        return "training" if round else "none"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        chosen = self.picks(params, batch, received)
        return Statistics(sums={"counts": class_counts(chosen, self.settings.groups, batch.weight)})

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> dict[str, Tensor]:
        picks = torch.zeros(self.settings.groups, dtype=torch.int64)
        return {**super().initial_server(models, registrations, draws), PICKS: picks}

    def downlink(self, server: Tensors, client: int) -> Message:
        return Message({**super().downlink(server, client), PICKS: server[PICKS].to(torch.int32)})

    def in_turn(self) -> bool:
        return bool(self.settings.balance == "client")

    def after_turn(self, server: Tensors, uplink: Message) -> dict[str, Tensor]:
        return {**server, PICKS: server[PICKS] + uplink["counts"]}

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return super().adopt(params, {name: tensor for name, tensor in received.items() if name != PICKS})

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """Means by samples; keys by picks; keys and group prompts move part of the way from the old ones."""
        messages = list(uplinks)
        counts = torch.stack([message["counts"] for message in messages]).double()
        sent = [Message({n: t for n, t in message.items() if n != "counts"}) for message in messages]
        after = super(FGPT, self).aggregate(server, Uplinks(uplinks.clients, sent), draws)
        total = counts.sum(dim=0)
        share = torch.where(total > self.settings.few, counts / total.clamp(min=1), 1 / len(uplinks))
        keys = torch.stack([message["keys"] for message in sent]).double()
        after["model/keys"] = (share[:, :, None] * keys).sum(dim=0).to(server["model/keys"].dtype)
        for name, momentum in (("keys", self.settings.key_momentum), ("group", self.settings.group_momentum)):
            old, new = server["model/" + name], after["model/" + name]
            after["model/" + name] = momentum * old + (1 - momentum) * new
        return after | {PICKS: server[PICKS] + total.to(torch.int64)}
