"""Panels with the accuracy of each class or of each client."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from hetfl.figures.base import Cell, Cells, Legend, Panel, looks_of
from hetfl.figures.sources import Sources
from hetfl.figures.style import INK, MUTED, class_axis, heat_cells, heat_number, mean_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ClassHeatMap(Panel):
    """The accuracy of each class, averaged over clients: a line of a heat map for each row."""

    kind: Literal["class-heat-map"] = "class-heat-map"
    rows: Cells
    grid: ClassVar[bool] = False
    whole: ClassVar[bool] = True

    def size(self, sources: Sources) -> tuple[float, float]:
        return 5.4, 1.2 + 0.26 * len(self.rows)

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        names, accuracy = _by_class(self.rows, sources)
        unknown = np.full(len(names), np.nan)
        means = np.array([values.mean(0) if len(values) else unknown for values in accuracy.values()])
        heat_cells(axes, means, 100, fine=len(names) > 20)
        axes.set_yticks(np.arange(len(means)) + 0.5, list(accuracy))
        for row, values in enumerate(means):
            if np.isnan(values).all():
                axes.text(len(names) / 2, row + 0.5, "not run", ha="center", va="center", color=MUTED, fontsize=7.5)
        class_axis(axes, names, 0.5)
        if len(names) <= 20:
            for (row, label), value in np.ndenumerate(means):
                if not np.isnan(value):
                    heat_number(axes, row, label, value / 100, f"{value:.0f}", 7)
        return {}


class ClassLines(Panel):
    """The accuracy of each class, averaged over clients: a line over the classes for each row."""

    kind: Literal["class-lines"] = "class-lines"
    rows: Cells
    inches: ClassVar = (4.2, 3.3)
    whole: ClassVar[bool] = True

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        names, accuracy = _by_class(self.rows, sources)
        styles = looks_of(self.rows)
        legend = {
            title: mean_line(axes, range(len(names)), values.T.tolist(), styles[title])
            for title, values in accuracy.items()
            if len(values)
        }
        class_axis(axes, names, 0)
        axes.set(ylabel="Test accuracy (%)")
        return legend


class ClientPanel(Panel):
    """The accuracy of each client as bars, with a line from the lowest to the highest seed.

    Attributes:
        labels: the setting of the partition, one value per client, that stands below the bars.
    """

    kind: Literal["clients"] = "clients"
    xlabel: str
    labels: str
    cell: Cell

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        records = sources.records(self.cell)
        seeds = 100 * np.array([record.metrics.accuracy for record in records], dtype=float)
        places, means = np.arange(seeds.shape[1]), seeds.mean(0)
        axes.bar(places, means, width=0.62, color=looks_of({"": self.cell})[""]["color"])
        if len(seeds) > 1:
            axes.vlines(places, seeds.min(0), seeds.max(0), color=INK, linewidth=1.2)
        for place, (top, mean) in enumerate(zip(seeds.max(0), means, strict=True)):
            axes.text(place, top + 1.5, f"{mean:.1f}", ha="center", fontsize=7.5, color=INK)
        axes.set_xticks(places, [str(value) for value in records[0].run.partition[self.labels]])
        axes.set_ylim(0, 110)
        axes.set_yticks(range(0, 101, 20))
        axes.grid(axis="x", visible=False)
        axes.set(xlabel=self.xlabel, ylabel="Test accuracy (%)")
        return {}


def _by_class(rows: Cells, sources: Sources) -> tuple[list[str], dict[str, np.ndarray]]:
    """The classes' names, and by row the accuracies [seeds, classes] in percent."""
    names: list[str] = []
    accuracy = {}
    for title, entry in rows.items():
        seeds = [sources.by_class(record) for record in sources.records(entry, whole=True)]
        names = seeds[0][0] if seeds else names
        accuracy[title] = np.array([values for _, values in seeds])
    return names, accuracy
