"""Means of the participants' messages."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hetfl.message import Tensors


def weighted_mean(messages: Iterable[Tensors], weights: Tensor) -> dict[str, Tensor]:
    """sum_k w_k m_k / sum_k w_k for each tensor of the messages m_k, which have the same names and shapes.

    Messages are read one by one: memory holds the sum and one message. The sum runs in float64.

    Args:
        messages: at least one.
        weights: w [n], one for each message.

    Returns:
        The means by name, in the messages' own types.
    """
    share = (weights.to(torch.float64) / weights.sum()).tolist()
    totals: dict[str, Tensor] = {}
    parts: dict[str, Tensor] = {}
    types: dict[str, torch.dtype] = {}
    for weight, message in zip(share, messages, strict=True):
        if not totals:
            types = {name: tensor.dtype for name, tensor in message.items()}
            totals = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in message.items()}
            parts = {name: torch.empty_like(total) for name, total in totals.items()}
        for name, total in totals.items():
            total += parts[name].copy_(message[name]).mul_(weight)
    return {name: total.to(types[name]) for name, total in totals.items()}
