"""FedHPL: prompt tuning of frozen backbones, and distillation from a weighted mean of the clients' logits.

Clients with different backbones train a few prompt tokens and a head. They send the logits of the samples that they
classify rightly, and the server combines these class by class. In the next round a client's logits of a class are
pulled towards the combined ones.

Ma et al., "FedHPL: Efficient Heterogeneous Federated Learning with Prompt Tuning and Logit Distillation",
arXiv 2405.17267. Its ablations (Local, average aggregation, upload of all logits, average upload, +P, +H) are
settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import (
    Method,
    Phase,
    Statistics,
    StatisticsSource,
    Uplinks,
    Work,
    cross_entropy,
    register_method,
)
from hetfl.methods.parts.equal_widths import means_by_width, of_width
from hetfl.methods.parts.fedhpl_settings import FedHPLSettings
from hetfl.methods.parts.logit_distillation import dimension_weights, distillation_loss, global_logits
from hetfl.methods.parts.logit_uploads import class_logits, logit_statistics, upload_of
from hetfl.methods.parts.theorem import aggregation_weights, observations, remembered, shrinkage_of_valid
from hetfl.models.base import Model, ModelOptions


@register_method("fedhpl")
class FedHPL(Method):
    """Clients train prompts and a head. They send logits with their labels and receive global logits.

    The server keeps what clients registered: ``width`` [K, 1], and as settings need it ``samples`` [K, 1] and
    ``class_counts`` [K, C]; and of the last round the global ``logits`` G [K, C, C], ``valid`` [C] bool, the classes
    that somebody sent logits of, and ``uploaded`` [K'], the number of logits of each of the K' participants.
    """

    numerics = 1
    title = "FedHPL"
    source = "Ma et al., arXiv 2405.17267"
    travels = "logits of correctly classified samples"
    personal = True
    resets_momentum = True

    Settings = FedHPLSettings
    settings: FedHPLSettings

    def model_options(self) -> ModelOptions:
        s = self.settings
        return ModelOptions(
            prompts=s.prompts,
            prompt_length=s.prompt_length,
            prompt_dropout=s.prompt_dropout,
            init=s.head_init,
        )

    def trains(self) -> tuple[str, ...]:
        return ("prompts", "head")

    def register(self, work: Work) -> Message:
        """``width`` [1] int32: d_k; as settings need it ``samples`` [1] and ``class_counts`` [C] int32."""
        client = work.client
        if not self.settings.communicate:
            return Message()
        message = {"width": torch.tensor([client.model.width], dtype=torch.int32)}
        if self.settings.share != "none":
            message["samples"] = torch.tensor([client.samples], dtype=torch.int32)
        if self.settings.denominator == "samples":
            message["class_counts"] = client.class_counts.to(torch.int32)
        return Message(message)

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        """The clients' registrations, each as a row.

        Raises:
            HetflError: what clients of one width are to share has different shapes.
        """
        self._check_shared(models)
        messages = [registrations[client] for client in sorted(registrations)]
        return ServerState({name: torch.stack([message[name] for message in messages]) for name in messages[0]})

    def _check_shared(self, models: Sequence[Model]) -> None:
        share = self.settings.share
        first: dict[int, Model] = {}
        for model in models if share != "none" else ():
            other = first.setdefault(model.width, model)
            same = model.names([share]) == other.names([share])
            if not same or model.elements([share]) != other.elements([share]):
                raise HetflError(
                    f"share: {share} of {other.name} and {model.name} have different shapes, and their features "
                    f"one size, {model.width}; set it to none"
                )

    def downlink(self, server: ServerState, client: int) -> Message:
        """``logits`` [C, C]: G_k, row c for class c; ``valid`` [C] bool; and the shared parameters. First nothing."""
        if "logits" not in server:
            return Message()
        shared = server.group(of_width(int(server["width"][client])))
        return Message({"logits": server["logits"][client], "valid": server["valid"], **shared})

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return {**message, **memory}

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {name: received.get(name, tensor) for name, tensor in params.items()}

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Eq. 1: cross-entropy, plus gamma times the distillation loss once there are global logits."""
        logits = model(params, batch.images).logits
        loss = cross_entropy(logits, batch)
        if "logits" not in received:
            return loss
        distillation = distillation_loss(logits, batch.labels, received, self.settings.temperature)
        scale = self.settings.temperature**2 if self.settings.squared_temperature else 1.0
        return loss + self.settings.gamma * scale * batch.mean(distillation)

    def statistics_source(self, round: int) -> StatisticsSource:
        return "own" if self.settings.communicate and (round or self.settings.theorem) else "none"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        """What :func:`upload_of` needs; for the theorem the logits of all samples."""
        s = self.settings
        logits = model(params, batch.images).logits
        return logit_statistics(logits, batch, self.num_classes, s.selection == "correct", s.upload, s.theorem)

    def uplink(self, work: Work) -> Message:
        """``logits`` [m, C] of the kept samples and their ``labels`` [m] int32; and the shared parameters.

        With average upload ``means`` [C, C], the mean kept logits of each class, and ``counts`` [C] int32 (Eq. 10).
        """
        s = self.settings
        if not s.communicate:
            return Message()
        shared = {} if s.share == "none" else work.trained([s.share])
        return Message({**upload_of(work, s.upload), **shared})

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """Eq. 7-8 from raw logits, Eq. 36 from class means; and the mean by samples of what equal widths share."""
        if not self.settings.communicate:
            return server
        clients, messages = uplinks.clients, list(uplinks)
        sums, counts = zip(*(class_logits(message, self.num_classes) for message in messages), strict=True)
        weights = dimension_weights(server["width"].squeeze(1))
        if self.settings.aggregation == "average":
            weights = torch.ones_like(weights)
        uploaded = torch.stack(counts)
        divided_by = uploaded if self.settings.denominator == "uploaded" else server["class_counts"][clients].double()
        logits = global_logits(torch.stack(sums), divided_by, weights[:, clients])
        dtype = messages[0]["logits" if self.settings.upload == "raw" else "means"].dtype
        after = server | {
            "logits": logits.to(dtype),
            "valid": uploaded.sum(dim=0) > 0,
            "uploaded": uploaded.sum(dim=1).to(torch.int32),
        }
        if self.settings.theorem:
            shares = aggregation_weights(uploaded, divided_by, weights[:, clients])
            after |= {"shrinkage": 1 - shares.sum(dim=1)}
        if self.settings.share == "none":
            return after
        widths, samples = server["width"].squeeze(1), server["samples"].squeeze(1)
        own = [{n: t for n, t in message.items() if n.split(".")[0] == self.settings.share} for message in messages]
        return after | means_by_width(own, clients, widths, samples)

    def _records(self) -> bool:
        return self.settings.communicate and self.settings.theorem

    def remember(self, work: Work) -> Tensors:
        """The group ``initial``: the parameters that the client started its first round with."""
        return remembered(work, self.trains()) if self._records() and work.round else {}

    def observe(self, work: Work) -> dict[str, Any]:
        """The terms of Theorem 1; see :func:`hetfl.methods.parts.theorem.observations`."""
        s = self.settings
        return observations(work, s.temperature, s.prior_std) if self._records() else {}

    def diagnostics(self, server: ServerState) -> dict[str, Any]:
        """The numbers of valid classes and of uploaded logits, and :func:`shrinkage_of_valid`."""
        if "valid" not in server:
            return {}
        counted = {
            "valid_classes": float(server["valid"].sum()),
            "uploaded_logits": float(server["uploaded"].sum()),
        }
        return counted | shrinkage_of_valid(server)
