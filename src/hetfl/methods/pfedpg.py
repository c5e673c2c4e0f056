"""pFedPG: the server generates each client's prompts and learns from how the clients change them.

Every client has a descriptor on the server, from which attention over a common basis makes its prompts. The client
trains them and a head that it keeps, and sends how they changed. That change is the gradient by which the server's
generator learns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hetfl.data.batches import Batch
from hetfl.draws import Draws, seeded_library_code
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import Method, MethodSettings, Phase, Uplinks, Work, cross_entropy, register_method
from hetfl.methods.parts.networks import detached, leaves
from hetfl.models.base import Model, ModelOptions
from hetfl.optimisers import SGD


@register_method("pfedpg")
class PFedPG(Method):
    """Yang et al., "Efficient Model Personalization in Federated Learning via Client-Specific Prompt Generation",
    ICCV 2023; shapes are those that FedHPL's Table 5 counts.

    The server keeps the generator: ``basis`` [n, d], ``descriptors`` [K, d], ``query.weight``, ``key.weight`` and
    ``value.weight`` [inner, d], ``leave.weight`` [d, inner] and ``leave.bias`` [d].
    """

    numerics = 1
    title = "pFedPG"
    source = "Yang et al., ICCV 2023"
    heterogeneous = False
    travels = "prompts down, their change up"
    personal = True

    class Settings(MethodSettings):
        """Defaults are the authors', for prompts and epochs FedHPL's; momentum is not stated, so there is none.

        Attributes:
            prompt_length: prompts at the input of the frozen backbone.
            inner: width of the generator's attention.
            server_lr: learning rate of the generator.
        """

        local_epochs: int = Field(default=5, ge=1)
        batch_size: int = Field(default=64, ge=1)
        lr: float = Field(default=0.25, gt=0)
        momentum: float = Field(default=0.0, ge=0, lt=1)
        weight_decay: float = Field(default=1e-3, ge=0)
        prompt_length: int = Field(default=10, ge=1)
        inner: int = Field(default=512, ge=1)
        server_lr: float = Field(default=1e-3, gt=0)

    settings: Settings

    def model_options(self) -> ModelOptions:
        return ModelOptions(prompts="shallow", prompt_length=self.settings.prompt_length)

    def trains(self) -> tuple[str, ...]:
        return ("prompts", "head")

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        model, inner = models[0], self.settings.inner
        params = model.init(draws, -1)
        (basis,) = (params[name] for name in model.names(["prompts"]))
        width = basis.shape[-1]
        with seeded_library_code(draws.key("init:generator")):
            layers = {name: nn.Linear(width, inner, bias=False) for name in ("query", "key", "value")}
            fresh = nn.ModuleDict({**layers, "leave": nn.Linear(inner, width)}).state_dict()
            descriptors = torch.randn(len(models), width)
        drawn = {"descriptors": descriptors, **fresh}
        return ServerState(
            {"basis": basis.reshape(-1, width), **{name: tensor.to(basis.dtype) for name, tensor in drawn.items()}}
        )

    def downlink(self, server: ServerState, client: int) -> Message:
        """``prompts`` [n, d]: P_k, generated for the client."""
        return Message({"prompts": generate(server)[client]})

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {
            name: received["prompts"].view_as(tensor) if name.split(".")[0] == "prompts" else tensor
            for name, tensor in params.items()
        }

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """The mean cross-entropy."""
        return cross_entropy(model(params, batch.images).logits, batch)

    def uplink(self, work: Work) -> Message:
        """``change`` [n, d]: P_k' - P_k, how local training changed the prompts."""
        (name,) = work.client.model.names(["prompts"])
        return Message({"change": (work.params[name] - work.before[name]).view_as(work.received["prompts"])})

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """One SGD step along the vector-Jacobian product of the generated prompts P_k with P_k - P_k'."""
        net = leaves(server)
        changes = torch.stack([message["change"] for message in uplinks])
        torch.autograd.backward(generate(net)[uplinks.clients], -changes)
        SGD(net.values(), self.settings.server_lr).step()
        return ServerState(detached(net))

    def server_parameters(self, server: ServerState) -> Tensors:
        return server

    def diagnostics(self, server: ServerState) -> dict[str, float]:
        """``prompt_spread``: root mean square distance of the clients' prompts to their mean."""
        spread = generate(server)
        return {"prompt_spread": float((spread - spread.mean(dim=0)).norm() / math.sqrt(len(spread)))}


def generate(net: Tensors) -> Tensor:
    """Prompts [K, n, d] of all clients: the basis, plus for each client an attention of its descriptor over it."""
    basis, descriptors = net["basis"], net["descriptors"]
    query = F.linear(descriptors, net["query.weight"])
    key, value = F.linear(basis, net["key.weight"]), F.linear(basis, net["value.weight"])
    attention = torch.softmax(query @ key.T / math.sqrt(query.shape[1]), dim=1)
    return basis + F.linear(attention @ value, net["leave.weight"], net["leave.bias"])[:, None]
