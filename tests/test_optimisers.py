"""Steps are those of torch.optim, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hetfl.optimisers import SGD, Adam, clip_gradients

SHAPES = [(3,), (17, 9), (5, 3, 3, 3)]


def played(make: Callable[[list[Tensor]], Any]) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Leaves and their state after a few steps; one leaf has no gradient in every other step."""
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]
    optimiser = make(leaves)
    for step in range(5):
        optimiser.zero_grad()
        assert all(leaf.grad is None for leaf in leaves)
        for number, leaf in enumerate(leaves):
            if number != 1 or step % 2:
                leaf.grad = torch.randn(leaf.shape, generator=generator)
        optimiser.step()
    return [leaf.detach() for leaf in leaves], [optimiser.state[leaf] for leaf in leaves]


def torch_sgd(leaves: list[Tensor]) -> torch.optim.Optimizer:
    optimiser = torch.optim.SGD(leaves, 0.1, 0.9, weight_decay=1e-3, fused=True)
    for leaf in leaves:  # the fused step wants all buffers or none
        optimiser.state[leaf]["momentum_buffer"] = torch.zeros_like(leaf)
    return optimiser


CASES = {
    "sgd": (lambda leaves: SGD(leaves, 0.1), lambda leaves: torch.optim.SGD(leaves, 0.1)),
    "momentum": (lambda leaves: SGD(leaves, 0.1, 0.9, 1e-3), torch_sgd),
    "one by one": (lambda leaves: Adam(leaves, 1e-2, fused=False), lambda leaves: torch.optim.Adam(leaves, 1e-2)),
    "adam": (lambda leaves: Adam(leaves, 1e-2), lambda leaves: torch.optim.Adam(leaves, 1e-2, fused=True)),
    "decay": (
        lambda leaves: Adam(leaves, 1e-2, 1e-3),
        lambda leaves: torch.optim.Adam(leaves, 1e-2, weight_decay=1e-3, fused=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_are_torchs(case: str) -> None:
    ours, theirs = (played(make) for make in CASES[case])
    for left, right in zip(ours[0], theirs[0], strict=True):
        assert torch.equal(left, right)
    for left, right in zip(ours[1], theirs[1], strict=True):
        kept = {name: value for name, value in right.items() if isinstance(value, Tensor)}
        assert left.keys() == kept.keys()
        assert all(torch.equal(left[name], kept[name]) for name in kept)


def test_nothing_moves_without_gradients() -> None:
    leaf = torch.ones(2, requires_grad=True)
    SGD([leaf], 0.1, 0.9).step()
    assert torch.equal(leaf, torch.ones(2))


def test_gradients_may_lie_in_memory_as_they_like():
    gradient = torch.randn(4, 3).T
    ends = []
    for given in (gradient, gradient.contiguous()):
        leaf = torch.ones(3, 4, requires_grad=True)
        leaf.grad = given
        SGD([leaf], 0.1, 0.9).step()
        ends.append(leaf.detach())
    assert torch.equal(*ends)
    # Processors differ in whether they round between the product and the sum.
    torch.testing.assert_close(ends[0], 1 - 0.1 * gradient)


@pytest.mark.parametrize("scale", [1e-3, 1.0, float("inf"), float("nan")])
def test_gradients_are_clipped_as_by_torch(scale: float):
    leaves, expected = ([torch.zeros(shape, requires_grad=True) for shape in SHAPES] for _ in range(2))
    for own, other in zip(leaves, expected, strict=True):
        own.grad = scale * torch.randn(own.shape, generator=torch.Generator().manual_seed(0))
        other.grad = own.grad.clone()
    clip_gradients(leaves, 10.0)
    torch.nn.utils.clip_grad_norm_(expected, 10.0)
    for own, other in zip(leaves, expected, strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fused", [True, False])
def test_what_is_kept_goes_where_its_optimiser_reads_it(fused: bool) -> None:
    """The meta device stands for a GPU, where a step that is not fused counts its steps on the host."""
    kept = {f"{name}/{slot}": torch.ones(2) for name in ("x", "other") for slot in ("exp_avg", "exp_avg_sq")}
    kept |= {f"{name}/step": torch.tensor(3.0) for name in ("x", "other")}
    leaves = {"x": torch.zeros(2, device="meta")}
    optimiser = Adam(leaves.values(), 0.1, fused=fused)
    optimiser.go_on(leaves, kept)
    state = optimiser.kept(leaves)
    assert {name: tensor.device.type for name, tensor in state.items()} == {
        "x/exp_avg": "meta",
        "x/exp_avg_sq": "meta",
        "x/step": "meta" if fused else "cpu",
    }


def test_an_optimiser_goes_on_with_a_copy() -> None:
    leaves = {"x": torch.zeros(2)}
    kept = {"x/momentum_buffer": torch.ones(2)}
    optimiser = SGD(leaves.values(), 0.1, 0.9)
    optimiser.go_on(leaves, kept)
    leaves["x"].grad = torch.ones(2)
    optimiser.step()
    assert torch.equal(optimiser.kept(leaves)["x/momentum_buffer"], torch.full((2,), 1.9))
    assert torch.equal(kept["x/momentum_buffer"], torch.ones(2))
