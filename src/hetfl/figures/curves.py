"""The figures beside a table: accuracy over rounds, and accuracy over traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hetfl.errors import HetflError
from hetfl.figures.style import BAND, MUTED, Look, canvas, few_ticks, look, looks, save, styled
from hetfl.tables.records import Point, Records
from hetfl.tables.spec import has_statistic, pooled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Draw = Callable[["Axes", np.ndarray, Look], None]
"""Draws the points [seeds, rounds, 3] of a row in its look."""


def accuracy_curves(table: Mapping[str, Any], records: Records, folder: Path) -> list[Path]:
    """Accuracy over rounds: a panel per column, a line per row, shaded from the lowest to the highest seed.

    Args:
        table: a table as :func:`hetfl.report.table.build_table` makes it.
        records: those of the checkout that it was made in.
        folder: where ``<table>-curves.svg`` and ``.png`` go.

    Returns:
        The two files.
    """

    def draw(axes: Axes, points: np.ndarray, style: Look) -> None:
        rounds, accuracy = points[0, :, 0], points[:, :, 1]
        axes.fill_between(rounds, accuracy.min(0), accuracy.max(0), color=style["color"], zorder=1, **BAND)
        axes.plot(rounds, accuracy.mean(0), **style)
        few_ticks(axes.xaxis, 6, integer=True)

    caption = "Line: mean over seeds. Shade: lowest to highest seed."
    return _panels(table, records, folder / f"{table['table']}-curves", draw, "Round", caption)


def communication_figure(table: Mapping[str, Any], records: Records, folder: Path) -> list[Path]:
    """Accuracy over the bytes sent so far, up and down, all clients, registration included.

    A row that sends nothing is a dotted horizontal line at its last round's accuracy. Arguments and files are as of
    :func:`accuracy_curves`, but for the name ``<table>-communication``.
    """

    def draw(axes: Axes, points: np.ndarray, style: Look) -> None:
        from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

        _, accuracy, traffic = points.mean(0).T
        if traffic[-1] == 0:
            axes.axhline(accuracy[-1], **style | {"marker": None, "linestyle": (0, (1, 2))})
            return
        axes.plot(traffic, accuracy, **style)
        axes.set_xscale("log")
        low, high = (log10(limit) for limit in axes.get_xlim())
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0,) if high - low > 1.5 else (1.0, 2.0, 5.0), numticks=8))
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.xaxis.set_minor_formatter(NullFormatter())

    caption = "Mean over seeds; bytes of all clients together, registration included. Dotted: sends nothing."
    label = "Bytes so far, up and down (log scale)"
    return _panels(table, records, folder / f"{table['table']}-communication", draw, label, caption)


def curve_points(table: Mapping[str, Any], records: Records) -> pd.DataFrame:
    """The curves of both figures as numbers, a line for each round of each cell.

    Returns:
        Columns ``row``, ``column`` and ``round``; ``accuracy``, the mean over seeds in percent; ``megabytes``, all
        that was sent up to the round's end, up and down, mean over seeds.
    """
    lines: list[tuple[Any, ...]] = []
    for row in table["rows"]:
        for column in table["columns"]:
            # Runs may stop early: as far as all seeds go.
            for points in zip(*_curves(table, records, row, column), strict=False):
                _, accuracy, traffic = np.array(points).mean(0)
                lines.append((row, column, points[0].round, round(accuracy, 4), round(traffic / 1e6, 6)))
    return pd.DataFrame(lines, columns=["row", "column", "round", "accuracy", "megabytes"])


def _panels(
    table: Mapping[str, Any], records: Records, path: Path, draw: Draw, xlabel: str, caption: str
) -> list[Path]:
    accuracies = {cell["column"] for cell in table["cells"] if cell.get("unit", "%") == "%"}
    panels = {column: title for column, title in table["columns"].items() if column in accuracies}
    columns = min(3, len(panels))
    lines = ceil(len(panels) / columns)
    width = max(4.6, 3.3 * columns)
    # A legend entry is a 0.5 inch handle, its text, and the space between.
    entry = 0.75 + 0.075 * max(map(len, table["rows"].values()))
    legend_columns = max(1, min(len(table["rows"]), int(width / entry)))
    legend_lines = ceil(len(table["rows"]) / legend_columns)
    styles = _looks(table)
    with styled():
        figure = canvas(width, 2.75 * lines + 0.2 * legend_lines + 0.5)
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        handles: dict[str, Any] = {}
        for axes, (column, title) in zip(grid.flat, panels.items(), strict=False):
            axes.set_title(title)
            for row, name in table["rows"].items():
                if seeds := _curves(table, records, row, column):
                    length = min(map(len, seeds))
                    style = styles[row] | {"label": name, "markevery": max(1, ceil(length / 10))}
                    draw(axes, np.array([points[:length] for points in seeds]), style)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
            if not axes.lines:
                axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=MUTED)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            kind = (
                "Test" if has_statistic(table, "window_lowest") else "Pooled" if pooled(table) else "Client average"
            )
            axes.set_ylabel(f"{kind} accuracy (%)")
        for axes in grid[-1]:
            axes.set_xlabel(xlabel)
        figure.supxlabel(caption, x=0.005, ha="left", fontsize=7.5, color=MUTED).set_gid("caption")
        if ordered := {name: handles[name] for name in table["rows"].values() if name in handles}:
            place: Look = {"loc": "outside upper left", "ncols": legend_columns}
            figure.legend(ordered.values(), ordered.keys(), handlelength=2.4, columnspacing=1.6, **place)
        return save(figure, path)


def _looks(table: Mapping[str, Any]) -> dict[str, Look]:
    """The look of each row that has runs: that of its method."""
    runs = {cell["row"]: cell["provenance"][0]["run"] for cell in table["cells"] if cell["provenance"]}
    methods = {row: runs[row].split("/")[2] for row in table["rows"] if row in runs}
    finer = {"linewidth": 1.6, "markersize": 4, "markeredgewidth": 0.6}
    return {row: look(index) | finer for row, index in looks(methods).items()}


def _curves(table: Mapping[str, Any], records: Records, row: str, column: str) -> list[list[Point]]:
    """The curve of each seed of a cell; a place without a cell has none."""
    curves = []
    for cell in table["cells"]:
        for source in cell["provenance"] if (cell["row"], cell["column"]) == (row, column) else ():
            if (record := records.of(source)) is None:
                raise HetflError(f"{source['run']}: is not the run that the table shows; make the table again")
            curves.append(record.curve(cell.get("statistic", "average"), cell.get("reading", "")))
    return curves
