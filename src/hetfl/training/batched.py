"""Clients of one architecture as one program: their parameters stacked, one step for all."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from hetfl.captured import Captured
from hetfl.data.batches import Batch, DeviceImages
from hetfl.draws import Draws
from hetfl.message import Tensors
from hetfl.methods.base import Method, Phase, Statistics
from hetfl.models.attention import MergedAttention
from hetfl.models.base import Model
from hetfl.optimisers import Optimiser
from hetfl.torch_private import copy_to_all
from hetfl.training.memory import SHARE, client_bytes, free_bytes, resident_bytes
from hetfl.training.sequential import (
    LastOutput,
    Sequential,
    Stay,
    Update,
    Visit,
    make_optimiser,
    next_slots,
    order_of,
    pass_over,
    used_samples,
)

log = logging.getLogger(__name__)

DRAWN, MASK = "drawn/", "mask/"
"""Start the names of what a method and a model drew for a batch."""
_NO_STEP = object()


class Batched(Sequential):
    """Trains clients with the same architecture together, where the method can be mapped over clients.

    Everything else, and what a client sends afterwards, is the reference engine's.

    Attributes:
        predicted_memory: bytes of the largest phase so far: resident weights and images, and training by its shapes.
    """

    name = "batched"
    predicted_memory = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._programs: dict[tuple[Model, int], Program] = {}
        self._most: dict[tuple[Model, int], int] = {}
        self._streams: dict[Model, torch.cuda.Stream] = {}
        self._needs: dict[tuple[Any, ...], int] = {}

    def _work(
        self, visits: Sequence[Visit], draws: Draws, phases: Sequence[Phase], closing: bool = False
    ) -> Iterator[Update]:
        if not phases or not self.method.vmappable:
            yield from super()._work(visits, draws, phases, closing)
            return
        stays = [self._arrive(visit, draws) for visit in visits]
        for number, phase in enumerate(phases):
            started = time.perf_counter()
            trainings: dict[Model, Iterator[None]] = {}
            for alike, room in self._rooms(_alike(stays, phase), phase, number, draws):
                model = alike[0].client.model
                steps = self._train_alike(alike, room, phase, number, draws)
                trainings[model] = chain(trainings.get(model, ()), steps)
            self._take_turns(trainings)
            for stay in stays:
                stay.seconds += (time.perf_counter() - started) / len(stays)
        for stay in stays:
            yield self._leave(stay, draws, closing)

    @cached_property
    def _resident(self) -> int:
        return resident_bytes(self.federation)

    def _take_turns(self, trainings: Mapping[Model, Iterator[None]]) -> None:
        """Go through the trainings of several architectures step by step, each on a CUDA stream of its own.

        Their kernels can run beside each other only while all of them wait in the device's queues, which one
        architecture's steps alone would fill.
        """
        device = self.federation.device
        streams: dict[Model, torch.cuda.Stream] = {}
        if device.type == "cuda":
            for model in trainings:
                streams[model] = self._streams.setdefault(model, torch.cuda.Stream(device))
                streams[model].wait_stream(torch.cuda.current_stream(device))
        going = dict(trainings)
        while going:
            for model, steps in tuple(going.items()):
                with torch.cuda.stream(streams.get(model)):
                    if next(steps, _NO_STEP) is _NO_STEP:
                        del going[model]
        if streams:
            torch.cuda.synchronize(device)

    def _rooms(
        self, groups: Sequence[list[Stay]], phase: Phase, number: int, draws: Draws
    ) -> list[tuple[list[Stay], int]]:
        """How many clients of each group memory has room for at once, by the shapes of one of them.

        The groups share it, since on CUDA they run at the same time.
        """
        needs = []
        for group in groups:
            first = group[0]
            key = first.client.model, number, tuple(first.received)
            if key not in self._needs:
                images, _ = self._data(first.data, phase, draws)
                self._needs[key] = client_bytes(self.method, first, phase, images)
            needs.append(self._needs[key])
        free = free_bytes(self.federation.device)
        wanted = sum(need * len(group) for need, group in zip(needs, groups, strict=True))
        share = 1.0 if free is None else min(1.0, SHARE * free / max(wanted, 1))
        rooms = [max(1, int(share * len(group))) for group in groups]
        together = sum(need * room for need, room in zip(needs, rooms, strict=True))
        self.predicted_memory = max(self.predicted_memory, self._resident + together)
        return list(zip(groups, rooms, strict=True))

    def _train_alike(
        self, stays: Sequence[Stay], room: int, phase: Phase, number: int, draws: Draws
    ) -> Iterator[None]:
        """Train clients that fit into one program, at most ``room`` at once, and fewer if memory does not suffice.

        Yields:
            After every step.
        """
        key = stays[0].client.model, number
        done = 0
        while done < len(stays):
            size = min(room, self._most.get(key, room))
            # Chunks of about one size.
            size = -(-(len(stays) - done) // -(-(len(stays) - done) // size))
            try:
                yield from self._train_together(stays[done : done + size], phase, number, draws)
                done += size
                continue
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if size == 1 or not _out_of_memory(error):
                    raise
            # Outside the handler, which keeps the tensors of what failed alive.
            self._programs.pop(key, None)
            self._most[key] = size // 2
            if self.federation.device.type == "cuda":
                torch.cuda.empty_cache()
            log.warning("out of memory with %d clients of %s at once; going on with %d", size, key[0].name, size // 2)

    def _train_together(self, stays: Sequence[Stay], phase: Phase, number: int, draws: Draws) -> Iterator[None]:
        """Train clients at once, step by step; they are changed only after all of it worked."""
        lanes = [self._lane(stay, phase, number, draws) for stay in stays]
        for lane in lanes:
            if not lane.steps:
                pass_over(lane.stay, phase)
        lanes = sorted((lane for lane in lanes if lane.steps), key=lambda lane: -lane.steps)
        if not lanes:
            return
        ordered = [lane.stay for lane in lanes]
        images, _ = self._data(ordered[0].data, phase, draws)
        gathers = phase.gathers and self.method.statistics_source(draws.round) == "training"
        key = ordered[0].client.model, number
        program = self._programs.get(key)
        if program is None or not program.takes(ordered, phase, images, gathers):
            self._programs.pop(key, None)
            program = self._programs[key] = Program(self.method, ordered, phase, images, gathers)
        program.load(ordered)
        feed = Feed(self.method, lanes, phase, images, number, draws)
        for step in range(lanes[0].steps):
            for first, last in feed.segments(step):
                program.step(first, last, step, feed.given(step, first, last))
            yield
        program.unload(lanes)

    def _lane(self, stay: Stay, phase: Phase, number: int, draws: Draws) -> Lane:
        _, index = self._data(stay.data, phase, draws)
        used = used_samples(len(index), phase, bool(stay.client.model.names(["buffers"])))
        steps = -(-used // phase.batch_size)
        orders = (
            order_of(len(index), phase, draws, stay.client.index, number, epoch)[:used]
            for epoch in range(phase.epochs)
        )
        padding = steps * phase.batch_size - used
        rows = [torch.nn.functional.pad(order, (0, padding)).view(steps, phase.batch_size) for order in orders]
        return Lane(stay, index, used, steps * len(rows), torch.cat(rows) if rows else torch.empty(0, 0).long())


@dataclass(frozen=True)
class Lane:
    """One client's way through a phase.

    Attributes:
        index: see :class:`ClientData`.
        used: samples of an epoch.
        steps: of all epochs.
        rows: [steps, B], int64, the places in ``index`` of every batch; zeros where a batch is smaller.
    """

    stay: Stay
    index: Tensor
    used: int
    steps: int
    rows: Tensor


class Feed:
    """The batches of some clients, step by step.

    Args:
        lanes: by number of steps, the longest first.
        images: that all of them read.
    """

    def __init__(
        self, method: Method, lanes: Sequence[Lane], phase: Phase, images: DeviceImages, number: int, draws: Draws
    ) -> None:
        self.method, self.lanes, self.phase, self.images = method, lanes, phase, images
        self._model, size = lanes[0].stay.client.model, phase.batch_size
        shape = (lanes[0].steps, len(lanes), size)
        rows = torch.zeros(shape, dtype=torch.int64)
        for place, lane in enumerate(lanes):
            rows[: lane.steps, place] = lane.rows
        self._rows = rows.to(images.device)
        self._index = torch.zeros_like(self._rows)
        for place, lane in enumerate(lanes):
            self._index[:, place] = lane.index[self._rows[:, place]]
        self._epoch = [-(-lane.used // size) for lane in lanes]
        # Samples of a client's batch; after its last step none.
        self._counts = [[self._count(place, step) for place in range(len(lanes))] for step in range(lanes[0].steps)]
        last = [
            [
                count if step >= lane.steps - epoch else 0
                for count, lane, epoch in zip(counts, lanes, self._epoch, strict=True)
            ]
            for step, counts in enumerate(self._counts)
        ]
        self._share = torch.tensor(last, dtype=images.dtype).to(images.device)
        real = torch.arange(size) < torch.tensor(self._counts, dtype=torch.int64).view(*shape[:2], 1)
        self._weight = real.to(images.device, images.dtype)
        self._keys = [
            [
                [draws.key(use, lane.stay.client.index, number, epoch) for epoch in range(phase.epochs)]
                for use in ("augment", "objective")
            ]
            for lane in lanes
        ]
        self._augmented: dict[int, Iterator[Batch]] = {}

    def _count(self, place: int, step: int) -> int:
        lane, epoch, size = self.lanes[place], self._epoch[place], self.phase.batch_size
        if step >= lane.steps:
            return 0
        return size if (step + 1) % epoch or lane.used % size == 0 else lane.used % size

    def segments(self, step: int) -> Iterator[tuple[int, int]]:
        """Neighbouring clients [first, last) that take a step together.

        Smaller batches are padded, but where samples see each other only batches of one size go together.
        """
        counts = [count for count in self._counts[step] if count]
        if not self._model.mixes_samples:
            yield 0, len(counts)
            return
        first = 0
        for _, alike in groupby(counts):
            last = first + len(list(alike))
            yield first, last
            first = last

    def given(self, step: int, first: int, last: int) -> dict[str, Tensor]:
        """What the clients [first, last) train on in a step, stacked [last - first, B, ...]."""
        counts = self._counts[step][first:last]
        size = max(counts)
        given = {"share": self._share[step, first:last]}
        index = self._index[step, first:last, :size]
        if self.lanes[0].stay.data.augment is None:
            given["index"] = index
        else:
            batches = [self._augmented_batch(place, step) for place in range(first, last)]
            given["images"] = torch.stack([_padded(batch.images, size) for batch in batches])
            given["labels"] = self.images.labels[index]
            if self.images.queries is not None:
                given["queries"] = self.images.queries[index]
        if min(counts) < size:
            given["weight"] = self._weight[step, first:last, :size]
        if self.phase.data == "alignment":
            given["rows"] = self._rows[step, first:last, :size]
        drawn = [self._drawn(place, step) for place in range(first, last)]
        for name in drawn[0]:
            given[name] = torch.stack([_padded(one[name], size) for one in drawn])
        return given

    def _drawn(self, place: int, step: int) -> dict[str, Tensor]:
        epoch, within = divmod(step, self._epoch[place])
        seed, size = self._keys[place][1][epoch] + within, self._counts[step][place]
        drawn = self.method.drawn(self.lanes[place].stay.received, size, seed)
        return {
            **{DRAWN + name: tensor for name, tensor in drawn.items()},
            **{MASK + name: tensor for name, tensor in self._model.masks(seed, size).items()},
        }

    def _augmented_batch(self, place: int, step: int) -> Batch:
        """The client's next batch; an epoch's augmentation is drawn batch by batch."""
        lane = self.lanes[place]
        epoch, within = divmod(step, self._epoch[place])
        if not within:
            steps = lane.rows[step : step + self._epoch[place]].flatten()[: lane.used]
            index = lane.index[steps.to(lane.index.device)]
            seed = self._keys[place][0][epoch]
            self._augmented[place] = iter(
                self.images.batches(index, self.phase.batch_size, lane.stay.data.augment, seed)
            )
        return next(self._augmented[place])


class Program:
    """Some clients' parameters and optimiser, stacked, and the step that moves them.

    It is used again from round to round, so that what was recorded on CUDA stays valid.

    Args:
        stays: clients with one architecture who received the same kinds of things.
        gathers: whether statistics of the training passes are taken.
    """

    def __init__(
        self, method: Method, stays: Sequence[Stay], phase: Phase, images: DeviceImages, gathers: bool
    ) -> None:
        self.method, self.phase, self.images, self.gathers = method, phase, images, gathers
        self.model = stays[0].client.model
        self.capacity = len(stays)
        self._leaves = self.model.names(phase.trains)
        self._own = (*self._leaves, *self.model.names(["buffers"]))
        self._kinds = _kinds(stays, self._own)
        many = len(stays)

        def room(tensor: Tensor, shared: bool = False) -> Tensor:
            return torch.empty_like(tensor) if shared else tensor.new_empty(many, *tensor.shape)

        first = stays[0]
        self._params = {name: room(tensor, self._shared(name)) for name, tensor in first.params.items()}
        self._received = {name: room(tensor, self._shared(name, True)) for name, tensor in first.received.items()}
        momentum = ("momentum_buffer",) if phase.momentum else ()
        self._kept = ("exp_avg", "exp_avg_sq") if phase.optimiser == "adam" else momentum
        self._slots = {
            self._slot(name, slot): room(first.params[name]) for name in self._leaves for slot in self._kept
        }
        self._total = images.labels.new_zeros(many, dtype=images.dtype)
        self._sums: dict[str, Tensor] = {}
        self._segments: dict[tuple[Any, ...], Segment] = {}
        self._pool = torch.cuda.graph_pool_handle() if images.device.type == "cuda" else None

    def _shared(self, name: str, received: bool = False) -> bool:
        return self._kinds[received, name][-1]

    def _slot(self, name: str, kind: str) -> str:
        return f"{self.phase.name}/{name}/{kind}"

    def takes(self, stays: Sequence[Stay], phase: Phase, images: DeviceImages, gathers: bool) -> bool:
        """Whether this program can train some clients as it is."""
        alike = (phase, images, gathers) == (self.phase, self.images, self.gathers)
        return alike and len(stays) <= self.capacity and _kinds(stays, self._own) == self._kinds

    def load(self, stays: Sequence[Stay]) -> None:
        """Begin with these clients' parameters and optimisers."""
        into: list[Tensor] = []
        source: list[Tensor] = []

        def put(room: Tensor, tensors: Sequence[Tensor], shared: bool) -> None:
            into.extend([room] if shared else room[: len(tensors)].unbind())
            source.extend(tensors[:1] if shared else tensors)

        for name, room in self._params.items():
            put(room, [stay.params[name] for stay in stays], self._shared(name))
        for name, room in self._received.items():
            put(room, [stay.received[name] for stay in stays], self._shared(name, True))
        for slot, room in self._slots.items():
            room.zero_()
            for place, stay in enumerate(stays):
                if slot in stay.slots:
                    put(room[place], [stay.slots[slot]], True)
        with torch.no_grad():
            copy_to_all(into, source)
        self._total.zero_()
        for total in self._sums.values():
            total.zero_()
        # All clients have taken the same number of Adam's steps, see _alike.
        taken = stays[0].slots
        self._began = {
            name: int(taken[slot]) if (slot := self._slot(name, "step")) in taken else 0 for name in self._leaves
        }
        for segment in self._segments.values():
            segment.at = -1  # its count of Adam's steps is another client's

    def step(self, first: int, last: int, step: int, given: Tensors) -> None:
        """One step of the clients [first, last)."""
        key = (first, last, *((name, tensor.shape) for name, tensor in given.items()))
        if key not in self._segments:
            self._segments[key] = self._segment(first, last)
        segment = self._segments[key]
        if self.phase.optimiser == "adam" and segment.at != step:
            for name, leaf in segment.leaves.items():
                segment.optimiser.state[leaf]["step"].fill_(self._began[name] + step)
        segment.run(given)
        segment.at = step + 1

    def _segment(self, first: int, last: int) -> Segment:
        leaves = {name: self._params[name][first:last].detach().requires_grad_() for name in self._leaves}
        optimiser = make_optimiser(self.phase, leaves, {})
        for name, leaf in leaves.items():
            state = optimiser.state[leaf]
            for slot in self._kept:
                state[slot] = self._slots[self._slot(name, slot)][first:last]
            if self.phase.optimiser == "adam":
                state["step"] = torch.zeros((), dtype=torch.float32, device=leaf.device)
        segment = Segment(first, last, leaves, optimiser)
        segment.run = Captured(lambda given: self._take(segment, given), self._pool)
        return segment

    def _take(self, segment: Segment, given: Tensors) -> None:
        """Gradients of some clients at once, and their step."""
        clients = slice(segment.first, segment.last)

        def own(values: Tensors, received: bool = False) -> dict[str, Tensor]:
            return {n: t if self._shared(n, received) else t[clients] for n, t in values.items()}

        params, received = {**own(self._params), **segment.leaves}, own(self._received, True)
        batch = {name: tensor for name, tensor in given.items() if name not in ("index", "share")}
        if "index" in given:
            found = self.images.batch(given["index"].flatten())
            shape = given["index"].shape
            batch |= {"images": found.images.unflatten(0, shape), "labels": found.labels.view(shape)}
            if found.queries is not None:
                batch["queries"] = found.queries.unflatten(0, shape)
        places = (
            {name: None if self._shared(name) else 0 for name in params},
            {name: None if self._shared(name, True) else 0 for name in received},
            dict.fromkeys(batch, 0),
        )
        with MergedAttention():
            losses, sums = vmap(self._objective, places)(params, received, batch)
        gradients = torch.autograd.grad(losses.sum(), list(segment.leaves.values()), allow_unused=True)
        for leaf, gradient in zip(segment.leaves.values(), gradients, strict=True):
            leaf.grad = gradient
        if self.phase.clip:
            for groups in self.phase.clipped:
                _clip([segment.leaves[name].grad for name in self.model.names(groups)], self.phase.clip)
        segment.optimiser.step()
        self._total[clients] += losses.detach() * given["share"]
        for name, values in sums.items():
            if name not in self._sums:
                self._sums[name] = values.new_zeros(self.capacity, *values.shape[1:])
            self._sums[name][clients] += values

    def _objective(self, params: Tensors, received: Tensors, batch: Tensors) -> tuple[Tensor, Tensors]:
        """One client's loss, and what its statistics add up."""

        def drawn(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): t for name, t in batch.items() if name.startswith(prefix)}

        images, labels, weight, rows = (batch.get(name) for name in ("images", "labels", "weight", "rows"))
        assert images is not None and labels is not None
        one = Batch(images, labels, weight, rows, queries=batch.get("queries"), drawn=drawn(DRAWN))
        model: Any = LastOutput(self.model.train(drawn(MASK)))
        loss = self.method.objective(model, params, one, received, self.phase)
        if not self.gathers:
            return loss, {}
        with torch.no_grad():
            return loss, dict(self.method.statistics(model, params, one, received).sums)

    def unload(self, lanes: Sequence[Lane]) -> None:
        """Give the clients what became of them."""
        into: list[Tensor] = []
        source: list[Tensor] = []

        def copy(room: Tensor) -> Tensor:
            into.append(torch.empty_like(room))
            source.append(room)
            return into[-1]

        for place, lane in enumerate(lanes):
            stay = lane.stay
            stay.params = {**stay.params, **{name: copy(self._params[name][place]) for name in self._own}}
            own: dict[str, Tensor] = {}
            for name in self._leaves if self.phase.keep_optimiser else ():
                if self.phase.optimiser == "adam":
                    steps = self._began[name] + lane.steps
                    own[self._slot(name, "step")] = self._total.new_tensor(steps, dtype=torch.float32)
                for kind in self._kept:
                    slot = self._slot(name, kind)
                    own[slot] = copy(self._slots[slot][place])
            stay.slots = next_slots(stay.slots, self.phase, own)
            stay.loss = self._total[place] / lane.used
            stay.steps += lane.steps
            if self._sums:
                stay.gathered.append(Statistics({name: copy(total[place]) for name, total in self._sums.items()}))
        copy_to_all(into, source)


@dataclass
class Segment:
    """Neighbouring clients of a program that take steps together.

    Attributes:
        leaves: their part of the stacked parameters that train.
        run: takes a step.
        at: the step that would be their next one in a row.
    """

    first: int
    last: int
    leaves: dict[str, Tensor]
    optimiser: Optimiser
    run: Any = None
    at: int = -1


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _alike(stays: Sequence[Stay], phase: Phase) -> list[list[Stay]]:
    """Clients that one program can train: with one architecture, and with the same kinds of things at hand."""
    groups: dict[tuple[Any, ...], list[Stay]] = {}
    for stay in stays:
        received = tuple((name, tensor.shape, tensor.dtype) for name, tensor in stay.received.items())
        own = sorted(slot for slot in stay.slots if slot.startswith(f"{phase.name}/") and slot.endswith("/step"))
        steps = tuple((slot, float(stay.slots[slot])) for slot in own)
        groups.setdefault((stay.client.model, received, steps), []).append(stay)
    return list(groups.values())


def _kinds(stays: Sequence[Stay], own: Sequence[str]) -> dict[tuple[bool, str], tuple[Any, ...]]:
    """Shape, type and whether all clients have the very same values, of parameters (False) and received (True)."""
    kinds: dict[tuple[bool, str], tuple[Any, ...]] = {}
    for received, of in ((False, lambda stay: stay.params), (True, lambda stay: stay.received)):
        for name, tensor in of(stays[0]).items():
            shared = len({of(stay)[name].data_ptr() for stay in stays}) == 1
            kinds[received, name] = tensor.shape, tensor.dtype, shared and (received or name not in own)
    return kinds


def _padded(values: Tensor, size: int) -> Tensor:
    """``values`` [B, ...] with zeros up to ``size``."""
    if len(values) == size:
        return values
    return torch.cat([values, values.new_zeros(size - len(values), *values.shape[1:])])


def _clip(gradients: Sequence[Tensor | None], largest: float) -> None:
    """Scale each client's gradients [K, ...] down to a norm of ``largest`` over all of them."""
    there = [gradient for gradient in gradients if gradient is not None]
    norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in there]).norm(dim=0)
    scale = (largest / (norms + 1e-6)).clamp(max=1)
    for gradient in there:
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
