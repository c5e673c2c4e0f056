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
from hetfl.methods.base import Method, MethodSettings, Phase, Work, cross_entropy, register_method, weighted_mean
from hetfl.models.base import Model, ModelOptions

NET, ADAM = "generator/", "adam/"


@register_method("fedgen")
class FedGen(Method):
    """Zhu et al., ICML 2021, in the form of the later benchmarks that FedHPL and FedTGP use: no diversity loss.

    The generator's batch normalisation always takes the statistics of its batch, so it has no running ones to send.
    """

    title = "FedGen"
    source = "Zhu et al., ICML 2021"
    travels = "heads and labels up, a head and a generator down"

    class Settings(MethodSettings):
        """Defaults are those of FedHPL's Table 2.

        Attributes:
            embedding: size of the feature that enters every head.
            reduce: how features get that size, see :class:`hetfl.models.ModelOptions`.
            stem: of ResNets.
            noise: width of the generator's noise.
            hidden: its hidden width; None: that of the feature.
            server_steps: the generator's steps in a round, of a client's batch size each.
            server_lr: its learning rate (Adam).
            server_decay: factor on that rate after every round.
        """

        embedding: int = Field(default=512, ge=1)
        reduce: Literal["linear", "pool"] = "pool"
        stem: Literal["imagenet", "cifar"] = "imagenet"
        noise: int = Field(default=512, ge=1)
        hidden: int | None = Field(default=None, ge=1)
        server_steps: int = Field(default=100, ge=0)
        server_lr: float = Field(default=0.005, gt=0)
        server_decay: float = Field(default=1.0, gt=0, le=1)

    def model_options(self) -> ModelOptions:
        s = self.settings
        return ModelOptions(body="trained", weights="scratch", stem=s.stem, embedding=s.embedding, reduce=s.reduce)

    def trains(self) -> tuple[str, ...]:
        return ("body", "projection", "head")

    def register(self, work: Work) -> Message:
        return Message({"samples": torch.tensor([work.client.samples], dtype=torch.int32)})

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
        samples = torch.cat([registrations[client]["samples"] for client in sorted(registrations)])
        return {"samples": samples, **{NET + name: tensor.to(dtype) for name, tensor in fresh.items()}}

    def downlink(self, server: Tensors, client: int) -> Message:
        """The head, the generator and everyone's labels, once a generator has been trained."""
        if "labels" not in server:
            return Message()
        return Message({n: t for n, t in server.items() if n.startswith((NET, "head.")) or n == "labels"})

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        return {name: received.get(name, tensor) for name, tensor in params.items()}

    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """Cross-entropy of a real batch, and of the client's head on as many generated features."""
        loss = cross_entropy(model(params, batch.images).logits, batch)
        if not received:
            return loss
        net = {name.removeprefix(NET): tensor for name, tensor in received.items() if name.startswith(NET)}
        with torch.no_grad():
            features, labels = self._generate(net, received["labels"], len(batch.labels), batch.seed)
        logits = F.linear(features, params["head.weight"], params["head.bias"])
        return loss + F.cross_entropy(logits, labels)

    def uplink(self, work: Work) -> Message:
        head = {name: work.params[name] for name in work.client.model.names(["head"])}
        classes = torch.arange(self.num_classes, dtype=torch.int32)
        return Message({**head, "labels": classes.repeat_interleave(work.client.class_counts)})

    def aggregate(self, server: Tensors, uplinks: Mapping[int, Message], draws: Draws) -> dict[str, Tensor]:
        """Train the generator so that the mean of the heads' logits finds its labels, then average the heads."""
        clients = sorted(uplinks)
        heads = [{n: t for n, t in uplinks[client].items() if n.startswith("head.")} for client in clients]
        weights = server["samples"][clients]
        # The mean of linear heads' logits is the logits of their mean.
        head = weighted_mean(heads, weights)
        device = head["head.weight"].device
        labels = torch.cat([uplinks[client]["labels"].to(device) for client in clients])
        net = {n.removeprefix(NET): t.clone().requires_grad_() for n, t in server.items() if n.startswith(NET)}
        s = self.settings
        optimiser = torch.optim.Adam(net.values(), s.server_lr * s.server_decay ** (draws.round - 1))
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
        return {"samples": server["samples"], **head, **trained, "labels": labels, **slots}

    def learned(self, server: Tensors) -> Tensors:
        return {name: tensor for name, tensor in server.items() if name.startswith(NET)}

    def _generate(self, net: Tensors, pool: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Features [B, d] of labels [B] drawn from the pool, by the generator's parameters."""
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randint(len(pool), (size,), generator=generator).to(pool.device)
        labels = pool[chosen].long()
        noise = torch.rand(size, self.settings.noise, generator=generator).to(net["enter.weight"])
        inputs = torch.cat([noise, F.one_hot(labels, self.num_classes).to(noise)], dim=1)
        hidden = F.linear(inputs, net["enter.weight"], net["enter.bias"])
        hidden = F.batch_norm(hidden, None, None, net["norm.weight"], net["norm.bias"], training=True)
        return F.linear(F.relu(hidden), net["leave.weight"], net["leave.bias"]), labels
