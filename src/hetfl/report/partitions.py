"""Pictures of partitions: heat maps as FedHPL prints them, bubbles as FedTGP does, bars of single clients as SGPT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetfl.report.style import HEAT, HEAT_MAP, INK, ON_HEAT, PAPER, STYLE, not_run, save

Kind = Literal["heatmap", "bubbles", "bars"]

_DIAMETERS = 40


@dataclass(frozen=True, eq=False)
class Panel:
    """One partition of a figure.

    Attributes:
        title: what stands above it.
        counts: samples of each client and class, int [clients, classes]; None where there is no partition yet.
        class_names: one name per class; not shown where there are more than 20.
    """

    title: str
    counts: np.ndarray | None
    class_names: Sequence[str] = ()


def partition_figure(panels: Sequence[Panel], kind: Kind, path: Path, columns: int = 1) -> list[Path]:
    """Who holds how much of which class.

    Args:
        panels: the partitions, row by row.
        kind: ``heatmap``: clients down, classes across, the number as opacity and, where there is room, in print;
            ``bubbles``: clients across, classes up, the number as the area of a circle; ``bars``: the classes that
            there are samples of, for panels of one client.
        path: the figure's path; its suffix is replaced by ``.svg`` and ``.png``.
        columns: panels side by side.

    Returns:
        The two files.
    """
    rows = ceil(len(panels) / columns)
    sizes = np.array([_size(panel, kind) for panel in panels] + [(0.0, 0.0)] * (rows * columns - len(panels)))
    widths = sizes[:, 0].reshape(rows, columns).max(0)
    heights = sizes[:, 1].reshape(rows, columns).max(1)
    with mpl.rc_context(STYLE | {"axes.grid": kind != "heatmap"}):
        figure = Figure(figsize=(widths.sum(), heights.sum()), layout="constrained")
        grid = figure.subplots(
            rows,
            columns,
            squeeze=False,
            sharey=kind == "bars",
            gridspec_kw={"width_ratios": widths, "height_ratios": heights},
        )
        for axes, panel in zip(grid.flat, panels, strict=False):
            axes.set_title(panel.title)
            if panel.counts is None:
                not_run(axes, "not prepared")
            elif kind == "bars":
                _bars(axes, panel.counts, panel.class_names)
            elif kind == "heatmap":
                _heatmap(axes, panel.counts, panel.class_names)
            else:
                _bubbles(axes, panel.counts, _size(panel, kind))
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        return save(figure, path)


def _size(panel: Panel, kind: Kind) -> tuple[float, float]:
    """Inches that a panel needs, across and down."""
    if panel.counts is None:
        return 3.0, 1.6
    clients, classes = panel.counts.shape
    if kind == "bars":
        return 4.2, 2.7
    if kind == "bubbles":
        return max(2.8, 0.9 + _spacing(clients) * clients), max(2.6, 0.9 + _spacing(classes) * classes)
    named, numbered = classes <= 20, _numbered(panel.counts)
    width = max(3.6, 1.1 + (0.44 if named else 0.05) * classes)
    return width, 1.15 + (0.29 if numbered else 0.2 if clients <= 40 else 0.09) * clients


def _spacing(values: int) -> float:
    return 0.16 if values <= 20 else 0.09 if values <= 50 else 0.055 if values <= 110 else 0.035


def _numbered(counts: np.ndarray) -> bool:
    clients, classes = counts.shape
    return classes <= 20 and clients <= 40


def _heatmap(axes: Axes, counts: np.ndarray, class_names: Sequence[str]) -> None:
    clients, classes = counts.shape
    top = max(int(counts.max()), 1)
    named = classes <= 20 and len(class_names) == classes
    axes.pcolormesh(counts, cmap=HEAT_MAP, vmin=0, vmax=top, edgecolors=PAPER, linewidth=0.8 if named else 0.3)
    axes.invert_yaxis()
    axes.set(xlabel="Class", ylabel="Client")
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
    if not _numbered(counts):
        axes.set_xlabel(f"Class (full colour: {top} samples)")
        return
    for (client, label), count in np.ndenumerate(counts):
        if count:
            axes.text(
                label + 0.5,
                client + 0.5,
                str(count),
                ha="center",
                va="center",
                color=ON_HEAT if count > 0.8 * top else INK,
                fontsize=7.5 if top < 1000 else 6,
            )


def _bubbles(axes: Axes, counts: np.ndarray, size: tuple[float, float]) -> None:
    clients, classes = counts.shape
    client, label = np.nonzero(counts)
    held = counts[client, label]
    top = max(int(counts.max()), 1)
    # Points between neighbours; the few large circles may reach over theirs.
    across, up = (72 * (inches - 0.9) / number for inches, number in zip(size, (clients, classes), strict=True))
    largest = max(4.0, 2.4 * min(across, up))
    # A marker for each of some diameters: thousands of circles with a path each would make a heavy file.
    steps = np.ceil(_DIAMETERS * np.sqrt(held / top))
    for step in np.unique(steps):
        here = steps == step
        axes.plot(
            client[here],
            label[here],
            "o",
            markersize=max(0.8, largest * step / _DIAMETERS),
            color=HEAT,
            alpha=0.75,
            markeredgewidth=0,
            clip_on=False,
        )
    axes.set(xlabel=f"Client (largest circle: {top} samples)", ylabel="Class")
    axes.set_xlim(-0.8, clients - 0.2)
    axes.set_ylim(-0.8, classes - 0.2)
    for axis, number in ((axes.xaxis, clients), (axes.yaxis, classes)):
        step = 1 if number <= 10 else 2 if number <= 20 else 10 if number <= 100 else 20
        axis.set_ticks(range(0, number, step))


def _bars(axes: Axes, counts: np.ndarray, class_names: Sequence[str]) -> None:
    held = counts.sum(axis=0)
    there = np.flatnonzero(held).tolist()
    axes.bar(np.arange(len(there)), held[there], width=0.62, color=HEAT)
    for place, label in enumerate(there):
        axes.text(
            place,
            held[label] + 0.01 * held.max(),
            str(held[label]),
            ha="center",
            va="bottom",
            fontsize=7.5,
            color=INK,
        )
    names = [class_names[label].replace("_", " ") for label in there]
    axes.set_xticks(np.arange(len(there)), names, rotation=35, ha="right", rotation_mode="anchor")
    axes.margins(y=0.1)
    axes.grid(axis="x", visible=False)
    if (spec := axes.get_subplotspec()) and spec.is_first_col():
        axes.set_ylabel("Samples")
