"""FedProx: FedAvg with a proximal term that keeps a client's weights near the server's.

With unlike data or many local steps, clients drift apart, and the mean of their models fits none of them. The squared
distance to the received weights, times mu / 2, is added to each client's loss. With mu = 0 it is FedAvg.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.message import Tensors
from hetfl.methods.base import Phase, register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.models.base import Model


@register_method("fedprox")
class FedProx(FedAvg):
    """Li et al., MLSys 2020, Algorithm 2."""

    numerics = 1
    title = "FedProx"
    source = "Li et al., MLSys 2020"

    class Settings(FedAvg.Settings):
        """``mu``: weight of the proximal term; 0 is FedAvg."""

        mu: float = Field(default=0.01, ge=0)

    settings: Settings

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """F_k(w) + mu/2 ||w - W||^2, W being the weights that the client received."""
        distance = sum((params[name] - received[name]).square().sum() for name in received)
        return super().objective(model, params, batch, received, phase) + self.settings.mu / 2 * distance
