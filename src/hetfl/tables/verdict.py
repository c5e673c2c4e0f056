"""How a reproduced number compares with the printed one.

Accuracies are compared by intervals. Each side's interval is its number, plus and minus two standard deviations of a
single run; the two sides *match* if their intervals have a point in common:

    |ours - printed| <= 2 * (s_ours + s_printed)

``s_ours`` is the sample standard deviation over our seeds, ``s_printed`` the deviation that the paper prints. A side
without one, because there is one seed or because the paper prints none, has the noise of the protocol instead:

    s_noise = sqrt(sum_c (n_c - 1) s_c^2 / sum_c (n_c - 1))

over all recorded cells c of the protocol with n_c >= 2 seeds that did not diverge, of deviation s_c: the pooled
deviation of repeated runs. Runs that did would make it, and so every match, much wider.
While no cell has been repeated, ``s_noise`` is :data:`NOISE`: a single run then matches a number without a deviation
within 1.5 points. A table knows only its own cells, so it always uses :data:`NOISE`; the ledger uses the protocol's.
Variances between the rounds of one run say nothing about other runs and enter no interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import mean, stdev, variance
from typing import get_args

from hetfl.tables.spec import Cosine, Count, Statistic

NOISE = 0.375
"""Standard deviation of an accuracy between runs in points, where nothing is known of it."""


def verdict(
    value: float,
    std: float | None,
    printed: float | None,
    statistic: Statistic = "average",
    printed_std: float | None = None,
    noise: float | None = None,
    digits: int = 0,
) -> str:
    """How a value compares with the printed one of the same setting, both in the unit of the statistic.

    Accuracies as above. Uploads count correct predictions: within 1 % or the printed digit they match, more are
    better. Numbers that are neither better nor worse match or ``differ``: counts of parameters match to the printed
    digit, cosines within two standard deviations, or 0.005.

    Args:
        value: ours, a mean over seeds.
        std: its sample standard deviation over seeds; None with one seed.
        printed: the paper's number; None: there is none, and so the verdict is ``ours``.
        statistic: what the two are.
        printed_std: the deviation that the paper prints.
        noise: of the protocol; None: unknown.
        digits: decimals that a count has in print.
    """
    if printed is None:
        return "ours"
    if statistic in get_args(Count):
        return "match" if round(value, digits) == printed else "differs"
    cosine = statistic in get_args(Cosine)
    if cosine:
        allowed = max(2 * (std or 0.0), 0.005)
    elif statistic in ("up_first", "up_last"):
        allowed = max(2 * (std or 0.0), 0.01 * printed, 0.0005)
    else:
        allowed = interval(std, noise) + interval(printed_std, noise)
    # Without floating-point dust: printed numbers have few digits.
    if round(abs(value - printed) - allowed, 9) <= 0:
        return "match"
    return "differs" if cosine else "better" if value > printed else "worse"


def interval(std: float | None, noise: float | None = None) -> float:
    """Half the width of a side's interval, in points."""
    return 2 * (std if std is not None else NOISE if noise is None else noise)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The ends of Student's 95 % confidence interval of the mean of at least two values."""
    from scipy.stats import t  # imports much, and few tables need it

    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return mean(values) - half, mean(values) + half


def pooled_noise(repeated: Iterable[list[float]]) -> float | None:
    """The standard deviation between runs that differ in their seed alone; None if no cell has two.

    Args:
        repeated: the accuracies of each cell's seeds, in points.
    """
    several = [values for values in repeated if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    return sqrt(sum((len(values) - 1) * variance(values) for values in several) / freedom) if freedom else None
