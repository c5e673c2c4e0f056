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
        (None, 6, Standing(False, 75.0), "75.0 %"),
        (None, 2, Standing(False, 50.0), "50.0 %"),
        (None, 1, Standing(False), ""),
        (2, 6, Standing(True, 50.0, 75.0, 2), "50.00 %, best 75.00 % in round 2"),
        (2, 1, Standing(True), ""),
    ],
)
def test_rounds_before_training_and_without_a_test_do_not_count(patience, rounds, found, shown):
    told = standing(ROUNDS[:rounds], {"patience": patience})
    assert told == found and str(told) == shown
    assert told.counts == (found.best if patience else found.last)
