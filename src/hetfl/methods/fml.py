"""FML: each client's own network and its copy of a common network teach each other; the common one is averaged.

A client keeps a network of its own, of any architecture, beside a copy of a small common one. On each batch both
learn from the labels and from the other's predictions. Only the common network travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import Phase, Uplinks, Work, cross_entropy, register_method, weighted_mean
from hetfl.methods.scratch import Scratch, ScratchSettings
from hetfl.models.base import Model, ModelOptions


@register_method("fml")
class FML(Scratch):
    """Shen et al., "Federated Mutual Learning", 2020, in the form of the benchmark that FedTGP's tables come from.

    Both networks learn from each batch at once; the client predicts with its own. The server keeps the common
    network's parameters, by their names in the client's model.
    """

    numerics = 1
    title = "FML"
    source = "Shen et al., 2020"
    travels = "the common network"

    class Settings(ScratchSettings):
        """Defaults are FedTGP's and its benchmark's.

        Attributes:
            auxiliary: architecture of the common network.
            alpha, beta: weight of the cross-entropy in the own and in the common network's loss; the divergence from
                the other network has the rest.
            reduction: whether the divergence is averaged over samples and classes, or over samples.
            detach: whether the network that teaches gets no gradient from teaching.
            clip: largest norm of the gradient of each network.
        """

        auxiliary: str = "cnn"
        alpha: float = Field(default=0.5, ge=0, le=1)
        beta: float = Field(default=0.5, ge=0, le=1)
        reduction: Literal["elements", "batch"] = "elements"
        detach: bool = False
        clip: float | None = Field(default=10.0, gt=0)

    settings: Settings

    def model_options(self) -> ModelOptions:
        return self.fitted(auxiliary=self.settings.auxiliary)

    def networks(self) -> tuple[tuple[str, ...], ...]:
        """The parameter groups of each network: the client's own first."""
        return super().trains(), ("auxiliary",)

    def trains(self) -> tuple[str, ...]:
        return tuple(group for groups in self.networks() for group in groups)

    def keeps(self) -> tuple[str, ...]:
        return self.networks()[0]

    def phase(self, **changes: Any) -> Phase:
        return super().phase(clip=self.settings.clip, clipped=self.networks(), **changes)

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        fresh = models[0].init(draws, client=-1)
        return ServerState({name: fresh[name] for name in models[0].names(["auxiliary"])})

    def downlink(self, server: ServerState, client: int) -> Message:
        """The common network's parameters by name."""
        return Message(server)

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {**params, **received}

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """The sum of both networks' losses, of logits p (own) and q (common), both [B, C].

        alpha CE(p) + (1 - alpha) KL(q || p) + beta CE(q) + (1 - beta) KL(p || q)
        """
        own, common = model(params, batch.images).logits, model.auxiliary(params, batch.images).logits
        s = self.settings
        own_loss = s.alpha * cross_entropy(own, batch) + (1 - s.alpha) * self.divergence(common, own, batch)
        return own_loss + s.beta * cross_entropy(common, batch) + (1 - s.beta) * self.divergence(own, common, batch)

    def divergence(self, teacher: Tensor, student: Tensor, batch: Batch) -> Tensor:
        """KL(softmax(teacher) || softmax(student)) [] of logits [B, C], averaged as the settings say."""
        target = (teacher.detach() if self.settings.detach else teacher).log_softmax(dim=1)
        terms = target.exp() * (target - student.log_softmax(dim=1))
        return batch.mean(terms.mean(dim=1) if self.settings.reduction == "elements" else terms.sum(dim=1))

    def uplink(self, work: Work) -> Message:
        """The client's copy of the common network by name."""
        return Message(work.trained(["auxiliary"]))

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """The plain mean of the participants' common networks."""
        return ServerState(weighted_mean(uplinks, torch.ones(len(uplinks))))
