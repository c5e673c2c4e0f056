"""Figures of results: accuracy over settings and rounds, by group, by class and by client; prototypes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hetfl.errors import HetflError
from hetfl.papers.panels import (
    ClassPanel,
    ClientPanel,
    EmbeddingPanel,
    GroupPanel,
    Line,
    MarginPanel,
    Panel,
    ResultFigure,
    RoundsPanel,
    SweepPanel,
)
from hetfl.papers.spec import Entry
from hetfl.report.prototypes import draw_embedding, draw_margins
from hetfl.report.records import Record, read_record
from hetfl.report.style import DASHES, HEAT, INK, MARKERS, MUTED, ON_HEAT, PAPER, SERIES, STYLE, save
from hetfl.tensors import read_tensors

STATISTICS: Mapping[str, Callable[..., float]] = {"average": np.mean, "highest": np.max, "lowest": np.min}
"""Over clients, in the order of the dashes that draw them."""

# Opacity, not lightness, carries the accuracy: it reads the same on a dark page.
_COLOURS = LinearSegmentedColormap.from_list("heat", [(*to_rgb(HEAT), 0.0), (*to_rgb(HEAT), 1.0)])
_CAPTION = 7.5


@dataclass(frozen=True)
class Results:
    """The finished cells below two folders.

    Attributes:
        runs: the folder of run records.
        evaluations: the folder of evaluations.
    """

    runs: Path
    evaluations: Path

    def __call__(self, entry: Entry) -> list[Record]:
        """The records of the seeds that are there."""
        found = (read_record(self.runs, self.evaluations, entry, seed) for seed in entry.seeds)
        return [record for record in found if record is not None]

    def count(self, entries: Iterable[Entry]) -> tuple[int, int]:
        """How many of some cells are there, and how many there could be; each seed is one."""
        wanted = {entry.path(seed): (entry, seed) for entry in entries for seed in entry.seeds}
        found = [read_record(self.runs, self.evaluations, entry, seed) for entry, seed in wanted.values()]
        return sum(record is not None for record in found), len(wanted)

    def by_class(self, record: Record) -> tuple[list[str], np.ndarray]:
        """The classes' names, and the accuracy of each in percent, averaged over clients that have test samples."""
        accuracies: dict[str, list[float]] = {}
        with (self._evaluation(record) / "per_class.csv").open(newline="") as file:
            for line in csv.DictReader(file):
                accuracies.setdefault(line["class"], [])
                if line["accuracy"]:
                    accuracies[line["class"]].append(100 * float(line["accuracy"]))
        means = [np.mean(values) if values else np.nan for values in accuracies.values()]
        return list(accuracies), np.array(means, dtype=float)

    def representations(self, record: Record) -> dict[str, np.ndarray]:
        """The arrays of the record's evaluation, see :func:`hetfl.federation.evaluation.representations`.

        Raises:
            HetflError: the evaluation stored none.
        """
        tensors, _ = read_tensors(self._evaluation(record) / "prototypes.safetensors")
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def _evaluation(self, record: Record) -> Path:
        return self.evaluations / Path(record.path).relative_to(self.runs.name)


def result_figure(figure: ResultFigure, results: Results, path: Path) -> list[Path]:
    """Draw a figure from the cells that are there.

    Args:
        figure: what it shows.
        results: where its cells are.
        path: the figure's path; its suffix is replaced by ``.svg`` and ``.png``.

    Returns:
        The two files.
    """
    columns = min(figure.columns, len(figure.panels))
    rows = ceil(len(figure.panels) / columns)
    sizes = np.zeros((rows * columns, 2))
    sizes[: len(figure.panels)] = [_size(panel) for panel in figure.panels]
    widths, heights = sizes[:, 0].reshape(rows, columns).max(0), sizes[:, 1].reshape(rows, columns).max(1)
    heatmaps = all(isinstance(panel, ClassPanel) and panel.kind == "heatmap" for panel in figure.panels)
    with mpl.rc_context(STYLE | {"axes.grid": not heatmaps}):
        canvas = Figure(figsize=(widths.sum(), heights.sum() + 0.4), layout="constrained")
        grid = canvas.subplots(
            rows, columns, squeeze=False, gridspec_kw={"width_ratios": widths, "height_ratios": heights}
        )
        legends = [_draw(axes, panel, results) for axes, panel in zip(grid.flat, figure.panels, strict=False)]
        for axes in grid.flat[len(figure.panels) :]:
            axes.set_visible(False)
        if len(set(map(type, figure.panels))) == 1:
            _share(list(grid.flat))
        _legends(canvas, list(grid.flat), legends)
        caption(canvas, figure.caption)
        settle(canvas)
        return save(canvas, path)


def caption(figure: Figure, text: str) -> None:
    """Lines below a figure, as wide as it is."""
    across = int(72 * figure.get_figwidth() / (0.53 * _CAPTION))
    figure.supxlabel(fill(text, across), x=0.005, ha="left", fontsize=_CAPTION, color=MUTED).set_gid("caption")


def settle(figure: Figure) -> None:
    """Lay a figure out for good: the solver's last digits change from one time to the next, and files with them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(tuple(round(length, 6) for length in axes.get_position().bounds))
    for text in figure.texts:
        x, y = text.get_position()
        text.set_position((round(x, 6), round(y, 6)))


def not_run(axes: Axes) -> None:
    """Say that there is nothing to draw yet."""
    axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center", color=MUTED)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


Legend = dict[str, Any]
"""Label -> handle."""


def _size(panel: Panel) -> tuple[float, float]:
    """Inches that a panel needs, across and down."""
    if isinstance(panel, ClassPanel) and panel.kind == "heatmap":
        return 5.4, 1.2 + 0.26 * len(panel.rows)
    return (4.2, 3.3) if isinstance(panel, ClassPanel | MarginPanel) else (3.7, 3.1)


def _draw(axes: Axes, panel: Panel, results: Results) -> Legend:
    axes.set_title(panel.title)
    if not any(results(entry) for entry in panel.entries):
        not_run(axes)
        return {}
    if isinstance(panel, SweepPanel):
        return _sweep(axes, panel, results)
    if isinstance(panel, GroupPanel):
        return _groups(axes, panel, results)
    if isinstance(panel, ClientPanel):
        return _clients(axes, panel, results)
    if isinstance(panel, RoundsPanel):
        return _rounds(axes, panel, results)
    if isinstance(panel, MarginPanel | EmbeddingPanel):
        return _prototypes(axes, panel, results)
    return _heatmap(axes, panel, results) if panel.kind == "heatmap" else _class_lines(axes, panel, results)


def _share(grid: list[Axes]) -> None:
    """One range for all panels that show the same on their vertical axis."""
    for label in {axes.get_ylabel() for axes in grid} - {""}:
        shown = [axes for axes in grid if axes.get_ylabel() == label]
        limits = [axes.get_ylim() for axes in shown]
        for axes in shown:
            axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _legends(figure: Figure, grid: list[Axes], legends: list[Legend]) -> None:
    """One legend for all panels if one of them has what is in the others, else one below each."""
    longest = max(legends, key=len)
    if not longest:
        return
    if len(legends) > 1 and all(legend.keys() <= longest.keys() for legend in legends):
        figure.legend(longest.values(), longest.keys(), loc="outside upper left", ncols=5, handlelength=2.6)
        return
    for axes, legend in zip(grid, legends, strict=False):
        if legend:
            axes.legend(
                legend.values(),
                legend.keys(),
                loc="upper center",
                bbox_to_anchor=(0.5, -0.19),
                ncols=2,
                fontsize=8,
                handlelength=2.4,
                columnspacing=1.2,
            )


def _sweep(axes: Axes, panel: SweepPanel, results: Results) -> Legend:
    legend: Legend = {}
    ticks: set[float] = set()
    for index, line in enumerate(panel.lines):
        found = {value: records for value, entry in line.points.items() if (records := results(entry))}
        ticks |= set(line.points)
        if not found:
            continue
        look = _look(index)
        legend[line.title] = Line2D([], [], **look)
        for (name, over_clients), dashes in zip(STATISTICS.items(), DASHES, strict=True):
            seeds = [[_read(record, line, over_clients) for record in records] for records in found.values()]
            style = look | {"linestyle": dashes}
            if name != "average":
                style |= {"linewidth": 1.1, "markersize": 2.5}
            axes.plot(list(found), [np.mean(values) for values in seeds], **style)
            if any(len(values) > 1 for values in seeds):
                lowest, highest = ([end(values) for values in seeds] for end in (min, max))
                axes.fill_between(list(found), lowest, highest, color=look["color"], alpha=0.14, linewidth=0)
    if panel.level and (records := results(panel.level[1])):
        look = _look(len(panel.lines)) | {"marker": None}
        legend[panel.level[0]] = Line2D([], [], **look)
        for over_clients, dashes in zip(STATISTICS.values(), DASHES, strict=True):
            level = np.mean([100 * over_clients(record.metrics["accuracy"]) for record in records])
            axes.axhline(float(level), **look | {"linestyle": dashes, "linewidth": 1.1})
    for name, dashes in zip(STATISTICS, DASHES, strict=True):
        legend[name] = Line2D([], [], color=MUTED, linestyle=dashes)
    axes.set_xticks(sorted(ticks), [f"{value:g}" for value in sorted(ticks)])
    axes.set(xlabel=panel.xlabel, ylabel="Test accuracy (%)")
    return legend


def _groups(axes: Axes, panel: GroupPanel, results: Results) -> Legend:
    titles = list(dict.fromkeys(title for rows in panel.groups.values() for title in rows))
    legend: Legend = {}
    for index, title in enumerate(titles):
        look = _look(index) | {"linestyle": "none", "markersize": 7}
        # Points of a group stand side by side.
        shift = (index - (len(titles) - 1) / 2) * 0.7 / len(titles)
        for place, rows in enumerate(panel.groups.values()):
            values = [100 * record.metrics["average"] for record in results(rows[title])]
            if values:
                if len(values) > 1:
                    axes.vlines(place + shift, min(values), max(values), color=look["color"], linewidth=1.4)
                (legend[title],) = axes.plot(place + shift, np.mean(values), **look)
    axes.set_xticks(range(len(panel.groups)), list(panel.groups))
    axes.set_xlim(-0.5, len(panel.groups) - 0.5)
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="Client average accuracy (%)")
    return legend


def _clients(axes: Axes, panel: ClientPanel, results: Results) -> Legend:
    seeds = np.array([[100 * share for share in record.metrics["accuracy"]] for record in results(panel.entry)])
    places, means = np.arange(seeds.shape[1]), seeds.mean(0)
    axes.bar(places, means, width=0.62, color=SERIES[0])
    if len(seeds) > 1:
        axes.vlines(places, seeds.min(0), seeds.max(0), color=INK, linewidth=1.2)
    for place, (top, mean) in enumerate(zip(seeds.max(0), means, strict=True)):
        axes.text(place, top + 1.5, f"{mean:.1f}", ha="center", fontsize=7.5, color=INK)
    axes.set_xticks(places, panel.labels)
    axes.set_ylim(0, 110)
    axes.set_yticks(range(0, 101, 20))
    axes.grid(axis="x", visible=False)
    axes.set(xlabel=panel.xlabel, ylabel="Test accuracy (%)")
    return {}


def _heatmap(axes: Axes, panel: ClassPanel, results: Results) -> Legend:
    names, accuracy = _by_class(panel, results)
    means = np.array([values.mean(0) if len(values) else np.full(len(names), np.nan) for values in accuracy.values()])
    axes.pcolormesh(
        np.ma.masked_invalid(means),
        cmap=_COLOURS,
        vmin=0,
        vmax=100,
        edgecolors=PAPER,
        linewidth=0.8 if len(names) <= 20 else 0.3,
    )
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_yticks(np.arange(len(means)) + 0.5, list(accuracy))
    for row, values in enumerate(means):
        if np.isnan(values).all():
            axes.text(len(names) / 2, row + 0.5, "not run", ha="center", va="center", color=MUTED, fontsize=7.5)
    _class_axis(axes, names, 0.5)
    if len(names) <= 20:
        for (row, label), value in np.ndenumerate(means):
            if not np.isnan(value):
                colour = ON_HEAT if value > 80 else INK
                axes.text(label + 0.5, row + 0.5, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=7)
    return {}


def _class_lines(axes: Axes, panel: ClassPanel, results: Results) -> Legend:
    names, accuracy = _by_class(panel, results)
    legend: Legend = {}
    places = np.arange(len(names))
    for index, (title, values) in enumerate(accuracy.items()):
        if len(values):
            look = _look(index)
            (legend[title],) = axes.plot(places, values.mean(0), **look)
            if len(values) > 1:
                axes.fill_between(places, values.min(0), values.max(0), color=look["color"], alpha=0.14, linewidth=0)
    _class_axis(axes, names, 0)
    axes.set(ylabel="Test accuracy (%)")
    return legend


def _rounds(axes: Axes, panel: RoundsPanel, results: Results) -> Legend:
    legend: Legend = {}
    for index, (title, entry) in enumerate(panel.rows.items()):
        if not (records := results(entry)):
            continue
        look = _look(index)
        # Seeds that stop early end the mean.
        length = min(record.played for record in records)
        rounds = [line["round"] for line in records[0].training[:length]]
        seeds = np.array([_shares(record, panel)[:length] for record in records])
        (legend[title],) = axes.plot(rounds, seeds.mean(0), **look, markevery=max(1, ceil(length / 10)))
        if len(seeds) > 1:
            axes.fill_between(rounds, seeds.min(0), seeds.max(0), color=look["color"], alpha=0.14, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set(xlabel="Round", ylabel=f"{panel.shows.capitalize()} (%)")
    return legend


def _shares(record: Record, panel: RoundsPanel) -> list[float]:
    """Percent of all clients' samples together after each round."""
    if panel.shows == "test accuracy":
        return [100 * line["pooled"] for line in record.training]
    samples = [sum(counts) for counts in record.run["class_counts"]["train"]]
    if any("train_accuracy" not in line for line in record.training):
        raise HetflError(
            f"{record.path}/rounds.jsonl: has no train_accuracy; set it to true in the defaults of "
            f"experiments.{record.run['experiment']} and train again"
        )
    return [100 * (1 - float(np.average(line["train_accuracy"], weights=samples))) for line in record.training]


def _prototypes(axes: Axes, panel: MarginPanel | EmbeddingPanel, results: Results) -> Legend:
    (record,) = results(panel.entry)
    (names, _), stored = results.by_class(record), results.representations(record)
    if isinstance(panel, EmbeddingPanel):
        return draw_embedding(axes, panel, stored, names)
    legend = draw_margins(axes, panel, stored)
    _class_axis(axes, names, 0)
    return legend


def _class_axis(axes: Axes, names: list[str], offset: float) -> None:
    if len(names) > 20:
        axes.set_xticks(np.arange(0, len(names), 10) + offset, [str(label) for label in range(0, len(names), 10)])
        axes.set_xlabel("Class")
        return
    slanted = max(map(len, names)) > 3
    axes.set_xticks(
        np.arange(len(names)) + offset,
        names,
        rotation=35 if slanted else 0,
        ha="right" if slanted else "center",
        rotation_mode="anchor",
    )


def _by_class(panel: ClassPanel, results: Results) -> tuple[list[str], dict[str, np.ndarray]]:
    """The classes' names, and by row the accuracies [seeds, classes] in percent."""
    names: list[str] = []
    accuracy = {}
    for title, entry in panel.rows.items():
        seeds = [results.by_class(record) for record in results(entry)]
        names = seeds[0][0] if seeds else names
        accuracy[title] = np.array([values for _, values in seeds])
    return names, accuracy


def _read(record: Record, line: Line, over_clients: Callable[..., float]) -> float:
    if line.reading == "final":
        return 100 * float(over_clients(record.metrics["accuracy"]))
    return 100 * max(float(over_clients(tested["accuracy"])) for tested in record.tested)


def _look(index: int) -> dict[str, Any]:
    return {
        "color": SERIES[index % len(SERIES)],
        "linewidth": 1.7,
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4.5,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.5,
    }
