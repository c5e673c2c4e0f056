"""Figures of results: accuracy over settings and rounds, by group, by class and by client; prototypes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hetfl.errors import HetflError
from hetfl.papers.panels import (
    ClassPanel,
    ClientPanel,
    EmbeddingPanel,
    GroupPanel,
    HeldOutPanel,
    Line,
    MarginPanel,
    MetricPanel,
    Panel,
    ResultFigure,
    RoundsPanel,
    SweepPanel,
    TradeoffPanel,
)
from hetfl.report.prototypes import draw_embedding, draw_margins
from hetfl.report.records import Record, read_record
from hetfl.report.style import (
    DASHES,
    HEAT_MAP,
    INK,
    MARKERS,
    MUTED,
    ON_HEAT,
    PAPER,
    SERIES,
    STYLE,
    caption,
    not_run,
    save,
    settle,
)
from hetfl.schema import PER_CLASS
from hetfl.tables.spec import Entry
from hetfl.tensors import read_tensors

STATISTICS: Mapping[str, Callable[..., float]] = {"average": np.mean, "highest": np.max, "lowest": np.min}
"""Over clients, in the order of the dashes that draw them."""


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
        with (self._evaluation(record) / PER_CLASS).open(newline="") as file:
            for line in csv.DictReader(file):
                accuracies.setdefault(line["class"], [])
                if line["accuracy"]:
                    accuracies[line["class"]].append(100 * float(line["accuracy"]))
        means = [np.mean(values) if values else np.nan for values in accuracies.values()]
        return list(accuracies), np.array(means, dtype=float)

    def representations(self, record: Record) -> dict[str, np.ndarray]:
        """The arrays of the record's evaluation, see :func:`hetfl.experiments.evaluation.representations`.

        Raises:
            HetflError: the evaluation stored none.
        """
        tensors, _ = read_tensors(self._evaluation(record) / "prototypes.safetensors")
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def groups(self, record: Record) -> dict[str, np.ndarray]:
        """How the record's method sorts training samples, see :func:`hetfl.experiments.evaluation.groups`.

        Raises:
            HetflError: the evaluation stored nothing of the kind.
        """
        tensors, _ = read_tensors(self._evaluation(record) / "groups.safetensors")
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
        kinds = set(map(type, figure.panels))
        if len(kinds) == 1 and kinds != {TradeoffPanel}:
            _share(list(grid.flat))
        _legends(canvas, list(grid.flat), legends)
        caption(canvas, figure.caption)
        settle(canvas)
        return save(canvas, path)


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
    if isinstance(panel, TradeoffPanel):
        return _tradeoff(axes, panel, results)
    if isinstance(panel, HeldOutPanel):
        return _held_out(axes, panel, results)
    if isinstance(panel, MetricPanel):
        return _metrics(axes, panel, results)
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
            level = np.mean([100 * over_clients(record.metrics.accuracy) for record in records])
            axes.axhline(float(level), **look | {"linestyle": dashes, "linewidth": 1.1})
    for name, dashes in zip(STATISTICS, DASHES, strict=True):
        legend[name] = Line2D([], [], color=MUTED, linestyle=dashes)
    axes.set_xticks(sorted(ticks), [f"{value:g}" for value in sorted(ticks)])
    axes.set(xlabel=panel.xlabel, ylabel="Test accuracy (%)")
    return legend


def _groups(axes: Axes, panel: GroupPanel, results: Results) -> Legend:
    averages = {
        group: {title: [100 * record.metrics.average for record in results(entry)] for title, entry in rows.items()}
        for group, rows in panel.groups.items()
    }
    axes.set(ylabel="Client average accuracy (%)")
    return _points(axes, averages)


def _held_out(axes: Axes, panel: HeldOutPanel, results: Results) -> Legend:
    pooled = panel.shows == "pooled"
    read = {title: [sides(record) for record in results(entry)] for title, entry in panel.rows.items()}
    values = {
        name: {title: [100 * seed[side][panel.shows] for seed in seeds] for title, seeds in read.items()}
        for side, name in enumerate(("took part", "held out"))
    }
    axes.set(ylabel="Global accuracy (%)" if pooled else "Lowest client's accuracy (%)")
    return _points(axes, values)


def sides(record: Record) -> tuple[dict[str, float], dict[str, float]]:
    """Clients that took part and clients that were held out, means over the last rounds that the run reports.

    Returns:
        Of each side ``pooled``, the accuracy of its test samples together, and ``lowest``, that of its lowest client
        in a round; both fractions.

    Raises:
        HetflError: no client was held out.
    """
    settings, clients = record.run.settings, record.run.clients
    if not settings["held_out"]:
        raise HetflError(
            f"{record.path}/run.json: settings.held_out is 0; the figure needs clients that are held out"
        )
    samples = np.array(record.run.class_counts.test).sum(axis=1)
    # A client without test samples has None, and no weight.
    last = record.training[-settings["window"] :]
    accuracy = np.array([line.accuracy for line in last if line.accuracy is not None], dtype=float)
    first = clients - settings["held_out"]
    here, there = (
        {
            "pooled": float((np.nansum(accuracy[:, side] * samples[side], axis=1) / samples[side].sum()).mean()),
            "lowest": float(np.nanmin(accuracy[:, side], axis=1).mean()),
        }
        for side in (slice(first), slice(first, None))
    )
    return here, there


def _points(axes: Axes, values: Mapping[str, Mapping[str, list[float]]]) -> Legend:
    """Points of each group side by side, with bars from the lowest to the highest seed.

    Args:
        axes: where to draw.
        values: title of a group -> title of a row -> a number for each seed.
    """
    titles = list(dict.fromkeys(title for rows in values.values() for title in rows))
    legend: Legend = {}
    for index, title in enumerate(titles):
        look = _look(index) | {"linestyle": "none", "markersize": 7}
        shift = (index - (len(titles) - 1) / 2) * 0.7 / len(titles)
        for place, rows in enumerate(values.values()):
            if seeds := rows[title]:
                if len(seeds) > 1:
                    axes.vlines(place + shift, min(seeds), max(seeds), color=look["color"], linewidth=1.4)
                (legend[title],) = axes.plot(place + shift, np.mean(seeds), **look)
    axes.set_xticks(range(len(values)), list(values))
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.grid(axis="x", visible=False)
    return legend


def _tradeoff(axes: Axes, panel: TradeoffPanel, results: Results) -> Legend:
    legend: Legend = {}
    for index, (title, entry) in enumerate(panel.rows.items()):
        found = results(entry)
        # A run that was not tested by the rule has no point.
        if not found or any(record.metrics.figure("window_pooled", entry.reading) is None for record in found):
            continue
        x, y = (
            np.array([100 * record.measured(figure, entry.reading) for record in found])
            for figure in ("window_pooled", "window_lowest")
        )
        look = _look(index) | {"linestyle": "none", "markersize": 8}
        if len(found) > 1:
            bars = {"color": look["color"], "linewidth": 1.2, "alpha": 0.7}
            axes.hlines(y.mean(), x.min(), x.max(), **bars)
            axes.vlines(x.mean(), y.min(), y.max(), **bars)
        (legend[title],) = axes.plot(x.mean(), y.mean(), **look)
    axes.margins(0.09)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set(xlabel="Global accuracy (%)", ylabel="Worst local accuracy (%)")
    return legend


def _metrics(axes: Axes, panel: MetricPanel, results: Results) -> Legend:
    legend: Legend = {}
    ticks = sorted({value for line in panel.lines for value in line.points})
    for index, line in enumerate(panel.lines):
        look = _look(index)

        def read(entry: Entry, metric: str = line.metric) -> list[float]:
            return [100 * record.measured(metric) for record in results(entry)]

        if rivals := [float(np.mean(seeds)) for entry in line.rivals if (seeds := read(entry))]:
            axes.axhline(max(rivals), color=look["color"], linestyle=DASHES[1], linewidth=1.1)
        if found := {value: seeds for value, entry in line.points.items() if (seeds := read(entry))}:
            (legend[line.title],) = axes.plot(list(found), [np.mean(seeds) for seeds in found.values()], **look)
            if any(len(seeds) > 1 for seeds in found.values()):
                lowest, highest = ([end(seeds) for seeds in found.values()] for end in (min, max))
                axes.fill_between(list(found), lowest, highest, color=look["color"], alpha=0.14, linewidth=0)
        if line.printed:
            hollow: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 1.2}
            (legend["printed"],) = axes.plot(*line.printed, linestyle="none", marker="D", markersize=8, **hollow)
    if any(line.rivals for line in panel.lines):
        legend["best baseline"] = Line2D([], [], color=MUTED, linestyle=DASHES[1], linewidth=1.1)
    axes.margins(y=0.1)
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
    return legend


def _clients(axes: Axes, panel: ClientPanel, results: Results) -> Legend:
    seeds = 100 * np.array([record.metrics.accuracy for record in results(panel.entry)], dtype=float)
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
        cmap=HEAT_MAP,
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
        curves = [_shares(record, panel) for record in records]
        length = min(map(len, curves))
        rounds = [*curves[0]][:length]
        seeds = np.array([[*curve.values()][:length] for curve in curves])
        (legend[title],) = axes.plot(rounds, seeds.mean(0), **look, markevery=max(1, ceil(length / 10)))
        if len(seeds) > 1:
            axes.fill_between(rounds, seeds.min(0), seeds.max(0), color=look["color"], alpha=0.14, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set(xlabel="Round", ylabel=f"{panel.shows.capitalize()} (%)")
    return legend


def _shares(record: Record, panel: RoundsPanel) -> dict[int, float]:
    """Percent of all clients' samples together after each round that has a test."""
    lines = [line for line in record.training if line.test()]
    if panel.shows == "test accuracy":
        return {line.round: 100 * line.pooled for line in lines if line.pooled is not None}
    samples = [sum(counts) for counts in record.run.class_counts.train]
    if any(line.train_accuracy is None for line in lines):
        raise HetflError(
            f"{record.path}/rounds.jsonl: has no train_accuracy; set it to true in the defaults of "
            f"experiments.{record.run.experiment} and train again"
        )
    shares = {line.round: np.average(np.array(line.train_accuracy), weights=samples) for line in lines}
    return {round: 100 * (1 - float(share)) for round, share in shares.items()}


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
        return 100 * float(over_clients(record.metrics.accuracy))
    return 100 * max(float(over_clients(tested.accuracy)) for tested in record.tested)


def _look(index: int) -> dict[str, Any]:
    return {
        "color": SERIES[index % len(SERIES)],
        "linewidth": 1.7,
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4.5,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.5,
    }
