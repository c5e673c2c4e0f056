"""Dropout whose mask is given."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeyedDropout(nn.Module):
    """Dropout of values [B, ...] with a mask that the seed and the shape decide, the same on every device.

    Args:
        p: share of the values that become 0; the others grow by 1 / (1 - p).
        shape: of one sample's values.

    Attributes:
        mask: [B, ...], 0 or 1 / (1 - p); None: off.
    """

    def __init__(self, p: float, *shape: int) -> None:
        super().__init__()
        self.p, self.shape = p, shape
        self.mask: Tensor | None = None

    def draw(self, seed: int, size: int) -> Tensor:
        """A mask [size, ...], drawn on the CPU."""
        drawn = torch.rand(size, *self.shape, generator=torch.Generator().manual_seed(seed))
        return (drawn >= self.p) / (1 - self.p)

    def forward(self, values: Tensor) -> Tensor:
        """``values`` [B, ...], some of them dropped."""
        return values if self.mask is None else values * self.mask
