"""Class means: the mean feature (a prototype) or the mean logits of a client's samples of each class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hetfl.data.batches import Batch, class_counts, class_sums
from hetfl.message import Message, Tensors
from hetfl.methods.contract import Statistics, Work


def class_statistics(values: Tensor, batch: Batch, num_classes: int) -> Statistics:
    """The sums that :func:`class_means` divides.

    Args:
        values: [B, D], a feature or the logits of each sample.
        batch: the samples.
        num_classes: C.

    Returns:
        ``sums`` [C, D] and ``counts`` [C], in float64.
    """
    sums = class_sums(values, batch.labels, num_classes, batch.weight)
    return Statistics(sums={"sums": sums, "counts": class_counts(batch.labels, num_classes, batch.weight)})


def class_means(work: Work) -> Message:
    """The mean vector of each class that a client has samples of, from :func:`class_statistics`.

    Returns:
        ``means`` [c, D] in the type of the parameters and ``labels`` [c] int32, for the c classes that the client has
        samples of; c can be 0.
    """
    sums, counts = work.statistics.sums["sums"], work.statistics.sums["counts"]
    labels = counts.nonzero().squeeze(1)
    means = sums[labels] / counts[labels, None]
    return Message({"means": means.to(work.dtype), "labels": labels.to(torch.int32)})


def mean_over_owners(messages: Sequence[Tensors], num_classes: int) -> dict[str, Tensor]:
    """The mean of each class over the clients that sent one.

    Args:
        messages: as :func:`class_means` makes them. Each owner of a class weighs the same, or as much as it has
            samples where messages hold the ``counts`` [c] of their classes.
        num_classes: C.

    Returns:
        ``means`` [c, D] and ``labels`` [c] int32 of the c classes that somebody sent.
    """
    labels = torch.cat([message["labels"] for message in messages]).long()
    means = torch.cat([message["means"] for message in messages])
    counts = torch.cat([message["counts"] for message in messages]).double() if "counts" in messages[0] else None
    weight = class_counts(labels, num_classes, counts)
    present = weight.nonzero().squeeze(1)
    mean = class_sums(means, labels, num_classes, counts)[present] / weight[present, None]
    return {"means": mean.to(means.dtype), "labels": present.to(torch.int32)}


def by_class(message: Tensors, num_classes: int) -> dict[str, Tensor]:
    """Class means as one row per class.

    Args:
        message: ``means`` [c, D] and ``labels`` [c]; or empty.
        num_classes: C.

    Returns:
        ``means`` [C, D], zero where a class has none, and ``valid`` [C] bool; nothing from an empty message.
    """
    if not message:
        return {}
    labels, means = message["labels"].long(), message["means"]
    dense = means.new_zeros(num_classes, means.shape[1])
    valid = torch.zeros(num_classes, dtype=torch.bool, device=dense.device)
    return {"means": dense.index_copy(0, labels, means), "valid": valid.index_fill(0, labels, True)}
