"""One client at work in a round, and what a phase of its training needs, whichever way it is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from hetfl.data.batches import DeviceImages
from hetfl.draws import Draws
from hetfl.message import Tensors, flatten, group
from hetfl.methods.base import Client, Method, Phase, Statistics
from hetfl.methods.mistakes import mistaken
from hetfl.optimisers import SGD, Adam, Optimiser
from hetfl.training.federation import ClientData


@dataclass
class ClientRun:
    """A client's work in a round; training changes it.

    Attributes:
        received: what it knows, from :meth:`Method.receive`.
        before: its parameters when local training began.
        params: its parameters after the phases so far.
        slots: its optimisers' tensors, see :attr:`ClientState.optimiser`.
        loss: see :class:`hetfl.training.engine.Update`.
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

    def skip(self, phase: Phase) -> None:
        """Pass a phase in which the client takes no step; what an earlier one left for it goes with it."""
        self.slots = next_slots(self.slots, phase, {})


class Trainer(Protocol):
    """A way to train clients on this machine; none gives other numbers than another but for rounding."""

    def train(self, runs: Iterable[ClientRun], phases: Sequence[Phase], draws: Draws) -> Iterator[ClientRun]:
        """Train some clients through the phases of a round, and give each one back as soon as it is done.

        Args:
            runs: taken when there is room for another client.
            phases: from :func:`linked`.
            draws: keyed randomness of the round.
        """
        ...


def linked(phases: Sequence[Phase]) -> list[Phase]:
    """The phases of a round, each of which keeps its optimiser if a later one goes on with it."""
    later = [{phase.name for phase in phases[number + 1 :]} for number in range(len(phases))]
    return [
        replace(phase, keep_optimiser=phase.keep_optimiser or phase.name in names)
        for phase, names in zip(phases, later, strict=True)
    ]


def phase_data(method: Method, data: ClientData, phase: Phase, draws: Draws) -> tuple[DeviceImages, Tensor]:
    """Images and the indices [n] int64 of those that a client trains on in a phase.

    Raises:
        MistakeError: see :func:`public_images`, :func:`alignment_index`.
    """
    if phase.data == "own":
        return data.train_images, data.train
    images = public_images(method, data)
    if phase.data == "public":
        return images, torch.arange(len(images), device=data.train.device)
    return images, alignment_index(method, data, draws)


def public_images(method: Method, data: ClientData) -> DeviceImages:
    """The images that clients and server share.

    Raises:
        MistakeError: the method has none.
    """
    if data.public_images is None:
        raise mistaken(method, "uses public samples and is given none; write public = True in the class")
    return data.public_images


def alignment_index(method: Method, data: ClientData, draws: Draws) -> Tensor:
    """The indices [n] int64 of a round's public samples, the same for every client.

    Raises:
        MistakeError: the method has no public samples, or draws something else.
    """
    labels = public_images(method, data).labels
    index = method.alignment(labels.cpu(), draws)
    if index.dtype != torch.int64 or index.dim() != 1:
        found = f"{index.dtype} {list(index.shape)}"
        raise mistaken(method, f"alignment returned a tensor {found}; it should return indices [n] torch.int64")
    if len(index) and not (index.min() >= 0 and index.max() < len(labels)):
        found = f"indices from {index.min()} to {index.max()}"
        raise mistaken(method, f"alignment returned {found}; those of the public samples are 0 to {len(labels) - 1}")
    return index.to(data.train.device)


def epoch_order(samples: int, phase: Phase, draws: Draws, client: int, number: int, epoch: int) -> Tensor:
    """The order [n] in which an epoch goes through a client's samples, on the CPU.

    Args:
        samples: n.
        phase: of the training.
        draws: keyed randomness of the round.
        client: its number.
        number: index of the phase within the round.
        epoch: from 0.
    """
    if not phase.shuffle:
        return torch.arange(samples)
    return torch.randperm(samples, generator=draws.generator("batches", client, number, epoch))


def used_samples(samples: int, phase: Phase, batch_norm: bool) -> int:
    """How many samples an epoch uses.

    Args:
        samples: that the client has.
        phase: of the training.
        batch_norm: whether the model uses batch normalisation, which cannot train on a batch of one sample.
    """
    last = samples % phase.batch_size
    return samples - last if phase.drop_last or (last == 1 and batch_norm) else samples


def check_gradient(loss: Tensor, method: Method, phase: Phase) -> None:
    """Check that a loss depends on what a phase trains.

    Raises:
        MistakeError: it does not.
    """
    if not loss.requires_grad:
        trained = ", ".join(phase.trains)
        wrong = f"the objective depends on none of the parameters that phase {phase.name!r} trains ({trained})"
        raise mistaken(method, wrong)


def make_optimiser(phase: Phase, leaves: dict[str, Tensor], slots: Tensors) -> Optimiser:
    """The optimiser of a phase over named parameters, continuing from saved slots; see :attr:`ClientRun.slots`."""
    values = list(leaves.values())
    optimiser: Optimiser
    if phase.optimiser == "sgd":
        optimiser = SGD(values, phase.lr, phase.momentum, phase.weight_decay)
    else:
        optimiser = Adam(values, phase.lr, phase.weight_decay)
    optimiser.go_on(leaves, group(slots, phase.name))
    return optimiser


def optimiser_slots(phase: Phase, optimiser: Optimiser, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a phase's optimiser by ``<optimiser>/<parameter>/<slot>``."""
    return flatten({phase.name: optimiser.kept(leaves)})


def next_slots(slots: Tensors, phase: Phase, own: Tensors) -> dict[str, Tensor]:
    """A client's optimiser slots after a phase whose optimiser ended with ``own``."""
    if phase.keep_optimiser:
        return {**slots, **own}
    return {slot: tensor for slot, tensor in slots.items() if not slot.startswith(f"{phase.name}/")}
