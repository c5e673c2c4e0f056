"""SGPT: FGPT with learned keys, balanced groups, and shared and group prompts that train one after the other.

All samples share some prompts, and each picks a group of others by a key, whoever holds it. Groups that are picked
often become less likely, so that all of them learn. In each round the shared prompts train first and the group
prompts after them, so that neither has to follow the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.config import Blocks
from hetfl.data.batches import Batch, class_counts
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors, without
from hetfl.methods.base import (
    Phase,
    Query,
    Statistics,
    StatisticsSource,
    Uplinks,
    cross_entropy,
    register_method,
    weighted_mean,
)
from hetfl.methods.fgpt import FGPT
from hetfl.methods.groupedprompts import GroupSettings
from hetfl.methods.parts.balanced_groups import mean_keys, seldom_picked
from hetfl.models.base import Model, ModelOptions

PICKS = "picks"
"""v [G] int64: how often each group was picked in training so far, by all clients."""
KEY_EPOCHS = 6
"""The epochs of a round's local training in which keys learn, in the authors' code."""


@register_method("sgpt")
class SGPT(FGPT):
    """CVPR 2024, Algorithms 1-3 and Eq. 5-8, as the authors' code has them.

    In a round the shared prompts and the head train first, without groups. Then the group prompts, the keys and the
    head train, with the shared prompts fixed; the head then reads the mean of the class token and the groups' tokens.
    In training a group that was picked often is less likely to be picked again.
    """

    numerics = 1
    title = "SGPT"
    source = "CVPR 2024"
    travels = "prompts, keys, heads and counts of the groups"

    class Settings(GroupSettings):
        """Defaults are those of CIFAR-100 with ten classes a client.

        Attributes:
            long_blocks: which shared blocks have ``prompt_length`` prompts: the ``first`` alone, as in the authors'
                code, where every other one has a single prompt; or ``all``.
            query_block: block after which the query is taken; None: the last.
            vote: whether a whole training batch takes the group that most of its samples pick.
            key_momentum, group_momentum: share of the old values in the server's new keys and group prompts.
            balance: the picks that balance the groups: those of earlier rounds, as in the paper; or with ``client``
                also those of the round's earlier participants, as in the authors' main loop. Participants then train
                one after another, in ascending order.
            few: a group with at most this many picks in a round has its keys averaged plainly.
            readout: what the head reads in passes with group prompts.
        """

        shared_blocks: Blocks = (1, 2, 3, 4)
        prompt_length: int = Field(default=1, ge=1)
        long_blocks: Literal["first", "all"] = "first"
        group_blocks: Annotated[Blocks, Field(min_length=1)] = (5, 6, 7)
        query_block: int | None = Field(default=None, ge=1)
        vote: bool = False
        key_momentum: float = Field(default=0.5, ge=0, le=1)
        group_momentum: float = Field(default=0.5, ge=0, le=1)
        balance: Literal["round", "client"] = "round"
        few: int = Field(default=50, ge=0)
        readout: Literal["class", "mean"] = "mean"

    settings: Settings

    def model_options(self) -> ModelOptions:
        s = self.settings
        more: dict[str, Any] = {"keys": "orthogonal", "shared_init": "zero", "readout": s.readout}
        if s.long_blocks == "first":
            more["shared_lengths"] = tuple(1 if later else s.prompt_length for later in range(len(s.shared_blocks)))
        return super().model_options().model_copy(update=more)

    def trains(self) -> tuple[str, ...]:
        return ("shared", "group", "keys", "head")

    def phases(self, round: int) -> Sequence[Phase]:
        if not round:
            return []
        epochs = self.settings.local_epochs
        phases = [
            self.phase(name="shared", trains=("shared", "head"), gathers=False),
            self.phase(name="groups", trains=("group", "keys", "head"), epochs=min(epochs, KEY_EPOCHS)),
        ]
        if epochs > KEY_EPOCHS:
            phases.append(self.phase(name="groups", trains=("group", "head"), epochs=epochs - KEY_EPOCHS))
        return phases

    def queries(self) -> Query | None:
        return Query(self.settings.encoder, self.settings.query_block, least=self.settings.groups)

    def points(self, batch: Batch) -> Tensor:
        """relu(q) [B, d], of length 1."""
        assert batch.queries is not None
        return F.normalize(batch.queries.relu(), dim=1)

    def keys(self, params: Tensors, like: Tensor) -> Tensor:
        """The learned keys [G, d]."""
        return params["keys"]

    def picks(self, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """The group of each training sample [B]: argmin_g (1 - cos(relu(q), k_g)) (v_g / sum v + 5e-4)."""
        chosen = seldom_picked(self.similarity(params, batch), received[PICKS])
        if not self.settings.vote:
            return chosen
        return class_counts(chosen, self.settings.groups, batch.weight).argmax().expand_as(chosen)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Cross-entropy; where keys train, minus mean_i cos(relu(q_i), k_g(i)), g(i) being the picked group."""
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
        """``counts`` [G]: how often each group was picked in training.

        These are :meth:`picks`, which balance the groups, over all epochs with group prompts. A record's ``groups``
        and ``group_entropy`` are of them, and not of the groups that samples have as in FGPT.
        """
        chosen = self.picks(params, batch, received)
        return Statistics(sums={"counts": class_counts(chosen, self.settings.groups, batch.weight)})

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        picks = torch.zeros(self.settings.groups, dtype=torch.int64)
        return super().initial_server(models, registrations, draws) | {PICKS: picks}

    def downlink(self, server: ServerState, client: int) -> Message:
        """FGPT's with ``keys`` [G, d], and ``picks`` [G] int32."""
        return Message({**super().downlink(server, client), PICKS: server[PICKS].to(torch.int32)})

    def in_turn(self) -> bool:
        return self.settings.balance == "client"

    def after_turn(self, server: ServerState, uplink: Message) -> ServerState:
        return server | {PICKS: server[PICKS] + uplink["counts"]}

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return super().adopt(params, without(received, PICKS))

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """Means by samples, of keys by picks N_kg: k_g' = sum_k N_kg k_kg / sum_k N_kg.

        Keys and group prompts move part of the way, x = a x + (1 - a) x' (Eq. 7), and v += sum_k N_k.
        """
        messages, old, s = list(uplinks), server.group("model"), self.settings
        counts = torch.stack([message["counts"] for message in messages])
        sent = (without(message, "counts") for message in messages)
        model = weighted_mean(sent, server["samples"][uplinks.clients])
        model["keys"] = mean_keys(torch.stack([message["keys"] for message in messages]), counts, s.few)
        for name, momentum in (("keys", s.key_momentum), ("group", s.group_momentum)):
            model[name] = momentum * old[name] + (1 - momentum) * model[name]
        return server | {"model": model, PICKS: server[PICKS] + counts.sum(dim=0)}
