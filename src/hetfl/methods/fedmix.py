"""FedMix: PT-FedAvg on images mixed, to first order, with the averaged images of other clients.

Before the first round clients send averages of their images and labels. A client mixes its samples with such an
average, as Mixup does, by a Taylor expansion of the loss around its own samples. So it sees something of other
clients' data, but no image of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.fused import uncompiled
from hetfl.message import Message, ServerState, Tensors, flatten, group, ungrouped
from hetfl.methods.base import Phase, Statistics, StatisticsSource, Uplinks, Work, register_method
from hetfl.methods.parts.robust import mean_only
from hetfl.methods.ptfedavg import PTFedAvg
from hetfl.models.base import Model

POOL = "pool"
"""Group of the averaged ``images`` [m, channels, h, w] and their ``labels`` [m, C]."""


@register_method("fedmix")
class FedMix(PTFedAvg):
    """Yoon et al., ICLR 2021, with prompts; FGPT's baseline.

    Before the first round every client sends the mean image and the mean label of its samples, or of chunks of them,
    in the size in which images are stored. A client gets the pool of them with its first downlink and keeps it; the
    server's ``served`` [K] bool says who has it.
    """

    numerics = 1
    title = "FedMix"
    source = "Yoon et al., ICLR 2021; FGPT, arXiv 2310.18285"
    travels = "prompts and heads; mean images once"
    rows = ("pool/images", "pool/labels")
    vmappable = False  # its objective takes a gradient itself

    class Settings(PTFedAvg.Settings):
        """Defaults are those that a re-implementation names as the authors' for CIFAR-100.

        Attributes:
            mix: lambda, the share of the averaged image.
            chunk: samples per average, drawn from the client's; the last average is of those left over. None: one
                average of all.
        """

        mix: float = Field(default=0.1, ge=0, lt=1)
        chunk: int | None = Field(default=None, ge=1)

        _no_noise = field_validator("noise")(mean_only)

    settings: Settings

    def statistics_source(self, round: int) -> StatisticsSource:
        return super().statistics_source(round) if round else "stored"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        """In round 0 ``images`` and one-hot ``labels``, as sums or for chunks as rows."""
        if received:
            return super().statistics(model, params, batch, received)
        labels = F.one_hot(batch.labels, self.num_classes).to(batch.images.dtype)
        if self.settings.chunk is None:
            count = torch.tensor(float(len(labels)), dtype=torch.float64, device=labels.device)
            sums = {"images": batch.images.double().sum(0), "labels": labels.double().sum(0), "samples": count}
            return Statistics(sums=sums)
        return Statistics(rows={"images": batch.images, "labels": labels})

    def register(self, work: Work) -> Message:
        """FedAvg's, and the group ``pool`` with one image and label per chunk of the client's samples."""
        found = work.statistics
        if self.settings.chunk is None:
            pool = {n: (found.sums[n] / found.sums["samples"]).float()[None] for n in ("images", "labels")}
        else:
            samples = len(found.rows["labels"])
            order = torch.randperm(samples, generator=work.draws.generator("chunks", work.client.index))
            parts = order.to(found.rows["labels"].device).split(self.settings.chunk)
            pool = {n: torch.stack([t[part].mean(0) for part in parts]) for n, t in found.rows.items()}
        return Message({**super().register(work), **flatten({POOL: pool})})

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        own = [group(registrations[client], POOL) for client in sorted(registrations)]
        pool = {name: torch.cat([part[name] for part in own]) for name in ("images", "labels")}
        served = torch.zeros(len(own), dtype=torch.bool)
        return super().initial_server(models, registrations, draws) | {POOL: pool, "served": served}

    def downlink(self, server: ServerState, client: int) -> Message:
        """PT-FedAvg's, and in the client's first round the group ``pool``."""
        pool = {} if server["served"][client] else {POOL: server.group(POOL)}
        return Message({**super().downlink(server, client), **flatten(pool)})

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        return {**message, **memory}

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return super().adopt(params, ungrouped(received))

    def remember(self, work: Work) -> Tensors:
        """The group ``pool``."""
        return flatten({POOL: group(work.received, POOL)})

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """PT-FedAvg's; the participants have the pool from then on."""
        served = server["served"].clone()
        served[uplinks.clients] = True
        return super().aggregate(server, uplinks, draws) | {"served": served}

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Mixup with one pair (x', y') of the pool for the whole batch, to first order in x'.

        With x = (1 - l) x_i: mean_i (1 - l) CE(x, y_i) + l CE(x, y') + l (1 - l) <grad_x CE(x, y_i), x'>
        """
        share = self.settings.mix
        if not share:
            return super().objective(model, params, batch, received, phase)
        pool = group(received, POOL)
        drawn = torch.randint(len(pool["images"]), (), generator=torch.Generator().manual_seed(batch.seed))
        image = F.interpolate(
            pool["images"][drawn][None], batch.images.shape[-2:], mode=model.spec.interpolation, antialias=True
        )
        label = pool["labels"][drawn].expand(len(batch.labels), -1)
        images = ((1 - share) * batch.images).requires_grad_()
        # Neither fused attention nor what is compiled can be differentiated twice.
        with sdpa_kernel(SDPBackend.MATH), uncompiled():
            logits = model(params, images, self.choose(params, batch, received)).logits
            own = F.cross_entropy(logits, batch.labels, reduction="none")
            (slope,) = torch.autograd.grad(own.sum(), images, create_graph=True)
        foreign = F.cross_entropy(logits, label, reduction="none")
        along = (slope * image).flatten(1).sum(dim=1)
        return batch.mean((1 - share) * own + share * foreign + share * (1 - share) * along)
