"""FGPT: shared prompts, and prompts of groups that each sample finds by a fixed key.

A frozen transformer is steered by inserted tokens, of which some are shared by all samples and others belong to a
group. A sample's group is that of the key nearest to its feature, whoever holds it. The server averages the prompts
of a group by the samples that clients have of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from hetfl.data.batches import Batch, class_counts
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors, without
from hetfl.methods.base import Query, Statistics, StatisticsSource, Uplinks, Work, register_method
from hetfl.methods.groupedprompts import GroupedPrompts, GroupSettings
from hetfl.methods.parts.cosines import mean_cosine, of_groups
from hetfl.models.base import Model
from hetfl.models.grouped import orthogonal


@register_method("fgpt")
class FGPT(GroupedPrompts):
    """arXiv 2310.18285 (first version): group-aware prompt tuning; PT-FedAvg with more than one group.

    A sample's group is that of the key nearest to its query, the frozen encoder's feature of it, so it never changes.
    """

    numerics = 1
    title = "FGPT"
    source = "arXiv 2310.18285, Eq. 2-8"
    travels = "prompts, heads, and counts of the groups"
    compared = ("shared", "group", "counts")

    class Settings(GroupSettings):
        """Its keys are fixed.

        Attributes:
            keys: orthogonal rows, or independent random ones (Table 4).
            key_seed: the seed they are drawn from; None: the run's, so that runs differ in their keys as well.
        """

        keys: Literal["orthogonal", "random"] = "orthogonal"
        key_seed: int | None = None

    settings: GroupSettings

    def queries(self) -> Query | None:
        s = self.settings
        return Query(s.encoder, least=s.groups if getattr(s, "keys", None) == "orthogonal" else 1)

    def keys(self, params: Tensors, like: Tensor) -> Tensor:
        """b_g [G, d], as wide as the queries ``like`` [B, d]; drawn once, the same everywhere, and never sent."""
        width = like.shape[1]
        place = width, like.device, like.dtype
        if place not in self._made:
            s = self.settings
            assert isinstance(s, FGPT.Settings)
            generator = Draws(self.seed if s.key_seed is None else s.key_seed).generator("keys")
            drawn = torch.randn(s.groups, width, generator=generator, dtype=torch.float64)
            self._made[place] = (orthogonal(drawn) if s.keys == "orthogonal" else drawn).to(like.device, like.dtype)
        return self._made[place]

    @cached_property
    def _made(self) -> dict[tuple[int, torch.device, torch.dtype], Tensor]:
        return {}

    def statistics_source(self, round: int) -> StatisticsSource:
        return "own" if round else super().statistics_source(round)

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        """``counts`` [G], the samples of each group."""
        if not received:
            return super().statistics(model, params, batch, received)
        chosen = self.choose(params, batch, received)
        return Statistics(sums={"counts": class_counts(chosen, self.settings.groups, batch.weight)})

    def uplink(self, work: Work) -> Message:
        """PT-FedAvg's, and ``counts`` [G] int32: N_g, how many of the client's samples each group has."""
        counts = work.statistics.sums["counts"].to(torch.int32)
        return Message({**super().uplink(work), "counts": counts})

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """P_g = sum_k N_kg P_kg / sum_k N_kg for the prompts of group g (Algorithm 1, line 19); the rest by samples.

        The prompts of a group that no participant has samples of stay as they are.
        """
        messages = list(uplinks)
        sent = Uplinks(uplinks.clients, [Message(without(message, "counts")) for message in messages])
        after = super().aggregate(server, sent, draws)
        counts = torch.stack([message["counts"] for message in messages]).double()
        prompts = torch.stack([message["group"] for message in messages]).double()
        total, old = counts.sum(dim=0), server.group("model")["group"]
        mean = torch.einsum("kg,kbgd->bgd", counts / total.clamp(min=1), prompts).to(old.dtype)
        return after | {"model": {**after.group("model"), "group": torch.where((total > 0)[:, None], mean, old)}}

    def observe(self, work: Work) -> dict[str, Any]:
        """``groups`` [G]: a participant's ``counts``, see :meth:`statistics`."""
        return {"groups": work.statistics.sums["counts"].long().tolist()} if work.round else {}

    def compare(self, uplinks: Sequence[Message]) -> dict[str, Any]:
        """PT-FedAvg's, and ``group_entropy`` of the participants' ``counts``: 1 where all groups have equally many.

        ``cosine_group_local_used`` compares the prompts of a group only between clients that have samples of it; the
        others return them unchanged.
        """
        found = super().compare(uplinks)
        if "counts" not in uplinks[0] or self.settings.groups == 1:
            return found
        counts = torch.stack([message["counts"] for message in uplinks]).double()
        if not counts.any():
            return found
        share = counts.sum(dim=0) / counts.sum()
        found["group_entropy"] = float(-torch.special.xlogy(share, share).sum() / math.log(len(share)))
        used = mean_cosine(of_groups(torch.stack([message["group"] for message in uplinks])), counts > 0)
        return found if used is None else found | {"cosine_group_local_used": used}
