"""The curves of a cell: a mean over seeds, or a line for each where a mean would mislead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from record_factory import make_metrics, make_round, make_run

from hetfl.schema import Round, Traffic
from hetfl.tables.curves import averaged, curves
from hetfl.tables.records import Record


def record(seed: int, shares: list[float], diverged: int | None = None, tuned: int | None = None) -> Record:
    """A run of two clients with these accuracies by round, which sends 10 bytes up and 5 down in each.

    From round ``diverged`` on a client's loss is not finite; ``tuned`` is the number of the fine-tuning.
    """
    lines: list[Round] = []
    for number, share in enumerate(shares, start=1):
        sizes = {"up": {"elements": 1, "bytes": 10}, "down": {"elements": 1, "bytes": 5}}
        lost = [0] if diverged is not None and number >= diverged else []
        test = {"accuracy": [share, share], "pooled": share}
        more = {"fine_tuning": number == tuned, "diverged": lost}
        lines.append(make_round(number, participants=[0, 1], **more, **sizes, **test))
    path = f"e/fedhpl/r/iid-s{seed}"
    return Record(f"runs/{path}", make_run(path), lines, make_metrics())


def test_seeds_that_end_together_are_one_curve() -> None:
    (curve,) = curves([record(0, [0.1, 0.4]), record(1, [0.3, 0.6])], "average")
    assert (curve.seed, curve.diverged) == (None, None) and curve.sound == curve.points
    first, second = curve.points
    assert first == pytest.approx((1, 20, 10, 30, 15, False)) and second == pytest.approx((2, 50, 40, 60, 30, False))


def test_the_traffic_of_a_curve_is_the_mean_over_seeds() -> None:
    one, other = record(0, [0.1, 0.4]), record(1, [0.3, 0.6])
    more = [line.model_copy(update={"up": Traffic(elements=1, bytes=30)}) for line in other.rounds]
    runs = [each.curve("average") for each in (one, replace(other, rounds=more))]
    assert [at.traffic for at in averaged(runs)] == [25, 50]


def test_seeds_that_end_in_different_rounds_have_a_curve_each() -> None:
    records = [record(0, [0.1, 0.4, 0.5]), record(2, [0.3, 0.6])]
    longer, shorter = curves(records, "average")
    assert (longer.seed, shorter.seed) == (0, 2)
    assert [at.percent for at in longer.points] == pytest.approx([10, 40, 50])
    assert [at.percent for at in shorter.points] == pytest.approx([30, 60])
    assert [at.percent for at in averaged([each.curve("average") for each in records])] == pytest.approx([20, 50])


def test_a_run_that_diverged_stands_alone_and_is_sound_before() -> None:
    lost, whole = curves([record(0, [0.8, 0.9, 0.1], diverged=3), record(1, [0.7, 0.8, 0.9])], "average")
    assert (lost.seed, lost.diverged, whole.seed, whole.diverged) == (0, 3, 1, None)
    assert len(lost.points) == 3 and [at.round for at in lost.sound] == [1, 2]
    (lost,) = curves([record(0, [0.1, 0.1], diverged=1)], "average")
    assert lost.sound == lost.points


def test_fine_tuning_is_no_round_of_a_curve() -> None:
    (curve,) = curves([record(0, [0.1, 0.2, 0.9], tuned=3), record(1, [0.3, 0.4, 0.7], tuned=3)], "average")
    assert [at.round for at in curve.trained] == [1, 2]
    assert curve.tuned is not None and curve.tuned.percent == pytest.approx(80)
    (alone,) = curves([record(0, [0.9], tuned=1)], "average")
    assert alone.trained == alone.points and alone.tuned is None


def test_a_number_that_is_no_accuracy_has_no_curve() -> None:
    assert curves([record(0, [0.1])], "parameters") == [] and curves([], "average") == []
