"""PT-FedAvg: clients tune inserted prompts and a head on a frozen transformer; the server averages both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.message import Message, Tensors
from hetfl.methods.base import MethodSettings, Phase, cross_entropy, register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.models.base import Model, ModelOptions

GROUP = "model/group"


@register_method("pt-fedavg")
class PTFedAvg(FedAvg):
    """FGPT's baseline (arXiv 2310.18285, D.4): prompts without groups; without ``group_blocks`` PT-FedAvg-share."""

    numerics = 1
    title = "PT-FedAvg"
    source = "FGPT, arXiv 2310.18285"
    travels = "prompts and heads"

    class Settings(MethodSettings):
        """Defaults are FGPT's, and where it states none those of its later version's code.

        Attributes:
            shared_blocks: blocks, from 1, before which the prompts enter that all samples share.
            prompt_length: of these, at each block.
            group_blocks: blocks before which one prompt of the sample's group enters; here all are of one group.
            window: rounds at the end over which the paper reports the accuracy's mean and variance.
        """

        rounds: int = Field(default=60, ge=1)
        participation: float = Field(default=0.05, gt=0, le=1)
        local_epochs: int = Field(default=5, ge=1)
        batch_size: int = Field(default=40, ge=1)
        weight_decay: float = Field(default=1e-5, ge=0)
        shared_blocks: tuple[int, ...] = (1,)
        prompt_length: int = Field(default=5, ge=1)
        group_blocks: tuple[int, ...] = (6,)
        window: int = Field(default=10, ge=1)

    def model_options(self) -> ModelOptions:
        s = self.settings
        return ModelOptions(
            prompts="inserted",
            prompt_length=s.prompt_length,
            shared_blocks=s.shared_blocks,
            group_blocks=s.group_blocks,
            init="torch",
        )

    def trains(self) -> tuple[str, ...]:
        return ("shared", "group", "head")

    def choose(self, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """The group of each sample: [B] int64, or [B, K] where K are asked at once."""
        return torch.zeros_like(batch.labels)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        return cross_entropy(model(params, batch.images, self.choose(params, batch, received)).logits, batch)

    def diagnostics(self, server: Tensors) -> dict[str, Any]:
        """The mean cosine of the groups' new prompts (FGPT, Table 11)."""
        found = mean_cosine(of_groups(server[GROUP][None])[0][:, None]) if GROUP in server else None
        return {} if found is None else {"cosine_group_global": found}

    def compare(self, uplinks: Sequence[Message]) -> dict[str, Any]:
        """Mean cosines of the prompts that participants send (FGPT, Table 11).

        A prompt is one vector over all its blocks and tokens, or where a name ends in ``tokens`` each token is one.
        """
        found: dict[str, float | None] = {}
        if "shared" in uplinks[0]:
            shared = torch.stack([message["shared"] for message in uplinks])
            found["cosine_shared"] = mean_cosine(shared.flatten(1)[:, None])
            found["cosine_shared_tokens"] = mean_cosine(shared.flatten(1, 2))
        if "group" in uplinks[0]:
            group = torch.stack([message["group"] for message in uplinks])
            found["cosine_group_local"] = mean_cosine(of_groups(group))
            found["cosine_group_local_tokens"] = mean_cosine(group.flatten(1, 2))
        return {name: value for name, value in found.items() if value is not None}

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        return model(params, batch.images, self.choose(params, batch, received)).logits


def of_groups(prompts: Tensor) -> Tensor:
    """Prompts [k, blocks, G, d] of some clients as one vector a group: [k, G, blocks * d]."""
    return prompts.transpose(1, 2).flatten(2)


def mean_cosine(vectors: Tensor, used: Tensor | None = None) -> float | None:
    """The cosine of each pair among k vectors, averaged over pairs and then over m sets of them.

    Args:
        vectors: [k, m, e].
        used: [k, m], 0 for vectors that are left out and 1 for the others; None: all count.

    Returns:
        None where no set has a pair.
    """
    unit = F.normalize(vectors.double(), dim=2)
    weight = torch.ones_like(unit[..., 0]) if used is None else used.to(unit)
    unit = unit * weight[..., None]
    count = weight.sum(dim=0)
    # The square of a sum holds each pair twice, and the squares.
    twice = unit.sum(dim=0).square().sum(dim=1) - unit.square().sum(dim=(0, 2))
    some = count > 1
    return float((twice[some] / (count * (count - 1))[some]).mean()) if some.any() else None
