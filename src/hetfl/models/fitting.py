"""A backbone fitted out as a method wants it: prompts before, projection and head behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hetfl.data.batches import InputSpec
from hetfl.draws import Draws, seeded_library_code
from hetfl.models.base import Model, ModelOptions, Output
from hetfl.models.pixels import PixelPrompts, pixel_prompts

STATISTICS = ("running_mean", "running_var")
"""What batch normalisation learns from images rather than from gradients."""


class Fitted(nn.Module):
    """A timm backbone, optional prompts, an optional projection, and a linear head.

    A family says how its backbone makes features and which prompts it takes beside those in pixels.

    Args:
        body: the backbone without a head.
        outputs: number of logits.
        options: prompts, feature, head.
        spec: the images given to the model.
    """

    prompts: nn.Parameter | PixelPrompts | None

    def __init__(self, body: Any, outputs: int, options: ModelOptions, spec: InputSpec) -> None:
        super().__init__()
        self.body = body
        self.prompts = self.make_prompts(options, spec)
        self.embedding = options.embedding
        width = self.feature_width(options)
        linear = options.embedding is not None and options.reduce == "linear"
        self.projection = nn.Linear(width, options.embedding or width) if linear else None
        self.head = nn.Linear(options.embedding or width, outputs)

    def make_prompts(self, options: ModelOptions, spec: InputSpec) -> nn.Parameter | PixelPrompts | None:
        """The prompts' parameters, or the module that holds them."""
        return pixel_prompts(options, spec)

    def fresh_prompts(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Start values of the prompts by name of parameter."""
        if not isinstance(self.prompts, PixelPrompts):
            return {}
        return {f"prompts.{name}": value for name, value in self.prompts.fresh(generator).items()}

    def feature_width(self, options: ModelOptions) -> int:
        """Size of what :meth:`features` gives."""
        return self.body.num_features

    def features(self, images: Tensor) -> Tensor:
        """The backbone's features [B, d] of ``images`` [B, 3, H, W]."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Output:
        """Features and logits of ``images`` [B, 3, H, W]."""
        features = self.features(self.prompts(images) if isinstance(self.prompts, PixelPrompts) else images)
        if self.projection is not None:
            features = self.projection(features)
        elif self.embedding is not None:
            features = F.adaptive_avg_pool1d(features, self.embedding)
        return Output(features, self.head(features))


def fit(
    name: str,
    family: type[Fitted],
    create: Callable[[], nn.Module],
    num_classes: int,
    options: ModelOptions,
    spec: InputSpec,
    weights: dict[str, Tensor] | None,
) -> Model:
    """Fit a backbone out as a method wants it.

    Args:
        name: of the architecture.
        family: how its backbone is used.
        create: makes the timm model without a head, with fresh weights.
        num_classes: C, the data set's number of classes.
        options: prompts, body, feature, head.
        spec: the input the backbone is given.
        weights: the body's pre-trained weights, or None for fresh ones.

    Raises:
        HetflError: the options do not fit the backbone.
        RuntimeError: the weights do not fit the backbone.
    """
    body = _body(create, weights)
    module = family(body, num_classes + options.extra_outputs, options, spec)
    trained = options.body == "trained"
    roles = ("prompts", "body", "projection", "head") if trained else ("prompts", "projection", "head")
    groups = {role: tuple(key for key, _ in module.named_parameters() if key.split(".")[0] == role) for role in roles}
    statistics = tuple(f"body.{key}" for key, _ in body.named_buffers() if key.split(".")[-1] in STATISTICS)
    if trained and statistics:
        groups["buffers"] = statistics

    def fresh(draws: Draws, client: int) -> dict[str, Tensor]:
        params = module.fresh_prompts(draws.torch("init:prompts", client))
        if trained:
            values = weights
            if values is None:
                with seeded_library_code(draws.key("init:body", client)):
                    values = create().state_dict()
            names = (*groups["body"], *groups.get("buffers", ()))
            params |= {key: values[key.removeprefix("body.")].detach().clone() for key in names}
        if module.projection is not None:
            params |= _linear("projection", module.projection, draws.key("init:projection", client), "torch")
        return params | _linear("head", module.head, draws.key("init:head", client), options.head_init)

    return Model(name, module, module.head.in_features, num_classes, groups, spec, fresh)


def _body(create: Callable[[], nn.Module], weights: dict[str, Tensor] | None) -> nn.Module:
    if weights is None:
        with seeded_library_code(0):
            body = create()
    else:
        # Drawing values that are overwritten at once would take seconds for a large backbone.
        with torch.device("meta"):
            body = create()
        body.load_state_dict(weights, assign=True)
    for norm in body.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            # The momentum is constant, so the count decides nothing, and it is no parameter to pass around.
            norm.num_batches_tracked = None
    return body


def _linear(prefix: str, layer: nn.Linear, seed: int, rule: str) -> dict[str, Tensor]:
    # timm's truncated normal rather than torch's, whose draws changed between versions.
    from timm.layers import trunc_normal_

    with seeded_library_code(seed):
        fresh = nn.Linear(layer.in_features, layer.out_features)
        if rule == "timm":
            trunc_normal_(fresh.weight, std=0.02)
            nn.init.zeros_(fresh.bias)
        elif rule == "vpt":
            nn.init.kaiming_normal_(fresh.weight, mode="fan_out")
            nn.init.constant_(fresh.bias, -math.log(99))
    return {f"{prefix}.weight": fresh.weight.detach(), f"{prefix}.bias": fresh.bias.detach()}
