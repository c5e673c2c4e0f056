"""Reading what a cell left behind: its run record, its rounds and its evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from hetfl.errors import HetflError
from hetfl.metrics.accuracy import known
from hetfl.schema import METRICS, Metrics, Round, Run, read_metrics, read_rounds, read_run
from hetfl.tables.spec import Entry


@dataclass(frozen=True)
class Record:
    """One finished and evaluated cell.

    Attributes:
        path: the run folder relative to the folder that holds ``runs``, with forward slashes.
        run: what it was.
        rounds: registration (round 0) and fine-tuning included.
        metrics: of its evaluation.
    """

    path: str
    run: Run
    rounds: list[Round]
    metrics: Metrics

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
        return next((line.round for line in self.rounds if line.diverged), None)

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
    if statistic in ("best_pooled", "window_pooled"):
        return tested.pooled
    over: dict[str, Callable[[list[float]], float]] = {"average": mean, "highest": max}
    over |= dict.fromkeys(("lowest", "window_lowest"), min)
    return over[statistic](known(tested.accuracy)) if statistic in over else None


def read_record(runs: Path, evaluations: Path, entry: Entry, seed: int) -> Record | None:
    """The record of one seed of a cell, or None while it is not trained to the end or not evaluated.

    Raises:
        HetflError: the evaluation belongs to another run than the one that lies there, or a file is damaged.
    """
    folder, evaluation = runs / entry.path(seed), evaluations / entry.path(seed)
    run = read_run(folder)
    if run is None or not run.complete:
        return None
    metrics = read_metrics(evaluation)
    if metrics is None:
        return None
    if metrics.fingerprint != run.fingerprint:
        raise HetflError(
            f"{evaluation / METRICS}: fingerprint {metrics.fingerprint[:12]} is not that of the run "
            f"({run.fingerprint[:12]}); run the evaluate stage of {entry.experiment} again"
        )
    rounds = read_rounds(folder, finished=True)
    record = Record((Path(runs.name) / entry.path(seed)).as_posix(), run, rounds, metrics)
    return record if entry.round is None else record.until(entry.round)


def missing(runs: Path, entry: Entry, seed: int) -> str:
    """Why :func:`read_record` has none: ``not run``, or ``not evaluated`` where training is complete.

    Raises:
        HetflError: the run record is damaged.
    """
    run = read_run(runs / entry.path(seed))
    complete = entry.round is None and run is not None and run.complete
    return "not evaluated" if complete else "not run"
