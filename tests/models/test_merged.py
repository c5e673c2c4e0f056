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
