"""FedPR: prompts move only within an approximate null space of the prompts that the server sent.

Directions in which the received prompts have much weight are kept for what other clients have learned. The client's
change of the prompts is projected onto the remaining directions. The server averages prompts and heads by samples.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, field_validator
from torch import Tensor

from hetfl.config import Blocks
from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors, without
from hetfl.methods.base import Phase, Uplinks, Work, register_method
from hetfl.methods.parts.robust import mean_only
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model

SEED = "completion seed"


@register_method("fedpr")
class FedPR(PTFedAvg):
    """Feng et al., CVPR 2023, with a vision transformer and classes in place of its images.

    From the second round on, the change of the prompts is projected onto a space in which the received prompts have
    least weight. The prompts span fewer directions than have to be dropped. In the authors' code rounding decides
    which other directions are dropped with them; here they are drawn at random, the same in the whole run.
    """

    numerics = 1
    title = "FedPR"
    source = "Feng et al., CVPR 2023"

    class Settings(PTFedAvg.Settings):
        """``kept``: share r of the directions that are kept, those of least weight."""

        shared_blocks: Annotated[Blocks, Field(min_length=1)] = (1,)
        group_blocks: Blocks = ()
        kept: float = Field(default=0.8, gt=0, le=1)

        _no_noise = field_validator("noise")(mean_only)

    settings: Settings

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Cross-entropy of the projected parameters, so that the gradient is projected as well."""
        return super().objective(model, self.projected(params, received), batch, received, phase)

    def uplink(self, work: Work) -> Message:
        """PT-FedAvg's, with ``shared`` [blocks, n, d] projected."""
        return Message(self.projected(work.trained(self.shares()), work.received))

    def projected(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        """The parameters with prompts P' = P_0 + (P - P_0) N: P_0 received, N [d, d] the projection."""
        if "projection" not in received:
            return dict(params)
        moved = params["shared"] - received["shared"]
        return {**params, "shared": received["shared"] + moved @ received["projection"]}

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """FedAvg's mean by samples; the seed of the random directions is kept beside it."""
        seed = draws.at(0).key("null space") % 2**31
        return super().aggregate(server, uplinks, draws) | {SEED: torch.tensor([seed], dtype=torch.int32)}

    def downlink(self, server: ServerState, client: int) -> Message:
        """The server's prompts and head; from the second round on also ``completion seed`` [1] int32."""
        seed = {SEED: server[SEED]} if SEED in server else {}
        return Message({**super().downlink(server, client), **seed})

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        known = without(message, SEED)
        if SEED in message and self.settings.kept < 1:
            known["projection"] = null_space(message["shared"].flatten(0, 1), self.settings.kept, int(message[SEED]))
        return known

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return super().adopt(params, without(received, "projection"))


def null_space(prompts: Tensor, kept: float, seed: int) -> Tensor:
    """The projection N [d, d] onto the directions in which prompts P [n, d] have least weight, computed in float64.

    The k = int((1 - kept) d) directions in which they have most are dropped. Where P spans fewer than k, random ones
    are dropped as well, so that the rounding of P does not decide which.

    Args:
        prompts: P.
        kept: share r of the directions that are kept.
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
    identity = torch.eye(width, dtype=basis.dtype, device=basis.device)
    projection: Tensor = identity - basis @ basis.T
    return projection.to(prompts.dtype)
