"""The reference engine: one client after another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hetfl.data.batches import DeviceImages
from hetfl.draws import Draws
from hetfl.message import Message, Tensors
from hetfl.methods.base import Client, Method, Phase, Statistics, Work, predicted_classes
from hetfl.models.base import Model, Output
from hetfl.optimisers import SGD, Adam, Optimiser, clip_gradients
from hetfl.training.federation import ClientData, Federation
from hetfl.training.state import ClientState


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


@dataclass
class Stay:
    """A client at work in a round.

    Attributes:
        received: what it knows, from :meth:`Method.receive`.
        before: its parameters when local training began; ``params``: now.
        slots: its optimisers' tensors by ``<optimiser>/<parameter>/<slot>``; see :attr:`Phase.name`.
        loss: see :class:`Update`.
        steps: optimiser steps it took.
        gathered: statistics of its training passes.
        seconds: of its training.
    """

    client: Client
    data: ClientData
    received: Tensors
    before: dict[str, Tensor]
    params: dict[str, Tensor]
    slots: dict[str, Tensor]
    loss: Tensor
    steps: int = 0
    gathered: list[Statistics] = field(default_factory=list)
    seconds: float = 0.0


class Sequential:
    """Runs clients one at a time; smallest, and what the other engines are compared with."""

    name = "sequential"

    def __init__(self, method: Method, federation: Federation) -> None:
        self.method, self.federation = method, federation
        self._of_stored_size: dict[DeviceImages, DeviceImages] = {}

    def introduce(self, draws: Draws) -> Iterator[Update]:
        """Round 0: what every client does before it meets the server, and its registration as uplink."""
        phases = linked(self.method.phases(0))
        if phases or self.method.statistics_source(0) != "none":
            first = (ClientState(self._initial(client.index, draws)) for client in self.members)
            visits = [Visit(c.index, own, Message()) for c, own in zip(self.members, first, strict=True)]
            yield from self._work(visits, draws.at(0), phases)
            return
        nothing = torch.zeros((), device=self.federation.device)
        for client in self.members:
            work = Work(client, draws.at(0), {}, {}, {}, Statistics(), 0)
            yield Update(client.index, ClientState(), self.method.register(work), nothing, {}, {})

    @property
    def members(self) -> Sequence[Client]:
        """The clients that may take part: all but those held out."""
        clients = self.federation.clients
        return clients[: len(clients) - self.method.settings.held_out]

    def train(self, visits: Sequence[Visit], draws: Draws) -> Iterator[Update]:
        """Local training and uplink of some clients, in any order; no result depends on it."""
        yield from self._work(visits, draws, linked(self.method.phases(draws.round)))

    def close(self, visits: Sequence[Visit], draws: Draws) -> Iterator[Update]:
        """Local training after the last round; the states hold all parameters, nothing is sent."""
        yield from self._work(visits, draws, linked(self.method.fine_tuning()), closing=True)

    @torch.inference_mode()
    def predict(
        self, client: int, params: Tensors, received: Tensors, images: DeviceImages, index: Tensor, method: Method
    ) -> Tensor:
        """The classes [n] int64 that a client predicts by a method's inference rule, for the images at ``index`` [n].

        Those from the data set's number of classes on are none of them, nor is :data:`NONE`, which stands for scores
        that are not finite.
        """
        model = self.federation.clients[client].model
        parts = [
            predicted_classes(method.predict(model, params, batch, received))
            for batch in images.batches(index, images.large_batch(model.largest_map))
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

    def _work(
        self, visits: Sequence[Visit], draws: Draws, phases: Sequence[Phase], closing: bool = False
    ) -> Iterator[Update]:
        """Some clients' local training in these phases, and what comes of it."""
        for visit in visits:
            stay = self._arrive(visit, draws)
            started = time.perf_counter()
            for number, phase in enumerate(phases):
                self._train(stay, phase, number, draws)
            stay.seconds = time.perf_counter() - started
            yield self._leave(stay, draws, closing)

    def _arrive(self, visit: Visit, draws: Draws) -> Stay:
        """A client that has taken over what it received."""
        client, data = self.federation.clients[visit.client], self.federation.data[visit.client]
        received = self.method.receive(visit.downlink, visit.state.memory)
        kept = visit.state.params or self.initial_params(visit.client, draws)
        params = self.method.adopt(kept, received)
        slots = dict(visit.state.optimiser)
        if self.method.resets_momentum:
            slots = {slot: t for slot, t in slots.items() if params[name := slot.split("/")[1]] is kept.get(name)}
        return Stay(client, data, received, params, params, slots, torch.zeros((), device=self.federation.device))

    def _leave(self, stay: Stay, draws: Draws, closing: bool) -> Update:
        """What a client sends and remembers after its training."""
        began, client, method = time.perf_counter(), stay.client, self.method
        if closing:
            seconds = {"train": stay.seconds, "statistics": 0.0}
            return Update(client.index, ClientState(stay.params), Message(), stay.loss, seconds, {})
        statistics = merge(stay.gathered) if stay.gathered else self._sweep(stay, draws)
        work = Work(client, draws, stay.received, stay.before, stay.params, statistics, stay.steps)
        uplink = method.uplink(work) if draws.round else method.register(work)
        keeps = self._kept(client)
        state = ClientState(
            {name: tensor for name, tensor in stay.params.items() if name in keeps},
            stay.slots,
            dict(method.remember(work)),
        )
        seconds = {"train": stay.seconds, "statistics": time.perf_counter() - began}
        return Update(client.index, state, uplink, stay.loss, seconds, method.observe(work))

    def _train(self, stay: Stay, phase: Phase, number: int, draws: Draws) -> None:
        """Train a client in a phase; ``number`` is the phase's index within the round."""
        client, data = stay.client, stay.data
        names = client.model.names(phase.trains)
        leaves = {name: stay.params[name].clone().requires_grad_() for name in names}
        buffers = {name: stay.params[name].clone() for name in client.model.names(["buffers"])}
        params = {**stay.params, **leaves, **buffers}
        optimiser = make_optimiser(phase, leaves, stay.slots)
        images, index = self._data(data, phase, draws)
        used = used_samples(len(index), phase, bool(buffers))
        if not used or not phase.epochs:
            pass_over(stay, phase)
            return
        clipped = [[leaves[name] for name in client.model.names(groups)] for groups in phase.clipped]
        gathers = phase.gathers and self.method.statistics_source(draws.round) == "training"
        total = torch.zeros((), device=self.federation.device)
        for epoch in range(phase.epochs):
            total.zero_()
            rows = order_of(len(index), phase, draws, client.index, number, epoch)[:used].to(index.device)
            augment, seed = (draws.key(use, client.index, number, epoch) for use in ("augment", "objective"))
            batches = images.batches(index[rows], phase.batch_size, data.augment, augment)
            for step, (batch, part) in enumerate(zip(batches, rows.split(phase.batch_size), strict=True), start=seed):
                drawn = self.method.drawn(stay.received, len(part), step)
                batch = batch.of_step(step, drawn, part if phase.data == "alignment" else None)
                model: Any = LastOutput(client.model.train(client.model.masks(step, len(part))))
                loss = self.method.objective(model, params, batch, stay.received, phase)
                if gathers:
                    with torch.no_grad():
                        stay.gathered.append(self.method.statistics(model, params, batch, stay.received))
                optimiser.zero_grad()
                loss.backward()
                if phase.clip:
                    for values in clipped:
                        clip_gradients(values, phase.clip)
                optimiser.step()
                total.add_(loss.detach(), alpha=len(part))
        stay.params = {**params, **{name: leaf.detach() for name, leaf in leaves.items()}}
        stay.slots = next_slots(stay.slots, phase, optimiser_slots(phase, optimiser, leaves))
        stay.loss = total / used
        stay.steps += phase.epochs * -(-used // phase.batch_size)

    @torch.no_grad()
    def _sweep(self, stay: Stay, draws: Draws) -> Statistics:
        kind, data, model = self.method.statistics_source(draws.round), stay.data, stay.client.model
        if kind in ("own", "before", "stored"):
            params = stay.before if kind == "before" else stay.params
            source = self._stored(data.train_images) if kind == "stored" else data.train_images
            size = source.large_batch(0 if kind == "stored" else model.largest_map)
            batches = iter(source.batches(data.train, size))
        elif kind == "alignment":
            params = stay.params
            index = self._alignment(data, draws.at(draws.round + 1))
            images = data.public_images
            assert images is not None
            size = images.large_batch(model.largest_map)
            rows = torch.arange(len(index), device=index.device).split(size)
            parts = zip(images.batches(index, size), rows, strict=True)
            batches = (replace(batch, rows=part) for batch, part in parts)
        elif kind == "training":
            # It took no step: statistics of no samples, from which a method makes a message without rows.
            params, batches = stay.params, iter([data.train_images.batch(data.train[:0])])
        else:
            return Statistics()
        return merge([self.method.statistics(model, params, batch, stay.received) for batch in batches])

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
        return self.method.alignment(data.public_images.labels.cpu(), draws).to(self.federation.device)


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


def order_of(samples: int, phase: Phase, draws: Draws, client: int, number: int, epoch: int) -> Tensor:
    """The order [n] in which an epoch goes through a client's samples, on the CPU."""
    if not phase.shuffle:
        return torch.arange(samples)
    return torch.randperm(samples, generator=draws.generator("batches", client, number, epoch))


def used_samples(samples: int, phase: Phase, mixes: bool) -> int:
    """How many samples an epoch uses; ``mixes`` says whether a batch has statistics, which one sample has none of."""
    short = samples % phase.batch_size
    return samples - short if phase.drop_last or (short == 1 and mixes) else samples


def merge(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of a whole sweep from those of its batches."""
    sums = {name: torch.stack([part.sums[name] for part in parts]).sum(dim=0) for name in parts[0].sums}
    rows = {name: torch.cat([part.rows[name] for part in parts]) for name in parts[0].rows}
    return Statistics(sums, rows)


def pass_over(stay: Stay, phase: Phase) -> None:
    """A phase in which a client takes no step."""
    stay.slots, stay.loss = next_slots(stay.slots, phase, {}), torch.zeros_like(stay.loss)


def linked(phases: Sequence[Phase]) -> list[Phase]:
    """The phases of a round, each of which keeps its optimiser if a later one goes on with it."""
    later = [{phase.name for phase in phases[number + 1 :]} for number in range(len(phases))]
    return [
        replace(phase, keep_optimiser=phase.keep_optimiser or phase.name in names)
        for phase, names in zip(phases, later, strict=True)
    ]


def next_slots(slots: Tensors, phase: Phase, own: Tensors) -> dict[str, Tensor]:
    """A client's slots after a phase that ended with its ``own``."""
    if phase.keep_optimiser:
        return {**slots, **own}
    return {slot: tensor for slot, tensor in slots.items() if not slot.startswith(f"{phase.name}/")}


def make_optimiser(phase: Phase, leaves: dict[str, Tensor], slots: Tensors) -> Optimiser:
    """The optimiser of a phase over named parameters, continuing from saved slots; see :attr:`Stay.slots`."""
    values = list(leaves.values())
    optimiser: Optimiser
    if phase.optimiser == "sgd":
        optimiser = SGD(values, phase.lr, phase.momentum, phase.weight_decay)
    else:
        optimiser = Adam(values, phase.lr, phase.weight_decay)
    for slot, tensor in slots.items():
        of, name, kind = slot.split("/")
        if of == phase.name and name in leaves:
            optimiser.state[leaves[name]][kind] = tensor.clone()
    return optimiser


def optimiser_slots(phase: Phase, optimiser: Optimiser, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a phase's optimiser by ``<optimiser>/<parameter>/<slot>``."""
    return {
        f"{phase.name}/{name}/{kind}": tensor
        for name, leaf in leaves.items()
        for kind, tensor in optimiser.state[leaf].items()
    }
