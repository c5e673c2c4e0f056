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
from typing import Any, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from hetfl.data.batches import Batch, class_counts, class_sums
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors, flatten, group
from hetfl.methods.base import (
    Method,
    MethodSettings,
    Phase,
    Statistics,
    StatisticsSource,
    Uplinks,
    Work,
    cross_entropy,
    predicted_classes,
    register_method,
)
from hetfl.methods.parts.equal_widths import means_by_width, of_width
from hetfl.methods.parts.logit_distillation import class_logits, dimension_weights, distillation_loss, global_logits
from hetfl.methods.parts.theorem import aggregation_weights, figures, observations
from hetfl.models.base import Model, ModelOptions

INITIAL = "initial"
"""Group of the parameters that a client started its first round with, in its memory."""


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
    resets_momentum = True

    class Settings(MethodSettings):
        """FedHPL's own settings; defaults are the paper's.

        Attributes:
            prompts: VPT-deep (prompts at every block), VPT-shallow (at the first), or for CNNs a frame of pixels.
            prompt_length: n, prompts per block, or the frame's width in pixels.
            prompt_dropout: share of the prompts' values that training drops, drawn for each sample. The paper states
                none; VPT's authors have 0, and 0.1 in their example of VPT-deep.
            head_init: initialisation of the head.
            communicate: False is the paper's "Local".
            gamma: weight of the distillation loss (Eq. 2).
            temperature: T of Eq. 9.
            squared_temperature: multiply the distillation loss by T^2, as FedGKT's code does and Eq. 9 does not.
            selection: which logits are uploaded; ``all`` is Fig. 3c's ablation.
            upload: ``raw`` logits with labels, or their mean and count per class (Eq. 10, Tables 9-11).
            aggregation: ``weighted`` by the widths (Eq. 7), or ``average`` (beta = 1, Fig. 3c).
            denominator: counts in Eq. 8, ``uploaded`` logits or, read literally, all ``samples`` of the class.
            share: parameters that clients of equal width also average: Table 3's "+P" and "+H".
            theorem: record the terms of Theorem 1; it changes neither the messages nor any other number.
            prior_std: s of the normal distributions used as the theorem's posterior and prior.
        """

        keep_optimiser: bool = True
        prompts: Literal["deep", "shallow", "frame"] = "deep"
        prompt_length: int = Field(default=3, ge=1)
        prompt_dropout: float = Field(default=0.0, ge=0, lt=1)
        head_init: Literal["timm", "vpt"] = "timm"
        communicate: bool = True
        gamma: float = Field(default=1.0, ge=0)
        temperature: float = Field(default=4.5, gt=0)
        squared_temperature: bool = False
        selection: Literal["correct", "all"] = "correct"
        upload: Literal["raw", "average"] = "raw"
        aggregation: Literal["weighted", "average"] = "weighted"
        denominator: Literal["uploaded", "samples"] = "uploaded"
        share: Literal["none", "prompts", "head"] = "none"
        theorem: bool = True
        prior_std: float = Field(default=0.1, gt=0)

        @field_validator("prompt_dropout")
        @classmethod
        def _of_tokens(cls, share: float, info: ValidationInfo) -> float:
            if share and info.data.get("prompts") == "frame":
                raise ValueError("is of deep or shallow prompts; with prompts: frame it must be 0")
            return share

    settings: Settings

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
        messages = [registrations[client] for client in sorted(registrations)]
        return ServerState({name: torch.stack([message[name] for message in messages]) for name in messages[0]})

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
        """Rows ``logits`` [B, C], ``labels`` and ``keep``, what is sent; or the sums of the kept logits by class."""
        logits = model(params, batch.images).logits
        real = torch.ones_like(batch.labels, dtype=torch.bool) if batch.weight is None else batch.weight > 0
        keep = real & (predicted_classes(logits) == batch.labels) if self.settings.selection == "correct" else real
        rows = {"logits": logits, "labels": batch.labels, "keep": keep}
        sums = {}
        if self.settings.upload == "average":
            sums["logits"] = class_sums(logits, batch.labels, self.num_classes, keep)
            sums["counts"] = class_counts(batch.labels, self.num_classes, keep)
        if self.settings.theorem:
            rows["real"] = real
        elif self.settings.upload == "average":
            rows = {}
        return Statistics(sums, rows)

    def uplink(self, work: Work) -> Message:
        """``logits`` [m, C] of the kept samples and their ``labels`` [m] int32; and the shared parameters.

        With average upload ``means`` [C, C], the mean kept logits of each class, and ``counts`` [C] int32 (Eq. 10).
        """
        if not self.settings.communicate:
            return Message()
        shared = {} if self.settings.share == "none" else work.trained([self.settings.share])
        if self.settings.upload == "raw":
            rows = work.statistics.rows
            keep, labels = rows["keep"], rows["labels"]
            return Message({"logits": rows["logits"][keep], "labels": labels[keep].to(torch.int32), **shared})
        sums, counts = work.statistics.sums["logits"], work.statistics.sums["counts"]
        means = sums / counts.clamp(min=1)[:, None]
        return Message({"means": means.to(work.dtype), "counts": counts.to(torch.int32), **shared})

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

    def remember(self, work: Work) -> Tensors:
        """The group ``initial``: the parameters that the client started its first round with."""
        if not (self.settings.communicate and self.settings.theorem and work.round):
            return {}
        return flatten({INITIAL: self._initial(work)})

    def _initial(self, work: Work) -> Tensors:
        names = work.client.model.names(self.trains())
        # In the order of the names, which a stored memory does not keep: the last bits of sums depend on it.
        kept = group(work.received, INITIAL)
        return {name: kept.get(name, work.before[name]) for name in names}

    def observe(self, work: Work) -> dict[str, Any]:
        """The terms of Theorem 1; see :func:`hetfl.methods.parts.theorem.observations`."""
        s = self.settings
        if not (s.communicate and s.theorem):
            return {}
        return observations(work, self._initial(work) if work.round else {}, s.temperature, s.prior_std)

    def diagnostics(self, server: ServerState) -> dict[str, Any]:
        """The numbers of valid classes and of uploaded logits.

        Also the share that the added 1 in Eq. 8's denominator takes from each client's global logits [K]: its mean
        and maximum over the valid classes.
        """
        if "valid" not in server:
            return {}
        counted = {
            "valid_classes": float(server["valid"].sum()),
            "uploaded_logits": float(server["uploaded"].sum()),
        }
        if "shrinkage" in server and server["valid"].any():
            shrinkage = server["shrinkage"][:, server["valid"]]
            counted |= figures({"shrinkage": shrinkage.mean(dim=1), "shrinkage_max": shrinkage.amax(dim=1)})
        return counted
