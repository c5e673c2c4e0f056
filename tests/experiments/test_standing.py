"""How accurate a run is so far."""

from __future__ import annotations

import pytest
from record_factory import make_round

from hetfl.experiments.standing import Standing, standing

ROUNDS = [
    make_round(0, accuracy=[0.9, 0.9], pooled=0.9),
    make_round(1, accuracy=[0.5, None], pooled=0.25),
    make_round(2, accuracy=[0.25, 0.5], pooled=0.75),
    make_round(3, accuracy=None, pooled=None),
    make_round(4, accuracy=[0.25, 0.25], pooled=0.75),
    make_round(5, accuracy=[1.0, 0.5], pooled=0.5),
]


@pytest.mark.parametrize(
    ("patience", "rounds", "found", "shown"),
    [
        (None, 6, Standing(None, 75.0, tested=5), "75.0 %"),
        (None, 2, Standing(None, 50.0, tested=1), "50.0 %"),
        (None, 1, Standing(), ""),
        (2, 6, Standing(2, 50.0, 75.0, 2, tested=5), "50.00 %, best 75.00 % in round 2"),
        (2, 1, Standing(2), ""),
    ],
)
def test_rounds_before_training_and_without_a_test_do_not_count(patience, rounds, found, shown):
    told = standing(ROUNDS[:rounds], patience)
    assert told == found and str(told) == shown
    assert told.counts == (found.best if patience else found.last)


def of_scores(scores: dict[int, float], patience: int | None) -> Standing:
    return standing([make_round(number, accuracy=[one], pooled=one) for number, one in scores.items()], patience)


@pytest.mark.parametrize(
    ("scores", "patience", "end", "over"),
    [
        ({}, 1, None, False),
        ({1: 0.1, 2: 0.5, 3: 0.2}, 2, 4, False),
        ({1: 0.1, 2: 0.5, 3: 0.2, 4: 0.5}, 2, 4, True),  # as good is no better
        ({1: 0.5, 50: 0.1}, None, None, False),
        ({10: 0.5, 20: 0.1}, 11, 21, False),  # a round without a test ends nothing
        ({10: 0.5, 20: 0.1}, 10, 20, True),
    ],
)
def test_patience_counts_the_rounds_since_the_best_one(scores, patience, end, over):
    found = of_scores(scores, patience)
    assert (found.end, found.over) == (end, over)


@pytest.mark.parametrize("last", [99, 100])
def test_a_run_with_patience_ends_as_the_authors_do(last):
    """With the n-th evaluation as the last one: n - (index of the best, from 0) > 100."""
    scores = [0.9] + [0.1] * last
    assert of_scores(dict(enumerate(scores, start=1)), 100).over == (len(scores) - scores.index(0.9) > 100)
