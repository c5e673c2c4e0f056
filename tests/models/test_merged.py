"""Frozen layers see the samples of all clients that train together in one call."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from hetfl.models.merged import MergedCalls


class Calls(TorchDispatchMode):
    """Counts torch's operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_frozen_linear_layer_and_attention_are_called_once_for_all_clients():
    weight, bias, tokens, prompt = drawn(18, 6), drawn(18), drawn(3, 2, 5, 6), drawn(3, 1, 6).requires_grad_()

    def layer(tokens: Tensor, prompt: Tensor) -> Tensor:
        mixed = F.linear(tokens + prompt, weight, bias).unflatten(-1, (3, 2, 3))
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value)

    one_by_one = torch.stack([layer(*given) for given in zip(tokens, prompt, strict=True)])
    with Calls() as calls, MergedCalls():
        together = vmap(layer)(tokens, prompt)
    torch.testing.assert_close(together, one_by_one)
    gradients = (torch.autograd.grad(found.square().sum(), prompt)[0] for found in (together, one_by_one))
    torch.testing.assert_close(*gradients)
    products = {name: many for name, many in calls.count.items() if "mm" in name or "attention" in name}
    assert len(products) == 2 and set(products.values()) == {1} and "addmm" in products


def test_a_layer_of_the_clients_own_is_not_merged():
    weight, rows = drawn(3, 4, 6), drawn(3, 2, 6)
    with MergedCalls():
        together = vmap(F.linear)(rows, weight)
        alone = F.linear(rows[0], weight[0])
    torch.testing.assert_close(together, torch.einsum("kbi,koi->kbo", rows, weight))
    torch.testing.assert_close(alone, together[0])


def test_batch_norms_of_clients_are_one_call_and_their_blocks_copy_nothing():
    """A residual block in training, which changes running means, activations and a sum in place."""
    images = drawn(3, 4, 2, 5, 5)
    kernels, weights = drawn(3, 2, 2, 3, 3).requires_grad_(), drawn(3, 2).requires_grad_()

    def block(images: Tensor, kernel: Tensor, weight: Tensor, means: Tensor, variances: Tensor) -> Tensor:
        normalised = F.batch_norm(
            F.conv2d(images, kernel, padding=1), means, variances, weight, weight, training=True
        )
        active = F.hardtanh(normalised, 0.0, 6.0, inplace=True)
        found = F.batch_norm(F.conv2d(active, kernel, padding=1), means, variances, weight, weight, training=True)
        found += images
        return F.relu(found, inplace=True)

    def played(merged: bool) -> tuple[Tensor, ...]:
        means, variances = torch.zeros(3, 2, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64)
        given = (images, kernels, weights, means, variances)
        if merged:
            with MergedCalls():
                found = vmap(block)(*given)
        else:
            found = torch.stack([block(*one) for one in zip(*given, strict=True)])
        return found, *torch.autograd.grad(found.square().sum(), (kernels, weights)), means, variances

    with Calls() as calls:
        together = played(merged=True)
    for found, expected in zip(together, played(merged=False), strict=True):
        torch.testing.assert_close(found, expected)
    assert calls.count["native_batch_norm"] == calls.count["native_batch_norm_backward"] == 2
    assert not {"copy_", "new_empty_strided", "new_zeros"} & set(calls.count)


def test_other_sums_in_place_stay_in_place():
    def counted(total: Tensor, one: Tensor) -> Tensor:
        total.add_(one)
        return total

    totals = torch.zeros(3, 2)
    with MergedCalls():
        vmap(counted)(totals, torch.ones(3, 2))
    assert totals.eq(1).all()
