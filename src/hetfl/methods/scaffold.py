"""SCAFFOLD: FedAvg whose clients correct their gradients by the difference of two control variates.

With unlike data, local gradients point away from the global one. Clients and server keep an estimate of their
gradients, the control variates. Every local step is corrected by the difference between the server's and the client's
estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors, flatten, group, ungrouped
from hetfl.methods.base import Phase, Uplinks, Work, register_method
from hetfl.methods.fedavg import FedAvg
from hetfl.methods.parts.robust import COMBINING, mean_only
from hetfl.models.base import Model


@register_method("scaffold")
class Scaffold(FedAvg):
    """Karimireddy et al., ICML 2020, Algorithm 1 with option II of Eq. 4.

    The server keeps FedAvg's state and the group ``control``, its control variate c; a client keeps the group
    ``own``, its control variate c_k. Both have the names and shapes of the model's parameters and start at zero.
    """

    numerics = 1
    title = "SCAFFOLD"
    source = "Karimireddy et al., ICML 2020"
    travels = "all parameters and as many control variates"

    class Settings(FedAvg.Settings):
        """``server_lr``: the server's step towards the clients' mean.

        The rule for the control variates assumes plain SGD, so momentum is 0 by default. With momentum they are
        scaled by the displacement that a constant gradient causes in as many steps (:func:`displacement`).
        """

        optimiser: Literal["sgd"] = "sgd"
        momentum: float = Field(default=0.0, ge=0, lt=1)
        server_lr: float = Field(default=1.0, gt=0)

        _mean_only = field_validator(*COMBINING)(mean_only)

        @field_validator("keep_optimiser")
        @classmethod
        def _no_velocity_at_first(cls, value: bool, info: ValidationInfo) -> bool:
            if value and info.data.get("momentum"):
                raise ValueError("needs momentum 0: control variates are scaled for a velocity that starts at zero")
            return value

    settings: Settings

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        server = super().initial_server(models, registrations, draws)
        return server | {"control": _zeros_like(server.group("model"))}

    def downlink(self, server: ServerState, client: int) -> Message:
        """The model's parameters by name, and c in the group ``control``."""
        return Message({**server.group("model"), **flatten({"control": server.group("control")})})

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return {**message, **(memory or flatten({"own": _zeros_like(group(message, "control"))}))}

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return super().adopt(params, ungrouped(received))

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """F_k(w) + <c - c_k, w>, whose gradient is the corrected one, g - c_k + c."""
        control, own = group(received, "control"), group(received, "own")
        drift = sum(((control[name] - own[name]) * params[name]).sum() for name in model.names(phase.trains))
        return super().objective(model, params, batch, received, phase) + drift

    def remember(self, work: Work) -> Tensors:
        """The group ``own``: c_k' = c_k - c + (W - w_k) / (S lr), or c_k if no step was taken (S = 0).

        W and w_k are the parameters before and after training; S lr is the scale of plain SGD.
        """
        control, own = group(work.received, "control"), group(work.received, "own")
        if not work.steps:
            return flatten({"own": own})
        scale = displacement(work.steps, self.settings.momentum) * self.settings.lr
        names = work.client.model.names(self.shares())
        return flatten({"own": {n: own[n] - control[n] + (work.before[n] - work.params[n]) / scale for n in names}})

    def uplink(self, work: Work) -> Message:
        """dw = w_k - W by name, and dc = c_k' - c_k in the group ``control``."""
        before, after = group(work.received, "own"), group(work.memory, "own")
        moved = {name: tensor - work.before[name] for name, tensor in work.trained(self.shares()).items()}
        return Message({**moved, **flatten({"control": {name: after[name] - before[name] for name in moved}})})

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """W += server_lr mean dw over the participants, c += sum dc / K over all K clients (Eq. 5)."""
        messages = list(uplinks)
        total = {name: torch.stack([message[name] for message in messages]).sum(dim=0) for name in messages[0]}
        step, clients, change = self.settings.server_lr, len(server["samples"]), group(total, "control")
        return server | {
            "model": {n: t + step * total[n] / len(uplinks) for n, t in server.group("model").items()},
            "control": {n: t + change[n] / clients for n, t in server.group("control").items()},
        }


def displacement(steps: int, momentum: float) -> float:
    """How far SGD with momentum m moves in S steps along a constant gradient, in units of lr times the gradient.

    The velocity in step t is the sum of m^i over i < t, so it is the sum of (1 - m^t) / (1 - m) over t = 1..S, which
    is S without momentum.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def _zeros_like(tensors: Tensors) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
