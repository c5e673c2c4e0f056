"""Calls that many clients share under ``torch.func.vmap``, as if all their samples were one client's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hetfl.torch_private import is_mapped


class MergedCalls(TorchFunctionMode):
    """While this is active, all clients under ``vmap`` share one call of fused attention and of frozen linear layers.

    Without it, ``vmap`` calls torch's CPU kernel of attention in a loop, and some CUDA kernels do not support it. A
    linear layer becomes a product of matrices and a sum, with more passes over the result.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace fused attention and linear layers; call every other function as it is."""
        if function is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        if function is F.linear:
            return _linear(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: None = None, **options: Any) -> Tensor:
    if attn_mask is not None or not any(is_mapped(t) for t in (query, key, value)):
        return F.scaled_dot_product_attention(query, key, value, attn_mask, **options)
    found: Tensor = _Attention.apply(query, key, value, tuple(options.items()))
    return found


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    own = is_mapped(weight) or (bias is not None and is_mapped(bias))
    if own or not is_mapped(input):
        return F.linear(input, weight, bias)
    found: Tensor = _Linear.apply(input, weight, bias)
    return found


class _Merged(torch.autograd.Function):
    """A function with a rule for ``vmap``; what the rule calls has its own gradient."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class _Attention(_Merged):
    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, options: tuple[tuple[str, Any], ...]) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, **dict(options))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        """Merge the clients and samples of query, key and value [K, B, heads, tokens, d] into one axis [K * B]."""
        clients = info.batch_size
        merged = [
            (given.expand(clients, *given.shape) if place is None else given.movedim(place, 0)).flatten(0, 1)
            for given, place in zip(inputs[:3], in_dims, strict=False)
        ]
        return F.scaled_dot_product_attention(*merged, **dict(inputs[3])).unflatten(0, (clients, -1)), 0


class _Linear(_Merged):
    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        """Rows of all clients [K, ..., d] through the one layer."""
        given, weight, bias = inputs
        return F.linear(given.movedim(in_dims[0], 0), weight, bias), 0
