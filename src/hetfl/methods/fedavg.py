"""FedAvg: clients train the server's model on their data; the server averages their models by samples.

In each round the participants take some epochs on their own data, starting from the server's model. They send their
models, never their data. The mean, weighted by numbers of samples, is the server's next model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import (
    Method,
    Phase,
    Uplinks,
    Work,
    cross_entropy,
    register_method,
)
from hetfl.methods.parts.robust import CombiningSettings, combined, epsilon, noised
from hetfl.models.base import Model, ModelOptions


@register_method("fedavg")
class FedAvg(Method):
    """McMahan et al., AISTATS 2017, Algorithm 1. FedHPL Table 1 trains it from random weights.

    The server keeps ``samples`` [K], the clients' numbers n_k of samples, and the group ``model``, the weights w.
    Where uplinks have noise it also keeps ``noised`` [], the number of rounds that clients have sent some in.
    """

    numerics = 1
    title = "FedAvg"
    source = "McMahan et al., AISTATS 2017"
    heterogeneous = False
    travels = "all parameters"
    evaluates: Literal["client", "global"] = "global"

    class Settings(CombiningSettings):
        """``weights``: where the server's first ones come from."""

        weights: Literal["scratch", "pretrained"] = "scratch"

    settings: Settings

    @property
    def combining(self) -> CombiningSettings:
        """How the server combines uplinks; methods that derive from this one without such settings take the mean."""
        return self.settings if isinstance(self.settings, CombiningSettings) else CombiningSettings()

    def model_options(self) -> ModelOptions:
        return ModelOptions(body="trained", weights=self.settings.weights)

    def trains(self) -> tuple[str, ...]:
        return ("body", "head")

    def keeps(self) -> tuple[str, ...]:
        return ()

    def shares(self) -> tuple[str, ...]:
        """The parameter groups that travel and are averaged."""
        return self.trains()

    def register(self, work: Work) -> Message:
        """``samples`` [1] int32: n_k."""
        return Message({"samples": torch.tensor([work.client.samples], dtype=torch.int32)})

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        samples = torch.cat([registrations[client]["samples"] for client in sorted(registrations)])
        fresh = models[0].init(draws, client=-1)
        state = ServerState(
            {"samples": samples, "model": {name: fresh[name] for name in models[0].names(self.shares())}}
        )
        if not self.combining.noise:
            return state
        epsilon(self.combining.noise, self.combining.delta, 0)  # where it cannot be told nobody should train
        return state | {"noised": torch.zeros((), dtype=torch.int64)}

    def downlink(self, server: ServerState, client: int) -> Message:
        """w: the shared parameters by name, in the shapes of the model."""
        return Message(server.group("model"))

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {**params, **received}

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """F_k: the mean cross-entropy."""
        return cross_entropy(model(params, batch.images).logits, batch)

    def uplink(self, work: Work) -> Message:
        """w_k: the client's shared parameters by name."""
        params, s = work.trained(self.shares()), self.combining
        return Message(noised(params, work.before, s, work.draws, work.client.index) if s.noise else params)

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """w = sum_k n_k w_k / sum_k n_k over the participants, unless the settings have another rule."""
        weights = server["samples"][uplinks.clients]
        told = {"noised": server["noised"] + 1} if "noised" in server else {}
        return server | {"model": combined(uplinks, weights, server.group("model"), self.combining), **told}

    def diagnostics(self, server: ServerState) -> dict[str, Any]:
        """``epsilon`` of a client that took part in all rounds so far, where uplinks have noise."""
        s = self.combining
        return {"epsilon": epsilon(s.noise, s.delta, int(server["noised"]))} if "noised" in server else {}
