"""Floating-point operations, counted from the shapes of tensors rather than measured on a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from hetfl.data.batches import Batch
from hetfl.message import Tensors
from hetfl.methods.base import Method, Phase
from hetfl.models.base import Model


class StepFlops(NamedTuple):
    """Operations of one optimiser step: of the forward pass, and of the gradients."""

    forward: int
    backward: int


def flops(function: Callable[[], Any]) -> int:
    """Operations of the matrix products and convolutions that a function runs, those for gradients included.

    A multiplication and the addition after it are two. Everything element-wise, normalisation, pooling, distances and
    decompositions count nothing. Tensors may be on the meta device, where there are only shapes.
    """
    # torch's own formula takes a grouped convolution's gradient for that of a full one.
    formulas = {torch.ops.aten.convolution_backward: _convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        function()
    return int(counter.get_total_flops())


def step_flops(
    method: Method, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase | None = None
) -> StepFlops:
    """Operations of a client's step on a batch, by its method's own objective.

    Args:
        method: what the client runs.
        model: its architecture.
        params: its parameters.
        batch: some of its samples.
        received: what it knows, from :meth:`Method.receive`.
        phase: of local training; None: the one that the settings describe.
    """
    phase = phase or method.phase()
    leaves = {name: params[name].detach().clone().requires_grad_() for name in model.names(phase.trains)}
    size = len(batch.labels)
    training = model.train(model.masks(batch.seed, size))
    losses: list[torch.Tensor] = []

    def forward() -> None:
        given = replace(batch, drawn=method.drawn(received, size, batch.seed))
        losses.append(method.objective(training, {**params, **leaves}, given, received, phase))

    return StepFlops(flops(forward), flops(lambda: losses[0].backward()))


def _convolution_backward(
    gradient: Sequence[int],
    inputs: Sequence[int],
    weight: Sequence[int],
    *more: Any,
    out_shape: Any = None,
) -> int:
    """Of an ordinary (not transposed) convolution: as much as its forward pass for each gradient that is taken."""
    wanted = more[-1]  # whether of the images, the weights, the biases
    return 2 * gradient[0] * prod(gradient[2:]) * prod(weight) * sum(wanted[:2])
