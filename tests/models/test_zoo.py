"""FedTGP's networks and a benchmark's: sizes, arithmetic, features, heads, starts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.models import Model, ModelOptions, build, check_name, check_options, input_spec
from hetfl.models.dropout import KeyedDropout
from hetfl.models.fitting import on_meta
from hetfl.models.registry import DIGITS_CNNS, HTCNNS, creator, head_of, missing_weights, weights_file, weights_path

PAPER = ModelOptions(body="trained", weights="scratch", embedding=512, reduce="pool", init="torch")
OWN_WIDTH = PAPER.model_copy(update={"embedding": None})

SIZES = {
    # Parameters without and with the head, width of the backbone's own feature, million multiplications at 32 and 64.
    "cnn": (873_408, 924_708, 512, (7.87, 48.84)),
    "googlenet": (5_599_904, 5_651_204, 1024, (30.61, 122.28)),
    "mobilenet_v2": (2_223_872, 2_275_172, 1280, (6.16, 24.50)),
    "resnet18": (11_176_512, 11_227_812, 512, (37.06, 148.10)),
    "resnet34": (21_284_672, 21_335_972, 512, (74.81, 299.09)),
    "resnet50": (23_508_032, 23_559_332, 2048, (83.46, 333.69)),
    "resnet101": (42_500_160, 42_551_460, 2048, (159.22, 636.73)),
    "resnet152": (58_143_808, 58_195_108, 2048, (234.98, 939.77)),
    "resnet4": (83_520, 134_820, 64, (7.18, 28.56)),
    "resnet6": (313_664, 364_964, 128, (10.85, 43.24)),
    "resnet8": (1_232_704, 1_284_004, 256, (14.52, 57.92)),
    "resnet10": (4_905_792, 4_957_092, 512, (18.19, 72.60)),
}
CNN_AT_64 = (5_592_000, 5_643_300)
HTCNN_COUNTS = [2_365_770, 582_026, 2_628_426, 844_682, 5_250_378, 1_631_626, 5_513_034, 1_894_282]
DIGITS_COUNTS = [9_786, 4_298, 10_842, 5_354, 21_114, 6_922, 22_170, 7_978]
SMALL = ("cnn", "googlenet", "mobilenet_v2", "resnet4", "resnet18")


def shape_of(name: str, classes: int = 100, options: ModelOptions = PAPER, size: int | None = None) -> Model:
    with on_meta():
        return build(name, classes, options, inputs=InputSettings(size=size))


def images(model: Model, many: int = 4, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(many, model.spec.channels, model.spec.size, model.spec.size, generator=generator)


def at_32(name: str, options: ModelOptions = PAPER) -> Model:
    return build(name, 10, options, inputs=InputSettings(size=32))


@pytest.mark.parametrize("name", SIZES)
def test_counts_and_multiplications(name: str):
    body, total, width, printed = SIZES[name]
    for size, millions in zip((32, 64), printed, strict=True):
        if (name, size) == ("cnn", 64):
            body, total = CNN_AT_64
        model = shape_of(name, size=size)
        assert (model.elements(["body"]), model.total_elements, model.width) == (body, total, 512)
        with FlopCounterMode(display=False) as counter:
            model._module(torch.empty(1, 3, size, size, device="meta"))
        assert round(counter.get_total_flops() / 2 / 1e6, 2) == millions
    assert shape_of(name, options=OWN_WIDTH).width == width


@pytest.mark.parametrize(("name", "count", "width"), [("pfl_cnn", 1_626_442, 128), ("linear", 30_730, 3072)])
def test_models_of_pfl_researchs_benchmark(name: str, count: int, width: int):
    model = build(name, 10, OWN_WIDTH)
    assert (model.total_elements, model.width, model.spec.size) == (count, width, 32)
    params, batch = model.init(Draws(0), 0), images(model)
    features = batch.permute(0, 2, 3, 1)
    if name == "pfl_cnn":
        features = batch
        for place, pool in ((0, 1), (2, 2)):
            weight, bias = (params[f"body.{place}.{kind}"] for kind in ("weight", "bias"))
            features = F.max_pool2d(F.conv2d(features, weight, bias).relu(), pool)
        features = F.linear(features.flatten(1), params["body.6.weight"], params["body.6.bias"]).relu()
    expected = F.linear(features.flatten(1), params["head.weight"], params["head.bias"])
    torch.testing.assert_close(model(params, batch).logits, expected)
    assert set(params) == set(model.names(["body", "head"]))


@pytest.mark.parametrize(
    ("names", "counts", "width", "size"), [(HTCNNS, HTCNN_COUNTS, 512, 28), (DIGITS_CNNS, DIGITS_COUNTS, 32, 16)]
)
def test_eight_cnns_for_grey_images(names: dict, counts: list[int], width: int, size: int):
    models = [shape_of(name, 10, OWN_WIDTH) for name in names]
    assert [name[-1] for name in names] == list("12345678")
    assert [model.total_elements for model in models] == counts
    assert all((model.width, model.spec.size, model.spec.channels) == (width, size, 1) for model in models)


def test_heads_of_several_layers():
    counts = {"": 51_300, "-h512": 313_956, "-h256": 157_028, "-h128": 78_564, "-relu": 51_300, "-h512-relu": 313_956}
    assert {head: shape_of(f"resnet10{head}").elements(["head"]) for head in counts} == counts
    assert shape_of("cnn").names(["head"]) == ("head.weight", "head.bias")
    assert shape_of("cnn-h128").names(["head"]) == ("head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias")
    assert [head_of(name) for name in ("cnn", "cnn-relu", "resnet34-h512-relu")] == ["", "relu", "h512-relu"]


def test_heads_compute_what_their_names_say():
    for name in ("digits_cnn2-h5", "digits_cnn2-h5-relu", "digits_cnn2-relu"):
        model = build(name, 3, OWN_WIDTH)
        params = model.init(Draws(0), 0)
        features, logits = model(params, images(model))
        if "h5" in name:
            features = F.linear(features, params["head.0.weight"], params["head.0.bias"]).relu()
            expected = F.linear(features, params["head.2.weight"], params["head.2.bias"])
        else:
            expected = F.linear(features, params["head.0.weight"], params["head.0.bias"])
        assert expected.min() < 0
        assert torch.equal(logits, expected.relu() if name.endswith("relu") else expected)


@pytest.mark.parametrize(
    ("name", "pooled", "windows"),
    [
        ("cnn", 64, 8),
        ("cnn", 256, 2),
        ("cnn", 512, 1),
        ("googlenet", 512, 2),
        ("googlenet", 1024, 1),
        ("mobilenet_v2", 256, 5),
        ("resnet50", 512, 4),
    ],
)
def test_features_are_means_of_adjacent_channels(name: str, pooled: int, windows: int):
    model = at_32(name, PAPER.model_copy(update={"embedding": pooled}))
    means = own_features(name).unflatten(1, (pooled, windows)).mean(dim=2)
    torch.testing.assert_close(model(model.init(Draws(0), 0), images(model, 2)).features, means)


@cache
def own_features(name: str) -> Tensor:
    """Of two images, in the backbone's own width."""
    whole = at_32(name, OWN_WIDTH)
    features: Tensor = whole(whole.init(Draws(0), 0), images(whole, 2)).features
    return features


@pytest.mark.parametrize(
    ("name", "size", "embedding", "expected"),
    [
        ("resnet4", 64, 512, [(0, 1)] * 8 + [(1, 2)]),
        ("resnet6", 128, 512, [(0, 1)] * 4 + [(1, 2)]),
        ("resnet8", 256, 512, [(0, 1)] * 2 + [(1, 2)]),
        ("cnn", 512, 1024, [(0, 1), (0, 1), (1, 2)]),
        ("mobilenet_v2", 1280, 512, [(0, 3), (2, 5), (5, 8), (7, 10), (10, 13)]),
        ("mobilenet_v2", 1280, 1024, [(0, 2), (1, 3), (2, 4), (3, 5), (5, 7)]),
    ],
)
def test_features_of_other_ratios_repeat_or_overlap(
    name: str, size: int, embedding: int, expected: list[tuple[int, int]]
):
    model, whole = (at_32(name, PAPER.model_copy(update={"embedding": width})) for width in (embedding, None))
    found = model(model.init(Draws(0), 0), images(model, 2)).features
    features = whole(whole.init(Draws(0), 0), images(model, 2)).features
    assert features.shape == (2, size)
    means = torch.stack([features[:, low:high].mean(dim=1) for low, high in expected], dim=1)
    torch.testing.assert_close(found[:, : len(expected)], means)


@pytest.mark.parametrize("name", [*SMALL, "htcnn6", "digits_cnn7"])
def test_features_are_not_negative_and_batches_train(name: str):
    model = build(name, 10, OWN_WIDTH, inputs=InputSettings(size=None if input_spec(name).channels == 1 else 32))
    params = {
        key: value.requires_grad_(key not in model.groups.get("buffers", ()))
        for key, value in model.init(Draws(0), 0).items()
    }
    output = model.train(model.masks(1, len(images(model))))(params, images(model))
    assert 0 <= output.features.min() < output.features.max()
    assert output.logits.shape == (4, 10)
    output.logits.square().sum().backward()
    assert all(params[key].grad.abs().sum() > 0 for key in model.names(["head"]))
    assert all(params[key].grad is not None for key in model.names(["body"]))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_residual_networks_are_torchvisions(name: str):
    model = at_32(name, OWN_WIDTH)
    params = model.init(Draws(0), 0)
    import torchvision  # seconds, which who collects this test need not wait for

    reference = torchvision.models.get_model(name).eval()
    reference.fc = nn.Identity()
    state = {key.removeprefix("body."): params[key] for key in model.names(["body", "buffers"])}
    rest = reference.load_state_dict(state, strict=False)
    assert not rest.unexpected_keys and all(key.endswith("num_batches_tracked") for key in rest.missing_keys)
    torch.testing.assert_close(model(params, images(model)).features, reference(images(model)))


@pytest.mark.parametrize("name", ["resnet4", "resnet18", "digits_resnet_large"])
def test_torchs_start_of_residual_blocks_and_heads(name: str):
    torchs, timms = (
        build(name, 100, ModelOptions(body="trained", weights="scratch", init=rule)).init(Draws(0), 0)
        for rule in ("torch", "timm")
    )
    norms = [key for key, value in torchs.items() if key.startswith("body.") and "weight" in key and value.dim() == 1]
    assert all((torchs[key] == 1).all() for key in norms)
    assert 0 < sum((timms[key] == 0).all().item() for key in norms) < len(norms)
    convs = [key for key, value in torchs.items() if value.dim() == 4]
    assert all(torch.equal(torchs[key], timms[key]) for key in convs)
    fan_out = torchs[convs[0]][:, 0].numel()
    assert abs(torchs[convs[0]].std() * (fan_out / 2) ** 0.5 - 1) < 0.1
    bound = torchs["head.weight"].shape[1] ** -0.5
    for part in ("head.weight", "head.bias"):
        assert 0.9 * bound < torchs[part].abs().max() <= bound
    assert not timms["head.bias"].any() and abs(timms["head.weight"].std() - 0.02) < 0.002


def test_starts_of_other_networks():
    params = build("googlenet", 10, PAPER).init(Draws(0), 0)
    weight = params["body.inception5b.branch1.conv.weight"]
    assert abs(weight.std() - 0.01) < 2e-4
    params = build("mobilenet_v2", 10, PAPER).init(Draws(0), 0)
    assert abs(params["body.features.18.0.weight"].std() - (2 / 1280) ** 0.5) < 2e-4
    params = build("cnn-h128", 10, PAPER).init(Draws(0), 0)
    for key, inputs in (("body.0.weight", 75), ("body.7.weight", 1600), ("head.0.weight", 512), ("head.2.bias", 128)):
        assert 0.7 * inputs**-0.5 < params[key].abs().max() <= inputs**-0.5


def test_dropout_is_a_function_of_its_seed():
    dropout, ones = KeyedDropout(0.2, 100), torch.ones(100, 100)
    assert dropout(ones) is ones
    dropout.mask = first = dropout.draw(3, 100)
    assert torch.equal(dropout(ones), first) and torch.equal(dropout.draw(3, 100), first)
    assert set(first.unique().tolist()) == {0.0, 1.25} and abs(first.mean() - 1) < 0.02
    assert not torch.equal(dropout.draw(4, 100), first)


@pytest.mark.parametrize("name", ["googlenet", "mobilenet_v2"])
def test_dropout_of_the_training_view_alone(name: str):
    model = at_32(name)
    params = model.init(Draws(0), 0)

    def seen(view: Model) -> Tensor:
        torch.rand(1)
        return view({key: value.clone() for key, value in params.items()}, images(model)).features

    views = (model, *(model.train(model.masks(seed, len(images(model)))) for seed in (1, 1, 2)))
    evaluated, first, again, other = map(seen, views)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(seen(model), evaluated) and torch.equal(seen(model), evaluated)


@pytest.mark.parametrize("name", ["googlenet", "mobilenet_v2"])
def test_dropout_comes_before_channels_are_pooled(name: str):
    model = at_32(name, OWN_WIDTH)
    params = model.init(Draws(0), 0)
    dropped = model.train(model.masks(1, len(images(model))))(params, images(model)).features
    (dropout,) = (layer for layer in model._module.modules() if isinstance(layer, KeyedDropout))
    assert dropout.p == 0.2
    dropout.p = 0
    whole = model.train(model.masks(1, len(images(model))))(params, images(model)).features
    lost = (dropped == 0) & (whole > 0)
    assert abs(lost.sum() / (whole > 0).sum() - 0.2) < 0.03
    torch.testing.assert_close(dropped[~lost], 1.25 * whole[~lost])


def test_frozen_networks_drop_nothing():
    model = build("mobilenet_v2.random", 10, ModelOptions())
    params = model.init(Draws(0), 0)
    assert model.train(model.masks(5, 2)) is model and set(params) == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnett4", "x: unknown model 'resnett4'; did you mean 'resnet4'"),
        ("htcnn9", "did you mean 'htcnn"),
        ("resnet-18", "unknown model 'resnet'"),
        ("resnet34-h0", "x: resnet34-h0: unknown head 'h0'; use h<width>, relu or h<width>-relu"),
        ("cnn-", "cnn-: unknown head ''"),
        ("cnn--relu", "unknown head '-relu'"),
        ("cnn-relu-h5", "unknown head 'relu-h5'"),
        ("cnn-h5-h6", "unknown head 'h5-h6'"),
        ("cnn.tv", "unknown weights tag 'cnn.tv'; known: cnn.random"),
        ("resnet18.tv_in1k-h5", "a model with a weights tag has a linear head; use resnet18.tv_in1k"),
    ],
)
def test_wrong_names(name: str, message: str):
    with pytest.raises(HetflError, match=message):
        check_name(name, "x")


def test_heads_change_nothing_else(tmp_path: Path):
    for plain in ("resnet34", "digits_vit_base", "htcnn3"):
        for name in (f"{plain}-h512", f"{plain}-relu", f"{plain}-h512-relu"):
            check_name(name)
            assert input_spec(name) == input_spec(plain)
            assert weights_file(name, tmp_path) == weights_path(plain, tmp_path)
    plain, layered = (build(name, 3, OWN_WIDTH).init(Draws(0), 0) for name in ("resnet4", "resnet4-h9"))
    assert all(torch.equal(value, layered[key]) for key, value in plain.items() if not key.startswith("head."))
    with on_meta():
        assert set(creator("resnet4-h9")().state_dict()) == set(creator("resnet4")().state_dict())


@pytest.mark.parametrize("name", ["cnn", "htcnn4", "digits_cnn1", "resnet10", "googlenet", "mobilenet_v2"])
def test_nobody_publishes_weights(name: str, tmp_path: Path):
    path = weights_path(name, tmp_path)
    assert f"use a method that trains from scratch, or {name}.random" in missing_weights(name, path)
    with pytest.raises(HetflError, match="are missing"):
        build(name, 3, ModelOptions(), tmp_path)
    check_name(f"{name}.random")


@pytest.mark.parametrize(
    ("name", "options", "inputs", "message"),
    [
        ("googlenet", {"prompts": "deep"}, {}, "x: googlenet takes no deep prompts"),
        (
            "cnn",
            {"prompts": "frame"},
            {},
            "x: cnn takes no frame, since it is made for one size of images; use border",
        ),
        ("htcnn1-h5", {"prompts": "frame"}, {}, "htcnn1-h5 takes no frame"),
        ("cnn", {}, {"size": 15}, "x: cnn: images of 15 pixels are too small; set a larger input.size"),
        ("pfl_cnn", {}, {"size": 5}, "x: pfl_cnn: images of 5 pixels are too small"),
        ("resnet4", {"auxiliary": "cnn"}, {"size": 8}, "x: auxiliary: cnn: images of 8 pixels are too small"),
        ("cnn", {"auxiliary": "cnn-h5"}, {}, "x: auxiliary: cnn-h5 must have a linear head; use cnn"),
        (
            "cnn",
            {"auxiliary": "htcnn2"},
            {},
            "auxiliary: htcnn2 takes images of 1 channels, cnn of 3",
        ),
    ],
)
def test_options_that_a_network_does_not_take(name: str, options: dict, inputs: dict, message: str):
    chosen = ModelOptions(weights="scratch", **options)
    with pytest.raises(HetflError, match=message):
        check_options(name, chosen, "x", InputSettings(**inputs))


def test_prompts_in_pixels_of_convolutional_networks():
    for name, prompts in (("googlenet", "frame"), ("mobilenet_v2", "frame"), ("cnn", "border"), ("htcnn1", "border")):
        options = PAPER.model_copy(update={"prompts": prompts, "stem": "cifar"})
        model = build(name, 3, options)
        params = model.init(Draws(0), 0)
        assert all(params[key].shape[1] == model.spec.channels for key in model.names(["prompts"]))
        assert model(params, images(model)).logits.shape == (4, 3)


def test_the_size_of_images_is_the_experiments():
    model = build("cnn", 3, PAPER, inputs=InputSettings(size=16, mean=(0.1, 0.2, 0.3)))
    assert model.init(Draws(0), 0)["body.7.weight"].shape == (512, 64)
    grey = build("htcnn2", 3, PAPER, inputs=InputSettings(size=32, mean=(0.1, 0.2, 0.3)))
    assert (grey.spec.size, grey.spec.mean, grey.spec.std) == (32, (0.1,), (0.5,))
    assert grey.init(Draws(0), 0)["body.7.weight"].shape == (512, 1600)


@pytest.mark.parametrize(
    ("name", "size", "elements"),
    [("htcnn1", 28, 32 * 24 * 24), ("resnet18", 32, 64 * 16 * 16), ("cnn", 32, 32 * 28 * 28)],
)
def test_the_largest_map_of_a_model_is_found(name: str, size: int, elements: int):
    images = InputSettings(size=size, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert build(name, 10, PAPER, inputs=images).largest_map == elements


def test_the_largest_map_is_found_after_a_training_pass():
    """ResNet18 ends in maps of one pixel, of which batch normalisation cannot train on a single one."""
    model = at_32("resnet18", OWN_WIDTH)
    model.train()(model.init(Draws(0), 0), images(model))
    assert model.largest_map == 64 * 16 * 16


def test_the_largest_map_is_found_after_clients_trained_together():
    """With masks of dropout that only existed for as long as they did."""
    model = at_32("mobilenet_v2", OWN_WIDTH)
    params, masks = model.init(Draws(0), 0), model.masks(0, 2)
    stacked = {name: torch.stack([mask, mask]) for name, mask in masks.items()}
    two = images(model)[:2]
    torch.func.vmap(lambda one: model.train(one)({**params}, two).logits, randomness="error")(stacked)
    assert masks and model.largest_map > 0
