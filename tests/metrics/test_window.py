"""Accuracies over the last rounds, and clients without test samples."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest
from record_factory import make_round

from hetfl.metrics.accuracy import best_round, known, per_class, summary, window
from hetfl.schema import Accuracies, Round

POOLED = [0.1, 0.5, 0.7, 0.6]
CLIENTS = [[0.0, 0.2], [0.4, 0.6], [0.8, 0.6], [0.5, None]]


def lines() -> list[Round]:
    return [make_round(n, pooled=p, accuracy=a) for n, (p, a) in enumerate(zip(POOLED, CLIENTS, strict=True), 1)]


def of_each_round() -> list[Accuracies | None]:
    return [line.test() for line in lines()]


def test_the_window_is_of_the_last_rounds():
    found = window(of_each_round(), 3)
    assert found["window_rounds"] == 3
    assert found["window_pooled"] == pytest.approx(0.6)
    assert found["window_variance"] == pytest.approx(statistics.pvariance(POOLED[1:]))
    assert found["window_variance_sample"] == pytest.approx(statistics.variance(POOLED[1:]))
    # The lowest client is another one in every round; the last round has one client with samples.
    assert found["window_lowest"] == pytest.approx((0.4 + 0.6 + 0.5) / 3)
    assert found["window_average"] == pytest.approx((0.5 + 0.7 + 0.5) / 3)


def test_a_window_longer_than_the_run_is_the_run():
    assert window(of_each_round(), 10) == window(of_each_round(), 4)
    assert window(of_each_round(), 10)["window_rounds"] == 4


def test_one_round_varies_by_nothing():
    found = window(of_each_round(), 1)
    assert (found["window_pooled"], found["window_variance"], found["window_variance_sample"]) == (0.6, 0, None)


def test_rounds_without_a_test_keep_their_place():
    untested = {"accuracy": None, "pooled": None}
    played = [line.model_copy(update=untested) if line.round == 3 else line for line in lines()]
    found = [line.test() for line in played]
    assert window(found, 2)["window_pooled"] == 0.6 and window(found, 2)["window_rounds"] == 1
    assert window(found, 3)["window_pooled"] == pytest.approx((0.5 + 0.6) / 2)
    assert best_round(played) == {"best_pooled": 0.6, "best_round": 4, "best_average": 0.5, "rounds": 4}


def test_a_client_without_samples_is_left_out_of_figures_over_clients():
    matrices = np.array([[[9, 1], [0, 0]], [[0, 0], [0, 0]], [[10, 0], [30, 50]]])
    found, without = summary(matrices), summary(matrices[[0, 2]])
    assert found.pop("accuracy") == [0.9, None, pytest.approx(60 / 90)]
    without.pop("accuracy")
    assert found == without
    assert np.isnan(per_class(matrices)[1]).all()
    assert "NaN" not in json.dumps(found)


def test_best_rounds_leave_it_out_too():
    assert best_round(lines()[:4])["best_average"] == pytest.approx(0.7)
    assert best_round(lines()[3:4])["best_average"] == 0.5
    assert known([0.0, None, 1.0]) == [0.0, 1.0]
