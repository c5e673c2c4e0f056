"""The reference engine: one client after another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hetfl.data.batches import DeviceImages
from hetfl.draws import Draws
from hetfl.federation.federation import ClientData, Federation
from hetfl.federation.state import ClientState
from hetfl.message import Message, Tensors
from hetfl.methods.base import Client, Method, Phase, Statistics, Work
from hetfl.models.base import Model, Output
from hetfl.optimisers import SGD, Adam, Optimiser

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
        observed: figures for the record.
    """

    client: int
    state: ClientState
    uplink: Message
    loss: Tensor
    seconds: dict[str, float]
    observed: dict[str, Any]


class Sequential:
    """Runs clients one at a time; smallest, and what the other engines are compared with."""

    name = "sequential"

    def __init__(self, method: Method, federation: Federation) -> None:
        self.method, self.federation = method, federation
        self._of_stored_size: dict[DeviceImages, DeviceImages] = {}

    def introduce(self, draws: Draws) -> Iterator[Update]:
        """Round 0: what every client does before it meets the server, and its registration as uplink."""
        for client in self.members:
            if self.method.phases(0) or self.method.sweep(0) != "none":
                visit = Visit(client.index, ClientState(self._initial(client.index, draws)), Message())
                yield self._visit(visit, draws.at(0), self.method.phases(0))
            else:
                work = Work(client, 0, {}, {}, {}, Statistics(), 0)
                nothing = torch.zeros((), device=self.federation.device)
                yield Update(client.index, ClientState(), self.method.register(work), nothing, {}, {})

    @property
    def members(self) -> Sequence[Client]:
        """The clients that may take part: all but those held out."""
        clients = self.federation.clients
        return clients[: len(clients) - self.method.settings.held_out]

    def train(self, visits: Sequence[Visit], draws: Draws) -> Iterator[Update]:
        """Local training and uplink of some clients, in the order given; no result depends on that order."""
        for visit in visits:
            yield self._visit(visit, draws, self.method.phases(draws.round))

    def close(self, visits: Sequence[Visit], draws: Draws) -> Iterator[Update]:
        """Local training after the last round; the states hold all parameters, nothing is sent."""
        for visit in visits:
            yield self._visit(visit, draws, self.method.closing(), closing=True)

    @torch.inference_mode()
    def predict(
        self, client: int, params: Tensors, received: Tensors, images: DeviceImages, index: Tensor, method: Method
    ) -> Tensor:
        """The classes [n] int64 that a client predicts by a method's inference rule, for the images at ``index`` [n].

        Those from the data set's number of classes on are none of them.
        """
        model = self.federation.clients[client].model
        parts = [
            method.predict(model, params, batch, received).argmax(dim=1)
            for batch in images.batches(index, EVALUATION_BATCH)
        ]
        return torch.cat(parts) if parts else index.new_empty(0)

    def initial_params(self, client: int, draws: Draws) -> dict[str, Tensor]:
        """The parameters a client brings to its first round, without those that come with the downlink."""
        kept = self._kept(self.federation.clients[client])
        return {n: t for n, t in self._initial(client, draws).items() if n in kept} if kept else {}

    def _initial(self, client: int, draws: Draws) -> dict[str, Tensor]:
        return self.method.initial(self.federation.clients[client].model, draws.at(0), client)

    def _kept(self, client: Client) -> set[str]:
        # Running statistics of batch normalisation stay with their client in every method.
        return set(client.model.names([*self.method.keeps(), "buffers"]))

    def _visit(self, visit: Visit, draws: Draws, phases: Sequence[Phase], closing: bool = False) -> Update:
        client, data, method = self.federation.clients[visit.client], self.federation.data[visit.client], self.method
        received = method.receive(visit.downlink, visit.state.memory)
        kept = visit.state.params or self.initial_params(visit.client, draws)
        before = params = method.adopt(kept, received)
        # Momentum belongs to the values it was gathered on: what was overwritten starts without.
        optimiser = {
            slot: tensor
            for slot, tensor in visit.state.optimiser.items()
            if params[name := slot.rpartition("/")[0]] is kept.get(name)
        }
        started = time.perf_counter()
        loss, steps = torch.zeros((), device=self.federation.device), 0
        gathered: list[Statistics] = []
        for number, phase in enumerate(phases):
            params, optimiser, loss, taken = self._train(
                client, data, params, optimiser, received, phase, number, draws, gathered
            )
            steps += taken
        trained = time.perf_counter()
        if closing:
            seconds = {"train": trained - started, "statistics": 0.0}
            return Update(visit.client, ClientState(params), Message(), loss, seconds, {})
        statistics = merge(gathered) if gathered else self._sweep(client, data, before, params, received, draws)
        work = Work(client, draws.round, received, before, params, statistics, steps)
        uplink = method.uplink(work) if draws.round else method.register(work)
        keeps = self._kept(client)
        state = ClientState(
            {name: tensor for name, tensor in params.items() if name in keeps}, optimiser, dict(method.remember(work))
        )
        seconds = {"train": trained - started, "statistics": time.perf_counter() - trained}
        return Update(visit.client, state, uplink, loss, seconds, method.observe(work))

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
        gathered: list[Statistics],
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor, int]:
        names = client.model.names(phase.trains)
        leaves = {name: params[name].clone().requires_grad_() for name in names}
        buffers = {name: params[name].clone() for name in client.model.names(["buffers"])}
        params = {**params, **leaves, **buffers}
        optimiser = make_optimiser(phase, leaves, slots)
        images, index = self._data(data, phase, draws)
        size = phase.batch_size
        # One sample alone has no batch statistics.
        short = len(index) % size
        used = len(index) - short if phase.drop_last or (short == 1 and buffers) else len(index)
        clipped = [[leaves[name] for name in client.model.names(groups)] for groups in phase.clipped]
        gathers = phase.gathers and self.method.sweep(draws.round) == "training"
        total = torch.zeros((), device=self.federation.device)
        for epoch in range(phase.epochs if used else 0):
            total.zero_()
            order = torch.arange(len(index))
            if phase.shuffle:
                order = torch.randperm(len(index), generator=draws.torch("batches", client.index, number, epoch))
            rows = order[:used].to(index.device)
            augment, seed = (draws.key(use, client.index, number, epoch) for use in ("augment", "objective"))
            batches = images.batches(index[rows], size, data.augment, augment)
            for step, (batch, part) in enumerate(zip(batches, rows.split(size), strict=True)):
                batch = replace(batch, rows=part if phase.data == "alignment" else None, seed=seed + step)
                model: Any = LastOutput(client.model.train(batch.seed))
                loss = self.method.objective(model, params, batch, received, phase)
                if gathers:
                    with torch.no_grad():
                        gathered.append(self.method.statistics(model, params, batch, received))
                optimiser.zero_grad()
                loss.backward()
                if phase.clip:
                    for values in clipped:
                        torch.nn.utils.clip_grad_norm_(values, phase.clip)
                optimiser.step()
                total += loss.detach() * len(batch.labels)
        trained = {name: leaf.detach() for name, leaf in leaves.items()}
        kept = optimiser_slots(optimiser, leaves) if phase.keep_optimiser else {}
        steps = phase.epochs * -(-used // size)
        return {**params, **trained}, kept, total / max(used, 1), steps

    @torch.no_grad()
    def _sweep(
        self,
        client: Client,
        data: ClientData,
        before: Tensors,
        params: Tensors,
        received: Tensors,
        draws: Draws,
    ) -> Statistics:
        kind = self.method.sweep(draws.round)
        if kind in ("own", "before", "stored"):
            params = before if kind == "before" else params
            source = self._stored(data.train_images) if kind == "stored" else data.train_images
            batches = iter(source.batches(data.train, EVALUATION_BATCH))
        elif kind == "alignment":
            index = self._alignment(data, draws.at(draws.round + 1))
            rows = torch.arange(len(index), device=index.device).split(EVALUATION_BATCH)
            images = data.public_images.batches(index, EVALUATION_BATCH)  # type: ignore[union-attr]
            batches = (replace(batch, rows=part) for batch, part in zip(images, rows, strict=True))
        else:
            return Statistics()
        return merge([self.method.statistics(client.model, params, batch, received) for batch in batches])

    def _data(self, data: ClientData, phase: Phase, draws: Draws) -> tuple[DeviceImages, Tensor]:
        """Images and the indices of those that a phase trains on."""
        if phase.data == "own":
            return data.train_images, data.train
        assert data.public_images is not None
        if phase.data == "public":
            return data.public_images, torch.arange(len(data.public_images), device=self.federation.device)
        return data.public_images, self._alignment(data, draws)

    def _stored(self, images: DeviceImages) -> DeviceImages:
        if images not in self._of_stored_size:
            self._of_stored_size[images] = images.stored()
        return self._of_stored_size[images]

    def _alignment(self, data: ClientData, draws: Draws) -> Tensor:
        """The public samples of a round, the same for every client."""
        assert data.public_images is not None
        order = torch.randperm(len(data.public_images), generator=draws.torch("alignment"))
        return order[: self.method.alignment()].to(self.federation.device)


class LastOutput:
    """A model that gives its last output again for the same arguments: one forward pass, two readers."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._given: tuple[Any, ...] = ()

    def __call__(self, *given: Any) -> Output:
        """Run the model, or return what it gave for these very objects."""
        if len(given) != len(self._given) or any(a is not b for a, b in zip(given, self._given, strict=True)):
            self._given, self._output = given, self._model(*given)
        return self._output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def merge(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of a whole sweep from those of its batches."""
    sums = {name: torch.stack([part.sums[name] for part in parts]).sum(dim=0) for name in parts[0].sums}
    rows = {name: torch.cat([part.rows[name] for part in parts]) for name in parts[0].rows}
    return Statistics(sums, rows)


def make_optimiser(phase: Phase, leaves: dict[str, Tensor], slots: Tensors) -> Optimiser:
    """The optimiser of a phase over named parameters, continuing from saved slots (``<parameter>/<slot>``)."""
    values = list(leaves.values())
    optimiser: Optimiser
    if phase.optimiser == "sgd":
        optimiser = SGD(values, phase.lr, phase.momentum, phase.weight_decay)
    else:
        optimiser = Adam(values, phase.lr, phase.weight_decay)
    for slot, tensor in slots.items():
        name, _, kind = slot.rpartition("/")
        if name in leaves:
            optimiser.state[leaves[name]][kind] = tensor.clone()
    return optimiser


def optimiser_slots(optimiser: Optimiser, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """An optimiser's tensors by ``<parameter>/<slot>``."""
    return {
        f"{name}/{kind}": tensor
        for name, leaf in leaves.items()
        for kind, tensor in optimiser.state[leaf].items()
        if isinstance(tensor, Tensor)
    }
