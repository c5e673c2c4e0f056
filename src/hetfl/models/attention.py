"""Fused attention for many clients at once, under ``torch.func.vmap``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hetfl.torch_private import is_mapped


class MergedAttention(TorchFunctionMode):
    """While this is active, all clients under ``vmap`` share one call of fused attention, as additional samples.

    Without it, ``vmap`` calls torch's CPU kernel in a loop, and some CUDA kernels do not support ``vmap``.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace fused attention; call every other function as it is."""
        if function is F.scaled_dot_product_attention:
            return _mapped(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _mapped(query: Tensor, key: Tensor, value: Tensor, attn_mask: None = None, **options: Any) -> Tensor:
    if attn_mask is not None or not any(is_mapped(t) for t in (query, key, value)):
        return F.scaled_dot_product_attention(query, key, value, attn_mask, **options)
    found: Tensor = _Merged.apply(query, key, value, tuple(options.items()))
    return found


class _Merged(torch.autograd.Function):
    """Fused attention with a rule for ``vmap``; the function that the rule calls has its own gradient."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, options: tuple[tuple[str, Any], ...]) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, **dict(options))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        """Merge the clients and samples of query, key and value [K, B, heads, tokens, d] into one axis [K * B]."""
        clients = info.batch_size
        merged = [
            (given.expand(clients, *given.shape) if place is None else given.movedim(place, 0)).flatten(0, 1)
            for given, place in zip(inputs[:3], in_dims, strict=False)
        ]
        return F.scaled_dot_product_attention(*merged, **dict(inputs[3])).unflatten(0, (clients, -1)), 0
