"""FedGH: the server trains one head on the clients' class means; each client starts its round with that head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch, class_counts, class_sums
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import (
    Phase,
    Statistics,
    StatisticsSource,
    Uplinks,
    Work,
    class_means,
    cross_entropy,
    register_method,
)
from hetfl.methods.scratch import Scratch, ScratchSettings
from hetfl.models.base import Model
from hetfl.optimisers import SGD

FRESH = "fresh/"
"""Prefix of the server's head before its first training: nobody is sent that one."""


@register_method("fedgh")
class FedGH(Scratch):
    """Yi et al., ACM MM 2023; as a rule the client's model is tested right after its local training.

    In HtFLlib, the library of FedTGP's authors, the server shuffles the pairs, takes batches of the clients' size for
    some epochs and clips nothing; the server's newest head is tested.
    """

    numerics = 1
    title = "FedGH"
    source = "Yi et al., ACM MM 2023"
    travels = "class means up, a head down"
    linear_heads = True

    class Settings(ScratchSettings):
        """Defaults are those of FedHPL's Table 2 and the authors' code.

        Attributes:
            embedding: common size of the feature that enters the head.
            server_lr: learning rate of the server's head.
            server_batch: pairs of mean and class a step; 1 in the authors' code.
            server_epochs: passes over the pairs in a round.
            server_shuffle: whether every pass has an order of its own; else it is that of the clients.
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

    def __init__(self, settings: Settings, *more: int) -> None:
        super().__init__(settings, *more)
        self.evaluates = settings.tests

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> dict[str, Tensor]:
        fresh = models[0].init(draws, -1)
        return {FRESH + name: fresh[name] for name in models[0].names(["head"])}

    def downlink(self, server: Tensors, client: int) -> Message:
        return Message({name: tensor for name, tensor in server.items() if not name.startswith(FRESH)})

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {**params, **received}

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        return cross_entropy(model(params, batch.images).logits, batch)

    def statistics_source(self, round: int) -> StatisticsSource:
        return "own" if round else "none"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        features = model(params, batch.images).features
        sums = class_sums(features, batch.labels, self.num_classes, batch.weight)
        return Statistics(sums={"sums": sums, "counts": class_counts(batch.labels, self.num_classes, batch.weight)})

    def uplink(self, work: Work) -> Message:
        return class_means(work.statistics, next(iter(work.params.values())).dtype)

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """SGD over the pairs of class mean and class."""
        head = {name.removeprefix(FRESH): tensor.clone().requires_grad_() for name, tensor in server.items()}
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
        return {name: tensor.detach() for name, tensor in head.items()}
