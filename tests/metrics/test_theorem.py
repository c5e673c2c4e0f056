"""Theorem 1's terms from a record: the derived ones by hand, and from a run on the toy federation."""

from __future__ import annotations

from functools import partial
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from playing import play_round, start
from record_factory import make_round, make_run

from hetfl.draws import Draws
from hetfl.metrics.theorem import adaptation, beta, distillation_slack, label_distance, prompt_slack, series
from hetfl.schema import Round, Run

COUNTS = {"train": [[8, 8, 0], [6, 6, 4]], "test": [[10, 10, 20]] * 2}


def run(counts: dict[str, Any] = COUNTS) -> Run:
    return make_run(clients=len(counts["train"]), class_counts=counts)


def lines() -> list[Round]:
    """Of two clients, the first of which misses a round."""
    return [
        make_round(
            0,
            participants=[0, 1],
            accuracy=[0.3, 0.4],
            clients={"width": [384, 768], "err01": [0.5, 0.75]},
        ),
        make_round(
            1,
            participants=[1],
            accuracy=[0.3, 0.5],
            clients={"err01": [0.5], "param_kl": [2.0], "upload_rate": [[0.5, 0.5, None]]},
            diagnostics={"shrinkage": [0.1, 0.2], "shrinkage_max": [0.2, 0.5]},
        ),
        make_round(
            2,
            participants=[0, 1],
            accuracy=[0.6, 0.7],
            clients={
                "err01": [0.25, 0.125],
                "param_kl": [1.0, 3.0],
                "kd_loss": [0.1, 0.2],
                "kd_max": [0.5, None],
                "upload_rate": [[1.0, 0.5, None], [1.0, 1.0, 0.0]],
            },
            diagnostics={"shrinkage": [0.1, 0.1], "shrinkage_max": [0.1, 0.1]},
        ),
    ]


def test_beta_is_equation_7():
    assert beta(np.array([384, 768, 1024])).tolist() == [[1, 0.5, 0.375], [0.5, 1, 0.75], [0.375, 0.75, 1]]


def test_the_terms_are_those_of_the_loss_that_was_trained():
    plain = series(run(), lines())
    settings = {"gamma": 3.0, "temperature": 2.0, "squared_temperature": True, "aggregation": "average"}
    seen = series(run().model_copy(update={"settings": settings}), lines())
    assert seen["beta"] == [[1, 1], [1, 1]] and plain["beta"] != seen["beta"]
    assert seen["slack_kd"][2][0] == pytest.approx(12 * plain["slack_kd"][2][0])
    assert seen["kd_loss"] == plain["kd_loss"]


def test_adaptation_of_a_random_head():
    assert adaptation(np.array([0.9]), np.array([0.1])) == pytest.approx([1.8])


def test_label_distance():
    assert label_distance(np.array([[5.0, 5, 0], [2, 2, 4]]), np.array([1.0, 1, 2])).tolist() == [0.5, 0]
    own = np.array([[1.0, 1, 0], [0, 0, 7]])
    assert label_distance(np.array([[5.0, 5, 0], [2, 2, 4]]), own).tolist() == [0, 0.5]


def test_slacks_by_hand():
    expected = sqrt((2 + log(sqrt(4 * 100)) - log(0.05)) / 200)
    assert prompt_slack(np.array(2.0), np.array(100.0)) == pytest.approx(expected)
    expected = 0.5 * sqrt((2 - log(0.05)) / 200)
    assert distillation_slack(np.array(0.5), np.array(2.0), np.array(100.0)) == pytest.approx(expected)


def test_the_distillation_slack_is_the_smallest_over_t():
    bound, complexity, samples = 0.7, 5.0, 400.0
    t = np.geomspace(1e-2, 1e2, 100_001)
    over_t = (complexity - log(0.05)) / (t * samples) + t * bound**2 / 8
    assert distillation_slack(np.array(bound), np.array(complexity), np.array(samples)) == pytest.approx(over_t.min())
    best = sqrt(8 * (complexity - log(0.05)) / (samples * bound**2))
    assert t[over_t.argmin()] == pytest.approx(best, rel=1e-3)


def test_series_by_hand():
    seen = series(run(), lines())
    assert seen["round"] == [0, 1, 2]
    assert seen["beta"] == [[1, 0.5], [0.5, 1]]
    assert seen["lambda0"] == pytest.approx([1.2, 1.35])
    assert seen["label_tv"] == pytest.approx([0.5, 0.25])
    assert seen["err01"] == [[0.5, 0.75], [None, 0.5], [0.25, 0.125]]
    assert seen["upload_rate"][1] == [[None] * 3, [0.5, 0.5, None]]
    assert seen["shrinkage"] == [[None, None], [0.1, 0.2], [0.1, 0.1]]
    slack = sqrt((1 + log(8) - log(0.05)) / 32)
    assert seen["slack_pb"][2][0] == pytest.approx(slack)
    assert seen["slack_pb"][0] == [None, None]
    distillation = 0.5 * sqrt((1 - log(0.05)) / 32)
    assert seen["slack_kd"][2] == [pytest.approx(distillation), None]
    assert seen["bound_proxy"][:2] == [[None, None]] * 2
    assert seen["bound_proxy"][2] == [pytest.approx(0.25 + slack + 1.2 + 0.5 + 0.1 + distillation), None]


@pytest.mark.filterwarnings("error")
def test_a_client_without_test_samples_has_no_value_and_others_have_theirs():
    first, second, third = lines()
    played = [line.model_copy(update={"accuracy": [0.3, None]}) for line in (first, second, third)]
    seen = series(run({**COUNTS, "test": [[10, 10, 20], [0, 0, 0]]}), played)
    assert seen["lambda0"] == [pytest.approx(1.2), None]
    assert seen["label_tv"] == [pytest.approx(0.5), None]
    assert seen["bound_proxy"][2][0] is not None and seen["bound_proxy"][2][1] is None


def test_epsilon_widens_the_slacks():
    once, samples = np.ones(1), np.array([16.0])
    for slack in (partial(prompt_slack, once, samples), partial(distillation_slack, once, once, samples)):
        assert slack(epsilon=0.01) > slack(epsilon=0.5)


def test_a_record_without_observations():
    bare = make_round(1, participants=[0, 1], accuracy=[0.1, 0.2], clients={}, diagnostics={})
    assert set(series(run(), [bare])) == {"round", "label_tv"}


@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_series_of_a_run(toy_engine, participation):
    engine = toy_engine("fedhpl", "heterogeneous", participation=participation)
    state, line = start(engine, Draws(0))
    played = [line]
    for round in (1, 2, 3):
        state, line = play_round(engine, state, Draws(0).at(round))
        played.append(line)
    counts = [client.class_counts.tolist() for client in engine.federation.clients]
    seen = series(run({"train": counts, "test": [[10, 10, 10]] * 3}), played)
    assert seen["label_tv"][0] == pytest.approx(1 / 3, abs=0.04)
    assert seen["lambda0"] == pytest.approx(
        [error + 1 - right for error, right in zip(played[0].clients["err01"], played[0].accuracy, strict=True)]
    )
    assert all(0 < value <= 2 for value in seen["lambda0"])
    for line, bounds, slacks in zip(played[2:], seen["bound_proxy"][2:], seen["slack_kd"][2:], strict=True):
        for client in range(3):
            assert (bounds[client] is not None) == (slacks[client] is not None) == (client in line.participants)
            if client in line.participants:
                error = line.clients["err01"][line.participants.index(client)]
                assert bounds[client] > error + slacks[client]
