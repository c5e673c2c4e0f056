"""Cosine similarity between the prompts of clients and of groups (FGPT, Table 11)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def of_groups(prompts: Tensor) -> Tensor:
    """Prompts [k, blocks, G, d] of k clients as one vector per group: [k, G, blocks * d]."""
    return prompts.transpose(1, 2).flatten(2)


def mean_cosine(vectors: Tensor, used: Tensor | None = None) -> float | None:
    """The mean cosine of all pairs among k vectors, averaged over m sets of k vectors.

    Args:
        vectors: [k, m, e].
        used: [k, m], 1 for vectors that count and 0 for the others; None: all count.

    Returns:
        None where no set has a pair.
    """
    unit = F.normalize(vectors.double(), dim=2)
    weight = torch.ones_like(unit[..., 0]) if used is None else used.to(unit)
    unit = unit * weight[..., None]
    count = weight.sum(dim=0)
    # The square of a sum holds each pair twice, and the squares.
    twice = unit.sum(dim=0).square().sum(dim=1) - unit.square().sum(dim=(0, 2))
    some = count > 1
    return float((twice[some] / (count * (count - 1))[some]).mean()) if some.any() else None
