"""FedTGP's trainable global prototypes: the network that emits them, its batches, its loss and the margin in it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hetfl.data.batches import membership
from hetfl.message import Tensors
from hetfl.methods.parts.losses import euclidean_distances


def layers_of(num_classes: int, width: int, network: bool) -> dict[str, nn.Module]:
    """``vectors`` [C, d], and with the network F its layers ``enter`` and ``leave`` [d, d]."""
    layers: dict[str, nn.Module] = {"vectors": nn.Embedding(num_classes, width)}
    return layers | {name: nn.Linear(width, width) for name in ("enter", "leave") if network}


def emit(net: Tensors) -> Tensor:
    """The global prototypes P-hat [C, d] (Eq. 5).

    Args:
        net: ``vectors.weight`` [C, d], the classes' trainable vectors; and the network F that maps them: ``enter``
            and ``leave``, each with ``weight`` [d, d] and ``bias`` [d]. Without F the vectors themselves are emitted.
    """
    vectors = net["vectors.weight"]
    if "enter.weight" not in net:
        return vectors
    hidden = F.relu(F.linear(vectors, net["enter.weight"], net["enter.bias"]))
    return F.linear(hidden, net["leave.weight"], net["leave.bias"])


def batches_of(orders: Tensor, size: int, fill: bool) -> Iterator[dict[str, Tensor]]:
    """Split every epoch's order into batches.

    Args:
        orders: [epochs, n], a permutation of the n prototypes for each epoch.
        size: B, of a batch; an epoch's last batch may be smaller.
        fill: fill the last batches up to B, where needed. All batches then have a ``weight``, 0 for padding.

    Yields:
        ``rows`` [B] and possibly ``weight`` [B].
    """
    padding = -orders.shape[1] % size if fill else 0
    rows = F.pad(orders, (0, padding))
    weight = F.pad(torch.ones_like(orders[0], dtype=torch.float32), (0, padding)).split(size)
    for order in rows:
        for part, real in zip(order.split(size), weight, strict=True):
            yield {"rows": part, "weight": real} if padding else {"rows": part}


def contrastive_loss(
    prototypes: Tensor, labels: Tensor, emitted: Tensor, margin: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Eq. 7-8: the mean cross-entropy of logits -(|P_i - P-hat_c| + delta [c = y_i]).

    Args:
        prototypes: P [B, d] of clients.
        labels: [B], their classes.
        emitted: P-hat [C, d], one trainable prototype per class.
        margin: delta [].
        weight: [B], 0 for padding; None: everything counts.
    """
    # The root of zero has no finite gradient.
    squared = (prototypes[:, None] - emitted[None]).square().sum(dim=2).clamp(min=1e-12)
    own = membership(labels, len(emitted), emitted.dtype)
    distances = squared.sqrt() + margin.to(emitted.dtype) * own
    if weight is None:
        return F.cross_entropy(-distances, labels)
    return (F.cross_entropy(-distances, labels, reduction="none") * weight).sum() / weight.sum()


def margin_of(centres: Tensor, kind: str, cap: float) -> Tensor:
    """The margin delta [] (Eq. 9), float64.

    Args:
        centres: [c, d], the means over clients of the c classes that were sent.
        kind: ``adaptive``: the largest distance of a centre to its nearest neighbour; ``all-pairs``: the largest
            distance of two centres; ``fixed``: always tau; ``none``: 0.
        cap: tau, the largest margin.
    """
    largest = torch.tensor(cap, dtype=torch.float64, device=centres.device)
    if kind == "none":
        return torch.zeros_like(largest)
    if kind == "fixed" or len(centres) < 2:
        return largest
    between = euclidean_distances(centres.double(), centres.double())
    nearest = between.fill_diagonal_(torch.inf).min(dim=1).values
    widest = nearest if kind == "adaptive" else between.fill_diagonal_(0)
    return torch.minimum(widest.max(), largest)
