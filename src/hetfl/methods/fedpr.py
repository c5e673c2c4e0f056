"""FedPR: prompts move in the directions in which the received ones have least weight."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import Phase, Work, register_method
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model

LEARNED = "learned"


@register_method("fedpr")
class FedPR(PTFedAvg):
    """Feng et al., CVPR 2023, with a vision transformer and classes in place of its images.

    Every displacement of a prompt is projected onto an approximate null space of the prompts that the server sent,
    except in the first round.
    """

    numerics = 1
    title = "FedPR"
    source = "Feng et al., CVPR 2023"

    class Settings(PTFedAvg.Settings):
        """``kept``: share r of the directions that are kept, those of least weight."""

        group_blocks: tuple[int, ...] = ()
        kept: float = Field(default=0.8, gt=0, le=1)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        return super().objective(model, self.projected(params, received), batch, received, phase)

    def uplink(self, work: Work) -> Message:
        params = self.projected(work.params, work.received)
        return Message({name: params[name] for name in work.client.model.names(self.shares())})

    def projected(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        """The parameters whose prompts differ from the received ones by the projected displacement only."""
        if "projection" not in received:
            return dict(params)
        moved = params["shared"] - received["shared"]
        return {**params, "shared": received["shared"] + moved @ received["projection"]}

    def aggregate(self, server: Tensors, uplinks: Mapping[int, Message], draws: Draws) -> dict[str, Tensor]:
        return {**super().aggregate(server, uplinks, draws), LEARNED: torch.ones(1, dtype=torch.int32)}

    def downlink(self, server: Tensors, client: int) -> Message:
        """The server's prompts and head, and from the second round on a mark that somebody has trained them."""
        mark = {LEARNED: server[LEARNED]} if LEARNED in server else {}
        return Message({**super().downlink(server, client), **mark})

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        known = {name: tensor for name, tensor in message.items() if name != LEARNED}
        if LEARNED in message and self.settings.kept < 1:
            known["projection"] = null_space(message["shared"].flatten(0, 1), self.settings.kept)
        return known

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return super().adopt(params, {name: tensor for name, tensor in received.items() if name != "projection"})


def null_space(prompts: Tensor, kept: float) -> Tensor:
    """The projection [d, d] onto the eigenvectors of least weight of P^T P, for prompts P [n, d], in float64."""
    values, vectors = torch.linalg.eigh(prompts.double().T @ prompts.double())
    least = vectors[:, : len(values) - int((1 - kept) * len(values))]
    return (least @ least.T).to(prompts.dtype)
