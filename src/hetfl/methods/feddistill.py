"""FedDistill: clients of any architecture share the mean logits of each class, and regress their own towards them.

A client sends the mean logits of each of its classes, so messages depend on the number of classes alone. The server
averages them. In the next round a client's loss also has the distance of its logits to the global ones of the
sample's class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.draws import Draws
from hetfl.message import Message, ServerState
from hetfl.methods.base import Uplinks, mean_over_owners, register_method
from hetfl.methods.fedhe import FedHE
from hetfl.models.base import Model


@register_method("feddistill")
class FedDistill(FedHE):
    """Jeong et al., NeurIPS workshop 2018 (federated distillation), in the form that FedTGP compares with.

    FedHE that does not wait until every client has reported once. A class that no participant has samples of has no
    global logits after the round.
    """

    numerics = 1
    title = "FedDistill"
    source = "Jeong et al., NeurIPS workshop 2018"

    class Settings(FedHE.Settings):
        """Defaults are FedTGP's.

        Attributes:
            alpha: weight gamma of the distillation loss.
            regulariser: mean square between logits, as when FedTGP's tables were made; or cross-entropy with the
                softmax of the class's logits, nearer to the source.
        """

        optimiser: Literal["sgd", "adam"] = "sgd"
        lr: float = Field(default=0.01, gt=0)
        momentum: float = Field(default=0.0, ge=0, lt=1)
        keep_optimiser: bool = False
        stem: Literal["imagenet", "cifar"] = "imagenet"
        regulariser: Literal["mse", "soft"] = "mse"

    settings: Settings

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        return ServerState()

    def downlink(self, server: ServerState, client: int) -> Message:
        """``means`` [c, C] and ``labels`` [c] int32 of the c classes with global logits; nothing in round 1."""
        return Message(server)

    def distance(self, logits: Tensor, targets: Tensor) -> Tensor:
        """FedHE's mean square, or the cross-entropy with softmax(t_y): [B]."""
        if self.settings.regulariser == "mse":
            return super().distance(logits, targets)
        return F.cross_entropy(logits, targets.softmax(dim=1), reduction="none")

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """t_c: the plain mean of class c over the participants that have samples of it."""
        return ServerState(mean_over_owners(list(uplinks), self.num_classes))
