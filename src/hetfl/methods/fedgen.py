"""FedGen: the server trains a generator of features against the clients' heads, which train on its features.

Clients send their heads and say which classes they have. The server trains a generator whose features the mean head
assigns to the wanted classes. In the next round every client also trains its head on generated features, and so
learns of classes that others have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors, flatten, group, without
from hetfl.methods.base import Phase, Uplinks, Work, cross_entropy, register_method, weighted_mean
from hetfl.methods.parts.feature_generator import generate, layers_of, train_generator
from hetfl.methods.parts.networks import fresh_network
from hetfl.methods.scratch import Scratch, ScratchSettings
from hetfl.models.base import Model

FIRST = "first"
"""Group of the head that clients start from; it is there until the first mean head is."""


@register_method("fedgen")
class FedGen(Scratch):
    """Zhu et al., ICML 2021, in the form of the later benchmarks that FedHPL and FedTGP use: no diversity loss.

    The generator's batch normalisation always uses the statistics of its batch, so it has no running ones to send.
    The server keeps the clients' ``samples`` [K] and ``counts`` [C] or ``labels`` [n], the mean head (before it, the
    group ``first``), and the groups ``generator`` and ``adam``.
    """

    numerics = 1
    title = "FedGen"
    source = "Zhu et al., ICML 2021"
    travels = "heads and labels up, a head and a generator down"
    linear_heads = equal_features = True

    class Settings(ScratchSettings):
        """Defaults are those of FedHPL's Table 2.

        Attributes:
            embedding: d, size of the feature that enters every head.
            noise: width of the generator's noise.
            hidden: the generator's hidden width; None: d.
            server_steps: the generator's steps in a round, each with a client's batch size.
            server_lr: its learning rate (Adam).
            server_decay: factor on that rate after every round.
            frozen: whether the generator is never trained, as in later code of the benchmark.
            labels: where the generator's labels are drawn from: a ``list`` of the participants' labels, in every
                uplink; or the ``counts`` of all clients' classes, which clients send once and the server in every
                downlink from round 2.
            tests: the client's own head, or the server's newest.
            first_head: what clients start from: their ``own`` head, or a ``common`` one that the server sends in
                round 1, as HtFLlib's later code does.
        """

        embedding: int | None = Field(default=512, ge=1)
        reduce: Literal["linear", "pool"] = "pool"
        noise: int = Field(default=512, ge=1)
        hidden: int | None = Field(default=None, ge=1)
        server_steps: int = Field(default=100, ge=0)
        server_lr: float = Field(default=0.005, gt=0)
        server_decay: float = Field(default=1.0, gt=0, le=1)
        frozen: bool = False
        labels: Literal["list", "counts"] = "list"
        tests: Literal["client", "global"] = "client"
        first_head: Literal["own", "common"] = "own"

    settings: Settings

    def __init__(self, settings: Settings, *more: int) -> None:
        super().__init__(settings, *more)
        self.evaluates = settings.tests

    def register(self, work: Work) -> Message:
        """``samples`` [1] int32: n_k; ``counts`` [C] int32 of each class where labels are drawn by them."""
        counts = {"counts": work.client.class_counts.to(torch.int32)} if self.settings.labels == "counts" else {}
        return Message({"samples": torch.tensor([work.client.samples], dtype=torch.int32), **counts})

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        s, width = self.settings, models[0].width
        fresh = models[0].init(draws, -1)
        dtype = next(iter(fresh.values())).dtype
        net = fresh_network(lambda: layers_of(s.noise, self.num_classes, s.hidden or width, width), draws, dtype)
        told = [registrations[client] for client in sorted(registrations)]
        state = {"samples": torch.cat([message["samples"] for message in told])}
        if s.labels == "counts":
            state["counts"] = torch.stack([message["counts"] for message in told]).sum(0, dtype=torch.int32)
        first = {name: fresh[name] for name in models[0].names(["head"])} if s.first_head == "common" else {}
        return ServerState({**state, FIRST: first, "generator": net})

    def downlink(self, server: ServerState, client: int) -> Message:
        """Nothing or a head in round 1; then the mean head, the group ``generator``, and what labels are drawn from.

        The head is ``head.weight`` [C, d] and ``head.bias`` [C]; labels come as ``labels`` [n] or ``counts`` [C].
        """
        if "head.weight" not in server:
            return Message(server.group(FIRST))
        sent = ("head.weight", "head.bias", "labels", "counts")
        loose = {name: tensor for name, tensor in server.items() if name in sent}
        return Message({**loose, **flatten({"generator": server.group("generator")})})

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {name: received.get(name, tensor) for name, tensor in params.items()}

    @torch.no_grad()
    def drawn(self, received: Tensors, size: int, seed: int) -> Tensors:
        """``features`` [B, d] that the generator makes, and their ``labels`` [B]; nothing without a generator."""
        if not (net := group(received, "generator")):
            return {}
        features, labels = generate(net, received, size, seed, self.num_classes)
        return {"features": features, "labels": labels}

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Cross-entropy of the batch, and of the client's head on as many generated features."""
        loss = cross_entropy(model(params, batch.images).logits, batch)
        if not batch.drawn:
            return loss
        logits = F.linear(batch.drawn["features"], params["head.weight"], params["head.bias"])
        return loss + batch.mean(F.cross_entropy(logits, batch.drawn["labels"], reduction="none"))

    def uplink(self, work: Work) -> Message:
        """``head.weight`` [C, d] and ``head.bias`` [C]; with ``labels: list`` also ``labels`` [n_k] int32."""
        head = work.trained(["head"])
        if self.settings.labels == "counts":
            return Message(head)
        classes = torch.arange(self.num_classes, dtype=torch.int32)
        return Message({**head, "labels": classes.repeat_interleave(work.client.class_counts)})

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """Average the heads by samples, and train the generator so that the mean head finds its labels.

        The paper's mean of the heads' logits is, for linear heads, the logits of the mean head.
        """
        messages = list(uplinks)
        heads = (without(message, "labels") for message in messages)
        head = weighted_mean(heads, server["samples"][uplinks.clients])
        if self.settings.labels == "counts":
            labels = {"counts": server["counts"]}
        else:
            device = head["head.weight"].device
            labels = {"labels": torch.cat([message["labels"].to(device) for message in messages])}
        s, kept = self.settings, {"samples": server["samples"], **head, **labels}
        if s.frozen:
            return ServerState({**kept, "generator": server.group("generator")})
        net, adam = train_generator(
            server.group("generator"),
            server.group("adam"),
            head,
            labels,
            seeds=[draws.key("server", -1, step) for step in range(s.server_steps)],
            size=s.batch_size,
            lr=s.server_lr * s.server_decay ** (draws.round - 1),
        )
        return ServerState({**kept, "generator": net, "adam": adam})

    def server_parameters(self, server: ServerState) -> Tensors:
        return server.group("generator")
