"""FedMOON: PT-FedAvg whose features stay near those of the server's prompts and off those of the client's last."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.message import Message, Tensors
from hetfl.methods.base import Phase, Work, cross_entropy, register_method
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model

PREVIOUS = "previous/"


@register_method("fedmoon")
class FedMOON(PTFedAvg):
    """MOON (Li et al., CVPR 2021) with prompts in place of weights; FGPT's baseline.

    Features are the class token's, without MOON's projection. On a client's first visit there is no contrast.
    """

    numerics = 1
    title = "FedMOON"
    source = "Li et al., CVPR 2021; FGPT, arXiv 2310.18285"

    class Settings(PTFedAvg.Settings):
        """Defaults are MOON's.

        Attributes:
            mu: weight of the contrast.
            temperature: tau.
        """

        mu: float = Field(default=1.0, ge=0)
        temperature: float = Field(default=0.5, gt=0)

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return {**message, **memory}

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return super().adopt(params, {n: t for n, t in received.items() if not n.startswith(PREVIOUS)})

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        chosen = self.choose(params, batch, received)
        output = model(params, batch.images, chosen)
        loss = cross_entropy(output.logits, batch)
        previous = {n.removeprefix(PREVIOUS): t for n, t in received.items() if n.startswith(PREVIOUS)}
        if not previous or not self.settings.mu:
            return loss
        with torch.no_grad():
            others = [model({**params, **received, **known}, batch.images, chosen) for known in ({}, previous)]
        cosines = torch.stack([F.cosine_similarity(output.features, other.features) for other in others], dim=1)
        near = torch.zeros_like(batch.labels)
        contrast = F.cross_entropy(cosines / self.settings.temperature, near, reduction="none")
        return loss + self.settings.mu * batch.mean(contrast)

    def remember(self, work: Work) -> Tensors:
        names = work.client.model.names(["shared", "group"])
        return {PREVIOUS + name: work.params[name] for name in names} if work.round else {}
