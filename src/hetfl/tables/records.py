"""Reading what a cell left behind: its run record, its rounds and its evaluation.

Where ``runs/`` and ``evaluations/`` have nothing of a cell, its compact record in ``results/`` is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from hetfl.compact import Compact, read_compact
from hetfl.errors import HetflError
from hetfl.experiments.identity import differences
from hetfl.experiments.plan import Cell, Params, Workspace, cells, load_params
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
        whole: whether the files of the evaluation are there besides; a compact record has none.
    """

    path: str
    run: Run
    rounds: list[Round]
    metrics: Metrics
    whole: bool = True

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
    sizes = [sum(row) for row in record.run.class_counts.test]
    tests = [test for line in record.tested if (test := line.test(reading)) is not None]
    right = [[(share or 0.0) * size for share, size in zip(test.accuracy, sizes, strict=True)] for test in tests]
    found = 0.0
    for client in range(len(sizes)):
        chosen = max(range(len(right)), key=lambda at: round(sum(right[at]) - right[at][client]))
        found += right[chosen][client]
    return found / sum(sizes)


class Compacts:
    """The compact records of a checkout, as its settings judge them; each is read once.

    Args:
        workspace: the checkout.
        params: its settings; read from params.yaml where they are needed first.
    """

    def __init__(self, workspace: Workspace, params: Params | None = None) -> None:
        self.folder, self._params = workspace.results, workspace.params
        if params is not None:
            self.params = params
        self._read: dict[str, Compact | None] = {}
        self._cells: dict[str, dict[str, Cell]] = {}

    @cached_property
    def params(self) -> Params:
        """The settings of the checkout."""
        return load_params(self._params)

    def file(self, path: Path | str) -> Path:
        """The file of a cell's compact record."""
        return self.folder / f"{path if isinstance(path, str) else path.as_posix()}.json"

    def read(self, path: Path | str) -> Compact | None:
        """A cell's compact record, of whatever settings; None if there is none.

        Raises:
            HetflError: it is damaged; the error names the file.
        """
        name = path if isinstance(path, str) else path.as_posix()
        if name not in self._read:
            self._read[name] = read_compact(self.file(name))
        return self._read[name]

    def cell(self, path: Path) -> Cell | None:
        """The cell of a path; None if the settings have none."""
        experiment = path.parts[0]
        if experiment not in self._cells:
            known = cells(self.params, experiment) if experiment in self.params.experiments else []
            self._cells[experiment] = {cell.path.as_posix(): cell for cell in known}
        return self._cells[experiment].get(path.as_posix())

    def stale(self, path: Path) -> str:
        """Why a cell's compact record is of other settings or versions than here; empty if it is not."""
        found, cell = self.read(path), self.cell(path)
        if found is None:
            return ""
        if cell is None:
            return "there is no such cell"
        return "; ".join(differences(found.run, cell, found.run.inputs))

    def record(self, path: Path) -> Record | None:
        """The record of a cell that is trained to the end and evaluated, with the settings and versions of here."""
        found = self.read(path)
        if found is None or found.metrics is None or not found.finished or self.stale(path):
            return None
        return Record(f"runs/{path.as_posix()}", found.run, found.rounds(), found.metrics, whole=False)


def read_record(
    runs: Path, evaluations: Path, entry: Entry, seed: int, compacts: Compacts | None = None
) -> Record | None:
    """The record of one seed of a cell, or None while it is not trained to the end or not evaluated.

    Args:
        runs: the folder of run records.
        evaluations: the folder of evaluations.
        entry: the cell.
        seed: one of its seeds.
        compacts: read where the two folders have no finished record.

    Raises:
        HetflError: the evaluation belongs to another run than the one that lies there, or a file is damaged.
    """
    record = _local_record(runs, evaluations, entry, seed)
    if record is None and compacts is not None:
        record = compacts.record(entry.path(seed))
    return record if record is None or entry.round is None else record.until(entry.round)


def _local_record(runs: Path, evaluations: Path, entry: Entry, seed: int) -> Record | None:
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
    return Record((Path(runs.name) / entry.path(seed)).as_posix(), run, rounds, metrics)


def missing(runs: Path, entry: Entry, seed: int, compacts: Compacts | None = None) -> tuple[str, str]:
    """Why :func:`read_record` has none, and what to know about it.

    Returns:
        ``not run``; ``not evaluated`` where training is complete, and what to run; or ``stale`` where there is only a
        compact record of other settings or versions, and which these are.

    Raises:
        HetflError: a record is damaged.
    """
    run = read_run(runs / entry.path(seed))
    if entry.round is None and run is not None and run.complete:
        return "not evaluated", f"run the evaluate stage of {entry.experiment}"
    if run is None and compacts is not None and (why := compacts.stale(entry.path(seed))):
        return "stale", why
    return "not run", ""


def rounds_of(source: Mapping[str, Any], runs: Path, compacts: Compacts | None = None) -> list[Round]:
    """The rounds of a run that a table was made from.

    Args:
        source: the run in the table's provenance.
        runs: the folder of run records.
        compacts: read where that folder does not have this run.

    Raises:
        HetflError: the rounds are neither here nor there, or damaged.
    """
    folder = runs.parent / source["run"]
    if compacts is not None:
        run, kept = read_run(folder), compacts.read(source["run"].partition("/")[2])
        here = run is not None and run.complete and run.fingerprint == source["fingerprint"]
        if not here and kept is not None and kept.run.fingerprint == source["fingerprint"]:
            return kept.rounds()
    return read_rounds(folder, finished=True)
