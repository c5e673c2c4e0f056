"""SCAFFOLD: FedAvg whose clients correct their gradients by the difference of two control variates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import Phase, Uplinks, Work, register_method
from hetfl.methods.fedavg import PREFIX, FedAvg
from hetfl.models.base import Model

CONTROL, OWN = "control/", "own/"
"""Prefixes of c and c_k, by the name of the parameter."""


@register_method("scaffold")
class Scaffold(FedAvg):
    """Karimireddy et al., ICML 2020, option II of its Eq. 4: the client's new control is its mean gradient."""

    numerics = 1
    title = "SCAFFOLD"
    source = "Karimireddy et al., ICML 2020"
    travels = "all parameters and as many control variates"

    class Settings(FedAvg.Settings):
        """``server_lr``: step of the server towards the clients' mean.

        The rule for the control variates assumes plain SGD, so momentum is 0 by default; with momentum they are
        scaled by what a constant gradient displaces in as many steps (:func:`displacement`).
        """

        optimiser: Literal["sgd"] = "sgd"
        momentum: float = Field(default=0.0, ge=0, lt=1)
        server_lr: float = Field(default=1.0, gt=0)

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> dict[str, Tensor]:
        server = super().initial_server(models, registrations, draws)
        zeros = {
            CONTROL + name.removeprefix(PREFIX): torch.zeros_like(tensor)
            for name, tensor in server.items()
            if name.startswith(PREFIX)
        }
        return {**server, **zeros}

    def downlink(self, server: Tensors, client: int) -> Message:
        control = {name: tensor for name, tensor in server.items() if name.startswith(CONTROL)}
        return Message({**super().downlink(server, client), **control})

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        own = {
            OWN + name.removeprefix(CONTROL): memory.get(OWN + name.removeprefix(CONTROL), torch.zeros_like(tensor))
            for name, tensor in message.items()
            if name.startswith(CONTROL)
        }
        return {**message, **own}

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        model = {name: tensor for name, tensor in received.items() if not name.startswith((CONTROL, OWN))}
        return super().adopt(params, model)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """A term linear in the parameters turns the gradient g into g - c_k + c."""
        names = model.names(phase.trains)
        drift = sum(((received[CONTROL + n] - received[OWN + n]) * params[n]).sum() for n in names)
        return super().objective(model, params, batch, received, phase) + drift

    def remember(self, work: Work) -> Tensors:
        """c_k' = c_k - c + (W - y_k) / (S lr), S lr being plain SGD's scale; c_k where no step was taken."""
        received = work.received
        names = work.client.model.names(self.shares())
        if not work.steps:
            return {OWN + name: received[OWN + name] for name in names}
        scale = displacement(work.steps, self.settings.momentum) * self.settings.lr
        return {
            OWN + n: received[OWN + n] - received[CONTROL + n] + (work.before[n] - work.params[n]) / scale
            for n in names
        }

    def uplink(self, work: Work) -> Message:
        names = work.client.model.names(self.shares())
        own = self.remember(work)
        moved = {name: work.params[name] - work.before[name] for name in names}
        return Message({**moved, **{CONTROL + name: own[OWN + name] - work.received[OWN + name] for name in names}})

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """Plain means: W += server_lr * mean dy, c += sum dc / K."""
        changed = dict(server)
        clients = len(server["samples"])
        messages = list(uplinks)
        for name in messages[0]:
            total = torch.stack([message[name] for message in messages]).sum(dim=0)
            if name.startswith(CONTROL):
                changed[name] = server[name] + total / clients
            else:
                changed[PREFIX + name] = server[PREFIX + name] + self.settings.server_lr * total / len(uplinks)
        return changed


def displacement(steps: int, momentum: float) -> float:
    """How far SGD with momentum m goes in S steps along a constant gradient, in units of lr times the gradient.

    The velocity in step t is the sum of m^i over i < t, so it is the sum of (1 - m^t) / (1 - m) over t = 1..S, which
    is S without momentum.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
