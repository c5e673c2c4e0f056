"""The terms of FedHPL's Theorem 1 over rounds, as small multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hetfl.metrics.theorem import series
from hetfl.papers.panels import TheoremFigure
from hetfl.report.results import Results, caption, not_run, settle
from hetfl.report.style import DASHES, SERIES, STYLE, save

TERMS = {
    "err01": "0-1 risk",
    "local_conf": "B = mean φ(p)[y]",
    "logit_bound": "2 − 2B",
    "agg_conf": "A = mean φ(g)[y]",
    "agg_error": "2 − 2A",
    "distill_similarity": "2|A − B|",
    "kd_ce": "CE(φ(g), φ(p))",
    "kd_entropy": "H(φ(g))",
    "kd_loss": "mean KL(φ(g)‖φ(p))",
    "kd_max": "largest KL",
    "kd_cap": "bound of the KL",
    "teacher_acc": "teacher right, of classes",
    "valid_frac": "samples with a teacher",
    "upload_rate": "mean share uploaded",
    "shrinkage": "1 − weights of Eq. 36",
    "param_kl": "‖θ − θ₀‖² / 2s²",
    "slack_pb": "prompt slack",
    "slack_kd": "distillation slack",
    "lambda0": "R(h₀) + R_test(h₀)",
    "label_tv": "label distance",
    "bound_proxy": "sum of the terms",
}
"""What is drawn, by its key in :func:`hetfl.metrics.theorem.series`."""
BLOCKS = 3
"""Terms side by side."""

Series = Mapping[str, Any]


def theorem_figure(figure: TheoremFigure, results: Results, path: Path) -> list[Path]:
    """Draw every term that a run observed, over rounds: the mean of the clients, shaded from lowest to highest.

    Args:
        figure: the cells.
        results: where they are.
        path: the figure's path; its suffix is replaced by ``.svg`` and ``.png``.

    Returns:
        The two files.
    """
    runs: dict[str, dict[str, Series]] = {}
    for setting, lines in figure.settings.items():
        records = {name: record for name, entry in lines.items() for record in results(entry)}
        runs[setting] = {name: series(record.run, record.rounds) for name, record in records.items()}
    seen = [run for lines in runs.values() for run in lines.values()]
    drawn = [term for term in TERMS if any(not np.isnan(_values(run, term)).all() for run in seen)]
    names = list(dict.fromkeys(name for lines in figure.settings.values() for name in lines))
    looks = {name: {"color": SERIES[i], "linestyle": DASHES[i % len(DASHES)]} for i, name in enumerate(names)}
    width = len(figure.settings)
    blocks = min(BLOCKS, max(len(drawn), 1))
    rows = max(ceil(len(drawn) / blocks), 1)
    with mpl.rc_context(STYLE | {"font.size": 8, "axes.titlesize": 8.5}):
        canvas = Figure(figsize=(max(2.1 * blocks * width, 8.4), 1.55 * rows + 1.6))
        canvas.set_layout_engine("constrained", w_pad=0.07)
        grid = canvas.subplots(rows, blocks * width, squeeze=False)
        for axes in grid.flat[len(drawn) * width :]:
            axes.set_visible(False)
        if not drawn:
            for axes, setting in zip(grid.flat, figure.settings, strict=False):
                axes.set_visible(True)
                axes.set_title(setting)
                not_run(axes)
        for index, term in enumerate(drawn):
            pair: list[Axes] = list(grid.flat[index * width : (index + 1) * width])
            for axes, (setting, observed) in zip(pair, runs.items(), strict=True):
                axes.set_title(term if axes is pair[0] else "")
                _term(axes, term, observed, looks)
                axes.set_xlabel(f"Round, {setting}", fontsize=7.5, labelpad=1)
            _share(pair, TERMS[term])
        if drawn:
            handles = [mpl.lines.Line2D([], [], **look) for look in looks.values()]
            canvas.legend(handles, names, loc="outside upper left", ncols=len(names), handlelength=2.6)
        caption(canvas, figure.caption)
        settle(canvas)
        return save(canvas, path)


def _term(axes: Axes, term: str, lines: Mapping[str, Series], looks: Mapping[str, dict[str, Any]]) -> None:
    for name, run in lines.items():
        values = _values(run, term)
        known = ~np.isnan(values).all(axis=1)
        if not known.any():
            continue
        rounds, values = np.array(run["round"])[known], values[known]
        lowest, highest = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
        axes.fill_between(rounds, lowest, highest, color=looks[name]["color"], alpha=0.14, linewidth=0)
        axes.plot(rounds, np.nanmean(values, axis=1), linewidth=1.4, **looks[name])
    if not axes.lines:
        not_run(axes)
        return
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _values(run: Series, term: str) -> np.ndarray:
    """A term by round and client [R, K]; what is observed once stays as it is, what each class has is averaged."""
    values = np.array(run.get(term, [np.nan]), dtype=float)
    if values.ndim == 1:
        return np.tile(values, (len(run["round"]), 1))
    if values.ndim == 3:
        missing = np.isnan(values).all(axis=2)
        return np.where(missing, np.nan, np.nansum(values, 2) / np.maximum((~np.isnan(values)).sum(2), 1))
    return values


def _share(pair: Sequence[Axes], label: str) -> None:
    """Panels of one term have one vertical axis; the first one bears the label."""
    shown = [axes for axes in pair if axes.lines]
    for axes in shown:
        axes.set_ylim(min(a.get_ylim()[0] for a in shown), max(a.get_ylim()[1] for a in shown))
    if shown:
        shown[0].set_ylabel(label, fontsize=7.5)
