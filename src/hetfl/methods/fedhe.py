"""FedHE: clients of any architecture share the mean logits of each class and regress their own towards them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
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
    by_class,
    class_means,
    cross_entropy,
    mean_over_owners,
    register_method,
)
from hetfl.methods.scratch import Scratch, ScratchSettings
from hetfl.models.base import Model


@register_method("fedhe")
class FedHE(Scratch):
    """Chan and Ngai, MSN 2021, with all participants of a round at once instead of one after the other."""

    numerics = 1
    title = "FedHE"
    source = "Chan and Ngai, MSN 2021"
    travels = "class means of logits"

    class Settings(ScratchSettings):
        """Optimiser, ``alpha`` and ``collect`` are by default those of the authors' CIFAR10 script.

        Batches and epochs are the other methods': the script's batch has 50 samples, and its epoch is a single batch.

        Attributes:
            keep_optimiser: clients keep Adam's state through all rounds, as there.
            alpha: weight of the distillation loss.
            collect: logits from the training passes, as in the authors' code, or from one pass afterwards.
        """

        optimiser: Literal["sgd", "adam"] = "adam"
        lr: float = Field(default=0.001, gt=0)
        weight_decay: float = Field(default=0.0, ge=0)
        keep_optimiser: bool = True
        alpha: float = Field(default=1.0, ge=0)
        stem: Literal["imagenet", "cifar"] = "cifar"
        collect: Literal["sweep", "training"] = "training"

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> dict[str, Tensor]:
        return {"reported": torch.zeros(len(models), dtype=torch.bool)}

    def downlink(self, server: Tensors, client: int) -> Message:
        """Nothing before every client has reported once."""
        return Message({n: server[n] for n in ("means", "labels")} if bool(server["reported"].all()) else {})

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return by_class(message, self.num_classes)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        logits = model(params, batch.images).logits
        loss = cross_entropy(logits, batch)
        if not received:
            return loss
        distance = self.distance(logits, received["means"][batch.labels])
        return loss + self.settings.alpha * batch.mean(distance * received["valid"][batch.labels])

    def distance(self, logits: Tensor, targets: Tensor) -> Tensor:
        """How far each sample's logits [B, C] are from their class's mean logits [B, C]: [B]."""
        return (logits - targets).square().mean(dim=1)

    def statistics_source(self, round: int) -> StatisticsSource:
        if not round:
            return "none"
        return "own" if self.settings.collect == "sweep" else "training"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        logits = model(params, batch.images).logits
        sums = class_sums(logits, batch.labels, self.num_classes, batch.weight)
        return Statistics(sums={"sums": sums, "counts": class_counts(batch.labels, self.num_classes, batch.weight)})

    def uplink(self, work: Work) -> Message:
        return class_means(work.statistics, next(iter(work.params.values())).dtype)

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        reported = server["reported"].clone()
        reported[uplinks.clients] = True
        return {"reported": reported, **mean_over_owners(list(uplinks), self.num_classes)}
