"""Prompted vision transformers: counts of the papers, token order, initialisation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.files import read_json
from hetfl.models import Model, ModelOptions, build
from hetfl.models.outline import outline
from hetfl.models.registry import weights_path
from hetfl.tensors import read_tensors, write_tensors

PAPER = {"ViT-S": "vit_small_patch16_224", "ViT-B": "vit_base_patch16_224", "ViT-L": "vit_large_patch16_224"}
TAG = ".augreg_in21k_ft_in1k"
K, M = 1024, 1024**2
"""FedHPL's units: elements, not bytes."""

TABLE_5_BACKBONE_M = {"ViT-S": 20.66, "ViT-B": 81.82, "ViT-L": 289.25}
TABLE_5_ENTIRE_M = {
    10: {
        "ViT-S": 20.67,
        "ViT-B": 81.83,
        "ViT-L": 289.26,
    },  # ViT-S is printed 20.57, less than its own backbone
    100: {"ViT-S": 20.70, "ViT-B": 81.90, "ViT-L": 289.35},
}
TABLE_6_HEAD_K = {
    10: {"ViT-S": 3.760, "ViT-B": 7.510, "ViT-L": 10.010},
    100: {"ViT-S": 37.598, "ViT-B": 75.098, "ViT-L": 100.098},
}
TABLE_6_SLOPE_K = {
    "shallow": {"ViT-S": 0.375, "ViT-B": 0.75, "ViT-L": 1.0},
    "deep": {"ViT-S": 4.5, "ViT-B": 9.0, "ViT-L": 24.0},
}
TABLE_6_CAPTION_K = {
    "shallow": {
        "ViT-S": 4.88,
        "ViT-B": 9.76,
        "ViT-L": 13.01,
    },  # ViT-S is printed 4.89, the sum of rounded parts
    "deep": {"ViT-S": 17.26, "ViT-B": 34.51, "ViT-L": 82.01},
}


def paper_model(size: str, classes: int, prompts: str = "none", n: int = 3, body: str = "frozen") -> Model:
    # Counts need no memory and no weights.
    options = ModelOptions(prompts=prompts, prompt_length=n, body=body, weights="scratch")
    return outline(PAPER[size] + TAG, classes, options, InputSettings())


def trained_elements(model: Model) -> int:
    return model.elements(tuple(model.groups))


@pytest.mark.parametrize("size", PAPER)
@pytest.mark.parametrize("classes", [10, 100])
def test_table_5_entire_models(size, classes):
    model = paper_model(size, classes, body="trained")
    assert round(trained_elements(model) / M, 2) == TABLE_5_ENTIRE_M[classes][size]
    assert round((model.total_elements - (model.width + 1) * classes) / M, 2) == TABLE_5_BACKBONE_M[size]


@pytest.mark.parametrize("size", PAPER)
@pytest.mark.parametrize("prompts", ["shallow", "deep"])
@pytest.mark.parametrize("classes", [10, 100])
def test_table_6_trainable_elements(size, prompts, classes):
    head = TABLE_6_HEAD_K[classes][size]
    counts = {n: trained_elements(paper_model(size, classes, prompts, n)) / K for n in (1, 3)}
    assert round(counts[3] - 3 * TABLE_6_SLOPE_K[prompts][size], 3) == head
    assert (counts[3] - counts[1]) / 2 == TABLE_6_SLOPE_K[prompts][size]
    if classes == 10:
        # Half up, as a person rounds; the exact values are not ties in binary.
        assert f"{counts[3]:.2f}" == f"{TABLE_6_CAPTION_K[prompts][size]:.2f}"


def test_paper_models_are_what_their_weights_want():
    model = paper_model("ViT-B", 10)
    assert (model.width, model.spec.size, model.spec.interpolation) == (768, 224, "bicubic")
    assert model.spec.mean == model.spec.std == (0.5, 0.5, 0.5)


@pytest.fixture(params=["shallow", "deep"])
def prompted(request: pytest.FixtureRequest, weights: Path) -> Model:
    return build("digits_vit_large", 3, ModelOptions(prompts=request.param, prompt_length=2), weights)


def reference_logits(model: Model, params: dict, images: torch.Tensor) -> torch.Tensor:
    """FedHPL Eq. 3-5 written out: z_a = [cls, prompts, patches] through every block."""
    body, prompts, n = model._module.body, params["prompts"], 2
    patches = body.patch_embed(images)
    cls = body.cls_token.expand(len(images), -1, -1)
    z = torch.cat([cls, patches], 1) + body.pos_embed
    cls, patches = z[:, :1], z[:, 1:]
    inserted = prompts[0].expand(len(images), -1, -1)
    for a, block in enumerate(body.blocks):
        if a and len(prompts) > 1:
            inserted = prompts[a].expand(len(images), -1, -1)
        out = block(torch.cat([cls, inserted, patches], 1))
        cls, inserted, patches = out[:, :1], out[:, 1 : 1 + n], out[:, 1 + n :]
    feature = body.norm(cls)[:, 0]
    return feature @ params["head.weight"].T + params["head.bias"]


def test_forward_is_the_papers_equations(prompted: Model):
    params = prompted.init(Draws(0), 0)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(prompted(params, images).logits, reference_logits(prompted, params, images), atol=1e-6)


def test_training_drops_values_of_prompts_sample_by_sample(prompted: Model, weights: Path):
    """A sample alone, with its own part of the mask multiplied into the prompts."""
    options = prompted._module.options.model_copy(update={"prompt_dropout": 0.5})
    dropping = build("digits_vit_large", 3, options, weights)
    params = prompted.init(Draws(0), 0)
    assert all(torch.equal(params[name], tensor) for name, tensor in dropping.init(Draws(0), 0).items())
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    masks = dropping.masks(7, 4)
    (mask,) = masks.values()
    assert mask.shape == (4, *params["prompts"].shape) and set(mask.unique().tolist()) == {0.0, 2.0}
    logits = dropping.train(masks)(params, images).logits
    for k in range(4):
        own = {**params, "prompts": params["prompts"] * mask[k]}
        assert torch.allclose(logits[k], prompted(own, images[k : k + 1]).logits[0], atol=1e-5)
    assert torch.equal(dropping.masks(7, 4)["dropout0"], mask) and not torch.equal(
        dropping.masks(8, 4)["dropout0"], mask
    )
    assert torch.equal(dropping(params, images).logits, prompted(params, images).logits)
    assert prompted.masks(7, 4) == {}


def test_prompts_start_uniform_with_vpts_bound(prompted: Model):
    prompts = prompted.init(Draws(0), 0)["prompts"]
    bound = math.sqrt(6 / (3 * 8**2 + 64))
    assert prompts.abs().max() <= bound
    assert prompts.abs().max() > 0.9 * bound


def test_clients_start_from_different_values(prompted: Model):
    first, second = prompted.init(Draws(0), 0), prompted.init(Draws(0), 1)
    assert not torch.equal(first["prompts"], second["prompts"])
    assert not torch.equal(first["head.weight"], second["head.weight"])
    again = prompted.init(Draws(0), 0)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_head_rules(weights: Path):
    timm = build("digits_vit_small", 3, ModelOptions(), weights).init(Draws(0), 0)
    vpt = build("digits_vit_small", 3, ModelOptions(init="vpt"), weights).init(Draws(0), 0)
    assert torch.all(timm["head.bias"] == 0)
    assert timm["head.weight"].abs().max() < 0.1
    assert torch.allclose(vpt["head.bias"], torch.tensor(-math.log(99)))


def test_scratch_bodies_are_drawn_per_client_and_leave_nothing_frozen(weights: Path):
    model = build("digits_vit_small", 3, ModelOptions(body="trained", weights="scratch"), weights)
    first, second = model.init(Draws(0), 0), model.init(Draws(0), 1)
    name = "body.blocks.0.mlp.fc1.weight"
    assert not torch.equal(first[name], second[name])
    assert set(first) == {key for key, _ in model._module.named_parameters()}


def test_pretrained_bodies_start_from_the_file(weights: Path):
    model = build("digits_vit_small", 3, ModelOptions(body="trained"), weights)
    frozen = build("digits_vit_small", 3, ModelOptions(), weights)
    own = model.init(Draws(0), 0)["body.cls_token"]
    assert torch.equal(own, frozen._module.body.cls_token)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("digits_vit_base", "dvc repro pretrain"),
        (PAPER["ViT-B"] + TAG, f"hetfl weights {PAPER['ViT-B']}{TAG}"),
    ],
)
def test_missing_weights_say_how_to_get_them(tmp_path: Path, name: str, remedy: str):
    with pytest.raises(HetflError, match="are missing") as caught:
        build(name, 3, ModelOptions(), tmp_path)
    assert remedy in str(caught.value)


def test_weights_of_another_model_are_refused(tmp_path: Path, weights: Path):
    weights_path("digits_vit_base", tmp_path).write_bytes(weights_path("digits_vit_small", weights).read_bytes())
    for shapes_only in (False, True):
        with pytest.raises(HetflError, match="does not fit digits_vit_base but digits_vit_small: .*size mismatch"):
            build("digits_vit_base", 3, ModelOptions(), tmp_path, shapes_only=shapes_only)
    harmed = read_tensors(weights_path("digits_vit_base", weights))[0]
    harmed["cls_token"][0, 0, 3] = torch.nan
    write_tensors(weights_path("digits_vit_base", tmp_path), harmed)
    with pytest.raises(HetflError, match=r"digits_vit_base.safetensors: cls_token has values that are not finite"):
        build("digits_vit_base", 3, ModelOptions(), tmp_path)
    weights_path("digits_vit_base", tmp_path).write_bytes(b"not safetensors")
    with pytest.raises(HetflError, match="not a valid safetensors file"):
        build("digits_vit_base", 3, ModelOptions(), tmp_path)


def test_fetching_weights_stores_what_timm_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from hetfl.models.parts import part, timm_model
    from hetfl.models.registry import fetch_weights, load_weights

    factory = part("timm.models._factory")
    name = "vit_tiny_patch16_224.augreg_in21k"
    made = timm_model("vit_tiny_patch16_224")

    def create_model(wanted: str, pretrained: bool, num_classes: int):
        assert (wanted, pretrained, num_classes) == (name, True, 0)
        return made

    monkeypatch.setattr(factory, "create_model", create_model)
    fetch_weights(name, tmp_path)
    loaded = load_weights(name, tmp_path)
    assert all(torch.equal(loaded[key], value) for key, value in made.state_dict().items())

    def offline(*_: object, **__: object):
        raise OSError("no route to host")

    monkeypatch.setattr(factory, "create_model", offline)
    with pytest.raises(HetflError, match="cannot be downloaded .no route to host"):
        fetch_weights(name, tmp_path)


def test_json_error_names_the_file(tmp_path: Path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(HetflError, match="x.json: is not JSON"):
        read_json(tmp_path / "x.json")
    write_tensors(tmp_path / "t.safetensors", {"a": torch.ones(2)})
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
