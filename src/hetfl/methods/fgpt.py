"""FGPT: shared prompts, and prompts of groups that each sample finds by a fixed key.

A frozen transformer is steered by inserted tokens, of which some are shared by all samples and others belong to a
group. A sample's group is that of the key nearest to its feature, whoever holds it. The server averages the prompts
of a group by the samples that clients have of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from hetfl.config import Blocks
from hetfl.data.batches import Batch, class_counts
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors, without
from hetfl.methods.base import Query, Statistics, StatisticsSource, Uplinks, Work, register_method
from hetfl.methods.parts.cosines import mean_cosine, of_groups
from hetfl.methods.parts.robust import COMBINING, mean_only
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model, ModelOptions
from hetfl.models.grouped import orthogonal


class GroupSettings(PTFedAvg.Settings):
    """How samples find their groups, whatever the keys; defaults are FGPT's.

    Attributes:
        groups: G.
        encoder: the model whose features are the queries; None: the clients' own backbone (else FGPT-ResNet).
        branches: groups that a sample is predicted with, their logits averaged (FGPT-U has 5).
        ensembles: numbers of branches that the same run is tested with as well, in the rounds of the window.
    """

    group_blocks: Annotated[Blocks, Field(min_length=1)] = (6,)
    groups: int = Field(default=20, ge=1)
    encoder: str | None = None
    branches: int = Field(default=1, ge=1)
    ensembles: tuple[Annotated[int, Field(ge=1)], ...] = ()

    _mean_only = field_validator(*COMBINING)(mean_only)

    @field_validator("branches", "ensembles")
    @classmethod
    def _no_more_than_groups(cls, value: Any, info: ValidationInfo) -> Any:
        groups = info.data.get("groups", 1)
        if max(value if isinstance(value, tuple) else (value,), default=1) > groups:
            raise ValueError(f"asks for more groups than there are ({groups})")
        return value


@register_method("fgpt")
class FGPT(PTFedAvg):
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

    def model_options(self) -> ModelOptions:
        return super().model_options().model_copy(update={"groups": self.settings.groups})

    def queries(self) -> Query | None:
        s = self.settings
        return Query(s.encoder, least=s.groups if getattr(s, "keys", None) == "orthogonal" else 1)

    def points(self, batch: Batch) -> Tensor:
        """The queries [B, d], of length 1."""
        assert batch.queries is not None
        return F.normalize(batch.queries, dim=1)

    def similarity(self, params: Tensors, batch: Batch) -> Tensor:
        """The cosine of each query with each key [B, G]."""
        points = self.points(batch)
        return points @ F.normalize(self.keys(params, points), dim=1).T

    def choose(self, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """The group of the key nearest to each query, [B] int64."""
        return self.similarity(params, batch).argmax(dim=1)

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

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """The mean of the logits with the prompts of the ``branches`` nearest groups; FGPT-U has more than one."""
        chosen = self.similarity(params, batch).topk(self.settings.branches, dim=1).indices
        return model(params, batch.images, chosen).logits

    def extra_predictors(self, round: int) -> Mapping[str, FGPT]:
        """FGPT-U with the same parameters, for each number of branches in ``ensembles``."""
        s = self.settings
        if round <= s.rounds - s.window:
            return {}
        others = {f"top-{many}": s.model_copy(update={"branches": many}) for many in s.ensembles}
        known = self.num_classes, self.public_classes, self.seed
        return {name: type(self)(settings, *known) for name, settings in others.items()}

    def observe(self, work: Work) -> dict[str, Any]:
        """``groups`` [G]: how many of a participant's samples each group has."""
        return {"groups": work.statistics.sums["counts"].long().tolist()} if work.round else {}

    def compare(self, uplinks: Sequence[Message]) -> dict[str, Any]:
        """PT-FedAvg's, and ``group_entropy`` over the participants' samples: 1 where all groups have equally many.

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
