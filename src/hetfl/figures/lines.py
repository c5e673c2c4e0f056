"""Panels with lines over a setting or over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import AfterValidator

from hetfl.errors import HetflError
from hetfl.figures.base import Cell, Cells, Legend, Panel, Part, looks_of
from hetfl.figures.sources import Sources
from hetfl.figures.style import DASHES, INK, MUTED, Look, few_ticks, handle, mean_line
from hetfl.tables.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATISTICS: Mapping[str, Callable[..., float]] = {"average": np.mean, "highest": np.max, "lowest": np.min}
"""Over clients, in the order of the dashes that draw them."""
LEVEL = 1.1
"""Width of a line that others are compared with."""
HOLLOW: Look = {"linestyle": "none", "marker": "D", "markersize": 8, "markerfacecolor": "none"}
HOLLOW |= {"markeredgecolor": INK, "markeredgewidth": 1.2}

Points = Annotated[dict[float, Cell], AfterValidator(lambda points: dict(sorted(points.items())))]
"""Setting -> cell, in ascending order."""


class SweepLine(Part):
    """The clients' accuracy over a setting.

    Attributes:
        round: the accuracy is that after the last round, or in the best round of each statistic.
    """

    title: str
    points: Points
    round: Literal["last", "best"] = "last"


class SweepPanel(Panel):
    """The average, highest and lowest client over a setting.

    Attributes:
        level: title and cell of a horizontal line to compare with.
    """

    kind: Literal["sweep"] = "sweep"
    xlabel: str
    lines: list[SweepLine]
    level: Cells = {}

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        legend: Legend = {}
        styles = looks_of(_first_cells(self.lines) | self.level)
        for line in self.lines:
            found = {value: records for value, entry in line.points.items() if (records := sources.records(entry))}
            if not found:
                continue
            style = styles[line.title]
            legend[line.title] = handle(**style)
            for (name, over_clients), dashes in zip(STATISTICS.items(), DASHES, strict=True):
                thin = {} if name == "average" else {"linewidth": LEVEL, "markersize": 2.5}
                seeds = [[_accuracy(record, line, over_clients) for record in some] for some in found.values()]
                mean_line(axes, [*found], seeds, style | {"linestyle": dashes} | thin)
        for title, entry in self.level.items():
            if records := sources.records(entry):
                style = styles[title] | {"marker": None}
                legend[title] = handle(**style)
                for over_clients, dashes in zip(STATISTICS.values(), DASHES, strict=True):
                    level = np.mean([100 * over_clients(record.metrics.accuracy) for record in records])
                    axes.axhline(float(level), **style | {"linestyle": dashes, "linewidth": LEVEL})
        for name, dashes in zip(STATISTICS, DASHES, strict=True):
            legend[name] = handle(color=MUTED, linestyle=dashes)
        _settings_axis(axes, self.lines)
        axes.set(xlabel=self.xlabel, ylabel="Test accuracy (%)")
        return legend


class MetricLine(Part):
    """A number of the evaluation over a setting.

    Attributes:
        metric: its key in ``metrics.json``, a fraction; shown in percent.
        rivals: cells whose best is a horizontal line to compare with.
        printed: setting and percent of a point that the paper prints.
    """

    title: str
    metric: str
    points: Points
    rivals: Cells = {}
    printed: tuple[float, float] | None = None


class MetricPanel(Panel):
    """Numbers of the evaluation over a setting."""

    kind: Literal["metric"] = "metric"
    xlabel: str
    ylabel: str
    lines: list[MetricLine]

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        legend: Legend = {}
        styles = looks_of(_first_cells(self.lines))
        for line in self.lines:
            style = styles[line.title]
            rivals = [sources.percents(entry, line.metric) for entry in line.rivals.values()]
            if any(rivals):
                best = max(float(np.mean(seeds)) for seeds in rivals if seeds)
                axes.axhline(best, color=style["color"], linestyle=DASHES[1], linewidth=LEVEL)
            points = {value: sources.percents(entry, line.metric) for value, entry in line.points.items()}
            if found := {value: seeds for value, seeds in points.items() if seeds}:
                legend[line.title] = mean_line(axes, [*found], [*found.values()], style)
            if line.printed:
                (legend["printed"],) = axes.plot(*line.printed, **HOLLOW)
        if any(line.rivals for line in self.lines):
            legend["best baseline"] = handle(color=MUTED, linestyle=DASHES[1], linewidth=LEVEL)
        axes.margins(y=0.1)
        _settings_axis(axes, self.lines)
        axes.set(xlabel=self.xlabel, ylabel=self.ylabel)
        return legend


class RoundsPanel(Panel):
    """An accuracy of all clients' samples together over the rounds, until the first seed of a row stops.

    Attributes:
        shows: the share of training samples that are predicted wrongly, or that of test samples predicted rightly.
    """

    kind: Literal["rounds"] = "rounds"
    rows: Cells
    shows: Literal["training error", "test accuracy"]

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        legend: Legend = {}
        styles = looks_of(self.rows)
        for title, entry in self.rows.items():
            if not (records := sources.records(entry)):
                continue
            curves = [self.percent(record) for record in records]
            length = min(map(len, curves))
            seeds = [*zip(*([*curve.values()][:length] for curve in curves), strict=True)]
            style = styles[title] | {"markevery": max(1, ceil(length / 10))}
            legend[title] = mean_line(axes, [*curves[0]][:length], seeds, style)
        few_ticks(axes.xaxis, 6, integer=True)
        axes.set(xlabel="Round", ylabel=f"{self.shows.capitalize()} (%)")
        return legend

    def percent(self, record: Record) -> dict[int, float]:
        """What the panel shows of a run, in percent, after each round that has a test.

        Raises:
            HetflError: the run has no accuracies on training samples.
        """
        lines = [line for line in record.training if line.test()]
        if self.shows == "test accuracy":
            return {line.round: 100 * line.pooled for line in lines if line.pooled is not None}
        samples = [sum(counts) for counts in record.run.class_counts.train]
        if any(line.train_accuracy is None for line in lines):
            raise HetflError(
                f"{record.path}/rounds.jsonl: has no train_accuracy; set it to true in the defaults of "
                f"experiments.{record.run.experiment} and train again"
            )
        shares = {line.round: np.average(np.array(line.train_accuracy), weights=samples) for line in lines}
        return {round: 100 * (1 - float(share)) for round, share in shares.items()}


def _first_cells(lines: Sequence[SweepLine] | Sequence[MetricLine]) -> Cells:
    """A cell of each line, by the line's title."""
    return {line.title: next(iter(line.points.values())) for line in lines}


def _settings_axis(axes: Axes, lines: Sequence[SweepLine] | Sequence[MetricLine]) -> None:
    ticks = sorted({value for line in lines for value in line.points})
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])


def _accuracy(record: Record, line: SweepLine, over_clients: Callable[..., float]) -> float:
    if line.round == "last":
        return 100 * float(over_clients(record.metrics.accuracy))
    return 100 * max(float(over_clients(tested.accuracy)) for tested in record.tested)
