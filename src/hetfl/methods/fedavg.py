"""FedAvg: clients train the whole model from the server's weights; the server averages them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import (
    Method,
    MethodSettings,
    Phase,
    Uplinks,
    Work,
    cross_entropy,
    register_method,
    weighted_mean,
)
from hetfl.models.base import Model, ModelOptions


@register_method("fedavg")
class FedAvg(Method):
    """McMahan et al., AISTATS 2017. FedHPL Table 1 trains it from random weights."""

    numerics = 1
    title = "FedAvg"
    source = "McMahan et al., AISTATS 2017"
    heterogeneous = False
    travels = "all parameters"
    evaluates: Literal["client", "global"] = "global"

    class Settings(MethodSettings):
        """``init``: where the server's first weights come from."""

        init: Literal["scratch", "pretrained"] = "scratch"

    def model_options(self) -> ModelOptions:
        return ModelOptions(body="trained", weights=self.settings.init)

    def trains(self) -> tuple[str, ...]:
        return ("body", "head")

    def keeps(self) -> tuple[str, ...]:
        return ()

    def shares(self) -> tuple[str, ...]:
        """The parameter groups that travel and are averaged."""
        return self.trains()

    def register(self, work: Work) -> Message:
        return Message({"samples": torch.tensor([work.client.samples], dtype=torch.int32)})

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> dict[str, Tensor]:
        samples = torch.cat([registrations[client]["samples"] for client in sorted(registrations)])
        fresh = models[0].init(draws, client=-1)
        return {"samples": samples, **_prefixed({name: fresh[name] for name in models[0].names(self.shares())})}

    def downlink(self, server: Tensors, client: int) -> Message:
        return Message(
            {name.removeprefix(PREFIX): tensor for name, tensor in server.items() if name.startswith(PREFIX)}
        )

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {**params, **received}

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        return cross_entropy(model(params, batch.images).logits, batch)

    def uplink(self, work: Work) -> Message:
        return Message({name: work.params[name] for name in work.client.model.names(self.shares())})

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        mean = weighted_mean(uplinks, server["samples"][uplinks.clients])
        return {**server, **_prefixed(mean)}


PREFIX = "model/"


def _prefixed(params: Tensors) -> dict[str, Tensor]:
    return {PREFIX + name: tensor for name, tensor in params.items()}
