"""PT-FedAvg: clients tune inserted prompts and a head on a frozen transformer; the server averages both."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.message import Tensors
from hetfl.methods.base import MethodSettings, Phase, cross_entropy, register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.models.base import Model, ModelOptions


@register_method("pt-fedavg")
class PTFedAvg(FedAvg):
    """FGPT's baseline (arXiv 2310.18285, D.4): prompts without groups; without ``group_blocks`` PT-FedAvg-share."""

    title = "PT-FedAvg"
    source = "FGPT, arXiv 2310.18285"
    travels = "prompts and heads"

    class Settings(MethodSettings):
        """Defaults are FGPT's, and where it states none those of its later version's code.

        Attributes:
            shared_blocks: blocks, from 1, before which the prompts enter that all samples share.
            prompt_length: of these, at each block.
            group_blocks: blocks before which one prompt of the sample's group enters; here all are of one group.
        """

        rounds: int = Field(default=60, ge=1)
        participation: float = Field(default=0.05, gt=0, le=1)
        local_epochs: int = Field(default=5, ge=1)
        batch_size: int = Field(default=40, ge=1)
        weight_decay: float = Field(default=1e-5, ge=0)
        shared_blocks: tuple[int, ...] = (1,)
        prompt_length: int = Field(default=5, ge=1)
        group_blocks: tuple[int, ...] = (6,)

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

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        return model(params, batch.images, self.choose(params, batch, received)).logits
