"""How an experiment resizes, normalises and augments images."""

from __future__ import annotations

from dataclasses import replace
from math import pi
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import BeforeValidator, Field
from torch import Tensor

from hetfl.config import Settings
from hetfl.data.batches import InputSpec


def _of_all_channels(value: Any) -> Any:
    return (value,) * 3 if isinstance(value, int | float) else value


Mean = Annotated[float, Field(ge=0, le=1)]
Std = Annotated[float, Field(ge=1e-4)]

Means = Annotated[tuple[Mean, Mean, Mean], BeforeValidator(_of_all_channels)]
"""Three means, or one that applies to all three channels."""

Stds = Annotated[tuple[Std, Std, Std], BeforeValidator(_of_all_channels)]
"""Three standard deviations, or one that applies to all three channels."""


class Augmentation(Settings):
    """Random augmentation of training images, drawn anew for every image and epoch; all off by default.

    An instance is a :data:`hetfl.data.batches.Transform`: a function of images [B, C, h, w] in [0, 1] and a CPU
    generator.

    Attributes:
        numerics: version of the arithmetic, part of the identity of runs that augment; see
            ``experiments/versions.py``.
        flip: flip each image horizontally with probability 1/2.
        rotation: degrees; each image turns by a random angle in [-rotation, rotation], and its corners become black.
        noise: standard deviation of Gaussian noise; CIFAR-C has 0.04 to 0.10 at severities 1 to 5.
    """

    numerics: ClassVar[int] = 1
    flip: bool = False
    rotation: float = Field(default=0.0, ge=0, le=180)
    noise: float = Field(default=0.0, ge=0)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment ``images`` [B, C, h, w] in [0, 1]; returns images of the same shape and range."""
        size, device = len(images), images.device
        if self.flip:
            mirrored = (torch.rand(size, generator=generator) < 0.5).to(device, non_blocking=True)
            images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        if self.rotation:
            angles = (2 * torch.rand(size, generator=generator) - 1) * self.rotation * pi / 180
            images = _rotate(images, angles.to(device, images.dtype, non_blocking=True))
        if self.noise:
            drawn = torch.randn(images.shape, generator=generator).to(device, images.dtype, non_blocking=True)
            images = (images + self.noise * drawn).clamp(0, 1)
        return images


class InputSettings(Settings):
    """How an experiment's images differ from what its backbones expect, the same for all methods.

    Attributes:
        size: height and width in pixels; None: what the backbone expects.
        interpolation: for resizing; None: what the backbone expects.
        mean: channel means for normalisation, in [0, 1]; a backbone for grey images uses the first. None: what the
            backbone expects.
        std: channel standard deviations, like ``mean``.
        augment: augmentation of training images.
    """

    size: int | None = Field(default=None, ge=1, le=4096)
    interpolation: Literal["bilinear", "bicubic"] | None = None
    mean: Means | None = None
    std: Stds | None = None
    augment: Augmentation = Augmentation()

    def spec(self, wanted: InputSpec) -> InputSpec:
        """The input that a backbone gets, where ``wanted`` is the one that it expects."""
        return replace(
            wanted,
            size=self.size or wanted.size,
            interpolation=self.interpolation or wanted.interpolation,
            mean=(self.mean or wanted.mean)[: wanted.channels],
            std=(self.std or wanted.std)[: wanted.channels],
        )

    def transform(self) -> Augmentation | None:
        """The augmentation of training images, or None if there is none."""
        return None if self.augment == Augmentation() else self.augment


def _rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Rotate each image [B, C, h, w] about its centre by its angle [B] in radians; nearest pixel, zeros outside."""
    height, width = images.shape[-2:]
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    # The grid runs from -1 to 1 along both axes, so the matrix must correct for the image's aspect ratio.
    turn = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="nearest", align_corners=False)
