"""Losses and distances that several methods use."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hetfl.data.batches import Batch


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """The mean cross-entropy [] of logits [B, C] over a batch; padding does not count."""
    if batch.weight is None:
        return F.cross_entropy(logits, batch.labels)
    return batch.mean(F.cross_entropy(logits, batch.labels, reduction="none"))


def euclidean_distances(points: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances [n, m] of points [n, d] to others [m, d].

    They are computed from the differences. Torch's default above 25 rows, a matrix product, loses the digits that
    distant points have in common.
    """
    return torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist")
