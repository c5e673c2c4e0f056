"""Panels with a point for each row, and bars from the lowest to the highest seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from hetfl.figures.base import Cells, Legend, Panel, looks_of
from hetfl.figures.sources import Sources
from hetfl.figures.style import Look, few_ticks
from hetfl.tables.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class GroupPanel(Panel):
    """The clients' average accuracy of some rows, group by group.

    Attributes:
        groups: title of a group -> title of a row -> cell.
    """

    kind: Literal["groups"] = "groups"
    groups: dict[str, Cells]

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        averages = {
            group: {title: sources.percents(entry, "average") for title, entry in rows.items()}
            for group, rows in self.groups.items()
        }
        axes.set(ylabel="Client average accuracy (%)")
        cells = {title: entry for rows in self.groups.values() for title, entry in rows.items()}
        return _points(axes, averages, looks_of(cells))


class HeldOutPanel(Panel):
    """Clients that took part beside those that were held out: means over a run's last rounds.

    Attributes:
        rows: title -> cell, with clients held out.
        shows: the accuracy of a side's test samples together, or of its lowest client.
    """

    kind: Literal["held-out"] = "held-out"
    rows: Cells
    shows: Literal["pooled", "lowest"]

    def missing(self, sources: Sources) -> str:
        records = [record for entry in self.entries for record in sources.records(entry)]
        if records and not any(map(sides, records)):
            return "not run with clients held out"
        return super().missing(sources)

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        found = {
            title: [both for record in sources.records(entry) if (both := sides(record))]
            for title, entry in self.rows.items()
        }
        values = {
            name: {title: [100 * seed[side][self.shows] for seed in seeds] for title, seeds in found.items()}
            for side, name in enumerate(("took part", "held out"))
        }
        axes.set(ylabel="Global accuracy (%)" if self.shows == "pooled" else "Lowest client's accuracy (%)")
        return _points(axes, values, looks_of(self.rows))


class TradeoffPanel(Panel):
    """The lowest client's accuracy over that of all test samples together, both means over a run's last rounds.

    Attributes:
        rows: title -> cell, with the inference rule that is read; one without a test by that rule has no point.
    """

    kind: Literal["tradeoff"] = "tradeoff"
    rows: Cells
    one_range: ClassVar = False

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        legend: Legend = {}
        styles = looks_of(self.rows)
        for title, entry in self.rows.items():
            found = sources.records(entry)
            if not found or any(record.metrics.figure("window_pooled", entry.reading) is None for record in found):
                continue
            x, y = (np.array(sources.percents(entry, figure)) for figure in ("window_pooled", "window_lowest"))
            style = styles[title] | {"linestyle": "none", "markersize": 8}
            if len(found) > 1:
                bars = {"color": style["color"], "linewidth": 1.2, "alpha": 0.7}
                axes.hlines(y.mean(), x.min(), x.max(), **bars)
                axes.vlines(x.mean(), y.min(), y.max(), **bars)
            (legend[title],) = axes.plot(x.mean(), y.mean(), **style)
        axes.margins(0.09)
        few_ticks(axes.xaxis, 5)
        axes.set(xlabel="Global accuracy (%)", ylabel="Worst local accuracy (%)")
        return legend


def sides(record: Record) -> tuple[dict[str, float], dict[str, float]] | None:
    """Clients that took part and clients that were held out, means over the last rounds that the run reports.

    Returns:
        Of each side ``pooled``, the accuracy of its test samples together, and ``lowest``, that of its lowest client
        in a round; both fractions. None if a side has no client or no test sample.
    """
    settings, clients = record.run.settings, record.run.clients
    first = clients - settings.get("held_out", 0)
    samples = np.array(record.run.class_counts.test).sum(axis=1)
    if not samples[: max(first, 0)].any() or not samples[max(first, 0) :].any():
        return None
    # A client without test samples has None, and no weight.
    last = record.training[-settings["window"] :]
    accuracy = np.array([line.accuracy for line in last if line.accuracy is not None], dtype=float)
    here, there = (
        {
            "pooled": float((np.nansum(accuracy[:, side] * samples[side], axis=1) / samples[side].sum()).mean()),
            "lowest": float(np.nanmin(accuracy[:, side], axis=1).mean()),
        }
        for side in (slice(first), slice(first, None))
    )
    return here, there


def _points(axes: Axes, values: Mapping[str, Mapping[str, list[float]]], styles: Mapping[str, Look]) -> Legend:
    """Points of each group side by side.

    Args:
        axes: where to draw.
        values: title of a group -> title of a row -> a number for each seed.
        styles: title of a row -> its look.
    """
    titles = list(dict.fromkeys(title for rows in values.values() for title in rows))
    legend: Legend = {}
    for number, title in enumerate(titles):
        style = styles[title] | {"linestyle": "none", "markersize": 7}
        shift = (number - (len(titles) - 1) / 2) * 0.7 / len(titles)
        for place, rows in enumerate(values.values()):
            if seeds := rows[title]:
                if len(seeds) > 1:
                    axes.vlines(place + shift, min(seeds), max(seeds), color=style["color"], linewidth=1.4)
                (legend[title],) = axes.plot(place + shift, np.mean(seeds), **style)
    axes.set_xticks(range(len(values)), list(values))
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.grid(axis="x", visible=False)
    return legend
