"""Vision transformers with visual prompts (VPT) on timm's implementation.

Sources: FedHPL Eq. 3-5; Jia et al., "Visual Prompt Tuning", ECCV 2022; Dosovitskiy et al., ICLR 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hetfl.data.batches import InputSpec
from hetfl.draws import Draws, seeded_library_code
from hetfl.models.base import Model, ModelOptions, Output


class PromptedViT(nn.Module):
    """A timm vision transformer, optional prompts, an optional projection, and a linear head.

    The token order is [cls, prompts, patches]; prompts enter after the position embedding and carry none (FedHPL
    Eq. 3). ``deep`` prompts replace the previous layer's prompt outputs before every block (Eq. 5), ``shallow``
    ones enter before the first block only (Eq. 4).
    """

    def __init__(self, body: Any, num_classes: int, options: ModelOptions) -> None:
        super().__init__()
        d, depth = body.embed_dim, len(body.blocks)
        self.body = body
        self.length = 0 if options.prompts == "none" else options.prompt_length
        layers = {"none": 0, "shallow": 1, "deep": depth}[options.prompts]
        self.prompts = nn.Parameter(torch.zeros(layers, self.length, d)) if layers else None
        self.projection = nn.Linear(d, options.embedding) if options.embedding else None
        self.head = nn.Linear(options.embedding or d, num_classes)

    def forward(self, images: Tensor) -> Output:
        """Features and logits of ``images`` [B, 3, H, W]."""
        body: Any = self.body
        prompts = self.prompts
        tokens = body.norm_pre(body._pos_embed(body.patch_embed(images)))
        for layer, block in enumerate(body.blocks):
            if prompts is not None and layer < len(prompts):
                rest = tokens[:, 1 + (self.length if layer else 0) :]
                inserted = prompts[layer].expand(len(tokens), -1, -1)
                tokens = torch.cat([tokens[:, :1], inserted, rest], dim=1)
            tokens = block(tokens)
        features = body.forward_head(body.norm(tokens), pre_logits=True)
        if self.projection is not None:
            features = self.projection(features)
        return Output(features, self.head(features))


def prompted_vit(
    name: str,
    create: Callable[[], Any],
    num_classes: int,
    options: ModelOptions,
    spec: InputSpec,
    weights: dict[str, Tensor] | None,
) -> Model:
    """Fit a vision transformer out as a method wants it.

    Args:
        name: of the architecture.
        create: makes the timm model without a head, with fresh weights.
        num_classes: C.
        options: prompts, body, projection, head rule.
        spec: the input the backbone wants.
        weights: the body's pre-trained weights, or None for fresh ones.
    """
    with seeded_library_code(0):
        body = create()
    if weights is not None:
        body.load_state_dict(weights)
    module = PromptedViT(body, num_classes, options)
    patch = body.patch_embed.patch_size[0]
    roles = (
        ("prompts", "projection", "head") if options.body == "frozen" else ("prompts", "body", "projection", "head")
    )
    groups = {role: tuple(key for key, _ in module.named_parameters() if key.split(".")[0] == role) for role in roles}

    def fresh(draws: Draws, client: int) -> dict[str, Tensor]:
        params: dict[str, Tensor] = {}
        if module.prompts is not None:
            bound = math.sqrt(6 / (3 * patch**2 + body.embed_dim))
            prompts = torch.empty(module.prompts.shape)
            params["prompts"] = prompts.uniform_(-bound, bound, generator=draws.torch("init:prompts", client))
        if options.body == "trained":
            if weights is None:
                with seeded_library_code(draws.key("init:body", client)):
                    values = dict(create().named_parameters())
            else:
                values = {key: weights[key] for key, _ in body.named_parameters()}
            params |= {f"body.{key}": value.detach().clone() for key, value in values.items()}
        if module.projection is not None:
            params |= _linear("projection", module.projection, draws.key("init:projection", client), "torch")
        return params | _linear("head", module.head, draws.key("init:head", client), options.head_init)

    return Model(name, module, module.head.in_features, num_classes, groups, spec, fresh)


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
