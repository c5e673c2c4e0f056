"""FGPT: prompts that all share, and prompts of groups that each sample finds by a fixed key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch, class_counts
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import Query, Statistics, Sweep, Work, register_method
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model, ModelOptions
from hetfl.models.grouped import orthogonal

GROUP = "model/group"


@register_method("fgpt")
class FGPT(PTFedAvg):
    """arXiv 2310.18285 (first version): group-aware prompt tuning; PT-FedAvg with more than one group.

    A sample's group is that of the key nearest to its query, the frozen encoder's feature of it, so it never changes.
    """

    title = "FGPT"
    source = "arXiv 2310.18285, Eq. 2-8"
    travels = "prompts, heads, and counts of the groups"

    class Settings(PTFedAvg.Settings):
        """Defaults are FGPT's.

        Attributes:
            groups: G.
            keys: orthogonal rows, or independent random ones (Table 4).
            key_seed: that they are drawn from; nobody sends them.
            encoder: whose features are the queries; None: the backbone's own (else FGPT-ResNet's).
            branches: groups that a sample is predicted with, their logits averaged (FGPT-U has 5).
        """

        groups: int = Field(default=20, ge=1)
        keys: Literal["orthogonal", "random"] = "orthogonal"
        key_seed: int = 0
        encoder: str | None = None
        branches: int = Field(default=1, ge=1)

    def model_options(self) -> ModelOptions:
        return super().model_options().model_copy(update={"groups": self.settings.groups})

    def queries(self) -> Query | None:
        return Query(self.settings.encoder)

    def choose(self, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        return self.similarity(params, batch).argmax(dim=1)

    def similarity(self, params: Tensors, batch: Batch) -> Tensor:
        """The cosine of each query with each key [B, G]."""
        assert batch.queries is not None
        keys = self.keys(params, batch.queries)
        return F.normalize(batch.queries, dim=1) @ F.normalize(keys, dim=1).T

    def keys(self, params: Tensors, like: Tensor) -> Tensor:
        """b_g [G, d], as wide as the queries ``like`` [B, d]; drawn once, the same everywhere."""
        width = like.shape[1]
        if width not in self._made:
            s = self.settings
            generator = Draws(s.key_seed).torch("keys")
            drawn = torch.randn(s.groups, width, generator=generator, dtype=torch.float64)
            self._made[width] = orthogonal(drawn) if s.keys == "orthogonal" else drawn
        return self._made[width].to(like)

    @cached_property
    def _made(self) -> dict[int, Tensor]:
        return {}

    def sweep(self, round: int) -> Sweep:
        return "own" if round else super().sweep(round)

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        if not received:
            return super().statistics(model, params, batch, received)
        chosen = self.choose(params, batch, received)
        return Statistics(sums={"counts": class_counts(chosen, self.settings.groups, batch.weight)})

    def uplink(self, work: Work) -> Message:
        """What was trained, and N_g, how many of the client's samples each group has."""
        counts = work.statistics.sums["counts"].to(torch.int32)
        return Message({**super().uplink(work), "counts": counts})

    def aggregate(self, server: Tensors, uplinks: Mapping[int, Message], draws: Draws) -> dict[str, Tensor]:
        """Shared prompts and heads by the participants' samples, a group's prompts by their samples of it."""
        clients = sorted(uplinks)
        counts = torch.stack([uplinks[client]["counts"] for client in clients]).double()
        sent = [Message({n: t for n, t in uplinks[client].items() if n != "counts"}) for client in clients]
        after = super().aggregate(server, dict(zip(clients, sent, strict=True)), draws)
        prompts = torch.stack([message["group"] for message in sent]).double()
        total = counts.sum(dim=0)
        mean = torch.einsum("kg,kbgd->bgd", counts / total.clamp(min=1), prompts).to(server[GROUP].dtype)
        # What nobody has a sample of stays bit by bit.
        after[GROUP] = torch.where((total > 0)[:, None], mean, server[GROUP])
        return after | {"counts": total}

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """With one branch as in training; with more the mean of the logits (FGPT-U)."""
        chosen = self.similarity(params, batch).topk(self.settings.branches, dim=1).indices
        return model(params, batch.images, chosen).logits

    def diagnostics(self, server: Tensors) -> dict[str, float]:
        """The entropy of the groups over the participants' samples, 1 when all are of one size."""
        if "counts" not in server or self.settings.groups == 1:
            return {}
        share = server["counts"] / server["counts"].sum()
        nats = -(share * share.clamp(min=1e-12).log()).sum()
        return {"group_entropy": float(nats / torch.tensor(float(self.settings.groups)).log())}
