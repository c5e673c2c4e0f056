"""Vision transformers with visual prompts (VPT) on timm's implementation.

Sources: FedHPL Eq. 3-5; Jia et al., "Visual Prompt Tuning", ECCV 2022; Dosovitskiy et al., ICLR 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hetfl.data.batches import InputSpec
from hetfl.fused import Fused
from hetfl.models.base import ModelOptions
from hetfl.models.fitting import Fitted
from hetfl.models.merged import as_one
from hetfl.models.parts import embed_positions
from hetfl.models.pixels import PixelPrompts


class PromptedViT(Fitted):
    """A vision transformer with prompts among its tokens.

    The token order is [cls, prompts, patches]. Prompts enter after the position embedding and have none themselves
    (FedHPL Eq. 3). ``deep`` prompts replace the outputs of the previous layer's prompts before every block (Eq. 5);
    ``shallow`` prompts enter before the first block only (Eq. 4).
    """

    numerics = 1

    def make_prompts(self, options: ModelOptions, spec: InputSpec) -> nn.Parameter | PixelPrompts | None:
        """Make prompts as tokens [layers, n, d], or in pixels."""
        if options.prompts not in ("shallow", "deep"):
            return super().make_prompts(options, spec)
        layers = len(self.body.blocks) if options.prompts == "deep" else 1
        return nn.Parameter(torch.zeros(layers, options.prompt_length, self.body.embed_dim))

    def fresh_prompts(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Initial prompts, uniform within VPT's bound sqrt(6 / (3 p^2 + d)) for patches of p x p pixels."""
        if not isinstance(self.prompts, nn.Parameter):
            return super().fresh_prompts(generator)
        return {"prompts": self.uniform(self.prompts.shape, generator)}

    def uniform(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Draw tokens of this shape, uniform within VPT's bound."""
        bound = math.sqrt(6 / (3 * self.body.patch_embed.patch_size[0] ** 2 + self.body.embed_dim))
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)

    def inserted(self, samples: int) -> Sequence[Tensor]:
        """The prompts [B, n, d] of each layer that has some, for B ``samples``, with dropout in training."""
        if self.prompts is None or isinstance(self.prompts, PixelPrompts):
            return ()
        layers = [layer.expand(samples, -1, -1) for layer in self.prompts.unbind()]
        if self.prompt_dropout is None:
            return layers
        return self.prompt_dropout(torch.stack(layers, dim=1)).unbind(dim=1)

    def lower(self) -> bool:
        """Compute the frozen blocks' linear layers and attention in bfloat16. Tokens and all else keep their type."""
        for layer in self.body.blocks.modules():
            if isinstance(layer, nn.Linear):
                layer.to(torch.bfloat16)
        self.lowered = True
        return True

    def run(self, block: nn.Module, tokens: Tensor, prompts: Tensor | None = None) -> Tensor:
        """Run a block on ``tokens`` [B, T, d], with ``prompts`` [B, n, d] in place of those behind the class."""
        if self.lowered:
            return as_one(partial(_lowered, block), tokens, prompts)
        return block(replaced(tokens, prompts))

    def embed(self, images: Tensor) -> Tensor:
        """The tokens [B, 1 + patches, d] that enter the first block."""
        tokens: Tensor = self.body.norm_pre(embed_positions(self.body, self.body.patch_embed(images)))
        return tokens

    def features(self, images: Tensor) -> Tensor:
        """The normalised class token [B, d] of ``images`` [B, 3, H, W]."""
        body = self.body
        prompts = self.inserted(images.shape[0])
        tokens = self.embed(images)
        if prompts:
            tokens = torch.cat([tokens[:, :1], prompts[0], tokens[:, 1:]], dim=1)
        for layer, block in enumerate(body.blocks):
            tokens = self.run(block, tokens, prompts[layer] if 0 < layer < len(prompts) else None)
        return body.forward_head(body.norm(tokens), pre_logits=True)


def replaced(tokens: Tensor, prompts: Tensor | None) -> Tensor:
    """``tokens`` [B, T, d] with ``prompts`` [B, n, d] in place of the n tokens behind the class token."""
    return tokens if prompts is None else torch.slice_scatter(tokens, prompts, 1, 1, 1 + prompts.shape[1])


def _lowered(block: nn.Module, tokens: Tensor, prompts: Tensor | None) -> Tensor:
    with torch.autocast(tokens.device.type, torch.bfloat16):
        # torch would compile once more for a batch of one, which only measures sizes.
        return (_fused if len(tokens) > 1 else _through)(block, tokens, prompts)


def _through(block: Any, tokens: Tensor, prompts: Tensor | None) -> Tensor:
    # Without the module's hooks, of which a compiler takes each for another program.
    found: Tensor = block.forward(replaced(tokens, prompts))
    return found


_fused = Fused(_through)
