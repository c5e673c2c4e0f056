"""The figure of how methods sort training samples into groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from hetfl.figures.base import Cell, Figure, looks_of
from hetfl.figures.sources import Sources
from hetfl.figures.style import DASHES, HEAT, INK, MUTED, Look, canvas, few_ticks, heat_map, not_there, one_range
from hetfl.metrics.groups import entropy
from hetfl.tables.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_HISTOGRAM, _CLIENTS, _ROUNDS = 1.25, 3.6, 2.1
"""Inches down."""


class SelectionFigure(Figure):
    """The groups that methods sort training samples into: of all clients as bars, of each as a line of a heat map.

    Attributes:
        rows: title -> cell, side by side.
        rounds: whether the evenness of the groups of the participants' samples is drawn over the rounds as well.
    """

    kind: Literal["selection"] = "selection"
    rows: dict[str, Cell]
    rounds: bool = False

    def draw(self, sources: Sources) -> Canvas:
        records = {title: record for title, entry in self.rows.items() if (record := sources.one(entry))}
        sizes = {title: group_sizes(record, sources) for title, record in records.items()}
        columns = len(self.rows)
        heights = [_HISTOGRAM, _CLIENTS, *([_ROUNDS] if self.rounds else [])]
        figure = canvas(max(4.6, 3.5 * columns), sum(heights) + 1.2)
        grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
        above, below = ([figure.add_subplot(grid[row, column]) for column in range(columns)] for row in (0, 1))
        for title, bars, heat in zip(self.rows, above, below, strict=True):
            bars.set_title(title)
            if title in sizes:
                _draw(bars, heat, sizes[title])
            else:
                bars.set_visible(False)
                heat.set_title(title)
                not_there(heat, "not run")
        one_range([axes for axes in above if axes.get_visible()])
        if self.rounds:
            _evenness(figure.add_subplot(grid[2, :]), records, looks_of(self.rows))
        return figure


def group_sizes(record: Record, sources: Sources) -> np.ndarray:
    """How many training samples of each client are in each group, int64 [K, G]."""
    stored = sources.stored(record, "groups")
    sizes = np.zeros((record.run.clients, record.run.settings["groups"]), dtype=np.int64)
    np.add.at(sizes, (stored["client"], stored["group"]), 1)
    return sizes


def _draw(bars: Axes, heat: Axes, sizes: np.ndarray) -> None:
    clients, groups = sizes.shape
    total = sizes.sum(axis=0)
    largest_first = np.argsort(-total, kind="stable")
    shares = 100 * sizes[:, largest_first] / np.maximum(sizes.sum(axis=1, keepdims=True), 1)
    favourite = shares.argmax(axis=1)
    shares = shares[np.lexsort((-shares[np.arange(clients), favourite], favourite))]

    bars.bar(np.arange(groups) + 0.5, 100 * total[largest_first] / total.sum(), width=0.72, color=HEAT)
    bars.axhline(100 / groups, color=INK, linestyle=DASHES[1], linewidth=0.9)
    bars.set_title(f"entropy {entropy(total):.2f}", loc="right", fontsize=8.5, fontweight="normal", color=MUTED)
    bars.set_xticks([])
    bars.set(xlim=(0, groups), ylim=(0, None), ylabel="All clients (%)")
    few_ticks(bars.yaxis, 4)

    top = max(float(shares.max()), 1.0)
    # A picture within the drawing: thousands of cells as shapes of their own make a file of megabytes.
    heat.pcolormesh(shares, cmap=heat_map(), vmin=0, vmax=top, rasterized=True)
    heat.invert_yaxis()
    heat.grid(visible=False)
    heat.spines[:].set_visible(False)
    heat.tick_params(length=0)
    for axis, number in ((heat.xaxis, groups), (heat.yaxis, clients)):
        step = 1 if number <= 10 else 5 if number <= 40 else 20
        ticks = sorted({1, *range(step, number + 1, step)})
        axis.set_ticks([tick - 0.5 for tick in ticks], list(map(str, ticks)))
    heat.set(xlabel=f"Groups by size (full colour: {top:.0f} %)", ylabel="Clients, sorted")


def _evenness(axes: Axes, records: Mapping[str, Record], styles: Mapping[str, Look]) -> None:
    if not records:
        not_there(axes, "not run")
        return
    for title, record in records.items():
        rounds = [line.round for line in record.training]
        sizes = [np.array(line.clients["groups"]).sum(axis=0) for line in record.training]
        style = styles[title] | {"markevery": max(1, len(rounds) // 10)}
        axes.plot(rounds, [entropy(groups) for groups in sizes], label=title, **style)
    axes.set_title("Participants, over the rounds")
    few_ticks(axes.xaxis, 6, integer=True)
    axes.set(xlabel="Round", ylabel="Entropy", ylim=(None, 1.02))
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(records), handlelength=2.6, borderaxespad=0.1)
