"""Compact records: small text files from which a run comes back as it was."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from record_factory import make_metrics, make_round, make_run, trained

from hetfl.compact import Compact, compact, read_compact, render
from hetfl.errors import HetflError
from hetfl.schema import Round, Run

LEFT_OUT = ("loss", "seconds", "peak_memory", "diagnostics", "clients")
"""What a compact record has not, or not exactly."""


def kept(lines: list[Round]) -> list[dict]:
    """All that must come back, also what was not given."""
    return [line.model_dump(exclude={*LEFT_OUT}) for line in lines]


def through_a_file(record: Compact, path: Path) -> Compact:
    path.write_text(render(record))
    found = read_compact(path)
    assert found is not None
    return found


def test_a_trained_run_comes_back(tmp_path):
    run, rounds, metrics = trained().run, trained().rounds, trained().metrics
    found = through_a_file(compact(run, rounds, metrics, {"model.safetensors": "a" * 64}), tmp_path / "x.json")
    assert (found.run, found.metrics, found.finished) == (run, metrics, True)
    assert kept(found.rounds()) == kept(rounds)
    # Accuracies are whole numbers of samples, so nothing was rounded.
    curves = found.curves
    assert curves and all(isinstance(value, int) for value in curves.test.pooled if value is not None)
    assert found.seconds == pytest.approx(sum(sum(line.seconds.values()) for line in rounds), abs=0.1)


def test_what_few_runs_have_comes_back_too(tmp_path):
    """Clients without test samples, rounds without a test, other inference rules, divergence, fine-tuning."""
    counts = {"train": [[2, 0, 0], [0, 0, 5]], "test": [[1, 0, 2], [0, 0, 0]]}
    run = make_run(status="complete", class_counts=counts, clients=2, diverged=1)
    untested = {"accuracy": None, "pooled": None, "extra": {}, "train_accuracy": None}
    tested = {"accuracy": [1 / 3, None], "pooled": 1 / 3, "train_accuracy": [0.5, 0.6]}
    odd = {"accuracy": [0.123, None], "pooled": 0.123, "train_accuracy": [0.5, 0.6]}  # no number of samples
    extra = {"top-2": {"accuracy": [2 / 3, None], "pooled": 2 / 3}}
    lines = [
        make_round(0, **untested, participants=[0, 1]),
        make_round(1, **tested, extra=extra, diverged=[1], participants=[1]),
        make_round(2, **untested, participants=[0]),
        make_round(3, **odd, extra={}, participants=[0, 1], diagnostics={"cosine_shared": 0.12345678901234567}),
        make_round(9, **tested, extra={}, participants=[0, 1], fine_tuning=True),
    ]
    lines = [line.model_copy(update={"extra": line.extra or {}}) for line in lines]
    found = through_a_file(compact(run, lines, None, {}, ["cosine_shared", "groups"]), tmp_path / "x.json")
    assert kept(found.rounds()) == kept(lines)
    assert found.rounds()[3].diagnostics == {"cosine_shared": 0.12345678901234567}
    assert (found.played, found.finished, found.run) == (3, False, run)


def long_run(clients: int, rounds: int) -> tuple[Run, list[Round]]:
    """Accuracies that move in every round, with class counts of 100 classes."""
    rng = random.Random(0)
    counts = {
        kind: [[rng.choice([0, 0, 0, rng.randrange(1, 90)]) for _ in range(100)] for _ in range(clients)]
        for kind in ("train", "test")
    }
    totals = [sum(row) for row in counts["test"]]
    everyone = {"participants": [*range(clients)], "clients": {}, "diagnostics": {}}
    lines = []
    for number in range(1, rounds + 1):
        right = [rng.randrange(total) for total in totals]
        shares = [one / total for one, total in zip(right, totals, strict=True)]
        tested = {"accuracy": shares, "pooled": sum(right) / sum(totals), "loss": [rng.random()] * clients}
        seconds = {name: rng.random() * 100 for name in ("train", "server", "evaluate", "resume")}
        lines.append(make_round(number, **everyone, **tested, seconds=seconds))
    return make_run(status="complete", class_counts=counts, clients=clients, models=["htcnn1"] * clients), lines


def test_a_long_run_is_small_with_a_line_for_each_column():
    run, lines = long_run(20, 300)
    text = render(compact(run, lines, make_metrics(), {"rounds.jsonl": "a" * 64}))
    assert len(text) <= 60_000
    changed = [line.model_copy(update={"accuracy": [0.5, *line.accuracy[1:]]}) for line in lines if line.accuracy]
    other = render(compact(run, changed, make_metrics(), {"rounds.jsonl": "a" * 64}))
    differing = [old for old, new in zip(text.splitlines(), other.splitlines(), strict=True) if old != new]
    assert len(differing) == 1  # one client's column


def test_a_run_in_progress_has_its_rounds_and_no_result(tmp_path):
    record = compact(make_run(status="running"), trained().rounds, make_metrics(), {"rounds.jsonl": "a" * 64})
    found = through_a_file(record, tmp_path / "x.json")
    assert (found.played, found.finished, found.metrics, found.files) == (2, False, None, {})
    assert [line.pooled for line in found.rounds()] == [line.pooled for line in trained().rounds]
    before = found.model_copy(update={"curves": None})  # as earlier versions wrote it
    again = through_a_file(before, tmp_path / "y.json")
    assert (again.played, again.rounds()) == (2, [])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"played":', '"plaid":', "lacks played"),
        ('"round": [0,1,2', '"round": [0,1,2,3', "a column has 3 values, there are 4 rounds"),
        ('"format": 1', '"format": 9', "is of format 9, and this hetfl reads up to 1; use a newer hetfl"),
        ('"up.bytes"', '"up.bits"', "it should have up.bytes"),
        ('"clients": 5', '"clients": 6', "accuracy has 5 columns, there are 6 clients"),
        ('"status": "complete"', '"status": "done"', "has run.status 'done'"),
        ("}\n}\n", "}\n", "is not JSON"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, old, new, says):
    path = tmp_path / "x.json"
    text = render(compact(trained().run, trained().rounds, trained().metrics, {}))
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(HetflError) as caught:
        read_compact(path)
    assert str(caught.value).startswith(f"{path}: ") and says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert read_compact(tmp_path / "none.json") is None
