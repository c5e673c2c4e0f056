"""Verdicts: accuracies by the intervals of both sides, everything else by its own rule."""

from __future__ import annotations

import pytest

from hetfl.tables.verdict import NOISE, interval, pooled_noise, verdict


@pytest.mark.parametrize(
    ("value", "std", "printed", "printed_std", "noise", "status"),
    [
        (90.0, 0.1, None, None, None, "ours"),
        # 2 * (0.1 + 0.2)
        (90.6, 0.1, 90.0, 0.2, None, "match"),
        (90.61, 0.1, 90.0, 0.2, None, "better"),
        (89.39, 0.1, 90.0, 0.2, None, "worse"),
        # One run against a number without a deviation: 1.5 points while the noise is unknown.
        (88.5, None, 90.0, None, None, "match"),
        (88.49, None, 90.0, None, None, "worse"),
        # 2 * (0.05 + 0.05): a known noise is stricter, and what a side has itself is not replaced.
        (89.7, None, 90.0, None, 0.05, "worse"),
        (89.8, None, 90.0, None, 0.05, "match"),
        (89.7, 0.2, 90.0, 0.01, 0.0, "match"),
    ],
)
def test_accuracies_match_where_intervals_meet(value, std, printed, printed_std, noise, status):
    assert verdict(value, std, printed, "best_pooled", printed_std, noise) == status


def test_other_statistics_have_their_own_rules():
    assert verdict(0.4500, None, 0.4455, "up_first") == "better"
    assert verdict(0.4499, None, 0.4455, "up_first") == "match"
    # A hundredth of a small cost is less than its last digit.
    assert verdict(0.0105, None, 0.01, "up_first") == "match"
    assert verdict(0.0106, None, 0.01, "up_first") == "better"
    assert verdict(81.834, None, 81.83, "parameters", digits=2) == "match"
    assert verdict(81.836, None, 81.83, "parameters", digits=2) == "differs"
    # A zero at the end of a printed number is one of its digits.
    assert verdict(89.3607, None, 89.36, "parameters_total", digits=3) == "differs"
    assert verdict(0.8400, 0.004, 0.8462, "cosine_shared") == "match"


def test_noise_is_pooled_over_repeated_cells():
    # Deviations 1 (two degrees of freedom) and sqrt(2) (one): sqrt((2 * 1 + 1 * 2) / 3).
    assert pooled_noise([[1.0, 2.0, 3.0], [5.0, 7.0], [9.0]]) == pytest.approx((4 / 3) ** 0.5)
    assert pooled_noise([[9.0], []]) is None
    assert interval(None) == 2 * NOISE and interval(None, 0.1) == 0.2 and interval(0.0, 0.1) == 0
