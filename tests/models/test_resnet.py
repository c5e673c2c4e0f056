"""Residual networks: batch normalisation, stems, features."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.models import Model, ModelOptions, build
from hetfl.models.registry import DIGITS_RESNETS, creator, weights_path
from hetfl.tensors import write_tensors

TRAINED = ModelOptions(body="trained", weights="scratch")


def images(size: int = 16, many: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(many, 3, size, size, generator=torch.Generator().manual_seed(seed)) + 0.5


def own(params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in params.items()}


def plain(model: Model, params: dict[str, Tensor]) -> nn.Module:
    """timm's own model with a client's parameters."""
    body = creator(model.name)()
    state = {key.removeprefix("body."): params[key] for key in model.names(["body", "buffers"])}
    assert all(key.endswith("num_batches_tracked") for key in body.load_state_dict(state, strict=False).missing_keys)
    return body


@pytest.mark.parametrize("name", DIGITS_RESNETS)
@pytest.mark.parametrize("training", [False, True])
def test_both_modes_are_timms(name: str, training: bool):
    model = build(name, 3, TRAINED)
    params = model.init(Draws(0), 0)
    body = plain(model, params).train(training)
    for seed in range(2):
        got = (model.train() if training else model)(params, images(seed=seed))
        features = body(images(seed=seed))
        assert torch.allclose(got.features, features, atol=1e-6)
        assert torch.allclose(got.logits, features @ params["head.weight"].T + params["head.bias"], atol=1e-6)
    for key, value in body.state_dict().items():
        if not key.endswith("num_batches_tracked"):
            assert torch.allclose(params[f"body.{key}"], value, atol=1e-6)


def test_fresh_statistics_are_zeros_and_ones():
    model = build("digits_resnet_small", 3, TRAINED)
    params = model.init(Draws(0), 0)
    names = model.names(["buffers"])
    assert len(names) == 12
    for name in names:
        assert torch.equal(params[name], torch.full_like(params[name], float(name.endswith("var"))))
    assert not any("num_batches_tracked" in name for name in params)
    assert set(params) == set(model._module.state_dict())
    assert (
        model.elements(tuple(model.groups))
        == model.total_elements
        == sum(value.numel() for name, value in params.items() if name not in names)
    )


def test_only_the_training_view_moves_statistics_and_only_the_clients_own():
    model = build("digits_resnet_base", 3, TRAINED)
    first, second = model.init(Draws(0), 0), model.init(Draws(0), 1)
    start, stored = own(second), copy.deepcopy(model._module.state_dict())
    before = model(second, images()).logits
    model.train()(first, images())
    assert all(not torch.equal(first[name], start[name]) for name in model.names(["buffers"]) if "mean" in name)
    assert all(torch.equal(second[name], start[name]) for name in second)
    assert torch.equal(model(second, images()).logits, before)
    assert all(torch.equal(stored[name], value) for name, value in model._module.state_dict().items())


def test_views_take_turns():
    model = build("digits_resnet_small", 3, TRAINED)
    params = model.init(Draws(0), 0)
    training = model.train()
    seen = [(training if turn % 2 else model)(own(params), images()).logits for turn in range(4)]
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3]) and not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("prompts", ["none", "frame"])
def test_frozen_bodies_keep_their_statistics(prompts: str):
    model = build("digits_resnet_small.random", 3, ModelOptions(prompts=prompts))
    stored = copy.deepcopy(model._module.state_dict())
    params = model.init(Draws(0), 0)
    assert "buffers" not in model.groups and model.train() is model
    for value in params.values():
        value.requires_grad_()
    model.train()(params, images()).logits.square().sum().backward()
    with torch.no_grad():
        for value in params.values():
            value -= 0.1 * value.grad
    model.train()(params, images())
    after = model._module.state_dict()
    assert all(torch.equal(stored[name], after[name]) for name in stored)


def test_pretrained_statistics_come_from_the_file(tmp_path: Path):
    body = creator("digits_resnet_small")()
    body(images())
    write_tensors(weights_path("digits_resnet_small", tmp_path), body.state_dict())
    trained = build("digits_resnet_small", 3, ModelOptions(body="trained"), tmp_path)
    params = trained.init(Draws(0), 0)
    assert torch.equal(params["body.bn1.running_mean"], body.bn1.running_mean)
    assert not torch.equal(body.bn1.running_mean, torch.zeros(8))
    frozen = build("digits_resnet_small", 3, ModelOptions(), tmp_path)
    features = body.eval()(images())
    assert torch.allclose(frozen(frozen.init(Draws(0), 0), images()).features, features, atol=1e-6)
    assert torch.allclose(trained(params, images()).features, features, atol=1e-6)


@pytest.mark.parametrize("name", DIGITS_RESNETS)
@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
@pytest.mark.parametrize("size", [16, 32])
def test_features_of_every_kind(name: str, stem: str, size: int):
    d = build(name, 3, TRAINED).width
    kinds = {
        d: {},
        16: {"embedding": 16, "reduce": "pool"},
        24: {"embedding": 24},
        8: {"embedding": 8, "flat": 64},
    }
    for width, kind in kinds.items():
        model = build(name, 3, TRAINED.model_copy(update={"stem": stem, "extra_outputs": 2, **kind}))
        params = model.init(Draws(0), 0)
        output = model.train()(params, images(size))
        assert (model.width, model.num_classes) == (width, 3)
        assert output.features.shape == (4, width)
        assert output.logits.shape == (4, 5)
        assert ("projection.weight" in params) == (kind.get("reduce", "pool" if not kind else "linear") == "linear")


def test_pooled_features_are_means_of_neighbours():
    model = build("digits_resnet_large", 3, TRAINED.model_copy(update={"embedding": 16, "reduce": "pool"}))
    whole = build("digits_resnet_large", 3, TRAINED)
    params = model.init(Draws(0), 0)
    features = whole(whole.init(Draws(0), 0), images()).features
    assert torch.allclose(model(params, images()).features, features.view(4, 16, 4).mean(dim=2), atol=1e-6)


def test_flat_features_keep_quarters_apart():
    model = build("digits_resnet_small", 3, TRAINED.model_copy(update={"flat": 64}))
    params = model.init(Draws(0), 0)
    last = plain(model, params).eval().forward_features(images(32))
    quarters = last.unflatten(2, (2, -1)).unflatten(4, (2, -1)).mean(dim=(3, 5))
    assert torch.allclose(model(params, images(32)).features, quarters.flatten(1), atol=1e-6)


def test_flat_must_be_a_multiple_by_a_square():
    with pytest.raises(HetflError, match="flat: 100 is not 16 channels times a square"):
        build("digits_resnet_small", 3, TRAINED.model_copy(update={"flat": 100}))
