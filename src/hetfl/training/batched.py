"""Trains clients of one architecture as one program."""

from __future__ import annotations

import logging
import time
from collections import deque
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
from hetfl.training.memory import SHARE, client_bytes, free_bytes, free_memory, resident_bytes, used_bytes
from hetfl.training.program import Program, groups_of
from hetfl.training.sequential import Sequential
from hetfl.training.stacked_batches import StackedBatches, schedule_of

log = logging.getLogger(__name__)

COHORT = 1000
"""Clients whose parameters are held at once; of more participants so many begin when those before them are done."""

_NO_STEP = object()


class Batched:
    """Trains clients with the same architecture together, where ``torch.vmap`` can map the method over clients.

    Attributes:
        predicted_memory: bytes of the largest phase so far: what is on the device anyway, and training by its shapes.
    """

    predicted_memory = 0

    def __init__(self, method: Method, federation: Federation) -> None:
        self.method, self.federation = method, federation
        self._one_by_one = Sequential(method)
        self._programs: dict[tuple[Model, int], Program] = {}
        self._most: dict[tuple[Model, int], int] = {}
        self._streams: dict[Model, torch.cuda.Stream] = {}
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
            trainings: dict[Model, Iterator[None]] = {}
            for group, capacity in self._capacities(groups_of(runs, phase), phase, number, draws):
                model = group[0].client.model
                steps = self._train_group(group, capacity, phase, number, draws)
                trainings[model] = chain(trainings.get(model, ()), steps)
            self._take_turns(trainings)
            for run in runs:
                run.seconds += (time.perf_counter() - started) / len(runs)

    def _resident(self) -> int:
        """Bytes that are on the device beside the programs' own: weights, images and, as far as known, states."""
        used = used_bytes(self.federation.device)
        if used is None:
            return self._federation_bytes
        return used - sum(program.bytes for program in self._programs.values())

    @cached_property
    def _federation_bytes(self) -> int:
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
            needs.append(self._needs[key])
        free = free_bytes(self.federation.device)
        wanted = sum(need * len(group) for need, group in zip(needs, groups, strict=True))
        share = 1.0 if free is None else min(1.0, SHARE * free / max(wanted, 1))
        capacities = [max(1, int(share * len(group)), self._held(group, number)) for group in groups]
        together = sum(need * capacity for need, capacity in zip(needs, capacities, strict=True))
        self.predicted_memory = max(self.predicted_memory, self._resident() + together)
        return list(zip(groups, capacities, strict=True))

    def _held(self, group: Sequence[ClientRun], number: int) -> int:
        """How many clients of a group have room in a program that is there: what it holds counts as used memory."""
        program = self._programs.get((group[0].client.model, number))
        return 0 if program is None else min(program.capacity, len(group))

    def _train_group(
        self, runs: Sequence[ClientRun], capacity: int, phase: Phase, number: int, draws: Draws
    ) -> Iterator[None]:
        """Train clients of one group, at most ``capacity`` at once, and fewer if memory does not suffice.

        Yields:
            After every step.
        """
        key = runs[0].client.model, number
        done = 0
        while done < len(runs):
            size = min(capacity, self._most.get(key, capacity))
            # Chunks of about one size.
            size = -(-(len(runs) - done) // -(-(len(runs) - done) // size))
            try:
                yield from self._train_together(runs[done : done + size], phase, number, draws)
                done += size
                continue
            except RuntimeError as error:
                if size == 1 or not out_of_memory(error):
                    raise
            # Outside the handler, which keeps the tensors of what failed alive.
            self._programs.pop(key, None)
            self._most[key] = size // 2
            free_memory(self.federation.device)
            log.warning("out of memory with %d clients of %s at once; going on with %d", size, key[0].name, size // 2)

    def _train_together(self, runs: Sequence[ClientRun], phase: Phase, number: int, draws: Draws) -> Iterator[None]:
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
        key = ordered[0].client.model, number
        program = self._programs.pop(key, None)
        if program is None or not program.fits(ordered, phase, images, gathers):
            program = None  # so that two are never in memory
            program = Program(self.method, ordered, phase, images, gathers)
        self._programs[key] = program
        program.load(ordered)
        batches = StackedBatches(self.method, schedules, phase, images, number, draws)
        for step in range(schedules[0].steps):
            for first, last in batches.segments(step):
                program.step(first, last, step, batches.batch(step, first, last))
            yield
        program.unload(schedules)
