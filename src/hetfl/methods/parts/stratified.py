"""Stratified draws: samples of each class in proportion (FedMD)."""

from __future__ import annotations

import torch
from torch import Tensor


def stratified(labels: Tensor, wanted: int, order: Tensor, generator: torch.Generator) -> Tensor:
    """Some samples, of each class in proportion to its number: indices [wanted] int64, in the order given.

    Args:
        labels: of all samples [N].
        wanted: number of samples, at most N.
        order: a permutation [N]; the first samples of each class are taken.
        generator: decides which classes are rounded up.
    """
    return order[first_of_classes(labels[order], shares_of_classes(labels, wanted, generator))]


def shares_of_classes(labels: Tensor, wanted: int, generator: torch.Generator) -> Tensor:
    """How many of ``wanted`` samples are of each class [C] int64: in proportion, rounded by largest remainders.

    Ties between equal remainders are broken at random.
    """
    counts = torch.bincount(labels)
    shares, remainders = counts * wanted // len(labels), counts * wanted % len(labels)
    mixed = torch.randperm(len(counts), generator=generator)
    largest = mixed[remainders[mixed].argsort(descending=True, stable=True)]
    shares[largest[: wanted - int(shares.sum())]] += 1
    return shares


def first_of_classes(labels: Tensor, shares: Tensor) -> Tensor:
    """Whether each of the samples with ``labels`` [N] is among the first ``shares`` [C] of its class: [N] bool."""
    by_class = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    begins = counts.cumsum(0) - counts
    place = torch.empty_like(labels)
    place[by_class] = torch.arange(len(labels)) - begins[labels[by_class]]
    return place < shares[labels]
