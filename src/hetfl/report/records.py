"""Reading what a cell left behind: its run record, its rounds and its evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from hetfl.errors import HetflError
from hetfl.files import read_json
from hetfl.metrics.accuracy import known
from hetfl.papers.spec import Entry


@dataclass(frozen=True)
class Record:
    """One finished and evaluated cell.

    Attributes:
        path: the run folder relative to the folder that holds ``runs``, with forward slashes.
        run: the content of ``run.json``.
        rounds: the lines of ``rounds.jsonl``, registration (round 0) and closing included.
        metrics: the content of the evaluation's ``metrics.json``.
    """

    path: str
    run: dict[str, Any]
    rounds: list[dict[str, Any]]
    metrics: dict[str, Any]

    @property
    def training(self) -> list[dict[str, Any]]:
        """The rounds in which the clients send something back: neither registration nor closing."""
        return [line for line in self.rounds if line["round"] >= 1 and not line.get("closing")]

    @property
    def played(self) -> int:
        """How many these are: fewer than ``run["rounds"]`` where the run stopped early."""
        return len(self.training)

    @property
    def tested(self) -> list[dict[str, Any]]:
        """What an accuracy curve shows: the rounds that have a test, and the closing as its last point."""
        return [line for line in self.rounds if line["round"] >= 1 and "accuracy" in line]

    @property
    def diverged(self) -> int | None:
        """The first round in which a client's loss or scores were not finite; None: all were."""
        return next((line["round"] for line in self.rounds if "diverged" in line), None)

    def until(self, round: int) -> Record | None:
        """The record as it was when a round was over, or None if there was no such round, or no test after it."""
        lines = [line for line in self.rounds if line["round"] <= round]
        if lines[-1]["round"] < round or lines[-1].get("closing") or "accuracy" not in lines[-1]:
            return None
        shares = known(lines[-1]["accuracy"])
        metrics = {"accuracy": lines[-1]["accuracy"]}
        metrics |= {"average": mean(shares), "lowest": min(shares), "highest": max(shares)}
        return replace(self, run=self.run | {"rounds": round}, rounds=lines, metrics=metrics)


def accuracy_of(statistic: str, reading: str, line: Mapping[str, Any]) -> float | None:
    """A round's accuracy as a fraction, of the kind that a cell reads by an inference rule.

    None where the statistic is no accuracy, or there was no test, or none of the rule, after this round.
    """
    tested = line.get("also", {}).get(reading) if reading else line
    if tested is None or "accuracy" not in tested:
        return None
    if statistic in ("best_pooled", "window_pooled"):
        return float(tested["pooled"])
    over: dict[str, Callable[[list[float]], float]] = {"average": mean, "highest": max}
    over |= dict.fromkeys(("lowest", "window_lowest"), min)
    return over[statistic](known(tested["accuracy"])) if statistic in over else None


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's ``rounds.jsonl``.

    Raises:
        HetflError: the file is missing or a line is not JSON.
    """
    path = folder / "rounds.jsonl"
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line]
    except (FileNotFoundError, ValueError) as error:
        raise HetflError(
            f"{path}: the record of a finished run is damaged ({error}); train the cell again"
        ) from error


def read_record(runs: Path, evaluations: Path, entry: Entry, seed: int) -> Record | None:
    """The record of one seed of a cell, or None while it is not trained to the end or not evaluated.

    Raises:
        HetflError: the evaluation belongs to another run than the one that lies there, or a file is damaged.
    """
    folder, evaluation = runs / entry.path(seed), evaluations / entry.path(seed) / "metrics.json"
    if not (folder / "run.json").exists() or not evaluation.exists():
        return None
    run = read_json(folder / "run.json")
    if run["status"] != "complete":
        return None
    metrics = read_json(evaluation)
    if metrics["fingerprint"] != run["fingerprint"]:
        raise HetflError(
            f"{evaluation}: fingerprint {metrics['fingerprint'][:12]} is not that of the run "
            f"({run['fingerprint'][:12]}); run the evaluate stage of {entry.experiment} again"
        )
    record = Record((Path(runs.name) / entry.path(seed)).as_posix(), run, read_rounds(folder), metrics)
    return record if entry.round is None else record.until(entry.round)


def missing(runs: Path, entry: Entry, seed: int) -> str:
    """Why :func:`read_record` has none: ``not run``, or ``not evaluated`` where training is complete.

    Raises:
        HetflError: the run record is damaged.
    """
    path = runs / entry.path(seed) / "run.json"
    complete = entry.round is None and path.exists() and read_json(path).get("status") == "complete"
    return "not evaluated" if complete else "not run"
