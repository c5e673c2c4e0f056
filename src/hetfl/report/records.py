"""Reading what a cell left behind: its run record, its rounds and its evaluation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetfl.errors import HetflError
from hetfl.files import read_json


@dataclass(frozen=True)
class Record:
    """One finished and evaluated cell.

    Attributes:
        path: the run folder relative to the folder that holds ``runs``, with forward slashes.
        run: the content of ``run.json``.
        rounds: the lines of ``rounds.jsonl``, registration (round 0) included.
        metrics: the content of the evaluation's ``metrics.json``.
    """

    path: str
    run: dict[str, Any]
    rounds: list[dict[str, Any]]
    metrics: dict[str, Any]

    @property
    def training(self) -> list[dict[str, Any]]:
        """The rounds that train, so without the registration."""
        return [line for line in self.rounds if line["round"] >= 1]


def cell_folder(root: Path, experiment: str, row: str, split: str, seed: int) -> Path:
    """Where a cell lies below ``runs`` or ``evaluations``."""
    return root / experiment / row / f"{split}-s{seed}"


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's ``rounds.jsonl``.

    Raises:
        HetflError: the file is missing or a line is not JSON.
    """
    path = folder / "rounds.jsonl"
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line]
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise HetflError(
            f"{path}: the record of a finished run is damaged ({error}); train the cell again"
        ) from error


def read_record(runs: Path, evaluations: Path, experiment: str, row: str, split: str, seed: int) -> Record | None:
    """A cell's record, or None while it is not trained to the end or not evaluated.

    Raises:
        HetflError: the evaluation belongs to another run than the one that lies there, or a file is damaged.
    """
    folder = cell_folder(runs, experiment, row, split, seed)
    evaluation = cell_folder(evaluations, experiment, row, split, seed) / "metrics.json"
    if not (folder / "run.json").exists() or not evaluation.exists():
        return None
    run = read_json(folder / "run.json")
    if run["status"] != "complete":
        return None
    metrics = read_json(evaluation)
    if metrics["fingerprint"] != run["fingerprint"]:
        raise HetflError(
            f"{evaluation}: fingerprint {metrics['fingerprint'][:12]} is not that of the run "
            f"({run['fingerprint'][:12]}); run the evaluate stage of {experiment} again"
        )
    path = cell_folder(Path(runs.name), experiment, row, split, seed).as_posix()
    return Record(path, run, read_rounds(folder), metrics)
