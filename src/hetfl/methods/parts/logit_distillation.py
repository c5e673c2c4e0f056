"""FedHPL's global logits and distillation loss (arXiv 2405.17267, Eq. 7-10 and 36)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hetfl.message import Tensors


def dimension_weights(widths: Tensor) -> Tensor:
    """Eq. 7: beta[k, j] = min(d_k / d_j, d_j / d_k) for the clients' widths d [K]; returns [K, K], float64."""
    ratio = widths[:, None].double() / widths[None, :].double()
    return torch.minimum(ratio, 1 / ratio)


def global_logits(sums: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """Eq. 8: G_k[c] = sum_j beta[k, j] S[j, c] / (1 + sum_j beta[k, j] M[j, c]).

    Args:
        sums: S [J, C, C], sum of participant j's uploaded logits with label c.
        counts: M [J, C], their number.
        weights: beta [K, J].

    Returns:
        [K, C, C], one matrix of global logits per client.
    """
    numerator = torch.einsum("kj,jcl->kcl", weights, sums)
    return numerator / (1 + weights @ counts)[:, :, None]


def distillation_loss(logits: Tensor, labels: Tensor, received: Tensors, temperature: float) -> Tensor:
    """Eq. 9: KL(softmax(G[y] / T) || softmax(p / T)) per sample [B].

    Where nobody uploaded logits of a sample's class, its own logits take the place of the teacher's (appendix C.4),
    so that the divergence and its gradient are zero.

    Args:
        logits: p [B, C].
        labels: y [B].
        received: ``logits`` G [C, C] and ``valid`` [C] bool.
        temperature: T.
    """
    teacher = F.log_softmax(received["logits"][labels] / temperature, dim=1)
    student = F.log_softmax(logits / temperature, dim=1)
    divergence = (teacher.exp() * (teacher - student)).sum(dim=1)
    return divergence * received["valid"][labels]
