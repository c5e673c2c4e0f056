"""Trains clients of one architecture as one program."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any

import torch

from hetfl.draws import Draws
from hetfl.errors import out_of_memory
from hetfl.methods.base import Method, Phase
from hetfl.models.base import Model
from hetfl.training.client_run import ClientRun, phase_data
from hetfl.training.federation import Federation
from hetfl.training.memory import (
    SHARE,
    client_bytes,
    free_bytes,
    free_memory,
    resident_bytes,
    stream_bytes,
    used_bytes,
)
from hetfl.training.program import Program, groups_of
from hetfl.training.sequential import Sequential
from hetfl.training.stacked_batches import StackedBatches, schedule_of

log = logging.getLogger(__name__)

COHORT = 1000
"""Clients whose parameters are held at once; of more participants so many begin when those before them are done."""

APART = 32
"""The most clients who train apart on a GPU, see :class:`Batched`."""

_NO_STEP = object()

StreamKey = tuple[Model, int]
"""What has a CUDA stream of its own: an architecture's stacked clients (0), or one of its clients apart (from 1)."""


class Batched:
    """Trains clients with the same architecture together, where ``torch.vmap`` can map the method over clients.

    On a GPU, clients whose whole networks are their own train apart if there are few: each of them has a stream and a
    program of its own. A convolution with weights of several clients is several convolutions, so that stacking saves
    no more than launches, and streams do not wait for each other's.

    Attributes:
        apart: the most clients who train so; they are stacked once memory has ended.
        predicted_memory: bytes of the largest phase so far: what is on the device anyway, and training by its shapes.
    """

    predicted_memory = 0

    def __init__(self, method: Method, federation: Federation) -> None:
        self.method, self.federation = method, federation
        self._one_by_one = Sequential(method)
        self.apart = APART if federation.device.type == "cuda" else 0
        self._programs: dict[tuple[StreamKey, int], Program] = {}
        self._most: dict[tuple[Model, int], int] = {}
        self._streams: dict[StreamKey, torch.cuda.Stream] = {}
        self._needs: dict[tuple[Any, ...], int] = {}

    def train(self, runs: Iterable[ClientRun], phases: Sequence[Phase], draws: Draws) -> Iterator[ClientRun]:
        """See :meth:`Trainer.train`."""
        if not phases or not self.method.vmappable:
            yield from self._one_by_one.train(runs, phases, draws)
            return
        runs = iter(runs)
        while cohort := deque(islice(runs, COHORT)):
            self._train_cohort(cohort, phases, draws)
            while cohort:
                yield cohort.popleft()

    def _train_cohort(self, runs: Sequence[ClientRun], phases: Sequence[Phase], draws: Draws) -> None:
        for number, phase in enumerate(phases):
            started = time.perf_counter()
            self._train_phase(runs, phase, number, draws)
            for run in runs:
                run.seconds += (time.perf_counter() - started) / len(runs)

    def _train_phase(self, runs: Sequence[ClientRun], phase: Phase, number: int, draws: Draws) -> None:
        left: list[ClientRun] = []
        trainings: dict[StreamKey, Iterator[None]] = {}
        groups, streams = groups_of(runs, phase), streams_of(runs)
        for group, capacity in self._capacities(groups, phase, number, draws):
            model = group[0].client.model
            if capacity >= len(group) and self._spreads(model, groups):
                for run in group:
                    stream = streams[run.client.index]
                    trainings[stream] = self._train_apart(run, stream, phase, number, draws, left)
            else:
                steps = self._train_group(group, capacity, phase, number, draws)
                trainings[model, 0] = chain(trainings.get((model, 0), ()), steps)
        self._take_turns(trainings)
        if left:
            log.warning("out of memory with %d clients apart; from now on they train stacked", len(runs))
            self.apart = 0
            self._programs.clear()
            free_memory(self.federation.device)
            self._train_phase(left, phase, number, draws)

    def _spreads(self, model: Model, groups: Sequence[list[ClientRun]]) -> bool:
        """Whether these groups' clients with this model train apart where memory suffices."""
        return sum(map(len, groups)) <= self.apart and bool(model.names(["body"]))

    def _train_apart(
        self, run: ClientRun, stream: StreamKey, phase: Phase, number: int, draws: Draws, left: list[ClientRun]
    ) -> Iterator[None]:
        """Train one client beside others; if memory does not suffice, it is ``left`` as it was.

        Yields:
            After every step.
        """
        try:
            yield from self._train_together([run], phase, number, draws, stream)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            left.append(run)

    def _resident(self) -> int:
        """Bytes that are on the device beside the programs' own: weights, images and, as far as known, states."""
        used = used_bytes(self.federation.device)
        if used is None:
            return self._federation_bytes
        return used - sum(program.bytes for program in self._programs.values())

    @cached_property
    def _federation_bytes(self) -> int:
        return resident_bytes(self.federation)

    def _take_turns(self, trainings: Mapping[StreamKey, Iterator[None]]) -> None:
        """Go through several trainings step by step, each on a CUDA stream of its own.

        Their kernels can run beside each other only while all of them wait in the device's queues, which one
        training's steps alone would fill.
        """
        device = self.federation.device
        streams: dict[StreamKey, torch.cuda.Stream] = {}
        if device.type == "cuda":
            for key in trainings:
                streams[key] = self._streams.setdefault(key, torch.cuda.Stream(device))
                streams[key].wait_stream(torch.cuda.current_stream(device))
        going = dict(trainings)
        while going:
            for key, steps in tuple(going.items()):
                with torch.cuda.stream(streams.get(key)):
                    if next(steps, _NO_STEP) is _NO_STEP:
                        del going[key]
        if streams:
            torch.cuda.synchronize(device)

    def _capacities(
        self, groups: Sequence[list[ClientRun]], phase: Phase, number: int, draws: Draws
    ) -> list[tuple[list[ClientRun], int]]:
        """How many clients of each group fit into memory at once, by the shapes of one of them.

        The groups share it, since on CUDA they run at the same time.
        """
        needs = []
        for group in groups:
            first = group[0]
            key = first.client.model, number, tuple(first.received)
            if key not in self._needs:
                images, _ = phase_data(self.method, first.data, phase, draws)
                self._needs[key] = client_bytes(self.method, first, phase, images)
            stream = stream_bytes(self.federation.device) if self._spreads(first.client.model, groups) else 0
            needs.append(self._needs[key] + stream)
        free = free_bytes(self.federation.device)
        wanted = sum(need * len(group) for need, group in zip(needs, groups, strict=True))
        share = 1.0 if free is None else min(1.0, SHARE * free / max(wanted, 1))
        capacities = [max(1, int(share * len(group)), self._held(group, number)) for group in groups]
        together = sum(need * capacity for need, capacity in zip(needs, capacities, strict=True))
        self.predicted_memory = max(self.predicted_memory, self._resident() + together)
        return list(zip(groups, capacities, strict=True))

    def _held(self, group: Sequence[ClientRun], number: int) -> int:
        """How many clients of a group have room in programs that are there: what these hold counts as used memory."""
        wanted = group[0].client.model, number
        there = [program.capacity for ((model, _), of), program in self._programs.items() if (model, of) == wanted]
        return min(sum(there), len(group))

    def _train_group(
        self, runs: Sequence[ClientRun], capacity: int, phase: Phase, number: int, draws: Draws
    ) -> Iterator[None]:
        """Train clients of one group, at most ``capacity`` at once, and fewer if memory does not suffice.

        Yields:
            After every step.
        """
        model = runs[0].client.model
        stream, key = (model, 0), (model, number)
        done = 0
        while done < len(runs):
            size = min(capacity, self._most.get(key, capacity))
            # Chunks of about one size.
            size = -(-(len(runs) - done) // -(-(len(runs) - done) // size))
            try:
                yield from self._train_together(runs[done : done + size], phase, number, draws, stream)
                done += size
                continue
            except RuntimeError as error:
                if size == 1 or not out_of_memory(error):
                    raise
            # Outside the handler, which keeps the tensors of what failed alive.
            self._programs.pop((stream, number), None)
            self._most[key] = size // 2
            free_memory(self.federation.device)
            log.warning("out of memory with %d clients of %s at once; going on with %d", size, model.name, size // 2)

    def _train_together(
        self, runs: Sequence[ClientRun], phase: Phase, number: int, draws: Draws, stream: StreamKey
    ) -> Iterator[None]:
        """Train clients at once, step by step; their runs are changed only after all of it worked."""
        schedules = [schedule_of(self.method, run, phase, number, draws) for run in runs]
        for schedule in schedules:
            if not schedule.steps:
                schedule.run.skip(phase)
        schedules = sorted((s for s in schedules if s.steps), key=lambda schedule: -schedule.steps)
        if not schedules:
            return
        ordered = [schedule.run for schedule in schedules]
        images, _ = phase_data(self.method, ordered[0].data, phase, draws)
        gathers = phase.gathers and self.method.statistics_source(draws.round) == "training"
        key, apart = (stream, number), stream[1] > 0
        program = self._programs.pop(key, None)
        if program is None or not program.fits(ordered, phase, images, gathers, apart):
            program = None  # so that two are never in memory
            program = Program(self.method, ordered, phase, images, gathers, apart)
        self._programs[key] = program
        program.load(ordered)
        batches = StackedBatches(self.method, schedules, phase, images, number, draws)
        for step in range(schedules[0].steps):
            for first, last in batches.segments(step):
                program.step(first, last, step, batches.batch(step, first, last))
            yield
        program.unload(schedules)


def streams_of(runs: Iterable[ClientRun]) -> dict[int, StreamKey]:
    """The key of each client's stream by its index, if they train apart: the first of an architecture has 1."""
    seen: Counter[Model] = Counter()
    keys = {}
    for run in runs:
        seen[run.client.model] += 1
        keys[run.client.index] = run.client.model, seen[run.client.model]
    return keys
