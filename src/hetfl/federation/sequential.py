"""The reference engine: one client after another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.federation.federation import ClientData, Federation
from hetfl.federation.state import ClientState
from hetfl.message import Message, Tensors
from hetfl.methods.base import Client, Method, Phase, Statistics

EVALUATION_BATCH = 512
"""Samples per forward pass where nothing is trained."""


@dataclass(frozen=True)
class Visit:
    """One participant's work in a round: its state and what the server sent it."""

    client: int
    state: ClientState
    downlink: Message


@dataclass(frozen=True)
class Update:
    """What came of a visit.

    Attributes:
        state: the client's next state.
        uplink: what it sends.
        loss: [] mean of the objective over the samples of the last phase, on the device.
        seconds: by ``train`` and ``statistics``.
    """

    client: int
    state: ClientState
    uplink: Message
    loss: Tensor
    seconds: dict[str, float]


class Sequential:
    """Runs clients one at a time; smallest, and what the other engines are compared with."""

    name = "sequential"

    def __init__(self, method: Method, federation: Federation) -> None:
        self.method, self.federation = method, federation

    def train(self, visits: Sequence[Visit], draws: Draws) -> Iterator[Update]:
        """Local training and uplink of some clients, in the order given; no result depends on that order."""
        for visit in visits:
            yield self._visit(visit, draws)

    @torch.inference_mode()
    def evaluate(self, client: int, params: Tensors, received: Tensors) -> Tensor:
        """Confusion matrix [C, C] of one client (rows: true class, columns: predicted), int64."""
        data, model = self.federation.data[client], self.federation.clients[client].model
        index = torch.arange(len(data.test_images), device=self.federation.device) if data.test is None else data.test
        classes = self.federation.num_classes
        confusion = torch.zeros(classes * classes, dtype=torch.int64, device=self.federation.device)
        for batch in data.test_images.batches(index, EVALUATION_BATCH):
            predicted = self.method.predict(model, params, batch.images, received).argmax(dim=1)
            confusion += torch.bincount(batch.labels * classes + predicted, minlength=classes * classes)
        return confusion.reshape(classes, classes)

    def initial_params(self, client: int, draws: Draws) -> dict[str, Tensor]:
        """The parameters a client brings to its first round, without those that come with the downlink."""
        model = self.federation.clients[client].model
        keeps = set(model.names(self.method.keeps()))
        return {n: t for n, t in model.init(draws.at(0), client).items() if n in keeps} if keeps else {}

    def _visit(self, visit: Visit, draws: Draws) -> Update:
        client, data = self.federation.clients[visit.client], self.federation.data[visit.client]
        received = self.method.receive(visit.downlink)
        kept = visit.state.params or self.initial_params(visit.client, draws)
        params = self.method.adopt(kept, received)
        # Momentum belongs to the values it was gathered on: what was overwritten starts without.
        optimiser = {
            slot: tensor
            for slot, tensor in visit.state.optimiser.items()
            if params[name := slot.rpartition("/")[0]] is kept.get(name)
        }
        started = time.perf_counter()
        loss = torch.zeros((), device=self.federation.device)
        for number, phase in enumerate(self.method.phases(draws.round)):
            params, optimiser, loss = self._train(client, data, params, optimiser, received, phase, number, draws)
        trained = time.perf_counter()
        statistics = self._sweep(client, data, params, received)
        uplink = self.method.uplink(client, params, statistics)
        keeps = set(client.model.names(self.method.keeps()))
        state = ClientState({name: tensor for name, tensor in params.items() if name in keeps}, optimiser)
        seconds = {"train": trained - started, "statistics": time.perf_counter() - trained}
        return Update(visit.client, state, uplink, loss, seconds)

    def _train(
        self,
        client: Client,
        data: ClientData,
        params: dict[str, Tensor],
        slots: dict[str, Tensor],
        received: Tensors,
        phase: Phase,
        number: int,
        draws: Draws,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        names = client.model.names(phase.trains)
        leaves = {name: params[name].clone().requires_grad_() for name in names}
        params = {**params, **leaves}
        optimiser = make_optimiser(phase, leaves, slots)
        total = torch.zeros((), device=self.federation.device)
        for epoch in range(phase.epochs):
            total.zero_()
            shuffled = torch.randperm(len(data.train), generator=draws.torch("batches", client.index, number, epoch))
            order = data.train[shuffled.to(data.train.device)]
            seed = draws.key("augment", client.index, number, epoch)
            for batch in data.train_images.batches(order, phase.batch_size, data.augment, seed):
                loss = self.method.objective(client.model, params, batch, received)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.detach() * len(batch.labels)
        trained = {name: leaf.detach() for name, leaf in leaves.items()}
        kept = optimiser_slots(optimiser, leaves) if phase.keep_optimiser else {}
        return {**params, **trained}, kept, total / len(data.train)

    @torch.no_grad()
    def _sweep(self, client: Client, data: ClientData, params: Tensors, received: Tensors) -> Statistics:
        if not self.method.wants_statistics():
            return Statistics()

        def gather(batch: Batch) -> Statistics:
            return self.method.statistics(client.model, params, batch, received)

        return merge([gather(batch) for batch in data.train_images.batches(data.train, EVALUATION_BATCH)])


def merge(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of a whole sweep from those of its batches."""
    sums = {name: torch.stack([part.sums[name] for part in parts]).sum(dim=0) for name in parts[0].sums}
    rows = {name: torch.cat([part.rows[name] for part in parts]) for name in parts[0].rows}
    return Statistics(sums, rows)


def make_optimiser(phase: Phase, leaves: dict[str, Tensor], slots: Tensors) -> torch.optim.Optimizer:
    """The optimiser of a phase over named parameters, continuing from saved slots (``<parameter>/<slot>``)."""
    values = list(leaves.values())
    optimiser: torch.optim.Optimizer
    if phase.optimiser == "sgd":
        optimiser = torch.optim.SGD(values, phase.lr, phase.momentum, weight_decay=phase.weight_decay, fused=True)
        # Zeros are where momentum starts anyway; the fused step wants all buffers or none.
        for leaf in values if phase.momentum else []:
            optimiser.state[leaf]["momentum_buffer"] = torch.zeros_like(leaf)
    else:
        optimiser = torch.optim.Adam(values, phase.lr, weight_decay=phase.weight_decay, fused=True)
    for slot, tensor in slots.items():
        name, _, kind = slot.rpartition("/")
        if name in leaves:
            optimiser.state[leaves[name]][kind] = tensor.clone()
    return optimiser


def optimiser_slots(optimiser: torch.optim.Optimizer, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """An optimiser's tensors by ``<parameter>/<slot>``."""
    return {
        f"{name}/{kind}": tensor
        for name, leaf in leaves.items()
        for kind, tensor in optimiser.state[leaf].items()
        if isinstance(tensor, Tensor)
    }
