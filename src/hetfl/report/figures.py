"""Figures as SVG and PNG, the same bytes every time: accuracy over rounds, accuracy over traffic, partitions.

The SVGs keep their text as text and use a handful of fixed colours, so the site can restyle them for light
and dark pages.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from math import ceil, log10
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from hetfl.files import write_bytes
from hetfl.report.records import read_rounds

INK, MUTED, GRID, PAPER = "#1f2328", "#656d76", "#dfe3e8", "#ffffff"
HEAT, ON_HEAT = "#2c6fbb", "#fffffe"
# Okabe and Ito's colours without yellow, which is too pale for a line.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5fc7")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)))
_MARKERS = "osD^vPX"

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "hetfl",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    # A title is plain text; a dollar in it is a dollar.
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}

Curves = list[list[dict[str, Any]]]


def accuracy_curves(table: Mapping[str, Any], runs: Path, folder: Path) -> list[Path]:
    """Accuracy over rounds: a panel per column, a line per row, shaded from the lowest to the highest seed.

    Args:
        table: a table as :func:`hetfl.report.table.build_table` makes it.
        runs: the folder of run records.
        folder: where ``<table>-curves.svg`` and ``.png`` go.

    Returns:
        The two files.
    """

    def draw(axes: Axes, seeds: Curves, style: dict[str, Any]) -> None:
        length = min(map(len, seeds))
        rounds = [line["round"] for line in seeds[0][:length]]
        accuracy = np.array([[_percent(line) for line in lines[:length]] for lines in seeds])
        axes.fill_between(
            rounds, accuracy.min(0), accuracy.max(0), color=style["color"], alpha=0.14, linewidth=0, zorder=1
        )
        axes.plot(rounds, accuracy.mean(0), **style, markevery=max(1, ceil(length / 10)))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    caption = "Line: mean over seeds. Shade: lowest to highest seed."
    return _panels(table, runs, folder / f"{table['table']}-curves", draw, "Round", caption)


def communication_figure(table: Mapping[str, Any], runs: Path, folder: Path) -> list[Path]:
    """Accuracy over the bytes sent so far, up and down, all clients, registration included.

    A row that sends nothing is a dotted horizontal line at its last round's accuracy.

    Args:
        table: a table as :func:`hetfl.report.table.build_table` makes it.
        runs: the folder of run records.
        folder: where ``<table>-communication.svg`` and ``.png`` go.

    Returns:
        The two files.
    """

    def draw(axes: Axes, seeds: Curves, style: dict[str, Any]) -> None:
        length = min(map(len, seeds))
        accuracy = np.array([[_percent(line) for line in lines[:length]] for lines in seeds]).mean(0)
        traffic = np.array([[line["traffic"] for line in lines[:length]] for lines in seeds]).mean(0)
        if traffic[-1] == 0:
            axes.axhline(accuracy[-1], **style | {"marker": None, "linestyle": (0, (1, 2))})
            return
        axes.plot(traffic, accuracy, **style, markevery=max(1, ceil(length / 10)))
        axes.set_xscale("log")
        low, high = (log10(limit) for limit in axes.get_xlim())
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0,) if high - low > 1.5 else (1.0, 2.0, 5.0), numticks=8))
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.xaxis.set_minor_formatter(NullFormatter())

    caption = "Mean over seeds; bytes of all clients together, registration included. Dotted: sends nothing."
    label = "Bytes so far, up and down (log scale)"
    return _panels(table, runs, folder / f"{table['table']}-communication", draw, label, caption)


def partition_heatmap(
    class_counts: Sequence[Sequence[int]] | np.ndarray, class_names: Sequence[str], title: str, path: Path
) -> list[Path]:
    """How many training samples of each class each client holds.

    Args:
        class_counts: samples, clients by classes.
        class_names: one name per class; left out of the figure where there are more than 20.
        title: the heading.
        path: the figure's path; its suffix is replaced by ``.svg`` and ``.png``.

    Returns:
        The two files.
    """
    counts = np.asarray(class_counts)
    clients, classes = counts.shape
    named, numbered = classes <= 20, classes <= 20 and clients <= 40
    width = max(3.6, 1.1 + (0.44 if named else 0.085) * classes)
    height = 1.15 + (0.29 if numbered else 0.2 if clients <= 40 else 0.09) * clients
    with mpl.rc_context(_STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        # Opacity, not lightness, carries the count: it reads the same on a dark page.
        colours = LinearSegmentedColormap.from_list("heat", [(*to_rgb(HEAT), 0.0), (*to_rgb(HEAT), 1.0)])
        top = max(int(counts.max()), 1)
        axes.pcolormesh(counts, cmap=colours, vmin=0, vmax=top, edgecolors=PAPER, linewidth=0.8 if named else 0.3)
        axes.invert_yaxis()
        axes.set(title=title, xlabel="Class", ylabel="Client")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        step = 1 if clients <= 20 else 5 if clients <= 50 else 10
        axes.set_yticks(np.arange(0, clients, step) + 0.5, [str(k) for k in range(0, clients, step)])
        if named:
            slanted = max(map(len, class_names)) > 5
            axes.set_xticks(
                np.arange(classes) + 0.5,
                list(class_names),
                rotation=35 if slanted else 0,
                ha="right" if slanted else "center",
                rotation_mode="anchor",
            )
        else:
            axes.set_xticks(np.arange(0, classes, 10) + 0.5, [str(c) for c in range(0, classes, 10)])
        if numbered:
            for (client, label), count in np.ndenumerate(counts):
                if count:
                    colour = ON_HEAT if count > 0.8 * top else INK
                    size = 7.5 if top < 1000 else 6
                    axes.text(
                        label + 0.5,
                        client + 0.5,
                        str(count),
                        ha="center",
                        va="center",
                        color=colour,
                        fontsize=size,
                    )
        else:
            axes.set_xlabel(f"Class (full colour: {top} samples)")
        return _save(figure, path)


def _panels(table: Mapping[str, Any], runs: Path, path: Path, draw: Any, xlabel: str, caption: str) -> list[Path]:
    columns = min(3, len(table["columns"]))
    lines = ceil(len(table["columns"]) / columns)
    width = max(4.6, 3.3 * columns)
    # A legend entry is a 0.5 inch handle, its text, and the space between.
    entry = 0.75 + 0.075 * max(map(len, table["rows"].values()))
    legend_columns = max(1, min(len(table["rows"]), int(width / entry)))
    legend_lines = ceil(len(table["rows"]) / legend_columns)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, 2.75 * lines + 0.2 * legend_lines + 0.5), layout="constrained")
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        handles: dict[str, Any] = {}
        for axes, (column, title) in zip(grid.flat, table["columns"].items(), strict=False):
            axes.set_title(title)
            for index, (row, name) in enumerate(table["rows"].items()):
                if seeds := _read(table, runs, row, column):
                    style = _series(index)
                    draw(axes, seeds, style | {"label": name})
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
            if not axes.lines:
                axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=MUTED)
        for axes in grid.flat[len(table["columns"]) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("Client average accuracy (%)")
        for axes in grid[-1]:
            axes.set_xlabel(xlabel)
        figure.supxlabel(caption, x=0.005, ha="left", fontsize=7.5, color=MUTED).set_gid("caption")
        ordered = [name for name in table["rows"].values() if name in handles]
        if ordered:
            figure.legend(
                [handles[name] for name in ordered],
                ordered,
                loc="outside upper left",
                ncols=legend_columns,
                handlelength=2.4,
                columnspacing=1.6,
            )
        return _save(figure, path)


def _series(index: int) -> dict[str, Any]:
    """A row's look, the same in every figure of its table."""
    turn, place = divmod(index, len(SERIES))
    return {
        "color": SERIES[place],
        "linestyle": _DASHES[turn % len(_DASHES)],
        "linewidth": 1.6,
        "marker": _MARKERS[place],
        "markersize": 4,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.6,
    }


def _read(table: Mapping[str, Any], runs: Path, row: str, column: str) -> Curves:
    """The training rounds of each seed of a cell, with ``traffic``: all bytes up to the round's end."""
    cell = next(cell for cell in table["cells"] if (cell["row"], cell["column"]) == (row, column))
    curves = []
    for source in cell["provenance"]:
        traffic, lines = 0, []
        for line in read_rounds(runs.parent / source["run"]):
            traffic += line["up"]["bytes"] + line["down"]["bytes"]
            if line["round"] >= 1:
                lines.append(line | {"traffic": traffic})
        curves.append(lines)
    return curves


def _percent(line: Mapping[str, Any]) -> float:
    return 100 * mean(line["accuracy"])


def _save(figure: Figure, path: Path) -> list[Path]:
    written = []
    FigureCanvasAgg(figure)
    for suffix, metadata in ((".svg", {"Date": None, "Creator": None}), (".png", {"Software": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=metadata, dpi=160)
        written.append(path.parent / (path.name.removesuffix(path.suffix) + suffix))
        write_bytes(written[-1], buffer.getvalue())
    return written
