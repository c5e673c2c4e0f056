"""Accuracies over clients, samples and rounds."""

from __future__ import annotations

import numpy as np
import pytest
from record_factory import make_round

from hetfl.metrics.accuracy import best_round, summary

CONFUSION = np.array([[[9, 1], [0, 0]], [[10, 0], [30, 50]]])
"""Of two clients with two classes, of which the first client has one."""


def test_pooled_counts_samples_and_average_counts_clients():
    found = summary(CONFUSION)
    assert found["average"] == pytest.approx((9 / 10 + 60 / 90) / 2)
    assert found["pooled"] == pytest.approx(69 / 100)
    assert (found["lowest"], found["highest"]) == pytest.approx((60 / 90, 9 / 10))
    assert found["macro_f1"] == pytest.approx((18 / 19 + (20 / 50 + 100 / 130) / 2) / 2)


def test_the_balanced_accuracy_and_the_spread_are_over_clients():
    """Not over their samples together; the deviation is the population's."""
    found = summary(CONFUSION)
    assert found["balanced_accuracy"] == pytest.approx((9 / 10 + (1 + 50 / 80) / 2) / 2)
    assert found["std"] == pytest.approx((9 / 10 - 60 / 90) / 2)


def test_the_best_round_is_the_first_with_the_best_pooled_accuracy():
    pooled, accuracy = [0.5, 0.7, 0.6, 0.7], [[0.1, 0.3], [0.6, 0.8], [0.9, 0.9], [0.7, 0.7]]
    lines = [
        make_round(round, pooled=p, accuracy=a)
        for round, (p, a) in enumerate(zip(pooled, accuracy, strict=True), start=1)
    ]
    assert best_round(lines) == {
        "best_pooled": 0.7,
        "best_round": 2,
        "best_average": pytest.approx(0.9),
        "rounds": 4,
    }
