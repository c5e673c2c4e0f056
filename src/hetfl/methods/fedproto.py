"""FedProto: clients of any architecture share class prototypes instead of weights."""

from __future__ import annotations

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
from hetfl.models.base import Model, ModelOptions

COLLECTS: dict[str, StatisticsSource] = {"sweep": "own", "training": "training", "before": "before"}


@register_method("fedproto")
class FedProto(Scratch):
    """Tan et al., AAAI 2022; in FedHPL Table 2 and FedTGP Table 1.

    A client pulls its embeddings towards the global prototype of their class, and predicts the class of the nearest
    global prototype.
    """

    numerics = 1
    title = "FedProto"
    source = "Tan et al., AAAI 2022"
    travels = "class prototypes"
    evaluates = "global"

    class Settings(ScratchSettings):
        """Defaults are those of FedHPL's Table 2.

        Attributes:
            pull: weight lambda of the prototype loss.
            distance: of an embedding to its prototype: the mean square over their elements, or the Euclidean one.
            embedding: common size of the embeddings.
            flat: size of a ResNet's feature before the projection; FedHPL Table 7 has 2048 for all of them.
            collect: prototypes from one pass after training; from the training passes, as in the authors' code; or
                from one pass with the parameters from before training, as FedTGP's released code has it.
            average: whether an owner of a class weighs by its samples of it, which it sends along then.
        """

        pull: float = Field(default=1.0, ge=0)
        distance: Literal["mse", "l2"] = "mse"
        embedding: int | None = Field(default=512, ge=1)
        flat: int | None = Field(default=2048, ge=1)
        collect: Literal["sweep", "training", "before"] = "sweep"
        average: Literal["plain", "weighted"] = "plain"

    def model_options(self) -> ModelOptions:
        return self.fitted(flat=self.settings.flat)

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return by_class(message, self.num_classes)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        output = model(params, batch.images)
        loss = cross_entropy(output.logits, batch)
        if not received:
            return loss
        square = (output.features - received["means"][batch.labels]).square()
        # The root of zero has no finite gradient.
        distance = square.mean(dim=1) if self.settings.distance == "mse" else square.sum(dim=1).clamp(1e-12).sqrt()
        return loss + self.settings.pull * batch.mean(distance * received["valid"][batch.labels])

    def statistics_source(self, round: int) -> StatisticsSource:
        return COLLECTS[self.settings.collect] if round else "none"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        features = model(params, batch.images).features
        sums = class_sums(features, batch.labels, self.num_classes, batch.weight)
        return Statistics(sums={"sums": sums, "counts": class_counts(batch.labels, self.num_classes, batch.weight)})

    def uplink(self, work: Work) -> Message:
        means = class_means(work.statistics, next(iter(work.params.values())).dtype)
        if self.settings.average == "plain":
            return means
        counts = work.statistics.sums["counts"][means["labels"].long()]
        return Message({**means, "counts": counts.to(torch.int32)})

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """The mean over the clients that own a class; classes without an owner have no prototype."""
        return mean_over_owners(list(uplinks), self.num_classes)

    def downlink(self, server: Tensors, client: int) -> Message:
        return Message(server)

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """Minus the squared distance to each global prototype; minus infinity where a class has none."""
        features = model(params, batch.images).features
        if not received:
            return features.new_full((len(features), self.num_classes), -torch.inf)
        score = -distances(features, received["means"]).square()
        return score.masked_fill(~received["valid"], -torch.inf)


def distances(points: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances [n, m] of points [n, d] to others [m, d].

    They are taken from the differences: torch's form with a product of matrices, its default above 25 rows, loses the
    digits that distant points have in common.
    """
    return torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist")
