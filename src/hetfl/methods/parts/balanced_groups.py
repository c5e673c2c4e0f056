"""SGPT's groups: those that are picked often become less likely, and their keys are averaged by the picks."""

from __future__ import annotations

import torch
from torch import Tensor

OFFSET = 5e-4
"""Added to a group's share of the picks."""


def seldom_picked(similarity: Tensor, picks: Tensor) -> Tensor:
    """The group of each sample [B]: argmin_g (1 - cos(q, k_g)) (v_g / sum v + 5e-4).

    Args:
        similarity: the cosines [B, G] of queries q and keys k_g.
        picks: v [G], how often each group was picked so far; where none was, the cosine alone decides.
    """
    picked = picks.to(torch.float64)
    share = torch.where(picked.sum() > 0, picked / picked.sum().clamp(min=1) + OFFSET, 1.0)
    return ((1 - similarity) * share).argmin(dim=1)


def mean_keys(keys: Tensor, counts: Tensor, few: int) -> Tensor:
    """k_g = sum_k N_kg k_kg / sum_k N_kg, the mean [G, d] of the participants' keys by their picks.

    Args:
        keys: [K, G, d].
        counts: N [K, G], the picks of the round.
        few: with at most this many picks in all, the keys of a group are averaged plainly.
    """
    picks = counts.double()
    total = picks.sum(dim=0)
    share = torch.where(total > few, picks / total.clamp(min=1), 1 / len(picks))
    return (share[:, :, None] * keys.double()).sum(dim=0).to(keys.dtype)
