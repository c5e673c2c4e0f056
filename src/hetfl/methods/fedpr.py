"""FedPR: prompts move in the directions in which the received ones have least weight."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import Phase, Uplinks, Work, register_method
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model

SEED = "completion seed"


@register_method("fedpr")
class FedPR(PTFedAvg):
    """Feng et al., CVPR 2023, with a vision transformer and classes in place of its images.

    Every displacement of a prompt is projected onto an approximate null space of the prompts that the server sent,
    except in the first round. Prompts span fewer directions than are to be dropped. Which others go with them depends
    on rounding in the authors' code; here they are drawn, once a run.
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

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        seed = draws.at(0).key("null space") % 2**31
        return {**super().aggregate(server, uplinks, draws), SEED: torch.tensor([seed], dtype=torch.int32)}

    def downlink(self, server: Tensors, client: int) -> Message:
        """The server's prompts and head, and once somebody has trained them the seed that completes their span."""
        seed = {SEED: server[SEED]} if SEED in server else {}
        return Message({**super().downlink(server, client), **seed})

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        known = {name: tensor for name, tensor in message.items() if name != SEED}
        if SEED in message and self.settings.kept < 1:
            known["projection"] = null_space(message["shared"].flatten(0, 1), self.settings.kept, int(message[SEED]))
        return known

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return super().adopt(params, {name: tensor for name, tensor in received.items() if name != "projection"})


def null_space(prompts: Tensor, kept: float, seed: int) -> Tensor:
    """The projection [d, d] onto a space in which prompts P [n, d] have least weight, in float64.

    Its complement are the k = int((1 - kept) d) directions in which they have most; where P has fewer than k, random
    ones as well, so that rounding of P does not decide which.

    Args:
        prompts: P.
        kept: share of the directions that are kept.
        seed: of the random directions.

    Returns:
        NaN where P is not finite, as in a run that diverged.
    """
    width = prompts.shape[1]
    if not prompts.isfinite().all():
        return prompts.new_full((width, width), torch.nan)
    dropped = int((1 - kept) * width)
    # From the singular vectors and not by QR of P itself, which cannot tell span from rounding.
    _, weights, directions = torch.linalg.svd(prompts.double(), full_matrices=False)
    noise = max(prompts.shape) * torch.finfo(prompts.dtype).eps * weights[:1]
    span = directions[weights > noise][:dropped]
    drawn = torch.randn(dropped, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis, _ = torch.linalg.qr(torch.cat([span, drawn[len(span) :].to(span.device)]).T)
    return (torch.eye(width, dtype=basis.dtype, device=basis.device) - basis @ basis.T).to(prompts.dtype)
