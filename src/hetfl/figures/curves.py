"""The figures beside a table: accuracy over rounds, and accuracy over traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hetfl.errors import HetflError
from hetfl.figures.style import (
    BAND,
    MUTED,
    NEAR_HUNDRED,
    PAPER,
    Look,
    canvas,
    caption,
    few_ticks,
    look,
    looks,
    near_hundred,
    save,
    styled,
)
from hetfl.tables.curves import Curve, curves
from hetfl.tables.records import Records
from hetfl.tables.spec import has_statistic, pooled, several_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Draw = Callable[["Axes", Curve, Look], None]
"""Draws a curve of a row in the row's look."""


def accuracy_curves(table: Mapping[str, Any], records: Records, folder: Path) -> list[Path]:
    """Accuracy over rounds: a panel per column, the :func:`~hetfl.tables.curves.curves` of each row.

    A mean over seeds is shaded from the lowest to the highest.

    Args:
        table: a table as :func:`hetfl.report.table.build_table` makes it.
        records: those of the checkout that it was made in.
        folder: where ``<table>-curves.svg`` and ``.png`` go.

    Returns:
        The two files.
    """

    def draw(axes: Axes, curve: Curve, style: Look) -> None:
        rounds, accuracy, low, high, *_ = np.array(curve.trained).T
        axes.fill_between(rounds, low, high, color=style["color"], zorder=1, **BAND)
        axes.plot(rounds, accuracy, **style)
        _cross(axes, curve, rounds, style)
        _tuned(axes, curve, (rounds[-1], rounds[-1] + max(0.5, 0.03 * rounds[-1])), style)
        few_ticks(axes.xaxis, 6, integer=True)

    told = "Line: mean over seeds. Shade: lowest to highest seed." if several_seeds(table) else "One seed."
    return _panels(table, records, folder / f"{table['table']}-curves", draw, "Round", told)


def communication_figure(table: Mapping[str, Any], records: Records, folder: Path) -> list[Path]:
    """Accuracy over the bytes sent so far, up and down, all clients, registration included.

    A row that sends nothing is a dotted horizontal line at its last round's accuracy. Arguments and files are as of
    :func:`accuracy_curves`, but for the name ``<table>-communication``.
    """

    def draw(axes: Axes, curve: Curve, style: Look) -> None:
        from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

        _, accuracy, _, _, traffic, _ = np.array(curve.trained).T
        if traffic[-1] == 0:
            axes.axhline(curve.points[-1].percent, **style | {"marker": None, "linestyle": (0, (1, 2))})
            return
        axes.plot(traffic, accuracy, **style)
        _cross(axes, curve, traffic, style)
        _tuned(axes, curve, (traffic[-1], traffic[-1]), style)
        axes.set_xscale("log")
        low, high = (log10(limit) for limit in axes.get_xlim())
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0,) if high - low > 1.5 else (1.0, 2.0, 5.0), numticks=5))
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.xaxis.set_minor_formatter(NullFormatter())

    seeds = "Mean over seeds" if several_seeds(table) else "One seed"
    told = f"{seeds}; bytes of all clients together, registration included. Dotted: sends nothing."
    label = "Bytes so far, up and down (log scale)"
    return _panels(table, records, folder / f"{table['table']}-communication", draw, label, told)


def curve_points(table: Mapping[str, Any], records: Records) -> pd.DataFrame:
    """The curves of both figures as numbers, a line for each point.

    Returns:
        Columns ``row``, ``column`` and ``seed``, which is empty where a curve is the mean over seeds; ``round``;
        ``fine_tuned``, which says ``yes`` of the clients' fine-tuning after the last round; ``accuracy`` in percent;
        ``megabytes``, all that was sent up to the round's end, up and down.
    """
    lines = [
        (row, column, curve.seed, at.round, "yes" * at.tuned, round(at.percent, 4), round(at.traffic / 1e6, 6))
        for row in table["rows"]
        for column in table["columns"]
        for curve in _curves(table, records, row, column)
        for at in curve.points
    ]
    names = ["row", "column", "seed", "round", "fine_tuned", "accuracy", "megabytes"]
    found = pd.DataFrame(lines, columns=names)
    return found.astype({"seed": "Int64"})


def _panels(table: Mapping[str, Any], records: Records, path: Path, draw: Draw, xlabel: str, told: str) -> list[Path]:
    accuracies = {cell["column"] for cell in table["cells"] if cell.get("unit", "%") == "%"}
    panels = {column: title for column, title in table["columns"].items() if column in accuracies}
    columns = min(3, len(panels))
    lines = ceil(len(panels) / columns)
    width = max(4.6, 3.3 * columns)
    # A legend entry is a 0.5 inch handle, its text, and the space between.
    entry = 0.75 + 0.075 * max(map(len, table["rows"].values()))
    legend_columns = max(1, min(len(table["rows"]), int(width / entry)))
    legend_lines = ceil(len(table["rows"]) / legend_columns)
    styles, hollow = _looks(table, records)
    with styled():
        figure = canvas(width, 2.75 * lines + 0.2 * legend_lines + 0.5)
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        handles: dict[str, Any] = {}
        drawn: list[Curve] = []
        for axes, (column, title) in zip(grid.flat, panels.items(), strict=False):
            axes.set_title(title)
            for row, name in table["rows"].items():
                for curve in _curves(table, records, row, column):
                    style = styles[row] | {"label": name, "markevery": max(1, ceil(len(curve.points) / 10))}
                    draw(axes, curve, style)
                    drawn.append(curve)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
            if not axes.lines:
                axes.text(0.5, 0.5, "no finished run", transform=axes.transAxes, ha="center", color=MUTED)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        kind = "Test" if has_statistic(table, "window_lowest") else "Pooled" if pooled(table) else "Client average"
        for axes in grid[:, 0]:
            axes.set_ylabel(f"{kind} accuracy (%)")
        for axes in grid[-1]:
            axes.set_xlabel(xlabel)
        sound = [at for curve in drawn for at in curve.sound]
        low, high = min((at.low for at in sound), default=0), max((at.high for at in sound), default=0)
        spread = high >= NEAR_HUNDRED["start"]
        if spread:
            near_hundred(grid[0, 0], low, high)
        elif any(curve.diverged for curve in drawn):
            # What a run does after it diverged would flatten all other curves.
            margin = 0.05 * (high - low or 1)
            grid[0, 0].set_ylim(low - margin, high + margin)
        scratch = ["Hollow marks: trained from scratch; the others start from pre-trained weights."] if hollow else []
        errors = ["The vertical axis is logarithmic in the share of errors."] if spread else []
        caption(figure, " ".join([told, *errors, *scratch, *_remarks(drawn)]))
        if ordered := {name: handles[name] for name in table["rows"].values() if name in handles}:
            place: Look = {"loc": "outside upper left", "ncols": legend_columns}
            figure.legend(ordered.values(), ordered.keys(), handlelength=2.4, columnspacing=1.6, **place)
        return save(figure, path)


def _cross(axes: Axes, curve: Curve, x: np.ndarray, style: Look) -> None:
    """Mark the last round before a run diverges, at its place in ``x``, which has one for each point."""
    if curve.diverged:
        last = len(curve.sound) - 1
        look = {"color": style["color"], "marker": "x", "markersize": 8, "markeredgewidth": 2}
        axes.plot(x[last], curve.points[last].percent, linestyle="none", zorder=3, **look)


def _tuned(axes: Axes, curve: Curve, x: tuple[float, float], style: Look) -> None:
    """Draw the accuracy after fine-tuning apart, at the second place in ``x``; the first one is the last round's."""
    if curve.tuned:
        look = style | {"linestyle": (0, (1, 2)), "linewidth": 1.2, "markevery": [1], "label": None}
        axes.plot(x, (curve.trained[-1].percent, curve.tuned.percent), **look)


def _remarks(drawn: Sequence[Curve]) -> list[str]:
    """What a caption says of curves that are no means."""
    alone = "A line for each seed where seeds end in different rounds or one diverges."
    cross = "Cross: the run diverges in the next round; the vertical axis has the range of the rounds before."
    tuned = "Mark behind a dotted line: fine-tuned after the last round."
    parts = {alone: any(curve.seed is not None for curve in drawn), cross: any(curve.diverged for curve in drawn)}
    parts |= {tuned: any(curve.tuned for curve in drawn)}
    return [text for text, there in parts.items() if there]


def _looks(table: Mapping[str, Any], records: Records) -> tuple[dict[str, Look], bool]:
    """The look of each row that has runs, which is that of its method, and whether some have hollow marks.

    They are the rows that train from scratch, where others start from pre-trained weights.
    """
    sources = {cell["row"]: cell["provenance"][0] for cell in table["cells"] if cell["provenance"]}
    methods = {row: sources[row]["run"].split("/")[2] for row in table["rows"] if row in sources}
    scratch = {row: (record := records.of(sources[row])) is not None and not record.pretrained for row in methods}
    mixed = len({*scratch.values()}) > 1
    found = {}
    for row, index in looks(methods).items():
        found[row] = look(index) | {"linewidth": 1.6, "markersize": 4, "markeredgewidth": 0.6}
        if mixed and scratch[row]:
            edge = {"markeredgecolor": found[row]["color"], "markeredgewidth": 1.1}
            found[row] |= {"markerfacecolor": PAPER, **edge}
    return found, mixed


def _curves(table: Mapping[str, Any], records: Records, row: str, column: str) -> list[Curve]:
    """The curves of a cell; a place without a cell has none."""
    found: list[Curve] = []
    for cell in table["cells"]:
        if (cell["row"], cell["column"]) == (row, column):
            several = [(source["run"], records.of(source)) for source in cell["provenance"]]
            for run, record in several:
                if record is None:
                    raise HetflError(f"{run}: is not the run that the table shows; make the table again")
            known = [record for _, record in several if record is not None]
            found += curves(known, cell.get("statistic", "average"), cell.get("reading", ""))
    return found
