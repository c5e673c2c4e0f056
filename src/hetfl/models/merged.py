"""Calls that many clients share under ``torch.func.vmap``, as if all their samples were one client's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hetfl.torch_private import is_mapped, no_modes


class MergedCalls(TorchFunctionMode):
    """While this is active, clients under ``vmap`` share calls of some functions.

    These are fused attention, frozen linear layers, and batch normalisation of parameters that clients have of their
    own. Of the first, ``vmap`` calls torch's CPU kernel in a loop, and some CUDA kernels do not support it; a linear
    layer becomes a product of matrices and a sum, with more passes over the result; batch normalisation becomes a
    dozen operations and copies.

    What networks do in place with a normalised tensor, activations and the sum of a residual block, makes a new one
    instead: a client's tensor is a view of that of all clients, and the gradient of a view that was changed takes
    three copies. So a network must go on with what such a call returns, as layers in sequence do, not with the tensor
    that it gave.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace these functions; call every other one as it is."""
        own = _REPLACED.get(function)
        return (own or function)(*args, **(kwargs or {}))


def as_one(function: Callable[..., Tensor], *given: Tensor | None) -> Tensor:
    """Call a function of samples [B, ...] with frozen weights, under ``vmap`` once for the samples of all clients."""
    if not any(tensor is not None and is_mapped(tensor) for tensor in given):
        return function(*given)
    found: Tensor = _Whole.apply(function, *given)
    return found


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


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    given = (input, running_mean, running_var, weight, bias)
    if not all(tensor is None or is_mapped(tensor) for tensor in given):
        return F.batch_norm(*given, training, momentum, eps)
    found: Tensor = _BatchNorm.apply(*given, training, momentum, eps)
    found.normalised = True  # type: ignore[attr-defined]
    return found


def _added(own: Tensor, *args: Any, **options: Any) -> Tensor:
    return own.add(*args, **options) if hasattr(own, "normalised") else own.add_(*args, **options)


def _anew(function: Callable[..., Tensor], inplace: int) -> Callable[..., Tensor]:
    """The function without its argument ``inplace``, which has this place."""

    def call(*args: Any, **options: Any) -> Tensor:
        return function(*args[:inplace], **{name: value for name, value in options.items() if name != "inplace"})

    return call


def _leading(given: Tensor, place: int | None, clients: int) -> Tensor:
    """A tensor with the axis of clients in front: it is at this place, or there is none."""
    return given.expand(clients, *given.shape) if place is None else given.movedim(place, 0)


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
        query, key, value = (
            _leading(given, place, clients).flatten(0, 1) for given, place in zip(inputs[:3], in_dims, strict=False)
        )
        found = F.scaled_dot_product_attention(query, key, value, **dict(inputs[3]))
        return found.unflatten(0, (clients, -1)), 0


class _Whole(_Merged):
    @staticmethod
    def forward(function: Callable[..., Tensor], *given: Tensor | None) -> Tensor:
        return function(*given)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        """Merge the clients and samples [K, B, ...] of every tensor into one axis [K * B]."""
        function, *given = inputs
        merged = [
            None if one is None else _leading(one, place, info.batch_size).flatten(0, 1)
            for one, place in zip(given, in_dims[1:], strict=True)
        ]
        with no_modes():
            return function(*merged).unflatten(0, (info.batch_size, -1)), 0


class _Linear(_Merged):
    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        """Rows of all clients [K, ..., d] through the one layer."""
        given, weight, bias = inputs
        return F.linear(given.movedim(in_dims[0], 0), weight, bias), 0


class _BatchNorm(_Merged):
    @staticmethod
    def forward(*given: Any) -> Tensor:
        return F.batch_norm(*given)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        """Merge clients and channels [B, K, C, ...] into one axis [K * C], as a convolution of all clients has them.

        Running means and variances [K, C] are updated in place, so that they must be contiguous.
        """
        clients, (given, *rest), (place, *places) = info.batch_size, inputs[:5], in_dims[:5]
        per_channel: list[Any] = [
            None if tensor is None else tensor.movedim(at, 0).view(-1)
            for tensor, at in zip(rest, places, strict=True)
        ]
        merged = F.batch_norm(given.movedim(place, 1).flatten(1, 2), *per_channel, *inputs[5:])
        return merged.unflatten(1, (clients, -1)), 1


_REPLACED: dict[Any, Callable[..., Tensor]] = {
    F.scaled_dot_product_attention: _attention,
    F.linear: _linear,
    F.batch_norm: _batch_norm,
    F.relu: _anew(F.relu, inplace=1),
    F.hardtanh: _anew(F.hardtanh, inplace=3),
    Tensor.add_: _added,
}
