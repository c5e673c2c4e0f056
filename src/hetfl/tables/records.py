"""Reading what a cell left behind: its run record, its rounds and its evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from hetfl.compact import Compact, read_compact
from hetfl.errors import HetflError
from hetfl.experiments.identity import own_differences
from hetfl.experiments.plan import Cell, Params, Workspace, cells
from hetfl.metrics.accuracy import known
from hetfl.schema import Metrics, Round, Run, read_metrics, read_rounds, read_run, troubles
from hetfl.tables.spec import Entry
from hetfl.training.registry import FLOWER


class Point(NamedTuple):
    """One round of a curve.

    Attributes:
        round: its number.
        percent: the accuracy.
        traffic: bytes of all messages up to the round's end.
        tuned: whether this is the clients' fine-tuning after the last round.
    """

    round: int
    percent: float
    traffic: int
    tuned: bool


@dataclass(frozen=True)
class Record:
    """One finished and evaluated cell.

    Attributes:
        path: the run folder relative to the folder that holds ``runs``, with forward slashes.
        run: what it was.
        rounds: registration (round 0) and fine-tuning included.
        metrics: of its evaluation.
        whole: whether the files of the evaluation are there besides; a compact record has none.
    """

    path: str
    run: Run
    rounds: list[Round]
    metrics: Metrics
    whole: bool = True

    @property
    def pretrained(self) -> bool:
        """Whether it starts from pre-trained weights."""
        return any(not name.endswith(".random") for name in self.run.inputs.weights)

    @property
    def training(self) -> list[Round]:
        """The rounds in which the clients send something back: neither registration nor fine-tuning."""
        return [line for line in self.rounds if line.round >= 1 and not line.fine_tuning]

    @property
    def played(self) -> int:
        """How many these are: fewer than ``run.rounds`` where the run stopped early."""
        return len(self.training)

    @property
    def tested(self) -> list[Round]:
        """What an accuracy curve shows: the rounds that have a test, and fine-tuning as its last point."""
        return [line for line in self.rounds if line.round >= 1 and line.test()]

    @property
    def diverged(self) -> int | None:
        """The first round in which a client's loss or scores were not finite; None: all were."""
        return troubles(self.rounds).get("diverged")

    def curve(self, statistic: str, reading: str = "") -> list[Point]:
        """The accuracy that a cell reads, after every round of training or fine-tuning that has it."""
        sent = accumulate(line.up.bytes + line.down.bytes for line in self.rounds)
        shares = [accuracy_of(statistic, reading, line) for line in self.rounds]
        lines = zip(self.rounds, shares, sent, strict=True)
        return [
            Point(line.round, 100 * s, total, line.fine_tuning)
            for line, s, total in lines
            if line.round and s is not None
        ]

    def measured(self, figure: str, reading: str = "") -> float:
        """A figure of the evaluation, by an inference rule; ``""`` is the method's own.

        Raises:
            HetflError: the evaluation has none.
        """
        found = self.metrics.figure(figure, reading)
        if found is None:
            wanted = f"{figure} of {reading}" if reading else figure
            raise HetflError(
                f"{self.path}: its evaluation has no {wanted}; train and evaluate it again with dvc repro"
            )
        return found

    def until(self, round: int) -> Record | None:
        """The record as it was when a round was over, or None if there was no such round, or no test after it."""
        lines = [line for line in self.rounds if line.round <= round]
        test = lines[-1].test()
        if lines[-1].round < round or lines[-1].fine_tuning or test is None:
            return None
        shares = known(test.accuracy)
        metrics = Metrics(
            fingerprint=self.run.fingerprint,
            accuracy=test.accuracy,
            average=mean(shares),
            lowest=min(shares),
            highest=max(shares),
            pooled=test.pooled,
        )
        return replace(self, run=self.run.model_copy(update={"rounds": round}), rounds=lines, metrics=metrics)


def accuracy_of(statistic: str, reading: str, line: Round) -> float | None:
    """A round's accuracy as a fraction, of the kind that a cell reads by an inference rule.

    None where the statistic is no accuracy, or there was no test, or none of the rule, after this round.
    """
    tested = line.test(reading)
    if tested is None:
        return None
    if statistic.endswith("_pooled"):
        return tested.pooled
    over: dict[str, Callable[[list[float]], float]] = {"average": mean, "highest": max}
    over |= dict.fromkeys(("lowest", "window_lowest"), min)
    return over[statistic](known(tested.accuracy)) if statistic in over else None


def validated(record: Record, reading: str = "") -> float:
    """The accuracy over all test samples, each client's in the round that is best on the other clients' samples.

    No sample helps to choose the round in which it counts, as it does where the best round is chosen on all of them.

    Args:
        record: of a run whose clients have test samples of their own.
        reading: the inference rule, ``""`` for the method's own.

    Returns:
        The share of correct predictions.
    """
    sizes = np.array(record.run.class_counts.test).sum(axis=1)
    tests = [test for line in record.tested if (test := line.test(reading)) is not None]
    right = np.array([[share or 0.0 for share in test.accuracy] for test in tests]) * sizes
    of_others = np.rint(right.sum(axis=1, keepdims=True) - right)
    return float(right[of_others.argmax(axis=0), np.arange(len(sizes))].sum() / sizes.sum())


LAST = 10
"""Rounds over which unfinished runs are compared: a single round may be a tenth of a point off."""


def so_far(lines: Sequence[Round], others: Sequence[Round], title: str, readings: tuple[str, str] = ("", "")) -> str:
    """How a run has compared with another one, of which either may be unfinished, in words.

    Args:
        lines, others: the rounds of the two.
        title: of the other one.
        readings: the inference rules of the two, ``""`` for a method's own.

    Returns:
        The difference of their accuracies over all test samples, mean over the last :data:`LAST` rounds that both
        were tested in, such as ``-0.27 points against FML in rounds 63–72``; empty if there is no such round.
    """
    here, there = (
        {line.round: test.pooled for line in some if not line.fine_tuning and (test := line.test(rule)) is not None}
        for some, rule in zip((lines, others), readings, strict=True)
    )
    if not (both := sorted(here.keys() & there.keys())[-LAST:]):
        return ""
    points = 100 * mean(here[round] - there[round] for round in both)
    when = f"rounds {both[0]}–{both[-1]}" if len(both) > 1 else f"round {both[0]}"
    return f"{points:+.2f} points against {title} in {when}"


class Records:
    """The records of a checkout; each is read once.

    They are in ``runs/`` and ``evaluations/``. Where these have no finished record of a cell, its compact record in
    ``results/`` is read. Only records of the same settings and versions as the checkout count.

    Args:
        workspace: the checkout.
        params: its settings.
    """

    def __init__(self, workspace: Workspace, params: Params) -> None:
        self.workspace, self.params = workspace, params
        self._records: dict[Path, Record | None] = {}
        self._compacts: dict[Path, Compact | None] = {}
        self._kept: dict[Path, Record | None] = {}
        self._cells: dict[str, dict[Path, Cell]] = {}

    def get(self, entry: Entry, seed: int) -> Record | None:
        """The record of one seed of a cell, or None while it is not trained to the end or not evaluated.

        Raises:
            HetflError: a file is damaged.
        """
        record = self._finished(entry.path(seed))
        return record if record is None or entry.round is None else record.until(entry.round)

    def _finished(self, path: Path) -> Record | None:
        if path not in self._records:
            found = self._local(path)
            current = None if found is None or self._why_stale(found.run, path) else found
            self._records[path] = current or self.from_compact(path)
        return self._records[path]

    def missing(self, entry: Entry, seed: int) -> tuple[str, str]:
        """Why :meth:`get` has none, and what to know about it.

        Returns:
            ``not run``; ``in progress``, and in which round; ``not evaluated`` where training is complete, and what
            to run; or ``stale`` where there is only a record of other settings or versions, and which they are.

        Raises:
            HetflError: a record is damaged.
        """
        path = entry.path(seed)
        run = read_run(self.workspace.runs / path)
        why = self.stale(path) if run is None else self._why_stale(run, path)
        if why and (run is None or run.complete):
            return "stale", why
        if entry.round is None and run is not None and run.complete:
            if run.engine == FLOWER:
                return (
                    "not evaluated",
                    f"its clients are on other machines; hetfl curve {path.as_posix()} shows its rounds",
                )
            return "not evaluated", f"run the evaluate stage of {entry.experiment}"
        played = max((played for played, _ in self._begun(path, run)), default=0)
        return ("in progress", f"round {played}") if played else ("not run", "")

    def rounds(self, path: Path) -> list[Round]:
        """The rounds of whichever run of a cell is furthest, finished or not, here or in git; none if it has no run.

        Raises:
            HetflError: a record is damaged.
        """
        if finished := self._finished(path):
            return finished.rounds
        begun = self._begun(path, read_run(self.workspace.runs / path))
        return max((lines for _, lines in begun), key=len, default=[])

    def _begun(self, path: Path, run: Run | None) -> Iterator[tuple[int, list[Round]]]:
        """A cell's unfinished runs of its settings and versions, here and in git: their last rounds, and all rounds.

        A compact record that an earlier version wrote has none.
        """
        if run is not None and not run.complete and not self._why_stale(run, path):
            lines = read_rounds(self.workspace.runs / path)
            yield sum(line.round >= 1 for line in lines), lines
        kept = self.compact(path)
        if kept is not None and not kept.finished and not self.stale(path):
            yield kept.played, kept.rounds()

    def of(self, source: Mapping[str, Any]) -> Record | None:
        """The record that a table was made from; None if it is not here, or has changed since.

        Args:
            source: the run in the table's provenance.

        Raises:
            HetflError: the record is damaged.
        """
        path, wanted = Path(source["run"].partition("/")[2]), source["fingerprint"]
        found = self._records.get(path)
        if found is None or found.run.fingerprint != wanted:
            run, kept = read_run(self.workspace.runs / path), self.compact(path)
            found = self._local(path) if run is not None and run.fingerprint == wanted else None
            if found is None and kept is not None and kept.run.fingerprint == wanted:
                found = _of_compact(path, kept)
        return found

    def compact(self, path: Path) -> Compact | None:
        """A cell's compact record, of whatever settings; None if there is none.

        Raises:
            HetflError: it is damaged; the error names the file.
        """
        if path not in self._compacts:
            self._compacts[path] = read_compact(self.workspace.compact(path))
        return self._compacts[path]

    def cell(self, path: Path) -> Cell | None:
        """The cell of a path; None if the settings have none."""
        experiment = path.parts[0]
        if experiment not in self._cells:
            known = cells(self.params, experiment) if experiment in self.params.experiments else []
            self._cells[experiment] = {cell.path: cell for cell in known}
        return self._cells[experiment].get(path)

    def stale(self, path: Path) -> str:
        """Why a cell's compact record is of other settings or versions than here; empty if it is not."""
        if (found := self.compact(path)) is None:
            return ""
        return self._why_stale(found.run, path) if self.cell(path) else "there is no such cell"

    def _why_stale(self, run: Run, path: Path) -> str:
        """Why a record is of other settings or versions than the cell of its path; empty if it is not."""
        cell = self.cell(path)
        return "" if cell is None else "; ".join(own_differences(run, cell, self.workspace))

    def from_compact(self, path: Path) -> Record | None:
        """A cell's compact record if it is trained, evaluated, and of the settings and versions of here."""
        if path not in self._kept:
            found = self.compact(path)
            missing = found is None or not found.finished or self.stale(path)
            self._kept[path] = None if found is None or missing else _of_compact(path, found)
        return self._kept[path]

    def _local(self, path: Path) -> Record | None:
        """The record in ``runs/`` and ``evaluations/``."""
        folder, evaluation = self.workspace.runs / path, self.workspace.evaluations / path
        run = read_run(folder)
        if run is None or (metrics := read_metrics(evaluation, run)) is None:
            return None
        return Record(f"runs/{path.as_posix()}", run, read_rounds(folder, finished=True), metrics)


def _of_compact(path: Path, found: Compact) -> Record | None:
    """A record without the files of its evaluation; None without an evaluation."""
    if found.metrics is None:
        return None
    return Record(f"runs/{path.as_posix()}", found.run, found.rounds(), found.metrics, whole=False)
