"""The training step of several clients at once: their parameters stacked, one step for all."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from hetfl.captured import Captured
from hetfl.data.batches import Batch, DeviceImages
from hetfl.message import Tensors
from hetfl.methods.base import Method, Phase, Statistics
from hetfl.models.base import products
from hetfl.models.merged import MergedCalls
from hetfl.optimisers import Optimiser
from hetfl.torch_private import copy_to_all
from hetfl.training.client_run import ClientRun, check_gradient, make_optimiser, next_slots
from hetfl.training.sequential import LastOutput
from hetfl.training.stacked_batches import DRAWN, MASK, Schedule


class Program:
    """Buffers for some clients' stacked parameters and optimisers, and the step that changes them.

    It is used again from round to round, so that what was recorded on CUDA stays valid.

    Args:
        runs: clients with one architecture who received tensors of the same names, shapes and types.
        gathers: whether statistics of the training passes are taken.
        apart: whether there is one client, computed without ``vmap``. Its weights are channels-last, in which a GPU's
            convolutions take them without a copy.

    Attributes:
        capacity: how many clients the buffers hold.
    """

    def __init__(
        self,
        method: Method,
        runs: Sequence[ClientRun],
        phase: Phase,
        images: DeviceImages,
        gathers: bool,
        apart: bool = False,
    ) -> None:
        self.method, self.phase, self.images, self.gathers = method, phase, images, gathers
        self._apart = apart
        self.model = runs[0].client.model
        self.capacity = len(runs)
        self._leaves = self.model.names(phase.trains)
        self._own = (*self._leaves, *self.model.names(["buffers"]))
        self._kinds = _kinds(runs, self._own)
        first = runs[0]

        def buffer(tensor: Tensor, shared: bool = False) -> Tensor:
            if shared:
                return torch.empty_like(tensor)
            if apart and tensor.dim() == 4:
                return channels_last(self.capacity, tensor)
            return tensor.new_empty(self.capacity, *tensor.shape)

        self._params = {name: buffer(tensor, self._shared(name)) for name, tensor in first.params.items()}
        self._received = {name: buffer(tensor, self._shared(name, True)) for name, tensor in first.received.items()}
        momentum = ("momentum_buffer",) if phase.momentum else ()
        self._kept = ("exp_avg", "exp_avg_sq") if phase.optimiser == "adam" else momentum
        self._slots = {
            self._slot(name, kind): buffer(first.params[name]) for name in self._leaves for kind in self._kept
        }
        self._total = images.labels.new_zeros(self.capacity, dtype=images.dtype)
        self._sums: dict[str, Tensor] = {}
        self._segments: dict[tuple[Any, ...], tuple[Segment, Captured]] = {}
        self._pool = torch.cuda.graph_pool_handle() if images.device.type == "cuda" else None

    @property
    def bytes(self) -> int:
        """Bytes of the buffers."""
        buffers = chain(self._params.values(), self._received.values(), self._slots.values())
        return sum(buffer.nbytes for buffer in buffers)

    def _shared(self, name: str, received: bool = False) -> bool:
        return self._kinds[received, name][-1]

    def _slot(self, name: str, kind: str) -> str:
        return f"{self.phase.name}/{name}/{kind}"

    def fits(
        self, runs: Sequence[ClientRun], phase: Phase, images: DeviceImages, gathers: bool, apart: bool = False
    ) -> bool:
        """Whether this program can train some clients as it is."""
        alike = (phase, images, gathers, apart) == (self.phase, self.images, self.gathers, self._apart)
        return alike and len(runs) <= self.capacity and _kinds(runs, self._own) == self._kinds

    def load(self, runs: Sequence[ClientRun]) -> None:
        """Begin with these clients' parameters and optimisers."""
        into: list[Tensor] = []
        source: list[Tensor] = []

        def put(buffer: Tensor, tensors: Sequence[Tensor], shared: bool) -> None:
            into.extend([buffer] if shared else buffer[: len(tensors)].unbind())
            source.extend(tensors[:1] if shared else tensors)

        for name, buffer in self._params.items():
            put(buffer, [run.params[name] for run in runs], self._shared(name))
        for name, buffer in self._received.items():
            put(buffer, [run.received[name] for run in runs], self._shared(name, True))
        for slot, buffer in self._slots.items():
            buffer.zero_()
            for place, run in enumerate(runs):
                if slot in run.slots:
                    put(buffer[place], [run.slots[slot]], True)
        with torch.no_grad():
            copy_to_all(into, source)
        self._total.zero_()
        for total in self._sums.values():
            total.zero_()
        # All clients have taken the same number of Adam's steps, see groups_of.
        slots = runs[0].slots
        self._began = {
            name: int(slots[slot]) if (slot := self._slot(name, "step")) in slots else 0 for name in self._leaves
        }
        for segment, _ in self._segments.values():
            segment.next_step = -1  # its count of Adam's steps is another client's

    def step(self, first: int, last: int, step: int, given: Tensors) -> None:
        """One step of the clients [first, last) on a batch, see :meth:`StackedBatches.batch`."""
        key = (first, last, *((name, tensor.shape) for name, tensor in given.items()))
        if key not in self._segments:
            self._segments[key] = self._segment(first, last)
        segment, run = self._segments[key]
        if self.phase.optimiser == "adam" and segment.next_step != step:
            for name, leaf in segment.leaves.items():
                segment.optimiser.state[leaf]["step"].fill_(self._began[name] + step)
        run(given)
        segment.next_step = step + 1

    def _segment(self, first: int, last: int) -> tuple[Segment, Captured]:
        clients = self._clients(first, last)
        leaves = {name: self._params[name][clients].detach().requires_grad_() for name in self._leaves}
        optimiser = make_optimiser(self.phase, leaves, {})
        for name, leaf in leaves.items():
            state = optimiser.state[leaf]
            for kind in self._kept:
                state[kind] = self._slots[self._slot(name, kind)][clients]
            if self.phase.optimiser == "adam":
                state["step"] = torch.zeros((), dtype=torch.float32, device=leaf.device)
        segment = Segment(first, last, leaves, optimiser)
        # The program is referred to weakly, so that all its memory is free as soon as another one takes its place.
        step = partial(Program._take_step, weakref.proxy(self), segment)
        return segment, Captured(step, self._pool)

    def _clients(self, first: int, last: int) -> slice | int:
        """What takes the clients [first, last) out of a buffer; of a client alone, without the axis of clients."""
        return first if self._apart else slice(first, last)

    def _take_step(self, segment: Segment, given: Tensors) -> None:
        """Gradients of some clients at once, and their step."""
        clients = self._clients(segment.first, segment.last)

        def own(values: Tensors, received: bool = False) -> dict[str, Tensor]:
            return {n: t if self._shared(n, received) else t[clients] for n, t in values.items()}

        params, received = {**own(self._params), **segment.leaves}, own(self._received, True)
        if self._apart:
            given = {name: tensor[0] for name, tensor in given.items()}
        batch = {name: tensor for name, tensor in given.items() if name not in ("index", "share")}
        if "index" in given:
            found = self.images.batch(given["index"].flatten())
            shape = given["index"].shape
            batch |= {"images": found.images.unflatten(0, shape), "labels": found.labels.view(shape)}
            if found.queries is not None:
                batch["queries"] = found.queries.unflatten(0, shape)
        with products(self.model.rounded):
            losses, sums = self._losses(params, received, batch)
            check_gradient(losses, self.method, self.phase)
            gradients = torch.autograd.grad(losses.sum(), list(segment.leaves.values()), allow_unused=True)
        for leaf, gradient in zip(segment.leaves.values(), gradients, strict=True):
            leaf.grad = gradient
        if self.phase.clip:
            for groups in self.phase.clipped:
                parts = [segment.leaves[name].grad for name in self.model.names(groups)]
                _clip([part[None] if self._apart else part for part in parts if part is not None], self.phase.clip)
        segment.optimiser.step()
        for leaf in segment.leaves.values():
            leaf.grad = None  # each segment would keep its own, in a recording for good
        self._total[clients] += losses.detach() * given["share"]
        for name, values in sums.items():
            if name not in self._sums:
                self._sums[name] = values.new_zeros(self.capacity, *values.shape[0 if self._apart else 1 :])
            self._sums[name][clients] += values

    def _losses(self, params: Tensors, received: Tensors, batch: Tensors) -> tuple[Tensor, Tensors]:
        """Each client's loss, and what its batch adds to its statistics."""
        if self._apart:
            return self._objective(params, received, batch)
        client_axes = (
            {name: None if self._shared(name) else 0 for name in params},
            {name: None if self._shared(name, True) else 0 for name in received},
            dict.fromkeys(batch, 0),
        )
        with MergedCalls():
            found: tuple[Tensor, Tensors] = vmap(self._objective, client_axes)(params, received, batch)
        return found

    def _objective(self, params: Tensors, received: Tensors, batch: Tensors) -> tuple[Tensor, Tensors]:
        """One client's loss, and what its batch adds to its statistics."""

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

    def unload(self, schedules: Sequence[Schedule]) -> None:
        """Write to each client's run what became of it; to none if memory does not suffice for all of them."""
        into: list[Tensor] = []
        source: list[Tensor] = []

        def copy(buffer: Tensor) -> Tensor:
            into.append(torch.empty_like(buffer))
            source.append(buffer)
            return into[-1]

        def ended(place: int, schedule: Schedule) -> tuple[Tensors, Tensors, Tensor, Tensors]:
            params = {name: copy(self._params[name][place]) for name in self._own}
            slots: dict[str, Tensor] = {}
            for name in self._leaves if self.phase.keep_optimiser else ():
                if self.phase.optimiser == "adam":
                    steps = self._began[name] + schedule.steps
                    # On the host, which reads it before the next round.
                    slots[self._slot(name, "step")] = torch.tensor(float(steps))
                for kind in self._kept:
                    slot = self._slot(name, kind)
                    slots[slot] = copy(self._slots[slot][place])
            sums = {name: copy(total[place]) for name, total in self._sums.items()}
            return params, slots, self._total[place] / schedule.used, sums

        ends = [ended(place, schedule) for place, schedule in enumerate(schedules)]
        copy_to_all(into, source)
        for schedule, (params, slots, loss, sums) in zip(schedules, ends, strict=True):
            run = schedule.run
            run.params = {**run.params, **params}
            run.slots = next_slots(run.slots, self.phase, slots)
            run.loss = loss
            run.steps += schedule.steps
            if sums:
                run.gathered.append(Statistics(sums))


@dataclass
class Segment:
    """Neighbouring clients [first, last) of a program that take steps together.

    Attributes:
        leaves: their part of the stacked parameters that train.
        next_step: the step before which the optimiser's count of steps is right.
    """

    first: int
    last: int
    leaves: dict[str, Tensor]
    optimiser: Optimiser
    next_step: int = -1


def groups_of(runs: Sequence[ClientRun], phase: Phase) -> list[list[ClientRun]]:
    """Clients that one program can train in a phase.

    They have one architecture, received tensors of the same names, shapes and types, and have taken the same number
    of Adam's steps.
    """
    groups: dict[tuple[Any, ...], list[ClientRun]] = {}
    for run in runs:
        received = tuple((name, tensor.shape, tensor.dtype) for name, tensor in run.received.items())
        own = sorted(slot for slot in run.slots if slot.startswith(f"{phase.name}/") and slot.endswith("/step"))
        steps = tuple((slot, float(run.slots[slot])) for slot in own)
        groups.setdefault((run.client.model, received, steps), []).append(run)
    return list(groups.values())


def _kinds(runs: Sequence[ClientRun], own: Sequence[str]) -> dict[tuple[bool, str], tuple[Any, ...]]:
    """Shape, type and whether all clients have the very same values, of parameters (False) and received (True).

    Args:
        runs: of the clients.
        own: parameters that change in training, of which each client has values of its own.
    """
    kinds: dict[tuple[bool, str], tuple[Any, ...]] = {}
    for received in (False, True):
        tensors = [run.received if received else run.params for run in runs]
        for name, tensor in tensors[0].items():
            shared = len({one[name].data_ptr() for one in tensors}) == 1
            kinds[received, name] = tensor.shape, tensor.dtype, shared and (received or name not in own)
    return kinds


def channels_last(clients: int, tensor: Tensor) -> Tensor:
    """An empty tensor for clients' convolutions [K, O, C, h, w], of which each has its channels next to each other.

    That is also how the strides of a 1 x 1 kernel are, whose memory is the same either way: torch goes by them.
    """
    outputs, channels, height, width = tensor.shape
    return tensor.new_empty(clients, outputs, height, width, channels).permute(0, 1, 4, 2, 3)


def _clip(gradients: Sequence[Tensor], largest: float) -> None:
    """Scale each client's gradients [K, ...] down to a norm of ``largest`` over all of them."""
    norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]).norm(dim=0)
    scale = (largest / (norms + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
