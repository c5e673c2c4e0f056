"""FedProto: clients of any architecture share class prototypes instead of weights.

A client sends the mean feature of each of its classes, its prototypes. The server averages them class by class.
Clients pull their features towards the global prototypes, and predict the class of the nearest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import (
    Method,
    Phase,
    Statistics,
    StatisticsSource,
    Uplinks,
    Work,
    by_class,
    class_means,
    class_statistics,
    cross_entropy,
    euclidean_distances,
    mean_over_owners,
    register_method,
)
from hetfl.methods.scratch import Scratch, ScratchSettings
from hetfl.models.base import Model, ModelOptions

COLLECTED_FROM: dict[str, StatisticsSource] = {"sweep": "own", "training": "training", "before": "before"}


@register_method("fedproto")
class FedProto(Scratch):
    """Tan et al., AAAI 2022; in FedHPL Table 2 and FedTGP Table 1.

    A client pulls its features towards the global prototype of their class, and predicts the class of the nearest
    global prototype. The server keeps the global prototypes P_c: ``means`` [c, d] with ``labels`` [c] int32.
    """

    numerics = 1
    title = "FedProto"
    source = "Tan et al., AAAI 2022"
    travels = "class prototypes"
    equal_features = True
    evaluates = "global"

    class Settings(ScratchSettings):
        """Defaults are those of FedHPL's Table 2.

        Attributes:
            pull: weight lambda of the prototype loss.
            distance: of a feature to its prototype: the mean square over their elements, or the Euclidean distance.
            embedding: d, common size of the features.
            flat: size of a ResNet's feature before the projection; FedHPL Table 7 has 2048 for all of them.
            collect: prototypes from one pass (``sweep``) after training; from the ``training`` batches, as in the
                authors' code; or from one pass with the parameters from ``before`` training, as in FedTGP's released
                code.
            average: whether each client counts the same in a prototype, or by its samples of the class, whose number
                it then sends as well.
            test_head: whether records also have the accuracies of the classes that the clients' heads predict, under
                ``head``.
        """

        pull: float = Field(default=1.0, ge=0)
        distance: Literal["mse", "l2"] = "mse"
        embedding: int | None = Field(default=512, ge=1)
        flat: int | None = Field(default=2048, ge=1)
        collect: Literal["sweep", "training", "before"] = "sweep"
        average: Literal["plain", "weighted"] = "plain"
        test_head: bool = False

    settings: Settings

    def model_options(self) -> ModelOptions:
        return self.fitted(flat=self.settings.flat)

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return by_class(message, self.num_classes)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Cross-entropy + lambda mean_i d(f_i, P_y(i)), f_i [d] being a sample's feature, P [C, d] the prototypes."""
        output = model(params, batch.images)
        loss = cross_entropy(output.logits, batch)
        if not received:
            return loss
        square = (output.features - received["means"][batch.labels]).square()
        # The root of zero has no finite gradient.
        distance = square.mean(dim=1) if self.settings.distance == "mse" else square.sum(dim=1).clamp(1e-12).sqrt()
        return loss + self.settings.pull * batch.mean(distance * received["valid"][batch.labels])

    def statistics_source(self, round: int) -> StatisticsSource:
        return COLLECTED_FROM[self.settings.collect] if round else "none"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        return class_statistics(model(params, batch.images).features, batch, self.num_classes)

    def uplink(self, work: Work) -> Message:
        """The client's prototypes ``means`` [c, d], their ``labels`` [c] int32 and, if they weigh, ``counts`` [c]."""
        means = class_means(work)
        if self.settings.average == "plain":
            return means
        counts = work.statistics.sums["counts"][means["labels"].long()]
        return Message({**means, "counts": counts.to(torch.int32)})

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """P_c: the mean of class c over the participants that have samples of it; other classes have no prototype."""
        return ServerState(mean_over_owners(list(uplinks), self.num_classes))

    def downlink(self, server: ServerState, client: int) -> Message:
        """``means`` [c, d] and ``labels`` [c] int32 of the c classes with a global prototype; nothing in round 1."""
        return Message(server)

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """Minus the squared distance to each global prototype; minus infinity where a class has none."""
        features = model(params, batch.images).features
        if not received:
            return features.new_full((len(features), self.num_classes), -torch.inf)
        score = -euclidean_distances(features, received["means"]).square()
        return score.masked_fill(~received["valid"], -torch.inf)

    def extra_predictors(self, round: int) -> Mapping[str, Method]:
        known = self.num_classes, self.public_classes, self.seed
        return {"head": _ByHead(self.settings, *known)} if self.settings.test_head else {}


class _ByHead(FedProto):
    """The same networks, with the classes that their heads predict."""

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        return model(params, batch.images).logits
