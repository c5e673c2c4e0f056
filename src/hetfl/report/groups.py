"""Pictures of how methods sort training samples into groups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hetfl.metrics.groups import entropy
from hetfl.papers.panels import SelectionFigure
from hetfl.report.records import Record
from hetfl.report.results import Results
from hetfl.report.style import (
    DASHES,
    HEAT,
    HEAT_MAP,
    INK,
    MARKERS,
    MUTED,
    PAPER,
    SERIES,
    STYLE,
    caption,
    not_run,
    save,
    settle,
)

_HISTOGRAM, _CLIENTS, _ROUNDS = 1.25, 3.6, 2.1
"""Inches down."""


def selection_figure(figure: SelectionFigure, results: Results, path: Path) -> list[Path]:
    """Draw each row's groups: of all clients' samples as bars, and of each client's own as a line of a heat map.

    Args:
        figure: the cells.
        results: where they are.
        path: the figure's path; its suffix is replaced by ``.svg`` and ``.png``.

    Returns:
        The two files.
    """
    records = {title: record for title, entry in figure.rows.items() for record in results(entry)}
    sizes = {title: group_sizes(record, results) for title, record in records.items()}
    columns = len(figure.rows)
    heights = [_HISTOGRAM, _CLIENTS, *([_ROUNDS] if figure.rounds else [])]
    with mpl.rc_context(STYLE):
        canvas = Figure(figsize=(max(4.6, 3.5 * columns), sum(heights) + 1.2), layout="constrained")
        grid = canvas.add_gridspec(len(heights), columns, height_ratios=heights)
        above = [canvas.add_subplot(grid[0, column]) for column in range(columns)]
        below = [canvas.add_subplot(grid[1, column]) for column in range(columns)]
        for title, bars, heat in zip(figure.rows, above, below, strict=True):
            bars.set_title(title)
            if title in sizes:
                _draw(bars, heat, sizes[title])
            else:
                bars.set_visible(False)
                heat.set_title(title)
                not_run(heat)
        shown = [axes for axes in above if axes.get_visible()]
        for axes in shown:
            axes.set_ylim(0, max(other.get_ylim()[1] for other in shown))
        if figure.rounds:
            _evenness(canvas.add_subplot(grid[2, :]), records, list(figure.rows))
        caption(canvas, figure.caption)
        settle(canvas)
        return save(canvas, path)


def group_sizes(record: Record, results: Results) -> np.ndarray:
    """How many training samples of each client are in each group, int64 [K, G]."""
    stored = results.groups(record)
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
    bars.set(xlim=(0, groups), ylabel="All clients (%)")
    bars.yaxis.set_major_locator(MaxNLocator(4))

    top = max(float(shares.max()), 1.0)
    # A picture within the drawing: thousands of cells as shapes of their own make a file of megabytes.
    heat.pcolormesh(shares, cmap=HEAT_MAP, vmin=0, vmax=top, rasterized=True)
    heat.invert_yaxis()
    heat.grid(visible=False)
    heat.spines[:].set_visible(False)
    heat.tick_params(length=0)
    for axis, number in ((heat.xaxis, groups), (heat.yaxis, clients)):
        step = 1 if number <= 10 else 5 if number <= 40 else 20
        ticks = sorted({1, *range(step, number + 1, step)})
        axis.set_ticks([tick - 0.5 for tick in ticks], list(map(str, ticks)))
    heat.set(xlabel=f"Groups by size (full colour: {top:.0f} %)", ylabel="Clients, sorted")


def _evenness(axes: Axes, records: Mapping[str, Record], titles: list[str]) -> None:
    if not records:
        not_run(axes)
        return
    for title, record in records.items():
        place = titles.index(title)
        rounds = [line.round for line in record.training]
        sizes = [np.array(line.clients["groups"]).sum(axis=0) for line in record.training]
        axes.plot(
            rounds,
            [entropy(groups) for groups in sizes],
            label=title,
            color=SERIES[place],
            marker=MARKERS[place],
            markersize=4.5,
            markeredgecolor=PAPER,
            markeredgewidth=0.5,
            linewidth=1.7,
            markevery=max(1, len(rounds) // 10),
        )
    axes.set_title("Participants, over the rounds")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set(xlabel="Round", ylabel="Entropy", ylim=(None, 1.02))
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(records), handlelength=2.6, borderaxespad=0.1)
