"""Names, options and weights that are drawn from a name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.models import ModelOptions, build, check_name, check_options, input_spec
from hetfl.models.registry import is_random, missing_weights, weights_file, weights_path

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("name", "size", "interpolation", "statistics"),
    [
        ("vit_small_patch16_224.augreg_in21k_ft_in1k", 224, "bicubic", HALF),
        ("resnet18.tv_in1k", 224, "bilinear", IMAGENET),
        ("resnet50.tv_in1k", 224, "bilinear", IMAGENET),
        ("mocov3_vit_large", 224, "bicubic", IMAGENET),
        ("mocov3_vit_base.random", 224, "bicubic", IMAGENET),
        ("vit_base_patch16_224.random", 224, "bicubic", HALF),
        ("pfedpt_vit", 32, "bilinear", HALF),
        ("digits_resnet_large", 16, "bilinear", HALF),
    ],
)
def test_what_models_want_to_see(name: str, size: int, interpolation: str, statistics: tuple):
    check_name(name)
    spec = input_spec(name)
    assert (spec.size, spec.interpolation, (spec.mean, spec.std)) == (size, interpolation, statistics)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet19", "unknown model 'resnet19'; did you mean 'resnet18'"),
        ("mocov3_vit_bass", "did you mean 'mocov3_vit_base'"),
        ("resnet18.tv_in2k", "unknown weights tag 'resnet18.tv_in2k'; did you mean 'resnet18.tv_in1k'"),
        ("digits_vit_small.tv", "did you mean 'digits_vit_small.mnist'"),
        ("resnet18.", "unknown weights tag"),
    ],
)
def test_unknown_names_suggest_known_ones(name: str, message: str):
    with pytest.raises(HetflError, match=message):
        check_name(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "resnet18.tv_in1k",
            {"prompts": "deep"},
            "x: resnet18.tv_in1k takes no deep prompts, since it has no",
        ),
        ("digits_resnet_small", {"prompts": "shallow"}, "takes no shallow prompts"),
        ("mocov3_vit_base", {"prompts": "frame"}, "takes no frame, .*; use deep, shallow or border"),
        (
            "vit_base_patch16_gap_224",
            {"prompts": "deep"},
            "has no class token, so it takes no deep prompts; use a model such as",
        ),
        ("resnet18.tv_in1k", {"stem": "cifar"}, "a cifar stem needs weights: scratch"),
    ],
)
def test_options_that_a_family_does_not_take(name: str, options: dict, message: str):
    with pytest.raises(HetflError, match=message):
        check_options(name, ModelOptions(**options), "x")


def test_options_that_fit():
    for name in ("resnet18.tv_in1k", "digits_vit_base"):
        check_options(name, ModelOptions(prompts="border"))
        check_options(name, ModelOptions(stem="cifar", weights="scratch"))
    check_options("resnet18.random", ModelOptions(prompts="frame", stem="cifar"))
    check_options("digits_vit_base", ModelOptions(prompts="deep", stem="cifar"))


def test_vits_of_another_size(weights: Path):
    small = InputSettings(size=16)
    with pytest.raises(HetflError, match="pre-trained weights need 32 pixels, input.size is 16"):
        build("digits_vit_small", 3, ModelOptions(), weights, small)
    for name in ("digits_vit_small", "vit_tiny_patch16_224"):
        inputs = InputSettings(size=32) if name.startswith("vit") else small
        model = build(name, 3, ModelOptions(body="trained", weights="scratch"), inputs=inputs)
        params = model.init(Draws(0), 0)
        assert params["body.pos_embed"].shape[1] == 5
        assert model(params, torch.zeros(1, 3, model.spec.size, model.spec.size)).logits.shape == (1, 3)


@pytest.mark.parametrize("name", ["digits_resnet_large.random", "digits_pfedpt_vit.random", "resnet18.random"])
def test_random_weights_are_the_names(name: str, tmp_path: Path):
    assert is_random(name) and weights_file(name, tmp_path) is None
    first = build(name, 3, ModelOptions(), tmp_path)._module.body.state_dict()
    torch.rand(3)
    again = build(name, 3, ModelOptions(body="trained"), tmp_path).init(Draws(5), 2)
    assert all(torch.equal(value, again[f"body.{key}"]) for key, value in first.items())
    scratch = build(name, 3, ModelOptions(body="trained", weights="scratch"), tmp_path).init(Draws(5), 2)
    assert any(not torch.equal(value, scratch[f"body.{key}"]) for key, value in first.items())


def test_other_models_need_their_file(tmp_path: Path):
    for name, remedy in (
        ("digits_resnet_base", "dvc repro pretrain"),
        ("resnet18.tv_in1k", "hetfl weights resnet18.tv_in1k"),
        ("mocov3_vit_base", "dl.fbaipublicfiles.com/moco-v3/vit-b-300ep/vit-b-300ep.pth.tar"),
        ("pfedpt_vit", "trains from scratch"),
    ):
        path = weights_path(name, tmp_path)
        assert weights_file(name, tmp_path) == path
        assert remedy in missing_weights(name, path)
        with pytest.raises(HetflError, match="are missing"):
            build(name, 3, ModelOptions(), tmp_path)


def test_a_vits_pooled_and_further_outputs(weights: Path):
    model = build("digits_vit_base", 3, ModelOptions(embedding=12, reduce="pool", extra_outputs=4), weights)
    output = model(model.init(Draws(0), 0), torch.zeros(2, 3, 32, 32))
    assert (output.features.shape, output.logits.shape, model.width) == ((2, 12), (2, 7), 12)
