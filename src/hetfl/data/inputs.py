"""What an experiment does to images between the store and the model."""

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


Channels = Annotated[tuple[float, float, float], BeforeValidator(_of_all_channels)]
"""One number stands for all three."""


class Augmentation(Settings):
    """Random changes of training images, drawn anew for every image and epoch; all off by default.

    Called with images [B, C, h, w] in [0, 1] and a CPU generator, it returns changed ones: a
    :data:`hetfl.data.batches.Transform`.

    Attributes:
        numerics: version of the changes, part of the identity of runs that have one; see
            ``experiments/versions.py``.
        flip: mirror every other image horizontally.
        rotation: degrees; turn by an angle drawn from [-rotation, rotation], black where nothing is left.
        noise: standard deviation of Gaussian noise (a corruption: 0.04 to 0.10 at severities 1 to 5 of CIFAR-C).
    """

    numerics: ClassVar[int] = 1
    flip: bool = False
    rotation: float = Field(default=0.0, ge=0, le=180)
    noise: float = Field(default=0.0, ge=0)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images; see the class."""
        size, device = len(images), images.device
        if self.flip:
            mirrored = (torch.rand(size, generator=generator) < 0.5).to(device)
            images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        if self.rotation:
            angles = (2 * torch.rand(size, generator=generator) - 1) * self.rotation * pi / 180
            images = _rotate(images, angles.to(device, images.dtype))
        if self.noise:
            drawn = torch.randn(images.shape, generator=generator).to(device, images.dtype)
            images = (images + self.noise * drawn).clamp(0, 1)
        return images


class InputSettings(Settings):
    """Where an experiment departs from what its backbones want, for all methods alike.

    Attributes:
        size: pixels of a side; None: what the backbone wants.
        interpolation: of the resize; None: the backbone's own.
        mean: channel means of the normalisation, in [0, 1], of which a backbone for grey images takes the first;
            None: the backbone's own.
        std: channel standard deviations; None: the backbone's own.
        augment: random changes of training images.
    """

    size: int | None = Field(default=None, ge=1)
    interpolation: Literal["bilinear", "bicubic"] | None = None
    mean: Channels | None = None
    std: Channels | None = None
    augment: Augmentation = Augmentation()

    def spec(self, wanted: InputSpec) -> InputSpec:
        """What a backbone is given, from what it wants."""
        return replace(
            wanted,
            size=self.size or wanted.size,
            interpolation=self.interpolation or wanted.interpolation,
            mean=(self.mean or wanted.mean)[: wanted.channels],
            std=(self.std or wanted.std)[: wanted.channels],
        )

    def transform(self) -> Augmentation | None:
        """The change of training images, or None where there is none."""
        return None if self.augment == Augmentation() else self.augment


def _rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Turn each image [B, C, h, w] about its centre by its angle [B] in radians; nearest pixel, zeros outside."""
    height, width = images.shape[-2:]
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    # The grid runs from -1 to 1 along either side, so the angle must see the sides' ratio.
    turn = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="nearest", align_corners=False)
