"""FedTGP: FedProto whose server trains the global prototypes, with a margin that grows with the clients' own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from hetfl.captured import Captured
from hetfl.draws import Draws, seeded_library_code
from hetfl.message import Message, Tensors
from hetfl.methods.base import Uplinks, mean_over_owners, register_method
from hetfl.methods.fedproto import FedProto, distances
from hetfl.models.base import Model
from hetfl.optimisers import SGD

NET = "net/"


@register_method("fedtgp")
class FedTGP(FedProto):
    """Zhang et al., AAAI 2024: trainable global prototypes under adaptive-margin-enhanced contrastive learning."""

    numerics = 1
    title = "FedTGP"
    source = "Zhang et al., AAAI 2024, Eq. 6-10"

    class Settings(FedProto.Settings):
        """Defaults are the released scripts'.

        Attributes:
            margin_cap: tau, the largest margin.
            margin: ``adaptive``: the largest distance of a class centre to its nearest neighbour, as the code has it;
                ``all-pairs``: the largest distance of two centres (Eq. 9); ``fixed``: always tau (ablation FM);
                ``none`` (ablation SCL).
            server_epochs: S, passes of the server over the clients' prototypes.
            server_lr: its learning rate; None: the clients'.
            server_batch: prototypes a step; None: the clients' batch size.
            network: whether trainable vectors go through the network F; False is the ablation "w/o F".
            average: ``plain`` only. The server learns from every client's prototypes alike, and the centres of the
                margin are plain means (Eq. 9), so that clients need not tell how many samples of a class they have.
        """

        pull: float = Field(default=10.0, ge=0)
        reduce: Literal["linear", "pool"] = "pool"
        flat: int | None = Field(default=None, ge=1)
        margin_cap: float = Field(default=100.0, ge=0)
        margin: Literal["adaptive", "all-pairs", "fixed", "none"] = "adaptive"
        server_epochs: int = Field(default=100, ge=1)
        server_lr: float | None = Field(default=None, gt=0)
        server_batch: int | None = Field(default=None, ge=1)
        network: bool = True
        average: Literal["plain"] = "plain"

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> dict[str, Tensor]:
        with seeded_library_code(draws.key("init:generator")):
            width = models[0].width
            layers: dict[str, nn.Module] = {"vectors": nn.Embedding(self.num_classes, width)}
            if self.settings.network:
                layers |= {"enter": nn.Linear(width, width), "leave": nn.Linear(width, width)}
            fresh = nn.ModuleDict(layers).state_dict()
        dtype = next(iter(models[0].init(draws, -1).values())).dtype
        return {NET + name: tensor.to(dtype) for name, tensor in fresh.items()}

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """Train the generator on the clients' prototypes (Eq. 7-8), then emit one prototype for every class.

        It stays as it is where nobody sends one.
        """
        messages = list(uplinks)
        prototypes = torch.cat([message["means"] for message in messages])
        labels = torch.cat([message["labels"] for message in messages]).long()
        if not len(labels):
            return dict(server)
        margin = self.margin(mean_over_owners(messages, self.num_classes)["means"])
        net = {n.removeprefix(NET): t.clone().requires_grad_() for n, t in server.items() if n.startswith(NET)}
        s = self.settings
        optimiser = SGD(net.values(), s.server_lr or s.lr)
        loss = margin.new_zeros((), dtype=prototypes.dtype)

        def step(batch: Tensors) -> None:
            rows = batch["rows"]
            found = contrastive_loss(prototypes[rows], labels[rows], emit(net), margin, batch.get("weight"))
            for leaf, gradient in zip(net.values(), torch.autograd.grad(found, list(net.values())), strict=True):
                leaf.grad = gradient
            optimiser.step()
            loss.copy_(found.detach())

        orders = [
            torch.randperm(len(labels), generator=draws.generator("server batches", -1, epoch))
            for epoch in range(s.server_epochs)
        ]
        # A recorded step has one shape, so there the last batch is filled up.
        steps, fill = Captured(step), labels.is_cuda
        for batch in batches_of(torch.stack(orders).to(labels.device), s.server_batch or s.batch_size, fill):
            steps(batch)
        trained = {name: tensor.detach() for name, tensor in net.items()}
        return {
            **{NET + name: tensor for name, tensor in trained.items()},
            "means": emit(trained),
            "labels": torch.arange(self.num_classes, dtype=torch.int32, device=labels.device),
            "margin": margin,
            "loss": loss,
        }

    def margin(self, centres: Tensor) -> Tensor:
        """delta [] for the class centres [c, d] of the classes that were sent, float64."""
        cap = torch.tensor(self.settings.margin_cap, dtype=torch.float64, device=centres.device)
        if self.settings.margin == "none":
            return torch.zeros_like(cap)
        if self.settings.margin == "fixed" or len(centres) < 2:
            return cap
        between = distances(centres.double(), centres.double())
        nearest = between.fill_diagonal_(torch.inf).min(dim=1).values
        widest = nearest if self.settings.margin == "adaptive" else between.fill_diagonal_(0)
        return torch.minimum(widest.max(), cap)

    def downlink(self, server: Tensors, client: int) -> Message:
        return Message({name: server[name] for name in ("means", "labels") if name in server})

    def server_parameters(self, server: Tensors) -> Tensors:
        return {name: tensor for name, tensor in server.items() if name.startswith(NET)}

    def diagnostics(self, server: Tensors) -> dict[str, float]:
        return {name: float(server[name]) for name in ("margin", "loss") if name in server}


def emit(net: Tensors) -> Tensor:
    """P-hat [C, d]: the network F of every class's trainable vector (Eq. 5), or the vectors where there is none."""
    vectors = net["vectors.weight"]
    if "enter.weight" not in net:
        return vectors
    hidden = F.relu(F.linear(vectors, net["enter.weight"], net["enter.bias"]))
    return F.linear(hidden, net["leave.weight"], net["leave.bias"])


def batches_of(orders: Tensor, size: int, fill: bool) -> Iterator[dict[str, Tensor]]:
    """The ``rows`` [B] of each batch of each epoch, from their ``orders`` [epochs, n].

    Where the last ones are to be filled up, all have a ``weight`` [B], 0 for what fills.
    """
    padding = -orders.shape[1] % size if fill else 0
    rows = F.pad(orders, (0, padding))
    weight = F.pad(torch.ones_like(orders[0], dtype=torch.float32), (0, padding)).split(size)
    for order in rows:
        for part, real in zip(order.split(size), weight, strict=True):
            yield {"rows": part, "weight": real} if padding else {"rows": part}


def contrastive_loss(
    prototypes: Tensor, labels: Tensor, emitted: Tensor, margin: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Eq. 8: cross-entropy over minus the distances, the true class pushed away by the margin first.

    Args:
        prototypes: P [B, d] of clients.
        labels: [B], their classes.
        emitted: P-hat [C, d], one trainable prototype per class.
        margin: delta [].
        weight: [B], 0 for what only fills the batch up; None: everything counts.
    """
    # The root of zero has no finite gradient.
    squared = (prototypes[:, None] - emitted[None]).square().sum(dim=2).clamp(min=1e-12)
    # one_hot looks at the labels' values, which a recording cannot.
    own = (labels[:, None] == torch.arange(len(emitted), device=labels.device)).to(emitted.dtype)
    distances = squared.sqrt() + margin.to(emitted.dtype) * own
    if weight is None:
        return F.cross_entropy(-distances, labels)
    return (F.cross_entropy(-distances, labels, reduction="none") * weight).sum() / weight.sum()
