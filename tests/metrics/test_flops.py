"""Operations of a few layers, and of one step of a method, against pencil and paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hetfl.data.batches import Batch
from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.methods.base import create
from hetfl.metrics.flops import flops, step_flops
from hetfl.models import build


def backward(layer: nn.Module, images: Tensor) -> Callable[[], None]:
    loss = layer(images).sum()
    return lambda: loss.backward()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_linear_layer_costs_two_operations_per_weight_and_sample(device):
    layer = nn.Linear(7, 5, device=device)
    plain, moved = (torch.zeros(3, 7, device=device, requires_grad=moves) for moves in (False, True))
    assert flops(lambda: layer(plain)) == 2 * 3 * 7 * 5
    assert flops(backward(layer, plain)) == 2 * 3 * 7 * 5
    assert flops(backward(layer, moved)) == 2 * 2 * 3 * 7 * 5


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_each_gradient_of_a_convolution_costs_as_much_as_its_forward_pass(groups):
    layer = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=groups)
    plain, moved = (torch.zeros(3, 4, 10, 10, requires_grad=moves) for moves in (False, True))
    once = 2 * 3 * (5 * 5) * 8 * (4 // groups) * (3 * 3)
    assert flops(lambda: layer(plain)) == once
    assert flops(backward(layer, plain)) == once
    assert flops(backward(layer, moved)) == 2 * once


def test_a_frozen_layer_takes_no_gradient_of_its_weights():
    layer = nn.Conv2d(4, 8, 3).requires_grad_(False)
    assert flops(backward(layer, torch.zeros(1, 4, 5, 5, requires_grad=True))) == flops(
        lambda: layer(torch.zeros(1, 4, 5, 5))
    )


def test_element_wise_operations_count_nothing():
    values = torch.zeros(2, 3, 4, 4)
    assert flops(lambda: nn.MaxPool2d(2)(nn.BatchNorm2d(3)(values.relu()) + 1)) == 0


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_step_is_that_of_the_methods_objective_and_leaves_the_parameters_alone(device):
    method = create("lg-fedavg", {"embedding": 512, "reduce": "pool", "init": "torch"}, 100)
    with torch.device(device):
        model = build("cnn", 100, method.model_options(), inputs=InputSettings(size=32))
        params = model.init(Draws(0), 0)
        batch = Batch(torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64))
    step = step_flops(method, model, params, batch, {})
    convs = 28 * 28 * 32 * 3 * 25, 10 * 10 * 64 * 32 * 25
    dense = 1600 * 512 + 512 * 100
    assert step.forward == 2 * 2 * (sum(convs) + dense)
    # The gradient of the images is not taken.
    assert step.backward == 2 * step.forward - 2 * 2 * convs[0]
    assert all(tensor.grad is None and not tensor.requires_grad for tensor in params.values())
