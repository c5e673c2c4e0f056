"""FedTGP: FedProto whose server trains the global prototypes, with a margin that adapts to the clients' ones.

The mean of unlike clients' prototypes can blur classes. Here a network on the server emits one prototype for each
class, and is trained so that a client's prototypes are nearest to that of their own class by a margin. The margin is
the largest distance between neighbouring classes' means, up to a cap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hetfl.captured import Captured
from hetfl.draws import Draws
from hetfl.fused import Fused
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import Uplinks, mean_over_owners, register_method
from hetfl.methods.fedproto import FedProto
from hetfl.methods.parts.networks import detached, fresh_network, leaves
from hetfl.methods.parts.trainable_prototypes import batches_of, contrastive_loss, emit, layers_of, margin_of
from hetfl.models.base import Model
from hetfl.optimisers import SGD


@register_method("fedtgp")
class FedTGP(FedProto):
    """Zhang et al., AAAI 2024: trainable global prototypes under adaptive-margin-enhanced contrastive learning.

    The server keeps the network that emits the prototypes in the group ``net`` (:func:`emit`), the prototypes P-hat
    as ``means`` [C, d] and ``labels`` [C] int32, and the last ``margin`` [] and ``loss`` [].
    """

    numerics = 1
    title = "FedTGP"
    source = "Zhang et al., AAAI 2024, Eq. 6-10"

    class Settings(FedProto.Settings):
        """Defaults are the released scripts', but for ``collect``.

        Its default ``sweep`` is the paper's Algorithm 1; the released code is ``before``.

        Attributes:
            margin_cap: tau, the largest margin.
            margin: ``adaptive``: the largest distance of a class centre to its nearest neighbour, as the code has it;
                ``all-pairs``: the largest distance of two centres (Eq. 9); ``fixed``: always tau (ablation FM);
                ``none`` (ablation SCL).
            server_epochs: S, passes of the server over the clients' prototypes.
            server_lr: its learning rate; None: the clients'.
            server_batch: prototypes a step; None: the clients' batch size.
            network: whether trainable vectors go through the network F; False is the ablation "w/o F".
            average: ``plain`` only. Every client's prototypes count the same in the loss, and the class centres of
                the margin are plain means (Eq. 9), so clients do not send how many samples of a class they have.
        """

        pull: float = Field(default=10.0, ge=0)
        reduce: Literal["linear", "pool"] = "pool"
        flat: int | None = Field(default=None, ge=1)
        margin_cap: float = Field(default=100.0, ge=0)
        margin: Literal["adaptive", "all-pairs", "fixed", "none"] = "adaptive"
        server_epochs: int = Field(default=100, ge=1)
        server_lr: float | None = Field(default=None, gt=0)
        server_batch: int | None = Field(default=None, ge=1)
        network: bool = True
        average: Literal["plain"] = "plain"

    settings: Settings

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        dtype = next(iter(models[0].init(draws, -1).values())).dtype
        layers = partial(layers_of, self.num_classes, models[0].width, self.settings.network)
        return ServerState({"net": fresh_network(layers, draws, dtype)})

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """Train the network on the clients' prototypes (Eq. 7-8), then emit one prototype for every class.

        The state stays as it is if nobody sends a prototype.
        """
        messages = list(uplinks)
        prototypes = torch.cat([message["means"] for message in messages])
        labels = torch.cat([message["labels"] for message in messages]).long()
        if not len(labels):
            return server
        centres = mean_over_owners(messages, self.num_classes)["means"]
        margin = margin_of(centres, self.settings.margin, self.settings.margin_cap)
        net, loss = self._train(server.group("net"), prototypes, labels, margin, draws)
        classes = torch.arange(self.num_classes, dtype=torch.int32, device=labels.device)
        return ServerState({"net": net, "means": emit(net), "labels": classes, "margin": margin, "loss": loss})

    def _train(
        self, net: Tensors, prototypes: Tensor, labels: Tensor, margin: Tensor, draws: Draws
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The network after S epochs of SGD on prototypes [n, d] with labels [n], and the last batch's loss []."""
        net, s = leaves(net), self.settings
        optimiser = SGD(net.values(), s.server_lr or s.lr)
        loss = margin.new_zeros((), dtype=prototypes.dtype)

        def step(batch: Tensors) -> None:
            rows = batch["rows"]
            found = _loss(net, prototypes[rows], labels[rows], margin, batch.get("weight"))
            for leaf, gradient in zip(net.values(), torch.autograd.grad(found, list(net.values())), strict=True):
                leaf.grad = gradient
            optimiser.step()
            loss.copy_(found.detach())

        orders = [
            torch.randperm(len(labels), generator=draws.generator("server batches", -1, epoch))
            for epoch in range(s.server_epochs)
        ]
        # A captured graph of a step has fixed shapes, so there the last batch is filled up.
        steps, fill = Captured(step), labels.is_cuda
        for batch in batches_of(torch.stack(orders).to(labels.device), s.server_batch or s.batch_size, fill):
            steps(batch)
        return detached(net), loss

    def downlink(self, server: ServerState, client: int) -> Message:
        """``means`` [C, d], P-hat, and ``labels`` [C] int32; nothing before they were trained."""
        return Message({name: server[name] for name in ("means", "labels") if name in server})

    def server_parameters(self, server: ServerState) -> Tensors:
        return server.group("net")

    def diagnostics(self, server: ServerState) -> dict[str, float]:
        return {name: float(server[name]) for name in ("margin", "loss") if name in server}


def _emitted_loss(net: Tensors, prototypes: Tensor, labels: Tensor, margin: Tensor, weight: Tensor | None) -> Tensor:
    return contrastive_loss(prototypes, labels, emit(net), margin, weight)


_loss = Fused(_emitted_loss, shapes=True)
