"""Truncated singular value decomposition of named parameters (FedKD)."""

from __future__ import annotations

import torch
from torch import Tensor

from hetfl.errors import HetflError
from hetfl.message import Tensors

FACTORS = ("/u", "/s", "/v")
"""Of a matrix or a stack of them: orthonormal columns, singular values, orthonormal rows."""


def truncate(tensors: Tensors, energy: float) -> dict[str, Tensor]:
    """Replace matrices W [o, i] and kernels [o, c, h, w] by the factors of their largest singular values.

    A kernel is a stack of o x c matrices [h, w] with one rank for all. Vectors and single rows stay whole.

    Args:
        tensors: parameters by name.
        energy: the squares of the r kept singular values sum up to more than this share of all squares. Where only
            the full rank has as much, as in a convolution of 1x1, it is kept; the authors' code sends zeros there.
            A tensor on the meta device has no values, so all of its singular values are kept.

    Returns:
        For each matrix ``<name>/u`` [..., o, r], ``<name>/s`` [..., r] and ``<name>/v`` [..., r, i].

    Raises:
        HetflError: a value is not finite, so that there are no singular values.
    """
    sent: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or len(tensor) == 1:
            sent[name] = tensor
            continue
        if tensor.is_meta:
            # torch would import its compiler for the decomposition of shapes, for a second; in restore() as well.
            *stack, o, i = tensor.shape
            kept = min(o, i)
            parts = tuple(tensor.new_empty(*stack, *sizes) for sizes in ((o, kept), (kept,), (kept, i)))
            sent |= {name + factor: part for factor, part in zip(FACTORS, parts, strict=True)}
            continue
        if not tensor.isfinite().all():
            raise HetflError(f"{name} is not finite and has no singular values: training diverged; lower lr")
        u, s, v = torch.linalg.svd(tensor, full_matrices=False)
        kept = _rank(s, energy)
        parts = (u[..., :kept], s[..., :kept], v[..., :kept, :])
        sent |= {name + factor: part.contiguous() for factor, part in zip(FACTORS, parts, strict=True)}
    return sent


def _rank(values: Tensor, energy: float) -> int:
    """How many of the singular values [..., r] are kept."""
    squares = values.double().square().reshape(-1, values.shape[-1]).sum(dim=0)
    rank = int((squares.cumsum(0) <= energy * squares.sum()).sum()) + 1
    return min(rank, values.shape[-1])


def restore(sent: Tensors) -> dict[str, Tensor]:
    """The tensors that :func:`truncate` took apart, in their order: u diag(s) v for each matrix."""
    u, s, v = FACTORS
    tensors: dict[str, Tensor] = {}
    for name, tensor in sent.items():
        if name.endswith(u):
            whole = name.removesuffix(u)
            right = sent[whole + v]
            if not sent[whole + s].shape == right.shape[:-1] == (*tensor.shape[:-2], tensor.shape[-1]):
                raise ValueError(f"the factors of {whole} do not fit together")
            tensors[whole] = (
                tensor.new_empty(*tensor.shape[:-1], right.shape[-1])
                if tensor.is_meta
                else (tensor * sent[whole + s][..., None, :]) @ right
            )
        elif not name.endswith((s, v)):
            tensors[name] = tensor
    return tensors
