"""FedProto: clients of any architecture share class prototypes instead of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch, class_counts, class_sums
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import (
    Method,
    MethodSettings,
    Phase,
    Statistics,
    Sweep,
    Work,
    by_class,
    class_means,
    cross_entropy,
    mean_over_owners,
    register_method,
)
from hetfl.models.base import Model, ModelOptions


@register_method("fedproto")
class FedProto(Method):
    """Tan et al., AAAI 2022; in FedHPL Table 2 and FedTGP Table 1.

    A client pulls its embeddings towards the global prototype of their class, and predicts the class of the nearest
    global prototype.
    """

    title = "FedProto"
    source = "Tan et al., AAAI 2022"
    travels = "class prototypes"
    evaluates = "global"

    class Settings(MethodSettings):
        """Defaults are those of FedHPL's Table 2.

        Attributes:
            pull: weight lambda of the prototype loss.
            embedding: common size of the embeddings.
            reduce: how features get that size, see :class:`hetfl.models.ModelOptions`.
            flat: size of a ResNet's feature before the projection; FedHPL Table 7 has 2048 for all of them.
            stem: of ResNets.
            collect: prototypes from one pass after training, or from the training passes as in the authors' code.
        """

        pull: float = Field(default=1.0, ge=0)
        embedding: int = Field(default=512, ge=1)
        reduce: Literal["linear", "pool"] = "linear"
        flat: int | None = Field(default=2048, ge=1)
        stem: Literal["imagenet", "cifar"] = "imagenet"
        collect: Literal["sweep", "training"] = "sweep"

    def model_options(self) -> ModelOptions:
        s = self.settings
        return ModelOptions(
            body="trained", weights="scratch", stem=s.stem, embedding=s.embedding, reduce=s.reduce, flat=s.flat
        )

    def trains(self) -> tuple[str, ...]:
        return ("body", "projection", "head")

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return by_class(message, self.num_classes)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        output = model(params, batch.images)
        loss = cross_entropy(output.logits, batch)
        if not received:
            return loss
        distance = (output.features - received["means"][batch.labels]).square().mean(dim=1)
        return loss + self.settings.pull * batch.mean(distance * received["valid"][batch.labels])

    def sweep(self, round: int) -> Sweep:
        if not round:
            return "none"
        return "own" if self.settings.collect == "sweep" else "training"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        features = model(params, batch.images).features
        sums = class_sums(features, batch.labels, self.num_classes, batch.weight)
        return Statistics(sums={"sums": sums, "counts": class_counts(batch.labels, self.num_classes, batch.weight)})

    def uplink(self, work: Work) -> Message:
        return class_means(work.statistics, next(iter(work.params.values())).dtype)

    def aggregate(self, server: Tensors, uplinks: Mapping[int, Message], draws: Draws) -> dict[str, Tensor]:
        """The plain mean over the clients that own a class; classes without an owner have no prototype."""
        return mean_over_owners([uplinks[client] for client in sorted(uplinks)], self.num_classes)

    def downlink(self, server: Tensors, client: int) -> Message:
        return Message(server)

    def predict(self, model: Model, params: Tensors, images: Tensor, received: Tensors) -> Tensor:
        """Minus the squared distance to each global prototype; minus infinity where a class has none."""
        features = model(params, images).features
        score = -torch.cdist(features, received["means"]).square()
        return score.masked_fill(~received["valid"], -torch.inf)
