"""Outputs and gradients of every model family, recorded with the versions of the numerics they come from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from golden_numbers import check, figures

from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.experiments.versions import ENGINE, MODELS, lineage
from hetfl.models import Model, ModelOptions, build
from hetfl.models.registry import (
    DIGITS_CNNS,
    DIGITS_RESNETS,
    DIGITS_VITS,
    OWN_RESNETS,
    OWN_SPECS,
    OWN_VITS,
    PLAIN_CNNS,
    TORCHVISION,
    family_of,
)

SCRATCH = ModelOptions(body="trained", weights="scratch")
POOLED = {"embedding": 16, "reduce": "pool"}
INSERTED = {"prompts": "inserted", "prompt_length": 2, "shared_blocks": (1,), "group_blocks": (2,), "groups": 3}
SECOND = {"auxiliary": "digits_cnn1", "transform": True, "embedding": 16, "reduce": "pool"}

CASES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "cnn": [
        *((name, {}) for name in (*DIGITS_CNNS, "cnn", "pfl_cnn", "linear")),
        *((name, {}) for name in ("digits_cnn2-h5", "digits_cnn2-relu", "digits_cnn2-h5-relu")),
        ("digits_cnn3", {"embedding": 16}),
        ("digits_cnn3", {"extra_outputs": 2, "init": "torch"}),
        ("digits_cnn4", SECOND),
    ],
    "torchvision": [(name, {}) for name in TORCHVISION],
    "resnet": [
        *((name, {}) for name in (*DIGITS_RESNETS, "resnet4", "resnet6")),
        ("digits_resnet_small", {"stem": "cifar", "init": "torch"}),
        ("digits_resnet_small", {"embedding": 8, "flat": 64}),
        ("digits_resnet_large", POOLED),
        ("digits_resnet_small.random", {"body": "frozen", "weights": "pretrained", "init": "vpt"}),
    ],
    "vit": [
        *((name, {}) for name in (*DIGITS_VITS, "mini_vit")),
        *(("digits_vit_small", {"prompts": kind, "init": "vpt"}) for kind in ("shallow", "deep")),
        ("digits_vit_small", {"prompts": "deep", "prompt_length": 2, **POOLED}),
        ("digits_vit_small.random", {"body": "frozen", "weights": "pretrained", "prompts": "deep"}),
    ],
    "grouped-vit": [
        ("digits_vit_small", INSERTED),
        ("digits_vit_small", INSERTED | {"readout": "mean", "keys": "orthogonal", "init": "torch"}),
        ("digits_vit_small", INSERTED | {"shared_init": "zero", "keys": "uniform"}),
    ],
    "frame": [(name, {"prompts": "frame", "prompt_length": 2}) for name in DIGITS_RESNETS],
    "border": [(name, {"prompts": "border", "prompt_length": 2}) for name in ("digits_vit_small", "digits_cnn1")],
}
"""What is built of each family, and how it is fitted out beside training from scratch."""


def architectures(family: str) -> dict[str, Any]:
    """The project's own architectures of a family, as they are defined; large ones are held by this alone."""
    kinds = {**OWN_VITS, **OWN_RESNETS, **PLAIN_CNNS, **dict.fromkeys(TORCHVISION, {})}
    prompts = "inserted" if family == "grouped-vit" else "none"
    return {name: [kinds[name], asdict(OWN_SPECS[name])] for name in kinds if family_of(name, prompts) == family}


def outputs(model: Model, options: ModelOptions) -> dict[str, list[float]]:
    """Figures of start values, features and logits in training and evaluation, and gradients by role."""
    params = model.init(Draws(3), 1)
    for name in model.names([role for role in model.groups if role != "buffers"]):
        params[name] = params[name].requires_grad_()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, model.spec.channels, model.spec.size, model.spec.size, generator=generator)
    groups = torch.tensor([[0, 1], [2, 1], [1, 0], [0, 2]]) if options.prompts == "inserted" else None
    found = {"start": figures(params.values())}
    view = model.train(model.masks(7, len(images)))
    for number, network in enumerate((view, model)):
        result = network(params, images) if groups is None else network(params, images, groups)
        found |= {f"features {number}": figures([result.features]), f"logits {number}": figures([result.logits])}
        if number == 0:
            loss = (result.logits * torch.arange(1, result.logits.numel() + 1).view_as(result.logits).sin()).sum()
    if options.auxiliary:
        beside = view.auxiliary(params, images)
        found["auxiliary"] = figures([beside.features, beside.logits])
        loss = loss + beside.logits.square().sum()
    for role in model.groups:
        leaves = [params[name] for name in model.names([role]) if params[name].requires_grad]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True) if leaves else ()
        found[f"gradient of {role}"] = figures(gradient for gradient in gradients if gradient is not None)
    if groups is not None:
        found |= {f"query {block}": figures([model.query(images, block)]) for block in (None, 1)}
    return found


@pytest.mark.golden
@pytest.mark.parametrize("family", MODELS)
def test_golden_models(family: str, exact_weights, request):
    found: dict[str, Any] = {f"architecture {name}": kind for name, kind in architectures(family).items()}
    for name, options in CASES[family]:
        fitted = SCRATCH.model_copy(update=options)
        inputs = InputSettings(size=32) if name.startswith("resnet") else InputSettings()
        model = build(name, 5, fitted, exact_weights, inputs).to(torch.device("cpu"), torch.float64)
        told = ", ".join(f"{key}={value}" for key, value in options.items())
        found[f"{name} {told}".strip()] = outputs(model, fitted)
    cls = MODELS[family]
    # Frames and borders are drawn on networks of other families.
    others = {family_of(name, options.get("prompts", "none")) for name, options in CASES[family]} - {family}
    beside = {what: number for other in sorted(others) for what, number in lineage(MODELS[other]).items()}
    module = cls.__module__.rpartition(".")[2]
    versions = {"engine": ENGINE, **beside, **lineage(cls)}
    check(f"model-{family}", versions, found, f"`numerics` of {cls.__name__} (models/{module}.py)", request)
