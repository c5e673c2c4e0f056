"""A second network beside the client's own, and the matrix between their features."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.models import Model, ModelOptions, build

ALONE = ModelOptions(body="trained", weights="scratch", embedding=24, reduce="pool", init="torch")
BOTH = ALONE.model_copy(update={"auxiliary": "digits_resnet_small", "transform": True})


def images(model: Model, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, model.spec.channels, model.spec.size, model.spec.size, generator=generator)


def own(params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in params.items()}


@pytest.fixture
def model() -> Model:
    return build("digits_resnet_large", 3, BOTH)


def test_groups_share_out_all_parameters(model: Model):
    params = model.init(Draws(0), 0)
    names = model.names(tuple(model.groups))
    assert len(names) == len(set(names)) and set(names) == set(params)
    assert model.names(["transform"]) == ("transform.weight",)
    second = build("digits_resnet_small", 3, ALONE)
    assert model.names(["auxiliary"]) == tuple(f"auxiliary.{name}" for name in second.names(["body", "head"]))
    alone = build("digits_resnet_large", 3, ALONE)
    assert model.names(["buffers"]) == (
        *alone.names(["buffers"]),
        *(f"auxiliary.{name}" for name in second.names(["buffers"])),
    )
    assert alone.names(["auxiliary", "transform"]) == ()


def test_elements(model: Model):
    alone, second = build("digits_resnet_large", 3, ALONE), build("digits_resnet_small", 3, ALONE)
    assert model.total_elements == alone.total_elements == model.elements(["body", "head"])
    assert model.elements(["auxiliary"]) == second.total_elements
    assert model.elements(["transform"]) == 24**2


def test_each_network_sees_its_own_parameters_alone(model: Model):
    params = model.init(Draws(0), 0)
    first, second = model(params, images(model)), model.auxiliary(params, images(model))
    assert first.features.shape == second.features.shape == (4, 24)
    changed = {name: value + name.startswith(("auxiliary.", "transform.")) for name, value in params.items()}
    assert torch.equal(model(changed, images(model)).logits, first.logits)
    assert not torch.equal(model.auxiliary(changed, images(model)).logits, second.logits)
    changed = {name: value + (not name.startswith("auxiliary.")) for name, value in params.items()}
    assert torch.equal(model.auxiliary(changed, images(model)).logits, second.logits)
    assert not torch.equal(model(changed, images(model)).logits, first.logits)


def test_each_network_is_what_it_is_alone(model: Model):
    params = model.init(Draws(0), 0)
    second = build("digits_resnet_small", 3, ALONE)
    theirs = {name.removeprefix("auxiliary."): value for name, value in params.items() if "auxiliary." in name}
    assert set(theirs) == set(second.init(Draws(0), 0))
    assert torch.equal(model.auxiliary(params, images(model)).logits, second(theirs, images(model)).logits)
    trained = model.train().auxiliary(own(params), images(model)).logits
    assert torch.equal(trained, second.train()(own(theirs), images(model)).logits)


def test_the_clients_own_start_is_as_without(model: Model):
    alone = build("digits_resnet_large", 3, ALONE).init(Draws(0), 2)
    params = model.init(Draws(0), 2)
    assert all(torch.equal(params[name], value) for name, value in alone.items())
    same = build("digits_resnet_small", 3, BOTH).init(Draws(0), 2)
    for name in ("body.conv1.weight", "head.weight"):
        assert not torch.equal(same[name], same[f"auxiliary.{name}"])
    other = model.init(Draws(0), 3)
    drawn = [name for name in params if "weight" in name and "bn" not in name and "downsample.1" not in name]
    assert all(not torch.equal(params[name], other[name]) for name in drawn)
    assert all(torch.equal(value, model.init(Draws(0), 2)[name]) for name, value in params.items())
    assert 0.9 * 24**-0.5 < params["transform.weight"].abs().max() <= 24**-0.5


def test_statistics_move_in_the_training_view_of_the_network_that_runs(model: Model):
    start = model.init(Draws(0), 0)
    params = own(start)
    model(params, images(model))
    model.auxiliary(params, images(model))
    assert all(torch.equal(params[name], value) for name, value in start.items())

    def moved() -> set[str]:
        return {name for name, value in params.items() if not torch.equal(value, start[name])}

    buffers = model.names(["buffers"])
    model.train()(params, images(model))
    assert moved() == {name for name in buffers if not name.startswith("auxiliary.")}
    model.train().auxiliary(params, images(model))
    assert moved() == set(buffers)


def test_gradients_reach_both(model: Model):
    params = model.init(Draws(0), 0)
    trained = model.names(["body", "head", "auxiliary", "transform"])
    leaves = {name: params[name].clone().requires_grad_() for name in trained}
    view = model.train(0)
    params |= leaves
    first, second = view(params, images(model)), view.auxiliary(params, images(model))
    mapped = second.features @ leaves["transform.weight"].T
    (first.logits.square().sum() + second.logits.square().sum() + (first.features - mapped).square().sum()).backward()
    assert all(leaf.grad is not None for leaf in leaves.values())
    assert all(leaves[name].grad.abs().sum() > 0 for name in model.names(["transform"]))


def test_dropout_of_both_networks_is_not_the_same():
    options = ALONE.model_copy(update={"embedding": None, "auxiliary": "mobilenet_v2"})
    model = build("mobilenet_v2", 3, options, inputs=InputSettings(size=32))
    params = model.init(Draws(0), 0)
    params |= {f"auxiliary.{name}": value.clone() for name, value in own(params).items() if "auxiliary" not in name}
    view = model.train(model.masks(7, len(images(model))))
    first, second = view(params, images(model)).features, view.auxiliary(params, images(model)).features
    # The networks are equal, so the features are, but for what is dropped.
    lost = ((first == 0) != (second == 0)).sum() / ((first > 0) | (second > 0)).sum()
    assert abs(lost - 2 * 0.2 * 0.8 / (1 - 0.2**2)) < 0.04
    both = (first > 0) & (second > 0)
    torch.testing.assert_close(first[both], second[both])


def test_a_frozen_clients_second_network_trains():
    options = ModelOptions(auxiliary="digits_resnet_small")
    model = build("digits_resnet_base.random", 3, options)
    assert model.groups.get("body") is None
    assert all(name.startswith("auxiliary.") for name in model.names(["buffers"])) and model.names(["buffers"])
    start = model.init(Draws(0), 0)
    params = own(start)
    view = model.train()
    assert torch.equal(view(params, images(model)).logits, model(params, images(model)).logits)
    assert not torch.equal(
        view.auxiliary(params, images(model)).logits, model.auxiliary(own(start), images(model)).logits
    )


def test_both_networks_get_the_same_images():
    options = ALONE.model_copy(update={"auxiliary": "htcnn2"})
    model = build("htcnn5", 3, options, inputs=InputSettings(size=20))
    params = model.init(Draws(0), 0)
    assert params["auxiliary.body.7.weight"].shape == (512, 64 * 2**2)
    assert model.auxiliary(params, images(model)).logits.shape == (4, 3)


def test_features_that_a_square_matrix_does_not_map():
    with pytest.raises(HetflError, match="64 values with digits_resnet_large, 16 with digits_resnet_small; set a"):
        build("digits_resnet_large", 3, BOTH.model_copy(update={"embedding": None}))
    with pytest.raises(HetflError, match="auxiliary: unknown model 'digits_resnet'"):
        build("digits_resnet_large", 3, BOTH.model_copy(update={"auxiliary": "digits_resnet"}))
