"""FedHPL's figures of results (arXiv 2405.17267)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Literal

from hetfl.experiments.plan import Params
from hetfl.papers.panels import (
    ClassPanel,
    ClientPanel,
    GroupPanel,
    Line,
    Panel,
    ResultFigure,
    SweepPanel,
    TheoremFigure,
    first_seed,
)
from hetfl.papers.spec import Entry, entry

SETS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "svhn": "SVHN"}
SPLITS = {"iid": "IID", "dir": "Dir", "noniid": "Non-IID"}
HETEROGENEOUS = "fedhpl-heterogeneous-cifar10"
DEPTHS = {"shallow": "VPT-shallow", "deep": "VPT-deep"}

LENGTHS = (1, 2, 3, 5, 10)
PERCENTAGES = (10, 20, 40, 60, 80, 100)
WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0)
TEMPERATURES = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)

_CLIENTS = "Solid: average of the clients; dashed: highest client; dotted: lowest client."
_SEEDS = "Mean over seeds; shade: lowest to highest seed."
_TICKS = "The values on the horizontal axis are ours, the paper names them in its images only."


def figure_3(params: Params) -> ResultFigure:
    """Figure 3: number of prompts, amount of data, ways to aggregate."""
    homogeneous = "fedhpl-homogeneous-cifar10"
    rows = {
        "FedHPL": (HETEROGENEOUS, "fedhpl"),
        "average aggregation": ("fedhpl-aggregation", "fedhpl-average-aggregation"),
        "upload all": ("fedhpl-aggregation", "fedhpl-upload-all"),
        "Local": ("fedhpl-ablations-heterogeneous", "local"),
    }
    data = {
        float(share): entry(params, "fedhpl-ablations-homogeneous", "local", "iid")
        if share == 100
        else entry(params, "fedhpl-amount", "local", f"iid-{share}pct")
        for share in PERCENTAGES
    }
    ways = {
        title: {name: entry(params, *row, split) for name, row in rows.items()} for split, title in SPLITS.items()
    }
    return ResultFigure(
        (
            SweepPanel(
                "(a) Prompts",
                "Prompts n",
                tuple(Line(title, _lengths(params, depth)) for depth, title in DEPTHS.items()),
            ),
            SweepPanel(
                "(b) Data",
                "Data of each client (%)",
                (Line("Local", data),),
                ("FedHPL, all data", entry(params, homogeneous, "fedhpl", "iid")),
            ),
            GroupPanel("(c) Aggregation", ways),
        ),
        3,
        "CIFAR10. (a) heterogeneous ViTs, Dir; (b) homogeneous ViT-B/16, IID; (c) heterogeneous ViTs, average of the "
        f"clients. {_CLIENTS} {_SEEDS} {_TICKS} The paper does not state the data settings of (c).",
    )


def figure_5(params: Params) -> ResultFigure:
    """Figure 5: the classes of Table 1's runs."""
    rows = {
        "FedAVG": "fedavg",
        "FedProx": "fedprox",
        "SCAFFOLD": "scaffold",
        "FedBABU": "fedbabu",
        "FedRep": "fedrep",
        "pFedPT": "pfedpt",
        "pFedPG": "pfedpg",
        "FedHPL": "fedhpl",
    }
    families = dict.fromkeys(rows, "homogeneous")
    return _classes(params, rows, families, "homogeneous ViT-B/16 (Table 1)")


def figure_6(params: Params) -> ResultFigure:
    """Figure 6: the classes of Table 2's runs."""
    rows = {
        "FedGen": "fedgen",
        "FedGH": "fedgh",
        "FedProto": "fedproto",
        "FedTGP": "fedtgp",
        "FedMD": "fedmd",
        "FedHE": "fedhe",
        "FedHPL (CNN)": "fedhpl-cnn",
        "FedHPL (ViT)": "fedhpl",
    }
    families = dict.fromkeys(rows, "resnet") | {"FedHPL (ViT)": "heterogeneous"}
    return _classes(params, rows, families, "heterogeneous models (Table 2)")


def subsets(dataset: str) -> Callable[[Params], ResultFigure]:
    """Figures 7 to 9: clients that own some of a data set's classes."""

    def figure(params: Params) -> ResultFigure:
        rows = {"FedGen": "fedgen", "FedGH": "fedgh", "FedProto": "fedproto", "FedTGP": "fedtgp"}
        split = params.partitions[dataset].splits["class-subsets"].model_dump()
        labels = tuple(map(str, split["classes"]))
        return ResultFigure(
            tuple(
                ClientPanel(
                    title,
                    "Classes of the client",
                    labels,
                    entry(params, f"fedhpl-subsets-{dataset}", row, "class-subsets"),
                )
                for title, row in rows.items()
            ),
            2,
            f"{SETS[dataset]}, each client tested on a held-out fifth of its own classes' samples. Bar: mean over "
            "seeds; whisker: lowest to highest seed. The paper has three panels for each method; what tells them "
            "apart is not in its text.",
        )

    return figure


def figure_10(params: Params) -> ResultFigure:
    """Figure 10: FedHPL with ResNets on small and large images, and with ViTs."""
    rows = {
        "ResNets, 32 x 32": ("fedhpl-resnet-small-images", "fedhpl-cnn-32"),
        "ResNets, 224 x 224": ("fedhpl-resnet-cifar10", "fedhpl-cnn"),
        "ViTs, 224 x 224": (HETEROGENEOUS, "fedhpl"),
    }
    return ResultFigure(
        tuple(
            ClassPanel(
                f"CIFAR10, {title}",
                {name: entry(params, experiment, row, split) for name, (experiment, row) in rows.items()},
                "lines",
            )
            for split, title in SPLITS.items()
        ),
        3,
        f"FedHPL with heterogeneous models: accuracy of each class, average of the clients. {_SEEDS}",
    )


def figure_11(params: Params) -> ResultFigure:
    """Figure 11: number of prompts after the last and in the best round."""
    return ResultFigure(
        tuple(SweepPanel(title, "Prompts n", _readings(_lengths(params, depth))) for depth, title in DEPTHS.items()),
        2,
        f"CIFAR10, Dir, heterogeneous ViTs. {_BEST} {_CLIENTS} {_SEEDS} {_TICKS}",
    )


def figure_12(params: Params) -> ResultFigure:
    """Figure 12: weight and temperature of the distillation."""
    settings: dict[str, tuple[str, Iterable[float], float]] = {
        "gamma": ("Weight γ", WEIGHTS, 1.0),
        "temperature": ("Temperature", TEMPERATURES, 4.5),
    }
    panels = []
    for (name, (label, values, usual)), (depth, title) in product(settings.items(), DEPTHS.items()):
        points = {
            value: _lengths(params, depth)[3.0]
            if value == usual
            else entry(params, f"fedhpl-{name}", f"{depth}-{name}-{value}", "dir")
            for value in values
        }
        panels.append(SweepPanel(f"{title}, {label[0].lower()}{label[1:]}", label, _readings(points)))
    return ResultFigure(
        tuple(panels),
        2,
        f"CIFAR10, Dir, heterogeneous ViTs; the other setting at its default (γ = 1, temperature 4.5). {_BEST} "
        f"{_CLIENTS} {_SEEDS} {_TICKS}",
    )


def theorem(models: Mapping[str, str], what: str) -> Callable[[Params], TheoremFigure]:
    """The terms of Theorem 1 in FedHPL's runs.

    Args:
        models: title -> experiment.
        what: the runs in words.
    """

    def figure(params: Params) -> TheoremFigure:
        return TheoremFigure(
            {
                title: {
                    name: first_seed(entry(params, experiment, "fedhpl", split)) for split, name in SPLITS.items()
                }
                for title, experiment in models.items()
            },
            f"{what}, first seed. {_THEOREM}",
        )

    return figure


_BEST = "top1: best round of each statistic; final: last round."
_THEOREM = (
    "Line: mean of the clients; shade: lowest to highest client. φ is the softmax at the distillation's temperature; "
    "p a sample's own logits, g the global ones of its class, y its label. Diagnostics, not certificates: "
    "(1) the step that combines the two risks writes sup{R_ce, R_kd} = R_ce + R_kd, where only ≤ holds. "
    "(2) λ = -ln π needs a prior with mass on the trained hypothesis; for continuous parameters it is infinite, so "
    "param_kl stands in. (3) KL(h‖h₀) is between distributions over hypotheses, while clients train points; param_kl "
    "is that of normal distributions of equal variance around them. (4) logit_bound is loose at a temperature of "
    "4.5: a confident correct sample still has φ(p)[y] well below 1. (5) The global logits depend on the client's "
    "own data, so they are not independent of its sample as the Hoeffding step assumes. (6) lambda0 is made of 0-1 "
    "risks of a random head and usually exceeds 1 by itself: follow trends, not the sum."
)

FIGURES: dict[str, Callable[[Params], ResultFigure | TheoremFigure]] = {
    "fedhpl-figure-3": figure_3,
    "fedhpl-figure-5": figure_5,
    "fedhpl-figure-6": figure_6,
    "fedhpl-figure-7": subsets("cifar10"),
    "fedhpl-figure-8": subsets("cifar100"),
    "fedhpl-figure-9": subsets("svhn"),
    "fedhpl-figure-10": figure_10,
    "fedhpl-figure-11": figure_11,
    "fedhpl-figure-12": figure_12,
    "fedhpl-theorem": theorem(
        {"homogeneous": "fedhpl-homogeneous-cifar10", "heterogeneous": HETEROGENEOUS},
        "Theorem 1's terms, FedHPL on CIFAR10 with homogeneous and heterogeneous ViTs",
    ),
    "digits-theorem": theorem(
        {"homogeneous": "digits-homogeneous", "heterogeneous": "digits-heterogeneous"},
        "Theorem 1's terms, FedHPL on the digits with homogeneous and heterogeneous ViTs",
    ),
}
"""By the name of the stage."""


def _lengths(params: Params, depth: str) -> dict[float, Entry]:
    """The cells over the number of prompts; three deep ones are FedHPL's default."""
    return {
        float(n): entry(params, HETEROGENEOUS, "fedhpl", "dir")
        if (depth, n) == ("deep", 3)
        else entry(params, "fedhpl-prompts", f"{depth}-prompt-length-{n}", "dir")
        for n in LENGTHS
    }


def _readings(points: Mapping[float, Entry]) -> tuple[Line, ...]:
    readings: tuple[Literal["final", "top1"], ...] = ("final", "top1")
    return tuple(Line(reading, points, reading) for reading in readings)


def _classes(params: Params, rows: Mapping[str, str], families: Mapping[str, str], what: str) -> ResultFigure:
    panels: list[Panel] = [
        ClassPanel(
            f"{SETS[dataset]}, {title}",
            {name: entry(params, f"fedhpl-{families[name]}-{dataset}", row, split) for name, row in rows.items()},
            "heatmap",
        )
        for dataset, (split, title) in product(SETS, SPLITS.items())
    ]
    return ResultFigure(
        tuple(panels),
        3,
        f"Accuracy of each class in percent with {what}: average of the clients, mean over seeds. Full colour: 100%.",
    )
