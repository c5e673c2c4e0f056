"""Pictures of what networks make of images: margins between prototypes, and points of feature space in the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hetfl.metrics.prototypes import largest_margins, margins
from hetfl.papers.panels import EmbeddingPanel, MarginPanel
from hetfl.report.style import CLASSES, GRID, INK, PAPER, SERIES, not_run

# Clients that reached the global prototype lie on top of it.
_CLIENT: dict[str, Any] = {"marker": "o", "markersize": 4.5, "zorder": 3}
_GLOBAL: dict[str, Any] = {"marker": "D", "markersize": 9.5, "markeredgecolor": INK, "markeredgewidth": 1.1}
_SAMPLE: dict[str, Any] = {"marker": "o", "markersize": 2.6, "markeredgewidth": 0, "alpha": 0.75}


def draw_margins(axes: Axes, panel: MarginPanel, stored: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Two bars for each class, over the largest bar of the panel, and in how many classes the claim holds.

    Args:
        axes: where to draw; the classes are at 0, 1, ...
        panel: what to show.
        stored: the evaluation's arrays, see :func:`hetfl.experiments.evaluation.representations`.

    Returns:
        The legend.
    """
    bars = {
        "Maximum of the clients": largest_margins(stored["clients"], stored["owned"]),
        "Global": margins(stored["global"], stored["global_valid"]),
    }
    if np.isnan([*bars.values()]).all():
        not_run(axes, "no finite prototypes")
        return {}
    top = np.nanmax([*bars.values()])
    legend: dict[str, Any] = {}
    for index, (title, values) in enumerate(bars.items()):
        there = np.flatnonzero(~np.isnan(values))
        legend[title] = axes.bar(there + 0.4 * index - 0.2, values[there] / top, width=0.36, color=SERIES[index])
    maximum, of_server = bars.values()
    known = ~np.isnan(maximum) & ~np.isnan(of_server)
    holds = (of_server < maximum) if panel.claim == "<" else (of_server > maximum)
    axes.grid(axis="x", visible=False)
    axes.set(
        xlabel=f"Claim: global {panel.claim} maximum; it holds in {holds[known].sum()} of {known.sum()} classes",
        ylabel="Margin, largest = 1",
    )
    return legend


def draw_embedding(
    axes: Axes, panel: EmbeddingPanel, stored: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, Any]:
    """Points of feature space in the plane, in the colours of their classes.

    Args:
        axes: where to draw.
        panel: what to show.
        stored: the evaluation's arrays, see :func:`hetfl.experiments.evaluation.representations`.
        names: of the classes.

    Returns:
        The legend.
    """
    colours = [CLASSES[label % len(CLASSES)] for label in range(len(names))]
    legend: dict[str, Any] = {
        name: Line2D([], [], linestyle="none", marker="o", markersize=5, color=colour)
        for name, colour in zip(names, colours, strict=True)
    }
    if panel.points == "features":
        groups = [(stored["features"], stored["labels"], _SAMPLE)]
    else:
        owners, of_clients = np.nonzero(stored["owned"])
        of_server = np.flatnonzero(stored["global_valid"])
        clients = _CLIENT | {"markeredgecolor": PAPER, "markeredgewidth": 0.6}
        groups = [
            (stored["clients"][owners, of_clients], of_clients, clients),
            (stored["global"][of_server], of_server, _GLOBAL),
        ]
        hollow = {"linestyle": "none", "markerfacecolor": "none", "markeredgecolor": INK}
        legend |= {"client": Line2D([], [], **_CLIENT | hollow), "global": Line2D([], [], **_GLOBAL | hollow)}
    finite = [np.isfinite(points).all(axis=1) for points, _, _ in groups]
    groups = [(points[kept], labels[kept], look) for (points, labels, look), kept in zip(groups, finite, strict=True)]
    together = np.concatenate([points for points, _, _ in groups])
    if len(together) < 4:  # t-SNE needs three neighbours
        not_run(axes, "no finite features")
        return {}
    plane = embed(together)
    for points, labels, look in groups:
        here, plane = plane[: len(points)], plane[len(points) :]
        for label in np.unique(labels):
            axes.plot(*here[labels == label].T, linestyle="none", **{"color": colours[label]} | look)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=GRID)
    axes.margins(0.07)
    return legend


def embed(points: np.ndarray) -> np.ndarray:
    """t-SNE [n, 2] of points [n, d] from their principal components, the same every time."""
    # Imported late: other figures do without.
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    # Neighbours that count: a tenth of the points, as many as a class has where there are ten.
    perplexity = min(30.0, max(5.0, len(points) / 10), (len(points) - 1) / 3)
    # Sums of several threads differ in their last digits.
    with threadpool_limits(1):
        return TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(points)
