"""The figure of the terms of FedHPL's Theorem 1 over rounds, as small multiples."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hetfl.figures.base import Cell, Figure
from hetfl.figures.sources import Sources
from hetfl.figures.style import BAND, DASHES, SERIES, Look, canvas, few_ticks, handle, not_there, one_range
from hetfl.metrics.theorem import series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

BLOCKS = 3
"""Terms side by side."""

Series = Mapping[str, Any]


class TheoremFigure(Figure):
    """Every term of Theorem 1 that a run observed, over rounds: the mean of the clients, in a band of all clients.

    Attributes:
        terms: key of what is drawn, see :func:`hetfl.metrics.theorem.series` -> the label of its axis.
        settings: title of a setting, whose panels stand side by side -> title of a line -> cell.
    """

    kind: Literal["theorem"] = "theorem"
    terms: dict[str, str]
    settings: dict[str, dict[str, Cell]]
    style: ClassVar[Look] = {"font.size": 8, "axes.titlesize": 8.5}

    def draw(self, sources: Sources) -> Canvas:
        runs: dict[str, dict[str, Series]] = {}
        for setting, lines in self.settings.items():
            records = {name: record for name, entry in lines.items() if (record := sources.one(entry))}
            runs[setting] = {name: series(record.run, record.rounds) for name, record in records.items()}
        seen = [run for lines in runs.values() for run in lines.values()]
        drawn = [term for term in self.terms if any(not np.isnan(_values(run, term)).all() for run in seen)]
        names = list(dict.fromkeys(name for lines in self.settings.values() for name in lines))
        looks = {name: {"color": SERIES[i], "linestyle": DASHES[i % len(DASHES)]} for i, name in enumerate(names)}
        width = len(self.settings)
        blocks = min(BLOCKS, max(len(drawn), 1))
        rows = max(ceil(len(drawn) / blocks), 1)
        figure = canvas(max(2.1 * blocks * width, 8.4), 1.55 * rows + 1.6)
        figure.set_layout_engine("constrained", w_pad=0.07)
        grid: list[Axes] = [*figure.subplots(rows, blocks * width, squeeze=False).flat]
        for axes in grid[max(len(drawn), 1) * width :]:
            axes.set_visible(False)
        if not drawn:
            for axes, setting in zip(grid, self.settings, strict=False):
                axes.set_title(setting)
                not_there(axes, "not run")
            return figure
        for index, term in enumerate(drawn):
            pair = grid[index * width : (index + 1) * width]
            for axes, (setting, observed) in zip(pair, runs.items(), strict=True):
                axes.set_title(term if axes is pair[0] else "")
                _term(axes, term, observed, looks)
                axes.set_xlabel(f"Round, {setting}", fontsize=7.5, labelpad=1)
            # Panels of one term have one vertical axis; the first one bears the label.
            if shown := [axes for axes in pair if axes.lines]:
                one_range(shown)
                shown[0].set_ylabel(self.terms[term], fontsize=7.5)
        handles = [handle(**style) for style in looks.values()]
        figure.legend(handles, names, loc="outside upper left", ncols=len(names), handlelength=2.6)
        return figure


def _term(axes: Axes, term: str, lines: Mapping[str, Series], looks: Mapping[str, Look]) -> None:
    for name, run in lines.items():
        values = _values(run, term)
        known = ~np.isnan(values).all(axis=1)
        if not known.any():
            continue
        rounds, values = np.array(run["round"])[known], values[known]
        lowest, highest = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
        axes.fill_between(rounds, lowest, highest, color=looks[name]["color"], **BAND)
        axes.plot(rounds, np.nanmean(values, axis=1), linewidth=1.4, **looks[name])
    if not axes.lines:
        not_there(axes, "not run")
        return
    few_ticks(axes.xaxis, 4, integer=True)
    few_ticks(axes.yaxis, 4)


def _values(run: Series, term: str) -> np.ndarray:
    """A term by round and client [R, K]; what is observed once stays as it is, what each class has is averaged."""
    values = np.array(run.get(term, [np.nan]), dtype=float)
    if values.ndim == 1:
        return np.tile(values, (len(run["round"]), 1))
    if values.ndim == 3:
        missing = np.isnan(values).all(axis=2)
        return np.where(missing, np.nan, np.nansum(values, 2) / np.maximum((~np.isnan(values)).sum(2), 1))
    return values
