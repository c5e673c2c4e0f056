"""FedTGP's figures of results (Zhang et al., AAAI 2024), and the same of a short run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hetfl.experiments.plan import Params
from hetfl.papers.panels import EmbeddingPanel, MarginPanel, Points, ResultFigure, RoundsPanel, first_seed
from hetfl.papers.spec import Entry, entry

FLOWERS = "fedtgp-htfe8-flowers102-practical"
FASHION, SHORT = "fedtgp-htcnn8-fashion-mnist", "fashion-mnist-short"
METHODS = ("lg-fedavg", "fedgen", "fml", "fedkd", "feddistill", "fedproto", "fedtgp")
TITLES = {"fedproto": "FedProto", "fedtgp": "FedTGP"}

_SHORT = "Fashion-MNIST, practical, HtCNN_8, first seed: a short run of few rounds, no reproduction of the paper's."
_TSNE = (
    "t-SNE after the last round, each panel for itself: only who is near whom means anything, not the axes or the "
    "size of gaps. Colour: class."
)
_POINTS: Mapping[Points, str] = {
    "prototypes": "Small: the mean feature of one client's training samples of a class; large: the global prototype.",
    "features": "Dots: test samples, drawn from those of all clients, as their own client's network sees them.",
}


def margins(experiment: str, what: str) -> Callable[[Params], ResultFigure]:
    """Figure 1: margins between prototypes."""

    def figure(params: Params) -> ResultFigure:
        return ResultFigure(
            (
                MarginPanel("FedProto", _practical(params, experiment, "fedproto"), "<"),
                MarginPanel("FedTGP", _practical(params, experiment, "fedtgp"), ">"),
            ),
            2,
            f"{what} Margin of a class: distance of its prototype to the nearest one of another class, over the "
            "method's largest bar. Maximum: the largest of the clients' own margins, each among the classes it owns. "
            "The paper's claim: averaging leaves the global margin below that maximum, FedTGP's training raises it "
            "above; below each panel in how many classes this holds here.",
        )

    return figure


def figure_4(params: Params) -> ResultFigure:
    """Figure 4: training error over the rounds, with the test accuracy beside it."""
    rows = params.experiments[FLOWERS].rows
    lines = {rows[name].title: entry(params, FLOWERS, name, "practical") for name in METHODS}
    return ResultFigure(
        (
            RoundsPanel("Training", lines, "training error"),
            RoundsPanel("Test", lines, "test accuracy"),
        ),
        2,
        "Flowers102, practical, HtFE_8. Samples of all clients together, predicted as each method does: by the "
        "nearest global prototype in FedProto and FedTGP. Mean over seeds, until the first one stops; shade: lowest "
        "to highest seed. The paper shows the training error only.",
    )


def figure_5(params: Params) -> ResultFigure:
    """Figure 5: prototypes of clients and server."""
    return ResultFigure(
        _embeddings(params, FASHION, "prototypes"),
        2,
        f"Fashion-MNIST, practical, HtCNN_8, first seed. {_POINTS['prototypes']} {_TSNE}",
    )


def figure_6(params: Params) -> ResultFigure:
    """Figure 6: features of test samples."""
    return ResultFigure(
        _embeddings(params, FASHION, "features"),
        2,
        f"Fashion-MNIST, practical, HtCNN_8, first seed. {_POINTS['features']} {_TSNE}",
    )


def short_tsne(params: Params) -> ResultFigure:
    """Figures 5 and 6 of the short run."""
    panels = (*_embeddings(params, SHORT, "prototypes"), *_embeddings(params, SHORT, "features"))
    return ResultFigure(panels, 2, f"{_SHORT} {_POINTS['prototypes']} {_POINTS['features']} {_TSNE}")


FIGURES: dict[str, Callable[[Params], ResultFigure]] = {
    "fedtgp-figure-1": margins(
        "fedtgp-htfe8-cifar10-practical",
        "Cifar10, HtFE_8, first seed; practical, as the paper does not say which setting.",
    ),
    "fedtgp-figure-4": figure_4,
    "fedtgp-figure-5": figure_5,
    "fedtgp-figure-6": figure_6,
    "fashion-mnist-short-prototypes": margins(SHORT, _SHORT),
    "fashion-mnist-short-tsne": short_tsne,
}
"""By the name of the stage."""


def _practical(params: Params, experiment: str, row: str) -> Entry:
    return first_seed(entry(params, experiment, row, "practical"))


def _embeddings(params: Params, experiment: str, points: Points) -> tuple[EmbeddingPanel, ...]:
    return tuple(
        EmbeddingPanel(f"{title}, {points}", _practical(params, experiment, row), points)
        for row, title in TITLES.items()
    )
