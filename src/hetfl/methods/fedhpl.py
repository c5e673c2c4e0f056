"""FedHPL: prompt tuning of frozen backbones, and distillation from a weighted mean of the clients' logits.

Ma et al., "FedHPL: Efficient Heterogeneous Federated Learning with Prompt Tuning and Logit Distillation",
arXiv 2405.17267. Its ablations (Local, average aggregation, upload of all logits, average upload, +P, +H) are
settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from hetfl.data.batches import Batch, class_counts, class_sums
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
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
    weighted_mean,
)
from hetfl.methods.theorem import aggregation_weights, figures, fit, gaussian_divergence, guidance, teacher_accuracy
from hetfl.models.base import Model, ModelOptions

INITIAL = "initial/"
"""Before the names of the parameters that a client started with, in its memory."""


@register_method("fedhpl")
class FedHPL(Method):
    """Clients train prompts and a head; what crosses are logits with their labels, back come global logits."""

    numerics = 1
    title = "FedHPL"
    source = "Ma et al., arXiv 2405.17267"
    travels = "logits of correctly classified samples"
    resets_momentum = True

    class Settings(MethodSettings):
        """FedHPL's own settings; defaults are the paper's.

        Attributes:
            prompts: VPT-deep (a set of prompts per block), VPT-shallow (one set), or for CNNs a frame of pixels.
            prompt_length: n, prompts per set, or the frame's width in pixels.
            prompt_dropout: share of the prompts' values that training drops, anew for each sample. The paper has
                none, VPT's authors 0, and 0.1 in their example of VPT-deep.
            head_init: rule for the fresh head.
            communicate: False is the paper's "Local".
            gamma: weight of the distillation loss (Eq. 2).
            temperature: T of Eq. 9.
            squared_temperature: multiply the distillation loss by T^2, as FedGKT's code does and Eq. 9 does not.
            selection: which logits are uploaded; ``all`` is Fig. 3c's ablation.
            upload: ``raw`` logits with labels, or their mean and count per class (Eq. 10, Tables 9-11).
            aggregation: ``weighted`` by the widths (Eq. 7), or ``average`` (beta = 1, Fig. 3c).
            denominator: counts in Eq. 8, ``uploaded`` logits or, read literally, all ``samples`` of the class.
            share: parameters that clients of equal width also average: Table 3's "+P" and "+H".
            theorem: observe the terms of Theorem 1; nothing more is sent and no other number changes.
            prior_std: s of the normal distributions that stand in for the theorem's posterior and prior.
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
    ) -> dict[str, Tensor]:
        messages = [registrations[client] for client in sorted(registrations)]
        return {name: torch.stack([message[name] for message in messages]) for name in messages[0]}

    def downlink(self, server: Tensors, client: int) -> Message:
        if "logits" not in server:
            return Message()
        group = f"shared.{int(server['width'][client])}/"
        shared = {name.removeprefix(group): t for name, t in server.items() if name.startswith(group)}
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
        client, params, statistics = work.client, work.params, work.statistics
        if not self.settings.communicate:
            return Message()
        dtype = next(iter(params.values())).dtype
        shared = (
            {} if self.settings.share == "none" else {n: params[n] for n in client.model.names([self.settings.share])}
        )
        if self.settings.upload == "raw":
            keep = statistics.rows["keep"]
            labels = statistics.rows["labels"][keep].to(torch.int32)
            return Message({"logits": statistics.rows["logits"][keep], "labels": labels, **shared})
        sums, counts = statistics.sums["logits"], statistics.sums["counts"]
        means = sums / counts.clamp(min=1)[:, None]
        return Message({"means": means.to(dtype), "counts": counts.to(torch.int32), **shared})

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """Eq. 7 and 8 from raw logits, Eq. 36 from class means; and the mean of what equal widths share."""
        if not self.settings.communicate:
            return dict(server)
        clients, messages = uplinks.clients, list(uplinks)
        sums, counts = zip(*(class_logits(message, self.num_classes) for message in messages), strict=True)
        weights = dimension_weights(server["width"].squeeze(1))
        if self.settings.aggregation == "average":
            weights = torch.ones_like(weights)
        uploaded = torch.stack(counts)
        divided_by = uploaded if self.settings.denominator == "uploaded" else server["class_counts"][clients].double()
        logits = global_logits(torch.stack(sums), divided_by, weights[:, clients])
        dtype = messages[0]["logits" if self.settings.upload == "raw" else "means"].dtype
        observed = {}
        if self.settings.theorem:
            shares = aggregation_weights(uploaded, divided_by, weights[:, clients])
            observed["shrinkage"] = 1 - shares.sum(dim=1)
        return {
            **server,
            "logits": logits.to(dtype),
            "valid": uploaded.sum(dim=0) > 0,
            "uploaded": uploaded.sum(dim=1).to(torch.int32),
            **observed,
            **self._shared(server, dict(zip(clients, messages, strict=True))),
        }

    def remember(self, work: Work) -> Tensors:
        if not (self.settings.communicate and self.settings.theorem and work.round):
            return {}
        return {INITIAL + name: tensor for name, tensor in self._initial(work).items()}

    def observe(self, work: Work) -> dict[str, Any]:
        """Theorem 1's terms (:mod:`hetfl.methods.theorem`), on the samples whose classes had a teacher in the round.

        Also ``upload_rate`` [C], the uploaded share of each class; ``valid_frac``, the share of samples with a
        teacher; and before the first round the ``width``, which beta (Eq. 7) follows from. Without a teacher all
        samples count.
        """
        s, client, rows, received = self.settings, work.client, work.statistics.rows, work.received
        if not (s.communicate and s.theorem):
            return {}
        logits, labels, keep = (rows[name][rows["real"]] for name in ("logits", "labels", "keep"))
        logits = logits.double()
        if work.round == 0:
            return {"width": client.model.width, **figures(fit(logits, labels, s.temperature))}
        uploaded = class_counts(labels, self.num_classes, keep)
        observed = {
            "upload_rate": uploaded / client.class_counts.to(uploaded.device),
            "param_kl": gaussian_divergence(work.params, self._initial(work), s.prior_std),
        }
        if "logits" in received:
            teacher, taught = received["logits"].double(), received["valid"][labels]
            observed["valid_frac"] = taught.double().mean()
            observed["teacher_acc"] = teacher_accuracy(teacher, received["valid"])
            if taught.any():
                logits, labels = logits[taught], labels[taught]
                observed |= guidance(logits, labels, teacher, s.temperature)
        return figures(observed | fit(logits, labels, s.temperature))

    def _initial(self, work: Work) -> Tensors:
        """The parameters that a client began its first round with."""
        names = work.client.model.names(self.trains())
        return {name: work.received.get(INITIAL + name, work.before[name]) for name in names}

    def diagnostics(self, server: Tensors) -> dict[str, Any]:
        """Also what Eq. 8's added 1 takes from each client's global logits: mean and maximum over valid classes."""
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

    def _shared(self, server: Tensors, uplinks: Mapping[int, Message]) -> dict[str, Tensor]:
        if self.settings.share == "none":
            return {}
        widths = server["width"].squeeze(1)
        shared: dict[str, Tensor] = {}
        for width, owners in zip(*(found.tolist() for found in widths.unique(return_counts=True)), strict=True):
            group = [client for client in uplinks if widths[client] == width]
            # A client that nobody shares its width with keeps its own parameters. Where others do, what arrives
            # replaces the older mean even if it comes from one participant.
            if owners > 1 and group:
                own = [
                    {n: t for n, t in uplinks[client].items() if n.split(".")[0] == self.settings.share}
                    for client in group
                ]
                mean = weighted_mean(own, server["samples"].squeeze(1)[group])
                shared |= {f"shared.{width}/{name}": tensor for name, tensor in mean.items()}
        return shared


def dimension_weights(widths: Tensor) -> Tensor:
    """Eq. 7: beta[k, j] = min(d_k / d_j, d_j / d_k) for the clients' widths d [K]; returns [K, K], float64."""
    ratio = widths[:, None].double() / widths[None, :].double()
    return torch.minimum(ratio, 1 / ratio)


def class_logits(message: Tensors, num_classes: int) -> tuple[Tensor, Tensor]:
    """One client's sum of uploaded logits [C, C] and their number [C] per class, from either form of upload."""
    if "means" in message:
        counts = message["counts"].double()
        return message["means"].double() * counts[:, None], counts
    labels = message["labels"].long()
    return class_sums(message["logits"], labels, num_classes), class_counts(labels, num_classes)


def global_logits(sums: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """Eq. 8: G_k[c] = sum_j beta[k, j] S[j, c] / (1 + sum_j beta[k, j] M[j, c]).

    Args:
        sums: S [J, C, C], sum of participant j's uploaded logits with label c.
        counts: M [J, C], their number.
        weights: beta [K, J].

    Returns:
        [K, C, C], one matrix of global logits per client.
    """
    numerator = torch.einsum("kj,jcl->kcl", weights, sums)
    return numerator / (1 + weights @ counts)[:, :, None]


def distillation_loss(logits: Tensor, labels: Tensor, received: Tensors, temperature: float) -> Tensor:
    """Eq. 9: KL(softmax(G[y] / T) || softmax(p / T)) per sample [B].

    Where nobody uploaded a sample's class, its own logits stand in for the teacher (appendix C.4): the divergence
    and its gradient are zero.
    """
    teacher = F.log_softmax(received["logits"][labels] / temperature, dim=1)
    student = F.log_softmax(logits / temperature, dim=1)
    divergence = (teacher.exp() * (teacher - student)).sum(dim=1)
    return divergence * received["valid"][labels]
