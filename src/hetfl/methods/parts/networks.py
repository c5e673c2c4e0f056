"""Networks that the server trains itself, as named parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from hetfl.draws import Draws, seeded_library_code
from hetfl.message import Tensors


def fresh_network(
    layers: Callable[[], Mapping[str, nn.Module]], draws: Draws, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The first parameters of a network, in torch's own initialisation: ``layer.weight`` and so on, in order.

    Args:
        layers: makes the layers by name.
        draws: keyed randomness of round 0.
        dtype: of the parameters.
    """
    with seeded_library_code(draws.key("init:generator")):
        fresh = nn.ModuleDict(dict(layers())).state_dict()
    return {name: tensor.to(dtype) for name, tensor in fresh.items()}


def leaves(parameters: Tensors) -> dict[str, Tensor]:
    """Copies of parameters that gradients are taken of."""
    return {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}


def detached(parameters: Tensors) -> dict[str, Tensor]:
    """Parameters as plain tensors."""
    return {name: tensor.detach() for name, tensor in parameters.items()}
