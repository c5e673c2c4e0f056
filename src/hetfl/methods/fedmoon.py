"""FedMOON: PT-FedAvg whose features are pulled towards the global model's and away from the last local model's.

A client's features of a sample are compared with those of the model that it received and of its own last one. A
contrastive loss pulls them towards the first and away from the second. So local training drifts less from the global
model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.message import Message, Tensors, flatten, group, ungrouped
from hetfl.methods.base import Phase, Work, cross_entropy, register_method
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model

PREVIOUS = "previous"
"""Group of the prompts that the client ended its last round with."""


@register_method("fedmoon")
class FedMOON(PTFedAvg):
    """MOON (Li et al., CVPR 2021) with prompts in place of weights; FGPT's baseline.

    Features are the class token's, without MOON's projection. In a client's first round there is no contrastive loss.
    """

    numerics = 1
    title = "FedMOON"
    source = "Li et al., CVPR 2021; FGPT, arXiv 2310.18285"

    class Settings(PTFedAvg.Settings):
        """Defaults are MOON's.

        Attributes:
            mu: weight of the contrastive loss.
            temperature: tau.
        """

        mu: float = Field(default=1.0, ge=0)
        temperature: float = Field(default=0.5, gt=0)

    settings: Settings

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return {**message, **memory}

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return super().adopt(params, ungrouped(received))

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Cross-entropy - mu log(e^(s/tau) / (e^(s/tau) + e^(p/tau))).

        s and p are the cosines [B] of the features [B, d] with those of the received and of the previous prompts.
        """
        chosen = self.choose(params, batch, received)
        output = model(params, batch.images, chosen)
        loss = cross_entropy(output.logits, batch)
        previous = group(received, PREVIOUS)
        if not previous or not self.settings.mu:
            return loss
        with torch.no_grad():
            others = [model({**params, **received, **prompts}, batch.images, chosen) for prompts in ({}, previous)]
        cosines = torch.stack([F.cosine_similarity(output.features, other.features) for other in others], dim=1)
        positive = torch.zeros_like(batch.labels)
        contrast = F.cross_entropy(cosines / self.settings.temperature, positive, reduction="none")
        return loss + self.settings.mu * batch.mean(contrast)

    def remember(self, work: Work) -> Tensors:
        """The group ``previous``: the prompts after local training."""
        return flatten({PREVIOUS: work.trained(["shared", "group"])}) if work.round else {}
