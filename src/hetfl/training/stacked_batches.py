"""The batches of clients that are trained together, stacked step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from hetfl.data.batches import Batch, DeviceImages
from hetfl.draws import Draws
from hetfl.methods.base import Method, Phase
from hetfl.training.client_run import ClientRun, epoch_order, phase_data, used_samples

DRAWN, MASK = "drawn/", "mask/"
"""Start the names of what a method and a model drew for a batch."""


@dataclass(frozen=True)
class Schedule:
    """Which samples a client trains on in each step of a phase.

    Attributes:
        index: see :class:`ClientData`.
        used: samples of an epoch.
        epoch_steps: steps of an epoch.
        steps: of all epochs.
        rows: [steps, B], int64, the positions in ``index`` of every batch; zeros where a batch is smaller.
    """

    run: ClientRun
    index: Tensor
    used: int
    epoch_steps: int
    steps: int
    rows: Tensor

    def batch_size(self, step: int) -> int:
        """Samples of the client's batch in a step; after its last step none."""
        if step >= self.steps:
            return 0
        size = self.rows.shape[1]
        return size if (step + 1) % self.epoch_steps or self.used % size == 0 else self.used % size

    def in_last_epoch(self, step: int) -> bool:
        """Whether a step belongs to the client's last epoch, or comes after it."""
        return step >= self.steps - self.epoch_steps


def schedule_of(method: Method, run: ClientRun, phase: Phase, number: int, draws: Draws) -> Schedule:
    """A client's schedule in a phase; ``number`` is the phase's index within the round."""
    _, index = phase_data(method, run.data, phase, draws)
    used = used_samples(len(index), phase, bool(run.client.model.names(["buffers"])))
    steps = -(-used // phase.batch_size)
    orders = (
        epoch_order(len(index), phase, draws, run.client.index, number, epoch)[:used] for epoch in range(phase.epochs)
    )
    padding = steps * phase.batch_size - used
    rows = [torch.nn.functional.pad(order, (0, padding)).view(steps, phase.batch_size) for order in orders]
    return Schedule(run, index, used, steps, steps * len(rows), torch.cat(rows) if rows else torch.empty(0, 0).long())


class StackedBatches:
    """The batches of some clients, step by step.

    Args:
        schedules: of the clients, by number of steps, the longest first.
        images: that all of them read.
        number: index of the phase within the round.
    """

    def __init__(
        self,
        method: Method,
        schedules: Sequence[Schedule],
        phase: Phase,
        images: DeviceImages,
        number: int,
        draws: Draws,
    ) -> None:
        self.method, self.schedules, self.phase, self.images = method, schedules, phase, images
        self._model, size, steps = schedules[0].run.client.model, phase.batch_size, schedules[0].steps
        rows = torch.zeros(steps, len(schedules), size, dtype=torch.int64)
        for place, schedule in enumerate(schedules):
            rows[: schedule.steps, place] = schedule.rows
        self._rows = rows.to(images.device, non_blocking=True)
        self._index = torch.zeros_like(self._rows)
        for place, schedule in enumerate(schedules):
            self._index[:, place] = schedule.index[self._rows[:, place]]
        self._sizes = [[schedule.batch_size(step) for schedule in schedules] for step in range(steps)]
        reported = [
            [size if schedule.in_last_epoch(step) else 0 for size, schedule in zip(sizes, schedules, strict=True)]
            for step, sizes in enumerate(self._sizes)
        ]
        self._share = torch.tensor(reported, dtype=images.dtype).to(images.device, non_blocking=True)
        real = torch.arange(size) < torch.tensor(self._sizes, dtype=torch.int64).unsqueeze(-1)
        self._weight = real.to(images.device, images.dtype, non_blocking=True)
        self._keys = [
            [
                [draws.key(use, schedule.run.client.index, number, epoch) for epoch in range(phase.epochs)]
                for use in ("augment", "objective")
            ]
            for schedule in schedules
        ]
        self._augmented: dict[int, Iterator[Batch]] = {}

    def segments(self, step: int) -> Iterator[tuple[int, int]]:
        """Neighbouring clients [first, last) that take a step together.

        Smaller batches are padded, but where samples of a batch influence each other only batches of one size go
        together.
        """
        sizes = [size for size in self._sizes[step] if size]
        if not self._model.mixes_samples:
            yield 0, len(sizes)
            return
        first = 0
        for _, alike in groupby(sizes):
            last = first + len(list(alike))
            yield first, last
            first = last

    def batch(self, step: int, first: int, last: int) -> dict[str, Tensor]:
        """What the clients [first, last) train on in a step, stacked [last - first, B, ...].

        Returns:
            ``index`` of the images, or ``images``, ``labels`` and ``queries`` where images are augmented; ``weight``
            where batches are padded; ``rows`` of the alignment set; what method and model drew, see :data:`DRAWN`;
            and ``share`` [last - first], the samples by which the loss counts in what the client reports.
        """
        sizes = self._sizes[step][first:last]
        largest = max(sizes)
        given = {"share": self._share[step, first:last]}
        index = self._index[step, first:last, :largest]
        if self.schedules[0].run.data.augment is None:
            given["index"] = index
        else:
            batches = [self._augmented_batch(place, step) for place in range(first, last)]
            given["images"] = torch.stack([_padded(batch.images, largest) for batch in batches])
            given["labels"] = self.images.labels[index]
            if self.images.queries is not None:
                given["queries"] = self.images.queries[index]
        if min(sizes) < largest:
            given["weight"] = self._weight[step, first:last, :largest]
        if self.phase.data == "alignment":
            given["rows"] = self._rows[step, first:last, :largest]
        drawn = [self._drawn(place, step) for place in range(first, last)]
        for name in drawn[0]:
            given[name] = torch.stack([_padded(one[name], largest) for one in drawn])
        return given

    def _drawn(self, place: int, step: int) -> dict[str, Tensor]:
        epoch, within = divmod(step, self.schedules[place].epoch_steps)
        seed, size = self._keys[place][1][epoch] + within, self._sizes[step][place]
        drawn = self.method.drawn(self.schedules[place].run.received, size, seed)
        return {
            **{DRAWN + name: tensor for name, tensor in drawn.items()},
            **{MASK + name: tensor for name, tensor in self._model.masks(seed, size).items()},
        }

    def _augmented_batch(self, place: int, step: int) -> Batch:
        """The client's next batch; an epoch's augmentation is drawn batch by batch."""
        schedule = self.schedules[place]
        epoch, within = divmod(step, schedule.epoch_steps)
        if not within:
            rows = schedule.rows[step : step + schedule.epoch_steps].flatten()[: schedule.used]
            index = schedule.index[rows.to(schedule.index.device, non_blocking=True)]
            seed = self._keys[place][0][epoch]
            self._augmented[place] = iter(
                self.images.batches(index, self.phase.batch_size, schedule.run.data.augment, seed)
            )
        return next(self._augmented[place])


def _padded(values: Tensor, size: int) -> Tensor:
    """``values`` [B, ...] with zeros up to ``size``."""
    if len(values) == size:
        return values
    return torch.cat([values, values.new_zeros(size - len(values), *values.shape[1:])])
