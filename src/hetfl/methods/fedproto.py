"""FedProto: clients of any architecture share class prototypes instead of weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch, class_counts, class_sums
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import Client, Method, MethodSettings, Statistics, cross_entropy, register_method
from hetfl.models.base import Model, ModelOptions


@register_method("fedproto")
class FedProto(Method):
    """Tan et al., AAAI 2022; in FedHPL Table 2 and FedTGP Table 1.

    A client pulls its embeddings towards the global prototype of their class, and predicts the class of the nearest
    global prototype. Prototypes are gathered in one sweep after local training.
    """

    title = "FedProto"
    source = "Tan et al., AAAI 2022"
    travels = "class prototypes"
    evaluates = "global"

    class Settings(MethodSettings):
        """``pull``: weight lambda of the prototype loss; ``embedding``: common size of the embeddings."""

        pull: float = Field(default=1.0, ge=0)
        embedding: int = Field(default=512, ge=1)

    def model_options(self) -> ModelOptions:
        return ModelOptions(body="trained", weights="scratch", embedding=self.settings.embedding)

    def trains(self) -> tuple[str, ...]:
        return ("body", "projection", "head")

    def receive(self, message: Message) -> Tensors:
        """Prototypes [C, d] with zeros where a class has none, and ``valid`` [C]."""
        if not message:
            return {}
        labels, prototypes = message["labels"].long(), message["prototypes"]
        dense = prototypes.new_zeros(self.num_classes, prototypes.shape[1])
        valid = torch.zeros(self.num_classes, dtype=torch.bool, device=dense.device)
        return {
            "prototypes": dense.index_copy(0, labels, prototypes),
            "valid": valid.index_fill(0, labels, True),
        }

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        output = model(params, batch.images)
        loss = cross_entropy(output.logits, batch)
        if not received:
            return loss
        distance = (output.features - received["prototypes"][batch.labels]).square().mean(dim=1)
        return loss + self.settings.pull * batch.mean(distance * received["valid"][batch.labels])

    def wants_statistics(self) -> bool:
        return True

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        features = model(params, batch.images).features
        return Statistics(
            sums={
                "features": class_sums(features, batch.labels, self.num_classes, batch.weight),
                "counts": class_counts(batch.labels, self.num_classes, batch.weight),
            }
        )

    def uplink(self, client: Client, params: Tensors, statistics: Statistics) -> Message:
        counts = statistics.sums["counts"]
        labels = counts.nonzero().squeeze(1)
        prototypes = statistics.sums["features"][labels] / counts[labels, None]
        dtype = next(iter(params.values())).dtype
        return Message({"prototypes": prototypes.to(dtype), "labels": labels.to(torch.int32)})

    def aggregate(self, server: Tensors, uplinks: Mapping[int, Message], draws: Draws) -> dict[str, Tensor]:
        """The plain mean over the clients that own a class; classes without an owner have no prototype."""
        messages = [uplinks[client] for client in sorted(uplinks)]
        labels = torch.cat([message["labels"] for message in messages]).long()
        prototypes = torch.cat([message["prototypes"] for message in messages])
        owners = class_counts(labels, self.num_classes)
        present = owners.nonzero().squeeze(1)
        mean = class_sums(prototypes, labels, self.num_classes)[present] / owners[present, None]
        return {"prototypes": mean.to(prototypes.dtype), "labels": present.to(torch.int32)}

    def downlink(self, server: Tensors, client: int) -> Message:
        return Message(server)

    def predict(self, model: Model, params: Tensors, images: Tensor, received: Tensors) -> Tensor:
        """Minus the squared distance to each global prototype; minus infinity where a class has none."""
        features = model(params, images).features
        score = -torch.cdist(features, received["prototypes"]).square()
        return score.masked_fill(~received["valid"], -torch.inf)
