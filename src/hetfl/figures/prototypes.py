"""Panels of prototypes and features: margins between prototypes, and points of feature space in the plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from hetfl.figures.base import Cell, Legend, Panel
from hetfl.figures.sources import Sources
from hetfl.figures.style import CLASSES, GRID, INK, PAPER, SERIES, Look, class_axis, handle, not_there
from hetfl.metrics.prototypes import largest_margins, margins

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Clients that reached the global prototype lie on top of it.
_CLIENT: Look = {"marker": "o", "markersize": 4.5, "zorder": 3}
_GLOBAL: Look = {"marker": "D", "markersize": 9.5, "markeredgecolor": INK, "markeredgewidth": 1.1}
_SAMPLE: Look = {"marker": "o", "markersize": 2.6, "markeredgewidth": 0, "alpha": 0.75}
_HOLLOW: Look = {"linestyle": "none", "markerfacecolor": "none", "markeredgecolor": INK}


class _StoredPanel(Panel):
    """What one run's evaluation stored.

    Attributes:
        cell: the one that :meth:`~hetfl.figures.sources.Sources.one` finds.
    """

    cell: Cell

    def missing(self, sources: Sources) -> str:
        return "" if sources.one(self.cell) else "not run"

    def stored(self, sources: Sources) -> tuple[list[str], dict[str, np.ndarray]]:
        """The classes' names, and the stored prototypes and features."""
        record = sources.one(self.cell)
        assert record is not None, "missing() tells"
        return sources.by_class(record)[0], sources.stored(record, "prototypes")


class MarginPanel(_StoredPanel):
    """The margin of each class's global prototype beside the largest of the clients' own, over the largest bar.

    Attributes:
        claim: the global margin is less, or greater, than the clients' largest according to the paper.
    """

    kind: Literal["margins"] = "margins"
    claim: Literal["<", ">"]
    inches: ClassVar = (4.2, 3.3)

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        names, stored = self.stored(sources)
        maximum = largest_margins(stored["clients"], stored["owned"])
        of_server = margins(stored["global"], stored["global_valid"])
        if np.isnan([maximum, of_server]).all():
            not_there(axes, "no finite prototypes")
            return {}
        top = np.nanmax([maximum, of_server])
        legend: Legend = {}
        for index, (title, values) in enumerate({"Maximum of the clients": maximum, "Global": of_server}.items()):
            there = np.flatnonzero(~np.isnan(values))
            legend[title] = axes.bar(there + 0.4 * index - 0.2, values[there] / top, width=0.36, color=SERIES[index])
        known = ~np.isnan(maximum) & ~np.isnan(of_server)
        holds = (of_server < maximum) if self.claim == "<" else (of_server > maximum)
        axes.grid(axis="x", visible=False)
        axes.set(
            xlabel=f"Claim: global {self.claim} maximum; it holds in {holds[known].sum()} of {known.sum()} classes",
            ylabel="Margin, largest = 1",
        )
        class_axis(axes, names, 0)
        return legend


class EmbeddingPanel(_StoredPanel):
    """Points of feature space in the plane, in the colours of their classes; those that are not finite are left out.

    Attributes:
        points: the clients' and the server's prototypes, or the features of test samples.
    """

    kind: Literal["embedding"] = "embedding"
    points: Literal["prototypes", "features"]

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        names, stored = self.stored(sources)
        colours = [CLASSES[label % len(CLASSES)] for label in range(len(names))]
        legend: Legend = {
            name: handle(linestyle="none", marker="o", markersize=5, color=colour)
            for name, colour in zip(names, colours, strict=True)
        }
        if self.points == "features":
            groups = [(stored["features"], stored["labels"], _SAMPLE)]
        else:
            owners, of_clients = np.nonzero(stored["owned"])
            of_server = np.flatnonzero(stored["global_valid"])
            clients = _CLIENT | {"markeredgecolor": PAPER, "markeredgewidth": 0.6}
            groups = [
                (stored["clients"][owners, of_clients], of_clients, clients),
                (stored["global"][of_server], of_server, _GLOBAL),
            ]
            legend |= {"client": handle(**_CLIENT | _HOLLOW), "global": handle(**_GLOBAL | _HOLLOW)}
        finite = [np.isfinite(points).all(axis=1) for points, _, _ in groups]
        groups = [
            (points[kept], labels[kept], style) for (points, labels, style), kept in zip(groups, finite, strict=True)
        ]
        together = np.concatenate([points for points, _, _ in groups])
        if len(together) < 4:  # t-SNE needs three neighbours
            not_there(axes, "no finite features")
            return {}
        plane = embed(together)
        for points, labels, style in groups:
            here, plane = plane[: len(points)], plane[len(points) :]
            scatter(axes, here, labels, [{"color": colour} | style for colour in colours])
        axes.margins(0.07)
        return legend


def scatter(axes: Axes, plane: np.ndarray, values: np.ndarray, styles: Sequence[Look]) -> None:
    """Points [n, 2] of a plane without ticks, each in the style of its value."""
    for value in np.unique(values):
        axes.plot(*plane[values == value].T, linestyle="none", **styles[value])
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=GRID)


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
