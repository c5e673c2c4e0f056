"""FedGH: the server trains one head on the clients' class means; each client starts its round with that head.

A client sends the mean feature of each of its classes. The server takes a step of SGD for each pair of mean feature
and class, and so trains a head that has seen the classes of all. Bodies never travel, so their architectures may
differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors, ungrouped
from hetfl.methods.base import (
    Phase,
    Statistics,
    StatisticsSource,
    Uplinks,
    Work,
    class_means,
    class_statistics,
    cross_entropy,
    register_method,
)
from hetfl.methods.parts.networks import detached, leaves
from hetfl.methods.scratch import Scratch, ScratchSettings
from hetfl.models.base import Model
from hetfl.optimisers import SGD

FRESH = "fresh"
"""Group of the server's head before its first training; it is not sent."""


@register_method("fedgh")
class FedGH(Scratch):
    """Yi et al., ACM MM 2023. By default the client's model is tested right after its local training.

    In HtFLlib, the library of FedTGP's authors, the server shuffles the pairs of class mean and class, trains some
    epochs with batches of the clients' size without clipping, and the server's newest head is tested. The server
    keeps its head, ``head.weight`` [C, d] and ``head.bias`` [C].
    """

    numerics = 1
    title = "FedGH"
    source = "Yi et al., ACM MM 2023"
    travels = "class means up, a head down"
    linear_heads = equal_features = True

    class Settings(ScratchSettings):
        """Defaults are those of FedHPL's Table 2 and the authors' code.

        Attributes:
            embedding: common size of the feature that enters the head.
            server_lr: learning rate of the server's head.
            server_batch: pairs of mean and class a step; 1 in the authors' code.
            server_epochs: passes over the pairs in a round.
            server_shuffle: whether every pass has a new order; else it is that of the clients.
            clip: largest norm of a server step's gradient; None: any.
            tests: the client's own head, or the server's newest.
        """

        weight_decay: float = Field(default=1e-3, ge=0)
        embedding: int | None = Field(default=512, ge=1)
        stem: Literal["imagenet", "cifar"] = "cifar"
        server_lr: float = Field(default=0.01, gt=0)
        server_batch: int = Field(default=1, ge=1)
        server_epochs: int = Field(default=1, ge=1)
        server_shuffle: bool = False
        clip: float | None = Field(default=50.0, gt=0)
        tests: Literal["client", "global"] = "client"

    settings: Settings

    def __init__(self, settings: Settings, *more: int) -> None:
        super().__init__(settings, *more)
        self.evaluates = settings.tests

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        fresh = models[0].init(draws, -1)
        return ServerState({FRESH: {name: fresh[name] for name in models[0].names(["head"])}})

    def downlink(self, server: ServerState, client: int) -> Message:
        """``head.weight`` [C, d] and ``head.bias`` [C]; nothing in round 1."""
        return Message(ungrouped(server))

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {**params, **received}

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """The mean cross-entropy."""
        return cross_entropy(model(params, batch.images).logits, batch)

    def statistics_source(self, round: int) -> StatisticsSource:
        return "own" if round else "none"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        return class_statistics(model(params, batch.images).features, batch, self.num_classes)

    def uplink(self, work: Work) -> Message:
        """``means`` [c, d], the mean features of the client's c classes, and ``labels`` [c] int32."""
        return class_means(work)

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """Train the head by SGD on the cross-entropy of all participants' pairs of class mean and class."""
        head = leaves(server.group(FRESH) or server)
        weight, bias = head["head.weight"], head["head.bias"]
        s = self.settings
        optimiser = SGD([weight, bias], s.server_lr)
        messages = list(uplinks)
        means = torch.cat([message["means"] for message in messages])
        labels = torch.cat([message["labels"] for message in messages]).long()
        for epoch in range(s.server_epochs):
            order = torch.arange(len(labels))
            if s.server_shuffle:
                order = torch.randperm(len(labels), generator=draws.generator("server batches", -1, epoch))
            for batch in order.to(labels.device).split(s.server_batch):
                optimiser.zero_grad()
                F.cross_entropy(F.linear(means[batch], weight, bias), labels[batch]).backward()
                if s.clip is not None:
                    torch.nn.utils.clip_grad_norm_([weight, bias], s.clip)
                optimiser.step()
        return ServerState(detached(head))
