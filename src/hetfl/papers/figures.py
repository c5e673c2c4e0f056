"""The papers' figures by the name of their stage: of data distributions, of results and of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from hetfl.experiments.plan import Params
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

TITLES: dict[str, str] = {
    "fedhpl-theorem": "FedHPL, Theorem 1: its terms over the rounds",
    "fedhpl-figure-3": "FedHPL, Figure 3: prompts, amount of data, ablations",
    "fedhpl-figure-4": "FedHPL, Figure 4: heat maps of the clients' samples",
    "fedhpl-figure-5": "FedHPL, Figure 5: accuracy per class, homogeneous models",
    "fedhpl-figure-6": "FedHPL, Figure 6: accuracy per class, heterogeneous models",
    "fedhpl-figure-7": "FedHPL, Figure 7: clients with some of CIFAR10's classes",
    "fedhpl-figure-8": "FedHPL, Figure 8: clients with some of CIFAR100's classes",
    "fedhpl-figure-9": "FedHPL, Figure 9: clients with some of SVHN's classes",
    "fedhpl-figure-10": "FedHPL, Figure 10: accuracy per class of ResNets at 32 and 224 and of ViTs",
    "fedhpl-figure-11": "FedHPL, Figure 11: number of prompts",
    "fedhpl-figure-12": "FedHPL, Figure 12: gamma and temperature",
    "fedtgp-figure-1": "FedTGP, Figure 1: margins of the prototypes",
    "fedtgp-figure-4": "FedTGP, Figure 4: training error over rounds",
    "fedtgp-figure-5": "FedTGP, Figure 5: prototypes of clients and server",
    "fedtgp-figure-6": "FedTGP, Figure 6: features of the clients",
    "fedtgp-figure-7": "FedTGP, Figure 7: pathological setting of FMNIST and Cifar10",
    "fedtgp-figure-8": "FedTGP, Figure 8: practical setting of FMNIST and Cifar10",
    "fedtgp-figure-9": "FedTGP, Figure 9: pathological setting of the larger sets",
    "fedtgp-figure-10": "FedTGP, Figure 10: practical setting of the larger sets",
    "fedtgp-figure-11": "FedTGP, Figure 11: practical setting of Cifar100 with 50 and 100 clients",
    "fgpt-unseen": "clients that never took part",
    "fgpt-figure-1": "FGPT, Figure 1c: groups that the clients' samples select",
    "fgpt-figure-2": "FGPT, Figure 2: global and worst local accuracy",
    "fgpt-figure-3": "FGPT, Figure 3: accuracy over rounds",
    "sgpt-figure-5": "SGPT, Figure 5: class tokens after blocks of the backbone",
    "sgpt-figure-6": "SGPT, Figure 6: momentum of keys and of group prompts",
    "sgpt-figure-7": "SGPT, Figure 7: classes of four clients",
    "sgpt-figure-8": "SGPT, Figure 8: images of Five-Dataset",
    "cifar100-s10-short-groups": "groups of the clients' samples after few rounds",
    "cifar100-s10-short-tsne": "class tokens after blocks of the small transformer",
    "cifar100-unseen-short-clients": "clients that never took part, after few rounds",
    "digits-theorem": "FedHPL, Theorem 1: its terms over the rounds, on the embedded default",
    "fashion-mnist-short-prototypes": "margins of the prototypes after few rounds",
    "fashion-mnist-short-tsne": "prototypes and features after few rounds",
}
"""Of each figure, what it shows."""
