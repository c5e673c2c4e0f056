"""pFedHN: a network of the server's makes each client's prompts and learns from what the client made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hetfl.draws import Draws, seeded_library_code
from hetfl.message import Message, Tensors
from hetfl.methods.base import Uplinks, register_method
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model
from hetfl.optimisers import SGD

NET, MOMENTUM = "net/", "momentum/"
MADE = ("shared", "group")


@register_method("pfedhn")
class PFedHN(PTFedAvg):
    """Shamsian et al., ICML 2021, with prompts as FedTP (Li et al., 2023) has them; heads are averaged.

    Every client has an embedding, whether it ever took part or not.
    """

    numerics = 1
    title = "pFedHN"
    source = "Shamsian et al., ICML 2021; Li et al., 2023"
    personal = True

    class Settings(PTFedAvg.Settings):
        """Defaults are FedTP's, the gradient's bound pFedHN's.

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

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> dict[str, Tensor]:
        server = super().initial_server(models, registrations, draws)
        s = self.settings
        sizes = {name: server["model/" + name].numel() for name in MADE if "model/" + name in server}
        with seeded_library_code(draws.key("init:generator")):
            layers: dict[str, nn.Module] = {
                "clients": nn.Embedding(len(models), s.embedding),
                "enter": nn.Linear(s.embedding, s.hidden),
                **{f"hidden{number}": nn.Linear(s.hidden, s.hidden) for number in range(s.layers)},
                **{name: nn.Linear(s.hidden, size) for name, size in sizes.items()},
            }
            fresh = nn.ModuleDict(layers).state_dict()
        dtype = server["model/head.weight"].dtype
        return {**server, **{NET + name: tensor.to(dtype) for name, tensor in fresh.items()}}

    def downlink(self, server: Tensors, client: int) -> Message:
        made = self.generate({n.removeprefix(NET): t for n, t in server.items() if n.startswith(NET)}, [client])
        sent = dict(super().downlink(server, client))
        return Message(sent | {name: tensor.view_as(sent[name]) for name, tensor in made.items()})

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """Heads by samples; one step that moves each participant's prompts to where its training ended."""
        clients, messages = uplinks.clients, list(uplinks)
        after = super().aggregate(server, Uplinks(clients, messages), draws)
        net = {n.removeprefix(NET): t.clone().requires_grad_() for n, t in server.items() if n.startswith(NET)}
        share = server["samples"][clients].to(after["model/head.weight"].dtype)
        share = share / share.sum()
        made = self.generate(net, clients)
        trained = {name: torch.stack([message[name].flatten() for message in messages]) for name in made}
        torch.autograd.backward(
            list(made.values()), [share[:, None] * (made[name].detach() - trained[name]) for name in made]
        )
        s = self.settings
        torch.nn.utils.clip_grad_norm_(net.values(), s.clip)
        optimiser = SGD(net.values(), s.server_lr, s.server_momentum, weight_decay=s.server_decay)
        for name, leaf in net.items():
            if MOMENTUM + name in server:
                optimiser.state[leaf]["momentum_buffer"] = server[MOMENTUM + name].clone()
        optimiser.step()
        moved = {MOMENTUM + name: optimiser.state[leaf]["momentum_buffer"] for name, leaf in net.items()}
        return {**after, **{NET + name: leaf.detach() for name, leaf in net.items()}, **moved}

    def generate(self, net: Tensors, clients: Sequence[int]) -> dict[str, Tensor]:
        """The prompts of some clients [k, elements], by name."""
        hidden = F.linear(net["clients.weight"][list(clients)], net["enter.weight"], net["enter.bias"])
        for number in range(self.settings.layers):
            hidden = F.linear(hidden.relu(), net[f"hidden{number}.weight"], net[f"hidden{number}.bias"])
        return {
            name: F.linear(hidden, net[f"{name}.weight"], net[f"{name}.bias"])
            for name in MADE
            if f"{name}.weight" in net
        }

    def server_parameters(self, server: Tensors) -> Tensors:
        return {name: tensor for name, tensor in server.items() if name.startswith(NET)}
