"""Prompts in pixels: a frame around the image, or a border that is added to its outer pixels."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from hetfl.data.batches import InputSpec
from hetfl.errors import HetflError
from hetfl.models.base import ModelOptions


class PixelPrompts(nn.Module):
    """Base class of prompts in pixels: modules that map images [B, channels, H, W] to prompted images.

    Attributes:
        numerics: version of the arithmetic and the initial values, see ``experiments/versions.py``.
    """

    numerics: ClassVar[int]

    def fresh(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Initial values by name of parameter."""
        raise NotImplementedError


class Frame(PixelPrompts):
    """A frame around the image, which enlarges it to [B, channels, H + 2w, W + 2w].

    Its parameters ``ends`` (top and bottom) include the corners. They and ``sides`` are pixel values, which every
    forward pass normalises as it does images, without clamping.
    Source: the "pad" location of Jia et al., "Visual Prompt Tuning", ECCV 2022; FedHPL Table 8.

    Args:
        width: w, pixels of the frame on each side.
        spec: size and channel statistics of the images.
    """

    numerics = 1
    mean: Tensor
    std: Tensor

    def __init__(self, width: int, spec: InputSpec) -> None:
        super().__init__()
        size, channels = spec.size, spec.channels
        self.width = width
        self.sides = nn.Parameter(torch.zeros(1, channels, size, 2 * width))
        self.ends = nn.Parameter(torch.zeros(1, channels, 2 * width, size + 2 * width))
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, channels, H, W] with the frame around them."""
        w, many = self.width, (images.shape[0], -1, -1, -1)
        sides = ((self.sides - self.mean) / self.std).expand(many)
        ends = ((self.ends - self.mean) / self.std).expand(many)
        rows = torch.cat([sides[..., :w], images, sides[..., w:]], dim=3)
        return torch.cat([ends[:, :, :w], rows, ends[:, :, w:]], dim=2)

    def fresh(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Uniform in [0, 1], as VPT's default."""
        return {name: torch.empty(p.shape).uniform_(generator=generator) for name, p in self.named_parameters()}


class Border(PixelPrompts):
    """A border that is added to the outer pixels of the normalised image, whose middle does not change.

    Source: Li et al., "Visual Prompt Based Personalized Federated Learning" (pFedPT), TMLR 2024.

    Args:
        width: w, pixels of the border on each side.
        spec: size and channels of the images.

    Raises:
        HetflError: the border leaves no middle.
    """

    numerics = 1

    def __init__(self, width: int, spec: InputSpec) -> None:
        super().__init__()
        size, channels = spec.size, spec.channels
        inner = size - 2 * width
        if inner < 1:
            raise HetflError(f"prompt_length: a border of {width} leaves nothing of {size}x{size} images; use less")
        self.inner = inner
        self.up = nn.Parameter(torch.zeros(1, channels, width, size))
        self.down = nn.Parameter(torch.zeros(1, channels, width, size))
        self.left = nn.Parameter(torch.zeros(1, channels, inner, width))
        self.right = nn.Parameter(torch.zeros(1, channels, inner, width))

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, channels, H, W] plus the border."""
        middle = images.new_zeros(1, images.shape[1], self.inner, self.inner)
        rows = torch.cat([self.left, middle, self.right], dim=3)
        return images + torch.cat([self.up, rows, self.down], dim=2)

    def fresh(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Standard normal, as in the authors' code."""
        return {name: torch.empty(p.shape).normal_(generator=generator) for name, p in self.named_parameters()}


PIXEL_PROMPTS: dict[str, type[Frame] | type[Border]] = {"frame": Frame, "border": Border}


def pixel_prompts(options: ModelOptions, spec: InputSpec) -> PixelPrompts | None:
    """The frame or border of a method's options, or None."""
    kind = PIXEL_PROMPTS.get(options.prompts)
    return kind(options.prompt_length, spec) if kind else None
