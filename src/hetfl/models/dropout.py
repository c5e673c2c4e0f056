"""Dropout whose mask is given."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeyedDropout(nn.Module):
    """Dropout of features [B, d] with a mask that the seed and the shape decide, the same on every device.

    Args:
        p: share of the values that become 0; the others grow by 1 / (1 - p).
        width: d.

    Attributes:
        mask: [B, d], 0 or 1 / (1 - p); None: off.
    """

    def __init__(self, p: float, width: int) -> None:
        super().__init__()
        self.p, self.width = p, width
        self.mask: Tensor | None = None

    def draw(self, seed: int, size: int) -> Tensor:
        """A mask [size, d], drawn on the CPU."""
        drawn = torch.rand(size, self.width, generator=torch.Generator().manual_seed(seed))
        return (drawn >= self.p) / (1 - self.p)

    def forward(self, values: Tensor) -> Tensor:
        """``values`` [B, d], some of them dropped."""
        return values if self.mask is None else values * self.mask
