"""FedMD: clients of any architecture fit their mean logits of public samples, then train on their own data.

Clients and server have the same public samples. A client sends its logits of some of them, and the server averages
them. In the next round each client first fits the mean, then trains on its own data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    cross_entropy,
    register_method,
)
from hetfl.methods.parts.stratified import stratified
from hetfl.methods.scratch import Scratch, ScratchSettings
from hetfl.models.base import Model, ModelOptions


@register_method("fedmd")
class FedMD(Scratch):
    """Li and Wang, NeurIPS workshop 2019.

    The logits [C_public + C] have the public classes first. Before the first round every client trains on the public
    and on its own data, and sends its logits of the first alignment set. In each round it trains on the mean of these
    logits ("digest"), then on its own data ("revisit"), and sends its logits of the next alignment set. The server
    keeps the mean ``logits`` [n, C_public + C] of the n samples of the alignment set.
    """

    numerics = 1
    title = "FedMD"
    source = "Li and Wang, NeurIPS workshop 2019"
    travels = "logits of public samples"
    public = True

    class Settings(ScratchSettings):
        """Defaults are FedHPL's where it states one, else the authors' code.

        Attributes:
            local_epochs: passes over the client's own data in a round ("revisit").
            public_epochs, private_epochs: passes over public and own data before the first round.
            alignment_samples: public samples drawn for a round.
            alignment_draw: ``stratified``, from each class in proportion to its public samples, as in the authors'
                code; or ``uniform``, whatever their classes.
            digest_epochs, digest_batch: passes over those samples, and samples a step.
            keep_optimiser: a client keeps two optimisers through all rounds, as the authors' two compiled networks
                do: one to digest, the other for its own data, also before the first round. Otherwise every phase
                starts with a new one, as the public phase always does. Results can differ by tens of points.
        """

        optimiser: Literal["sgd", "adam"] = "adam"
        lr: float = Field(default=0.001, gt=0)
        weight_decay: float = Field(default=0.0, ge=0)
        keep_optimiser: bool = True
        local_epochs: int = Field(default=5, ge=1)
        public_epochs: int = Field(default=25, ge=0)
        private_epochs: int = Field(default=25, ge=0)
        alignment_samples: int = Field(default=5000, ge=1)
        alignment_draw: Literal["stratified", "uniform"] = "stratified"
        digest_epochs: int = Field(default=1, ge=1)
        digest_batch: int = Field(default=256, ge=1)
        stem: Literal["imagenet", "cifar"] = "cifar"

    settings: Settings

    def model_options(self) -> ModelOptions:
        return self.fitted(extra_outputs=self.public_classes)

    def phases(self, round: int) -> Sequence[Phase]:
        s = self.settings
        if not round:
            public = self.phase(name="public", data="public", epochs=s.public_epochs, keep_optimiser=False)
            return [public, self.phase(name="own", epochs=s.private_epochs)]
        digest = self.phase(name="digest", data="alignment", epochs=s.digest_epochs, batch_size=s.digest_batch)
        return [digest, self.phase(name="own")]

    def alignment(self, labels: Tensor, draws: Draws) -> Tensor:
        generator = draws.generator("alignment")
        order = torch.randperm(len(labels), generator=generator)
        wanted = min(self.settings.alignment_samples, len(labels))
        if self.settings.alignment_draw == "uniform":
            return order[:wanted]
        return stratified(labels, wanted, order, generator)

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """The mean absolute difference of logits and received logits when it digests, else cross-entropy."""
        logits = model(params, batch.images).logits
        if phase.data == "alignment":
            return batch.mean((logits - received["logits"][batch.rows]).abs().mean(dim=1))
        own = 0 if phase.data == "public" else self.public_classes
        return cross_entropy(logits, replace(batch, labels=batch.labels + own))

    def statistics_source(self, round: int) -> StatisticsSource:
        return "alignment"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        assert batch.rows is not None
        return Statistics(rows={"logits": model(params, batch.images).logits, "samples": batch.rows})

    def register(self, work: Work) -> Message:
        return self.uplink(work)

    def uplink(self, work: Work) -> Message:
        """``logits`` [n, C_public + C] of the next alignment set, and ``samples`` [n] int32, their rows in it."""
        rows = work.statistics.rows
        return Message({"logits": rows["logits"], "samples": rows["samples"].to(torch.int32)})

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        return self.aggregate(ServerState(), Uplinks.of(registrations), draws)

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """The plain mean of the participants' logits, row by row of the alignment set."""
        return ServerState({"logits": torch.stack([message["logits"] for message in uplinks]).mean(dim=0)})

    def downlink(self, server: ServerState, client: int) -> Message:
        """``logits`` [n, C_public + C]: the mean for each sample of the round's alignment set."""
        return Message(server)

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """Logits [B, C + C_public] with the data set's own classes first; a prediction of a public class is wrong."""
        return model(params, batch.images).logits.roll(-self.public_classes, dims=1)
