"""Floating-point operations, counted from the shapes of tensors rather than measured on a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch

from hetfl.data.batches import Batch
from hetfl.message import Tensors
from hetfl.methods.base import Method, Phase
from hetfl.models.base import Model


class StepFlops(NamedTuple):
    """Operations of one optimiser step, for the forward pass and for the gradients."""

    forward: int
    backward: int


def flops(function: Callable[[], Any]) -> int:
    """Count the operations of the matrix products and convolutions in a function, including those for gradients.

    A multiplication and the addition after it are two operations. Element-wise operations, normalisation, pooling,
    distances and decompositions are not counted. Tensors may be on the meta device, which holds shapes only.
    """
    # It imports triton, for which most commands would only wait.
    from torch.utils.flop_counter import FlopCounterMode

    # torch's own formula counts the gradient of a grouped convolution as that of a full one.
    formulas = {torch.ops.aten.convolution_backward: _convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        function()
    return int(counter.get_total_flops())


def step_flops(
    method: Method, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase | None = None
) -> StepFlops:
    """Count the operations of a client's optimiser step on a batch, with its method's objective.

    Args:
        method: the client's method.
        model: its architecture.
        params: its parameters by name.
        batch: samples of the client.
        received: the tensors that it received, from :meth:`Method.receive`.
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
    """Operations of a convolution's gradients (not transposed): those of its forward pass, once for each gradient."""
    wanted = more[-1]  # whether gradients of the images, the weights and the biases are computed
    return 2 * gradient[0] * prod(gradient[2:]) * prod(weight) * sum(wanted[:2])
