"""FedHE: clients of any architecture share the mean logits of each class and pull their own logits towards them.

A client sends the mean logits of each of its classes, so messages depend on the number of classes alone. The server
averages them class by class. From then on a client's loss also has the distance of its logits to the global ones of
the sample's class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import (
    Phase,
    Statistics,
    StatisticsSource,
    Uplinks,
    Work,
    by_class,
    class_means,
    class_statistics,
    cross_entropy,
    mean_over_owners,
    register_method,
)
from hetfl.methods.scratch import Scratch, ScratchSettings
from hetfl.models.base import Model


@register_method("fedhe")
class FedHE(Scratch):
    """Chan and Ngai, MSN 2021, with all participants of a round at once instead of one after the other.

    The server keeps ``reported`` [K] bool, who has sent logits so far, and the global logits t_c: ``means`` [c, C]
    with ``labels`` [c] int32.
    """

    numerics = 1
    title = "FedHE"
    source = "Chan and Ngai, MSN 2021"
    travels = "class means of logits"

    class Settings(ScratchSettings):
        """Optimiser, ``alpha`` and ``collect`` are by default those of the authors' CIFAR10 script.

        Adam's epsilon is torch's 1e-8, where the script has the 1e-7 of Keras.
        Batches and epochs are the other methods': the script's batch has 50 samples, and its epoch is a single batch.

        Attributes:
            keep_optimiser: clients keep Adam's state through all rounds, as in the script.
            alpha: weight of the distillation loss.
            collect: logits from the ``training`` batches, as in the authors' code, or from one pass (``sweep``)
                afterwards.
        """

        optimiser: Literal["sgd", "adam"] = "adam"
        lr: float = Field(default=0.001, gt=0)
        weight_decay: float = Field(default=0.0, ge=0)
        keep_optimiser: bool = True
        alpha: float = Field(default=1.0, ge=0)
        stem: Literal["imagenet", "cifar"] = "cifar"
        collect: Literal["sweep", "training"] = "training"

    settings: Settings

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        return ServerState({"reported": torch.zeros(len(models), dtype=torch.bool)})

    def downlink(self, server: ServerState, client: int) -> Message:
        """``means`` [c, C] and ``labels`` [c] int32 of the c classes with global logits, once all have reported."""
        return Message({n: server[n] for n in ("means", "labels")} if bool(server["reported"].all()) else {})

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return by_class(message, self.num_classes)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Cross-entropy + alpha mean_i d(p_i, t_y(i)), p_i [C] being a sample's logits, t [C, C] the global ones."""
        logits = model(params, batch.images).logits
        loss = cross_entropy(logits, batch)
        if not received:
            return loss
        distance = self.distance(logits, received["means"][batch.labels])
        return loss + self.settings.alpha * batch.mean(distance * received["valid"][batch.labels])

    def distance(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean square difference [B] of each sample's logits [B, C] and its class's global logits [B, C]."""
        return (logits - targets).square().mean(dim=1)

    def statistics_source(self, round: int) -> StatisticsSource:
        if not round:
            return "none"
        return "own" if self.settings.collect == "sweep" else "training"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        return class_statistics(model(params, batch.images).logits, batch, self.num_classes)

    def uplink(self, work: Work) -> Message:
        """``means`` [c, C], the mean logits of the client's c classes, and ``labels`` [c] int32."""
        return class_means(work)

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """t_c: the plain mean of class c over the participants that have samples of it."""
        reported = server["reported"].clone()
        reported[uplinks.clients] = True
        return ServerState({"reported": reported, **mean_over_owners(list(uplinks), self.num_classes)})
