"""FedGen's generator: a network that makes features from labels and noise, and its training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hetfl.message import Tensors
from hetfl.methods.parts.networks import detached, leaves
from hetfl.optimisers import Adam


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
        chosen = torch.randint(len(pool), (size,), generator=generator).to(pool.device, non_blocking=True)
        labels = pool[chosen].long()
    entrance = net["enter.weight"]
    noise = torch.rand(size, entrance.shape[1] - num_classes, generator=generator).to(entrance, non_blocking=True)
    inputs = torch.cat([noise, F.one_hot(labels, num_classes).to(noise)], dim=1)
    hidden = F.linear(inputs, entrance, net["enter.bias"])
    hidden = F.batch_norm(hidden, None, None, net["norm.weight"], net["norm.bias"], training=True)
    return F.linear(F.relu(hidden), net["leave.weight"], net["leave.bias"]), labels


def train_generator(
    net: Tensors, adam: Tensors, head: Tensors, known: Tensors, seeds: Sequence[int], size: int, lr: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train the generator so that a head finds the labels that its features are made from.

    Args:
        net: the generator's parameters.
        adam: its optimiser's state, ``<parameter>/<kind>``; empty before the first training.
        head: ``head.weight`` [C, d] and ``head.bias`` [C].
        known: where labels are drawn from; see :func:`generate`.
        seeds: of the labels and the noise, one for each step.
        size: B, features in a step.
        lr: learning rate of Adam.

    Returns:
        The next ``net`` and ``adam``.
    """
    trained = leaves(net)
    optimiser = Adam(trained.values(), lr, fused=False)
    optimiser.go_on(trained, adam)
    for seed in seeds:
        features, labels = generate(trained, known, size, seed, len(head["head.bias"]))
        loss = F.cross_entropy(F.linear(features, head["head.weight"], head["head.bias"]), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return detached(trained), optimiser.kept(trained)
