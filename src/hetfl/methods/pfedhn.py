"""pFedHN: a network on the server generates each client's prompts and learns from what the client made of them.

Every client has an embedding, from which the network makes its prompts. The client trains them and sends them back.
The difference between the prompts before and after serves as the gradient by which network and embeddings learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import Uplinks, register_method
from hetfl.methods.parts.networks import detached, fresh_network, leaves
from hetfl.methods.parts.robust import COMBINING, mean_only
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model
from hetfl.optimisers import SGD

GENERATED = ("shared", "group")
"""The prompts that the network generates."""


@register_method("pfedhn")
class PFedHN(PTFedAvg):
    """Shamsian et al., ICML 2021, with prompts as FedTP (Li et al., 2023) has them; heads are averaged.

    Every client has an embedding, whether it has taken part or not. The server keeps PT-FedAvg's state, the network
    in the group ``net`` and the momentum of its optimiser in the group ``momentum``.
    """

    numerics = 1
    title = "pFedHN"
    source = "Shamsian et al., ICML 2021; Li et al., 2023"
    personal = True

    class Settings(PTFedAvg.Settings):
        """Defaults are FedTP's, ``clip`` is pFedHN's.

        Attributes:
            embedding: size of a client's embedding.
            hidden: width of the network's hidden layers.
            layers: hidden layers after the first.
            server_lr, server_momentum, server_decay: of the network's step in a round.
            clip: largest norm of its gradient.
        """

        embedding: int = Field(default=128, ge=1)
        hidden: int = Field(default=150, ge=1)
        layers: int = Field(default=3, ge=0)
        server_lr: float = Field(default=0.01, gt=0)
        server_momentum: float = Field(default=0.9, ge=0, lt=1)
        server_decay: float = Field(default=1e-3, ge=0)
        clip: float = Field(default=50.0, gt=0)

        _mean_only = field_validator(*COMBINING)(mean_only)

    settings: Settings

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        server, s = super().initial_server(models, registrations, draws), self.settings
        model = server.group("model")

        def layers() -> dict[str, nn.Module]:
            return {
                "clients": nn.Embedding(len(models), s.embedding),
                "enter": nn.Linear(s.embedding, s.hidden),
                **{f"hidden{number}": nn.Linear(s.hidden, s.hidden) for number in range(s.layers)},
                **{name: nn.Linear(s.hidden, model[name].numel()) for name in GENERATED if name in model},
            }

        return server | {"net": fresh_network(layers, draws, model["head.weight"].dtype)}

    def downlink(self, server: ServerState, client: int) -> Message:
        """The mean head, and the client's own generated ``shared`` [blocks, n, d] and ``group`` [blocks, 1, d]."""
        made = self.generate(server.group("net"), [client])
        sent = dict(super().downlink(server, client))
        return Message(sent | {name: tensor.view_as(sent[name]) for name, tensor in made.items()})

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """Means by samples, and one SGD step that moves each participant's prompts to where its training ended.

        Its gradient is the vector-Jacobian product of the generated prompts P_k with (n_k / n) (P_k - P_k'), where
        P_k' are the client's prompts after training.
        """
        clients, messages, s = uplinks.clients, list(uplinks), self.settings
        after = super().aggregate(server, Uplinks(clients, messages), draws)
        net = leaves(server.group("net"))
        share = server["samples"][clients].to(after.group("model")["head.weight"].dtype)
        share = share / share.sum()
        made = self.generate(net, clients)
        trained = {name: torch.stack([message[name].flatten() for message in messages]) for name in made}
        torch.autograd.backward(
            list(made.values()), [share[:, None] * (made[name].detach() - trained[name]) for name in made]
        )
        torch.nn.utils.clip_grad_norm_(net.values(), s.clip)
        optimiser = SGD(net.values(), s.server_lr, s.server_momentum, weight_decay=s.server_decay)
        for name, momentum in server.group("momentum").items():
            optimiser.state[net[name]]["momentum_buffer"] = momentum.clone()
        optimiser.step()
        kept = net.items() if s.server_momentum else ()
        buffers = {name: optimiser.state[leaf]["momentum_buffer"] for name, leaf in kept}
        return after | {"net": detached(net), "momentum": buffers}

    def generate(self, net: Tensors, clients: Sequence[int]) -> dict[str, Tensor]:
        """The prompts of k clients [k, elements], by name."""
        hidden = F.linear(net["clients.weight"][list(clients)], net["enter.weight"], net["enter.bias"])
        for number in range(self.settings.layers):
            hidden = F.linear(hidden.relu(), net[f"hidden{number}.weight"], net[f"hidden{number}.bias"])
        return {
            name: F.linear(hidden, net[f"{name}.weight"], net[f"{name}.bias"])
            for name in GENERATED
            if f"{name}.weight" in net
        }

    def server_parameters(self, server: ServerState) -> Tensors:
        return server.group("net")
