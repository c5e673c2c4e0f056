"""The papers' figures by the name of their stage: of data distributions, of results and of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from hetfl.federation.plan import Params
from hetfl.papers import fedhpl_figures, fedtgp_figures, fgpt_figures
from hetfl.papers.panels import FeatureFigure, ImageFigure, ResultFigure, SelectionFigure, TheoremFigure


@dataclass(frozen=True)
class PartitionFigure:
    """A figure that shows partitions.

    Attributes:
        kind: how a partition is drawn.
        columns: panels side by side.
        panels: title of each panel -> data set and split.
        clients: those that get a panel each; empty: all of them share one.
    """

    kind: Literal["heatmap", "bubbles", "bars"]
    columns: int
    panels: Mapping[str, tuple[str, str]]
    clients: tuple[int, ...] = ()


_TITLES = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "svhn": "SVHN",
    "fashion-mnist": "FMNIST",
    "flowers102": "Flowers102",
    "tiny-imagenet": "Tiny-ImageNet",
}


def _grid(sets: tuple[str, ...], splits: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {f"{_TITLES[name]}-{title}": (name, split) for name in sets for split, title in splits.items()}


_SMALL, _LARGE = ("fashion-mnist", "cifar10"), ("flowers102", "cifar100", "tiny-imagenet")

PARTITION_FIGURES: dict[str, PartitionFigure] = {
    "fedhpl-figure-4": PartitionFigure(
        "heatmap",
        3,
        _grid(("cifar10", "cifar100", "svhn"), {"iid": "IID", "dir": "Dir", "noniid": "Non-IID"}),
    ),
    "fedtgp-figure-7": PartitionFigure("bubbles", 2, _grid(_SMALL, {"blocks": "pathological"})),
    "fedtgp-figure-8": PartitionFigure("bubbles", 2, _grid(_SMALL, {"practical": "practical"})),
    "fedtgp-figure-9": PartitionFigure("bubbles", 3, _grid(_LARGE, {"blocks": "pathological"})),
    "fedtgp-figure-10": PartitionFigure("bubbles", 3, _grid(_LARGE, {"practical": "practical"})),
    "fedtgp-figure-11": PartitionFigure(
        "bubbles", 2, _grid(("cifar100",), {"practical-50": "50 clients", "practical-100": "100 clients"})
    ),
    "sgpt-figure-7": PartitionFigure("bars", 2, {"CIFAR-100, s = 10": ("cifar100", "s10")}, clients=(0, 1, 2, 3)),
}
"""Of each the first seed is drawn; FedTGP's partitions are the same in every trial."""

RESULT_FIGURES: dict[str, Callable[[Params], ResultFigure | TheoremFigure | SelectionFigure]] = {
    **fedhpl_figures.FIGURES,
    **fedtgp_figures.FIGURES,
    **fgpt_figures.FIGURES,
}
"""Figures that show runs."""

DATA_FIGURES: dict[str, FeatureFigure | ImageFigure] = fgpt_figures.DATA_FIGURES
"""Figures that show samples of a data set."""
