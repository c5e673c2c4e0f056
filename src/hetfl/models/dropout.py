"""Dropout with a given mask."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeyedDropout(nn.Module):
    """Dropout of values [B, ...] with a mask that depends on seed and shape only, so it is the same on every device.

    Args:
        p: probability that a value becomes 0; the others are multiplied by 1 / (1 - p).
        shape: of one sample's values.

    Attributes:
        mask: [B, ...] of 0 and 1 / (1 - p); None: no dropout.
    """

    def __init__(self, p: float, *shape: int) -> None:
        super().__init__()
        self.p, self.shape = p, shape
        self.mask: Tensor | None = None

    def draw(self, seed: int, size: int) -> Tensor:
        """Draw a mask [size, ...] on the CPU."""
        drawn = torch.rand(size, *self.shape, generator=torch.Generator().manual_seed(seed))
        return (drawn >= self.p) / (1 - self.p)

    def forward(self, values: Tensor) -> Tensor:
        """Apply the mask to ``values`` [B, ...]."""
        return values if self.mask is None else values * self.mask
