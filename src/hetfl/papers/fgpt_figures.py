"""FGPT's figures (arXiv 2310.18285), those of its later version SGPT (CVPR 2024), and the same of short runs."""

from __future__ import annotations

from collections.abc import Callable

from hetfl.experiments.plan import Params
from hetfl.papers.fgpt import FIVE, METHODS, READINGS, S5, S10, Setting
from hetfl.papers.panels import (
    FeatureFigure,
    HeldOutPanel,
    ImageFigure,
    MetricLine,
    MetricPanel,
    ResultFigure,
    RoundsPanel,
    SelectionFigure,
    TradeoffPanel,
    first_seed,
)
from hetfl.papers.spec import Entry, entry

SGPT = "sgpt-cifar100-s10"
UNSEEN, SHORT, UNSEEN_SHORT = "fgpt-unseen", "cifar100-s10-short", "cifar100-unseen-short"
HELD_OUT = {"fgpt": "FGPT", "pt-fedavg": "PT-FedAvg", "sgpt": "SGPT"}
MOMENTA = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
DEFAULT_MOMENTUM = 0.5
CONGRUENCE = (0.5, 86.8)
"""The best congruence score of SGPT's Figure 6a in percent, and its key momentum (appendix D.2)."""

_SEEDS = "Mean over seeds; shade: lowest to highest seed."
_BARS = "Points: mean over seeds; bars: lowest to highest seed."
_SHORT = (
    "CIFAR-100, s = 10, a small transformer, first seed: a short run of few rounds, no reproduction of the paper's."
)
_GROUPS = (
    "All training samples after the last round, sorted as in inference; groups from the largest to the smallest. "
    "Above: share of all clients' samples, dashed where all groups would be even; entropy 1 is even, 0 is one group "
    "alone. Below: share of each client's own samples, clients sorted by their most frequent group."
)
_TSNE = (
    "t-SNE of the class token after a block of the pre-trained backbone, without prompts and without any training "
    "here; test samples, drawn at random. Each panel for itself: only who is near whom means anything, not the axes "
    "or the size of gaps. Colour and shape: coarse class."
)


def figure_1(params: Params) -> SelectionFigure:
    """Figure 1c: how often each client's samples select each group."""
    return SelectionFigure(
        {"FGPT": first_seed(_rows(params, S10)["FGPT"])}, f"CIFAR-100, s = 10, first seed. {_GROUPS}"
    )


def figure_2(params: Params) -> ResultFigure:
    """Figure 2: global accuracy and worst local accuracy."""
    panels = []
    for setting in (S10, S5, FIVE):
        rows = _rows(params, setting)
        if setting != FIVE:
            rows["FGPT-U"] = rows["FGPT"].model_copy(update={"reading": READINGS["fgpt-u"]})
        panels.append(TradeoffPanel(setting.title, rows))
    return ResultFigure(
        tuple(panels),
        3,
        "Towards the upper right is better. Global: all test samples together; worst local: the lowest client of a "
        f"round; both means over the last ten rounds. {_BARS} FGPT-U: FGPT's runs, predicted with the five nearest "
        "groups; not on Five-Dataset, as in the paper.",
    )


def figure_3(params: Params) -> ResultFigure:
    """Figure 3: accuracy over the rounds."""
    return ResultFigure(
        tuple(RoundsPanel(setting.title, _rows(params, setting), "test accuracy") for setting in (S10, S5)),
        2,
        f"Five local epochs. All clients' test samples together. {_SEEDS} The paper draws both settings "
        "in one panel.",
    )


def unseen(experiment: str, what: str) -> Callable[[Params], ResultFigure]:
    """Clients that never took part."""

    def figure(params: Params) -> ResultFigure:
        rows = {name: entry(params, experiment, row, "s10") for row, name in HELD_OUT.items()}
        return ResultFigure(
            (
                HeldOutPanel("(a) Test samples together", rows, "pooled"),
                HeldOutPanel("(b) Lowest client", rows, "lowest"),
            ),
            2,
            f"{what} The last 20 of the 100 clients never take part and are tested with the same global state, "
            "without any tuning. (b) is the lowest of 80 clients beside the lowest of 20, which by itself lifts the "
            f"second. Means over the last rounds that a run reports. {_BARS}",
        )

    return figure


def figure_6(params: Params) -> ResultFigure:
    """SGPT's Figure 6: the two momentum ratios."""
    rivals = tuple(cell for name, cell in _rows(params, S10).items() if name != "FGPT")
    keys, groups = _momenta(params, "key"), _momenta(params, "group")
    return ResultFigure(
        (
            MetricPanel(
                "(a) Key momentum",
                "Key momentum α_k",
                "Congruence score (%)",
                (MetricLine("Congruence with K-means", "congruence", keys, printed=CONGRUENCE),),
            ),
            MetricPanel(
                "(b) Group momentum",
                "Group momentum α_g",
                "Test accuracy (%)",
                (
                    MetricLine("Global", "window_pooled", groups, rivals),
                    MetricLine("Worst local", "window_lowest", groups, rivals),
                ),
            ),
        ),
        2,
        "SGPT, CIFAR-100, s = 10; the other momentum is 0.5. (a) Agreement of SGPT's groups with centralised K-means "
        "of as many clusters, over the agreement of these with the classes; not bounded by 100 %. Hollow: the best "
        "score, which the paper prints. The picks that balance the groups are those of earlier rounds, as in the "
        "paper; the authors' code adds those of the round's earlier participants (balance: client). (b) Global: all "
        "test samples together; worst local: the lowest client of a round; both means over the last ten rounds. "
        "Dashed: the best of the five baselines in either, of those that "
        f"are there. {_SEEDS} The values on the horizontal axis are ours, the paper names them in its images only.",
    )


def short_groups(params: Params) -> SelectionFigure:
    """Figure 1c of the short run, of all methods that sort samples."""
    rows = {"fgpt": "FGPT", "sgpt": "SGPT", "fed-dualprompt": "Fed-DualPrompt"}
    return SelectionFigure(
        {name: first_seed(entry(params, SHORT, row, "s10")) for row, name in rows.items()},
        f"{_SHORT} {_GROUPS} At the bottom: entropy of the groups of a round's participants, all their samples "
        "together (of SGPT as picked in training).",
        rounds=True,
    )


FIGURES: dict[str, Callable[[Params], ResultFigure | SelectionFigure]] = {
    "fgpt-figure-1": figure_1,
    "fgpt-figure-2": figure_2,
    "fgpt-figure-3": figure_3,
    "fgpt-unseen": unseen(UNSEEN, "CIFAR-100, s = 10."),
    "sgpt-figure-6": figure_6,
    "cifar100-s10-short-groups": short_groups,
    "cifar100-unseen-short-clients": unseen(UNSEEN_SHORT, _SHORT),
}
"""Of results, by the name of the stage."""

DATA_FIGURES: dict[str, FeatureFigure | ImageFigure] = {
    "sgpt-figure-5": FeatureFigure(S10.experiment, (1, 4, 7, 10, 12), "coarse", 3, f"CIFAR-100, ViT-B/16. {_TSNE}"),
    "sgpt-figure-8": ImageFigure(
        "five",
        "domain",
        {
            "svhn": "SVHN",
            "cifar10": "CIFAR-10",
            "notmnist": "notMNIST",
            "fashion-mnist": "Fashion-MNIST",
            "mnist": "MNIST",
        },
        "Five-Dataset: training images, drawn at random, one of each class. A client holds samples of one row alone; "
        "four clients share a row.",
    ),
    "cifar100-s10-short-tsne": FeatureFigure(
        SHORT,
        (1, 4, 6, 8),
        "coarse",
        2,
        f"CIFAR-100, the short run's small transformer, pre-trained on CIFAR-10. {_TSNE}",
    ),
}
"""Of data sets, by the name of the stage."""


def _rows(params: Params, setting: Setting) -> dict[str, Entry]:
    """The six methods' cells of a column of Table 1."""
    return {name: entry(params, setting.experiment, row, setting.split) for row, name in METHODS.items()}


def _momenta(params: Params, kind: str) -> dict[float, Entry]:
    """The cells over one of SGPT's momentum ratios, the other at its default."""
    return {
        value: entry(params, SGPT, "sgpt", "s10")
        if value == DEFAULT_MOMENTUM
        else entry(params, f"sgpt-{kind}-momentum", f"sgpt-{kind}-momentum-{value}", "s10")
        for value in MOMENTA
    }
