"""FedGen's generator: a network that makes features from labels and noise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hetfl.message import Tensors


def layers_of(noise: int, num_classes: int, hidden: int, width: int) -> dict[str, nn.Module]:
    """``enter`` [hidden, noise + C], batch normalisation without running statistics, ``leave`` [width, hidden]."""
    return {
        "enter": nn.Linear(noise + num_classes, hidden),
        "norm": nn.BatchNorm1d(hidden, track_running_stats=False),
        "leave": nn.Linear(hidden, width),
    }


def generate(net: Tensors, known: Tensors, size: int, seed: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Draw labels and noise and make features of them.

    Args:
        net: the generator's parameters.
        known: where labels are drawn from: ``counts`` [C] of the samples of each class, or a list of ``labels`` [n].
        size: B.
        seed: of the labels and the noise.
        num_classes: C.

    Returns:
        Features [B, d] and their labels [B] int64.
    """
    if size == 1:  # a single sample has no batch statistics
        features, chosen = generate(net, known, 2, seed, num_classes)
        return features[:1], chosen[:1]
    generator = torch.Generator().manual_seed(seed)
    if "counts" in known:
        ends = known["counts"].long().cumsum(0)
        chosen = torch.randint(int(ends[-1]), (size,), generator=generator).to(ends.device)
        labels = torch.searchsorted(ends, chosen, right=True)
    else:
        pool = known["labels"]
        labels = pool[torch.randint(len(pool), (size,), generator=generator).to(pool.device)].long()
    entrance = net["enter.weight"]
    noise = torch.rand(size, entrance.shape[1] - num_classes, generator=generator).to(entrance)
    inputs = torch.cat([noise, F.one_hot(labels, num_classes).to(noise)], dim=1)
    hidden = F.linear(inputs, entrance, net["enter.bias"])
    hidden = F.batch_norm(hidden, None, None, net["norm.weight"], net["norm.bias"], training=True)
    return F.linear(F.relu(hidden), net["leave.weight"], net["leave.bias"]), labels
