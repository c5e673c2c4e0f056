"""Trains one client after another: the smallest way, and the one that others are compared with."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from hetfl.draws import Draws
from hetfl.methods.base import Method, Phase
from hetfl.models.base import Model, Output, products
from hetfl.optimisers import clip_gradients
from hetfl.training.client_run import (
    ClientRun,
    check_gradient,
    epoch_order,
    make_optimiser,
    next_slots,
    optimiser_slots,
    phase_data,
    used_samples,
)
from hetfl.training.federation import Federation


class Sequential:
    """Trains clients one at a time.

    Args:
        method: that they follow.
        federation: is not needed; all trainers that settings can name are made from both.
    """

    def __init__(self, method: Method, federation: Federation | None = None) -> None:
        self.method = method

    def train(self, runs: Iterable[ClientRun], phases: Sequence[Phase], draws: Draws) -> Iterator[ClientRun]:
        """See :meth:`Trainer.train`."""
        for run in runs:
            started = time.perf_counter()
            for number, phase in enumerate(phases):
                self.train_phase(run, phase, number, draws)
            run.seconds = time.perf_counter() - started
            yield run

    def train_phase(self, run: ClientRun, phase: Phase, number: int, draws: Draws) -> None:
        """Train a client in a phase; ``number`` is the phase's index within the round."""
        client, data = run.client, run.data
        leaves = {name: run.params[name].clone().requires_grad_() for name in client.model.names(phase.trains)}
        buffers = {name: run.params[name].clone() for name in client.model.names(["buffers"])}
        params = {**run.params, **leaves, **buffers}
        optimiser = make_optimiser(phase, leaves, run.slots)
        images, index = phase_data(self.method, data, phase, draws)
        used = used_samples(len(index), phase, bool(buffers))
        if not used or not phase.epochs:
            run.skip(phase)
            return
        clipped = [[leaves[name] for name in client.model.names(groups)] for groups in phase.clipped]
        gathers = phase.gathers and self.method.statistics_source(draws.round) == "training"
        total = torch.zeros_like(run.loss)
        for epoch in range(phase.epochs):
            total.zero_()
            rows = epoch_order(len(index), phase, draws, client.index, number, epoch)[:used].to(index.device)
            augment, seed = (draws.key(use, client.index, number, epoch) for use in ("augment", "objective"))
            batches = images.batches(index[rows], phase.batch_size, data.augment, augment)
            for step, (batch, part) in enumerate(zip(batches, rows.split(phase.batch_size), strict=True), start=seed):
                drawn = self.method.drawn(run.received, len(part), step)
                batch = batch.of_step(step, drawn, part if phase.data == "alignment" else None)
                model: Any = LastOutput(client.model.train(client.model.masks(step, len(part))))
                with products(client.model.rounded):
                    loss = self.method.objective(model, params, batch, run.received, phase)
                    if gathers:
                        with torch.no_grad():
                            run.gathered.append(self.method.statistics(model, params, batch, run.received))
                    optimiser.zero_grad()
                    check_gradient(loss, self.method, phase)
                    loss.backward()
                if phase.clip:
                    for values in clipped:
                        clip_gradients(values, phase.clip)
                optimiser.step()
                total.add_(loss.detach(), alpha=len(part))
        run.params = {**params, **{name: leaf.detach() for name, leaf in leaves.items()}}
        run.slots = next_slots(run.slots, phase, optimiser_slots(phase, optimiser, leaves))
        run.loss = total / used
        run.steps += phase.epochs * -(-used // phase.batch_size)


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
