"""FedGen: the server trains a generator of features with the clients' heads, which train on its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hetfl.data.batches import Batch
from hetfl.draws import Draws, seeded_library_code
from hetfl.message import Message, Tensors
from hetfl.methods.base import Phase, Uplinks, Work, cross_entropy, register_method, weighted_mean
from hetfl.methods.scratch import Scratch, ScratchSettings
from hetfl.models.base import Model
from hetfl.optimisers import Adam

NET, ADAM = "generator/", "adam/"


@register_method("fedgen")
class FedGen(Scratch):
    """Zhu et al., ICML 2021, in the form of the later benchmarks that FedHPL and FedTGP use: no diversity loss.

    The generator's batch normalisation always takes the statistics of its batch, so it has no running ones to send.
    """

    numerics = 1
    title = "FedGen"
    source = "Zhu et al., ICML 2021"
    travels = "heads and labels up, a head and a generator down"
    linear_heads = True

    class Settings(ScratchSettings):
        """Defaults are those of FedHPL's Table 2.

        Attributes:
            embedding: size of the feature that enters every head.
            noise: width of the generator's noise.
            hidden: its hidden width; None: that of the feature.
            server_steps: the generator's steps in a round, of a client's batch size each.
            server_lr: its learning rate (Adam).
            server_decay: factor on that rate after every round.
            frozen: whether the generator stays as it was drawn, as later code of the benchmark has it.
            labels: which labels are drawn from: the participants' ones, listed in every upload; or those of all
                clients, counted per class once.
            tests: the client's own head, or the server's newest.
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

    def __init__(self, settings: Settings, *more: int) -> None:
        super().__init__(settings, *more)
        self.evaluates = settings.tests

    def register(self, work: Work) -> Message:
        counts = {"counts": work.client.class_counts.to(torch.int32)} if self.settings.labels == "counts" else {}
        return Message({"samples": torch.tensor([work.client.samples], dtype=torch.int32), **counts})

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> dict[str, Tensor]:
        with seeded_library_code(draws.key("init:generator")):
            hidden = self.settings.hidden or models[0].width
            layers = {
                "enter": nn.Linear(self.settings.noise + self.num_classes, hidden),
                "norm": nn.BatchNorm1d(hidden, track_running_stats=False),
                "leave": nn.Linear(hidden, models[0].width),
            }
            fresh = nn.ModuleDict(layers).state_dict()
        dtype = next(iter(models[0].init(draws, -1).values())).dtype
        told = [registrations[client] for client in sorted(registrations)]
        state = {"samples": torch.cat([message["samples"] for message in told])}
        if self.settings.labels == "counts":
            state["counts"] = torch.stack([message["counts"] for message in told]).sum(0, dtype=torch.int32)
        return {**state, **{NET + name: tensor.to(dtype) for name, tensor in fresh.items()}}

    def downlink(self, server: Tensors, client: int) -> Message:
        """The head, the generator and everyone's labels, once there are heads to train a generator with."""
        if "head.weight" not in server:
            return Message()
        return Message({n: t for n, t in server.items() if n.startswith((NET, "head.")) or n in ("labels", "counts")})

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {name: received.get(name, tensor) for name, tensor in params.items()}

    @torch.no_grad()
    def drawn(self, received: Tensors, size: int, seed: int) -> Tensors:
        """Features [B, d] that the generator makes, and their labels [B]; nothing while there is no generator."""
        if not received:
            return {}
        net = {name.removeprefix(NET): tensor for name, tensor in received.items() if name.startswith(NET)}
        features, labels = self._generate(net, received, size, seed)
        return {"features": features, "labels": labels}

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Cross-entropy of a real batch, and of the client's head on as many generated features."""
        loss = cross_entropy(model(params, batch.images).logits, batch)
        if not received:
            return loss
        logits = F.linear(batch.drawn["features"], params["head.weight"], params["head.bias"])
        return loss + batch.mean(F.cross_entropy(logits, batch.drawn["labels"], reduction="none"))

    def uplink(self, work: Work) -> Message:
        head = {name: work.params[name] for name in work.client.model.names(["head"])}
        if self.settings.labels == "counts":
            return Message(head)
        classes = torch.arange(self.num_classes, dtype=torch.int32)
        return Message({**head, "labels": classes.repeat_interleave(work.client.class_counts)})

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """Train the generator so that the mean of the heads' logits finds its labels, then average the heads."""
        messages = list(uplinks)
        heads = [{n: t for n, t in message.items() if n.startswith("head.")} for message in messages]
        weights = server["samples"][uplinks.clients]
        # The mean of linear heads' logits is the logits of their mean.
        head = weighted_mean(heads, weights)
        device = head["head.weight"].device
        if self.settings.labels == "counts":
            labels = {"counts": server["counts"]}
        else:
            labels = {"labels": torch.cat([message["labels"].to(device) for message in messages])}
        kept = {"samples": server["samples"], **head, **labels}
        if self.settings.frozen:
            return {**server, **kept}
        net = {n.removeprefix(NET): t.clone().requires_grad_() for n, t in server.items() if n.startswith(NET)}
        s = self.settings
        optimiser = Adam(net.values(), s.server_lr * s.server_decay ** (draws.round - 1), fused=False)
        for slot, tensor in server.items():
            if slot.startswith(ADAM):
                name, _, kind = slot.removeprefix(ADAM).rpartition("/")
                optimiser.state[net[name]][kind] = tensor.clone()
        for step in range(s.server_steps):
            features, drawn = self._generate(net, labels, s.batch_size, draws.key("server", -1, step))
            loss = F.cross_entropy(F.linear(features, head["head.weight"], head["head.bias"]), drawn)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        slots = {
            f"{ADAM}{name}/{kind}": tensor
            for name, leaf in net.items()
            for kind, tensor in optimiser.state[leaf].items()
        }
        trained = {NET + name: tensor.detach() for name, tensor in net.items()}
        return {**kept, **trained, **slots}

    def server_parameters(self, server: Tensors) -> Tensors:
        return {name: tensor for name, tensor in server.items() if name.startswith(NET)}

    def _generate(self, net: Tensors, known: Tensors, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Features [B, d] by the generator's parameters, of labels [B] drawn from ``labels`` or by ``counts``."""
        if size == 1:  # of which there are no statistics
            features, chosen = self._generate(net, known, 2, seed)
            return features[:1], chosen[:1]
        generator = torch.Generator().manual_seed(seed)
        if "counts" in known:
            ends = known["counts"].long().cumsum(0)
            chosen = torch.randint(int(ends[-1]), (size,), generator=generator).to(ends.device)
            labels = torch.searchsorted(ends, chosen, right=True)
        else:
            pool = known["labels"]
            labels = pool[torch.randint(len(pool), (size,), generator=generator).to(pool.device)].long()
        noise = torch.rand(size, self.settings.noise, generator=generator).to(net["enter.weight"])
        inputs = torch.cat([noise, F.one_hot(labels, self.num_classes).to(noise)], dim=1)
        hidden = F.linear(inputs, net["enter.weight"], net["enter.bias"])
        hidden = F.batch_norm(hidden, None, None, net["norm.weight"], net["norm.bias"], training=True)
        return F.linear(F.relu(hidden), net["leave.weight"], net["leave.bias"]), labels
