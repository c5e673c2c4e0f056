"""Vision transformers with inserted prompts, which all samples share or which belong to a sample's group.

Sources: FGPT (arXiv 2310.18285) Eq. 2-4; its later version SGPT (CVPR 2024).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hetfl.data.batches import InputSpec
from hetfl.errors import HetflError
from hetfl.models.base import ModelOptions, Output
from hetfl.models.vit import PromptedViT


class GroupedViT(PromptedViT):
    """A vision transformer with prompts that are inserted after the class token and remain until the last block.

    Attributes:
        shared: prompts of all samples, [blocks, n, d]; concatenated to [1, N, d] if blocks have different numbers.
        group: prompts of the groups, [blocks, G, d]: each block inserts one token, of the sample's group.
        keys: [G, d], learned and sent with the prompts; the forward pass does not use them.
    """

    numerics = 1
    shared: Tensor
    group: Tensor
    keys: Tensor

    def __init__(self, body: Any, outputs: int, options: ModelOptions, spec: InputSpec, *more: Any) -> None:
        super().__init__(body, outputs, options, spec, *more)
        blocks, width = len(body.blocks), body.embed_dim
        for name in ("shared_blocks", "group_blocks"):
            if (last := max(getattr(options, name), default=1)) > blocks:
                raise HetflError(f"{name}: there is no block {last}; the backbone has {blocks}")
        self._lengths = options.shared_lengths or (options.prompt_length,) * len(options.shared_blocks)
        alike = len({*self._lengths}) <= 1
        shapes = {
            "shared": (len(self._lengths), *self._lengths[:1], width) if alike else (1, sum(self._lengths), width),
            "group": (len(options.group_blocks), options.groups, width),
            "keys": (options.groups if options.keys else 0, width),
        }
        for name, shape in shapes.items():
            if shape[0]:
                self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def fresh_prompts(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Initial prompts, uniform within VPT's bound or zero, and initial keys as the options say."""
        fresh, own = {}, dict(self.named_parameters(recurse=False))
        for name in ("shared", "group"):
            if (parameter := own.get(name)) is not None:
                drawn = self.uniform(parameter.shape, generator)
                zero = name == "shared" and self.options.shared_init == "zero"
                fresh[name] = torch.zeros_like(drawn) if zero else drawn
        if (keys := own.get("keys")) is not None:
            uniform = torch.empty(keys.shape).uniform_(-1, 1, generator=generator)
            fresh["keys"] = orthogonal(uniform) if self.options.keys == "orthogonal" else uniform
        return fresh

    def forward(self, images: Tensor, groups: Tensor | None = None) -> Output:
        """Features and logits of ``images`` [B, 3, H, W]; see :meth:`hetfl.models.Model.__call__`.

        The blocks before the first group prompt run only once per sample, even if the sample has several groups.
        """
        options, tokens = self.options, self.embed(images)
        many = 1
        parts = self.shared.flatten(0, 1).split(self._lengths) if self._lengths else ()
        shared = dict(zip(options.shared_blocks, parts, strict=True))
        for number, block in enumerate(self.body.blocks, start=1):
            if number in shared:
                tokens = _behind_class(tokens, shared[number].expand(tokens.shape[0], -1, -1))
            if groups is not None and number in options.group_blocks:
                if many == 1 and groups.dim() == 2:
                    many = groups.shape[1]
                    tokens = tokens.repeat_interleave(many, dim=0)
                chosen = self.group[options.group_blocks.index(number)][groups.flatten()]
                tokens = _behind_class(tokens, chosen[:, None])
            tokens = self.run(block, tokens)
        tokens = self.body.norm(tokens)
        read = 1 + len(options.group_blocks) if options.readout == "mean" and groups is not None else 1
        features = tokens[:, :read].mean(dim=1)
        logits = self.head(features)
        return Output(*(values.unflatten(0, (-1, many)).mean(dim=1) for values in (features, logits)))

    def query(self, images: Tensor, block: int | None = None) -> Tensor:
        """The normalised class token [B, d] without prompts, after block number ``block``; None: the last one."""
        tokens = self.embed(images)
        for layer in self.body.blocks[:block]:
            tokens = self.run(layer, tokens)
        return self.body.norm(tokens)[:, 0]


def orthogonal(rows: Tensor) -> Tensor:
    """Make rows [G, d], G <= d, orthonormal, one after the other (Gram-Schmidt in float64)."""
    q, r = torch.linalg.qr(rows.double().T)
    # QR leaves signs open; each row gets that of the row it comes from.
    return (q * r.diagonal().sign()).T.to(rows.dtype).contiguous()


def _behind_class(tokens: Tensor, prompts: Tensor) -> Tensor:
    return torch.cat([tokens[:, :1], prompts, tokens[:, 1:]], dim=1)
