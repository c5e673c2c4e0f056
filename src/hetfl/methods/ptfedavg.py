"""PT-FedAvg: clients tune inserted prompts and a head on a frozen transformer; the server averages both.

The backbone is pre-trained and never changes, so clients train and send a small part of the parameters. It is FedAvg
of that part, and the parent of the other methods with prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hetfl.config import Blocks
from hetfl.data.batches import Batch
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import Phase, cross_entropy, register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.methods.parts.cosines import mean_cosine, of_groups
from hetfl.methods.parts.robust import CombiningSettings
from hetfl.models.base import Model, ModelOptions


@register_method("pt-fedavg")
class PTFedAvg(FedAvg):
    """FGPT's baseline (arXiv 2310.18285, D.4): prompts without groups; without ``group_blocks`` PT-FedAvg-share.

    What travels are ``shared`` [blocks, n, d] and ``group`` [blocks, G, d], the prompts of d numbers that enter at
    some blocks, G being 1 here; and the head.
    """

    numerics = 1
    title = "PT-FedAvg"
    source = "FGPT, arXiv 2310.18285"
    travels = "prompts and heads"
    compared: ClassVar[tuple[str, ...]] = ("shared", "group")

    class Settings(CombiningSettings):
        """Defaults are FGPT's; where it states none, those of the code of its later version.

        Attributes:
            shared_blocks: blocks, counted from 1, before which prompts enter that all samples share.
            prompt_length: n, shared prompts at each of these blocks.
            group_blocks: blocks before which one prompt of the sample's group enters; here there is one group.
            window: rounds at the end over which the paper reports the accuracy's mean and variance.
        """

        rounds: int = Field(default=60, ge=1)
        participation: float = Field(default=0.05, gt=0, le=1)
        local_epochs: int = Field(default=5, ge=1)
        batch_size: int = Field(default=40, ge=1)
        weight_decay: float = Field(default=1e-5, ge=0)
        shared_blocks: Blocks = (1,)
        prompt_length: int = Field(default=5, ge=1)
        group_blocks: Blocks = (6,)
        window: int = Field(default=10, ge=1)

    settings: Settings  # type: ignore[assignment]  # FedAvg's weights is not among them

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
        """The group of each sample [B] int64: the only one."""
        return torch.zeros_like(batch.labels)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """The mean cross-entropy, with the prompts of each sample's group."""
        return cross_entropy(model(params, batch.images, self.choose(params, batch, received)).logits, batch)

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        return model(params, batch.images, self.choose(params, batch, received)).logits

    def diagnostics(self, server: ServerState) -> dict[str, Any]:
        """FedAvg's, and the mean cosine of the groups' new prompts (FGPT, Table 11)."""
        prompts = server.group("model").get("group")
        found = None if prompts is None else mean_cosine(of_groups(prompts[None])[0][:, None])
        return super().diagnostics(server) | ({} if found is None else {"cosine_group_global": found})

    def compare(self, uplinks: Sequence[Message]) -> dict[str, Any]:
        """Mean cosines of the prompts that participants send (FGPT, Table 11).

        A client's prompts at all blocks are compared as one vector; for figures named ``tokens`` each token is one.
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
