"""Dropout whose mask is a function of a seed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeyedDropout(nn.Module):
    """Dropout with a mask that the seed and the shape decide, drawn on the CPU and so the same on every device.

    Attributes:
        p: share of the values that become 0; the others grow by 1 / (1 - p).
        seed: of the mask; None: off.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.seed: int | None = None

    def forward(self, values: Tensor) -> Tensor:
        """``values`` of any shape, some of them dropped."""
        if self.seed is None:
            return values
        drawn = torch.rand(values.shape, generator=torch.Generator().manual_seed(self.seed))
        return values * ((drawn >= self.p) / (1 - self.p)).to(values)
