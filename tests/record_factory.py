"""Records for tests, all made by the code that makes records.

A tiny federation is trained and evaluated once per session. Every record that a test asks for goes through the same
writer: it is that run, but for what the test says differently, so it has every field that a record has and no other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from hetfl.data.inputs import InputSettings
from hetfl.data.partitions import Iid, make_partition, write_partition
from hetfl.data.store import Subset, read_dataset, write_dataset
from hetfl.draws import Draws, seeded_library_code
from hetfl.experiments.cell import run_cell
from hetfl.experiments.evaluation import evaluate_cell
from hetfl.experiments.plan import Cell, DataSettings, Params, Workspace
from hetfl.experiments.record import Record
from hetfl.files import write_json
from hetfl.methods import METHODS
from hetfl.models.registry import creator, weights_path
from hetfl.schema import METRICS, Metrics, Round, Run, needed_run, read_metrics, read_rounds
from hetfl.tables.records import Records
from hetfl.tensors import write_tensors
from hetfl.training.state import State

CLIENTS, CLASSES, ROUNDS, MODEL = 5, 3, 2, "digits_vit_base"
NO_CELLS = Params(data=DataSettings(), partitions={}, models={})
made = ExitStack()
"""What is removed when the tests end."""


class Trained(NamedTuple):
    """What the tiny federation left behind."""

    folder: Path
    run: Run
    rounds: list[Round]
    metrics: Metrics


@cache
def project() -> tuple[Workspace, Cell]:
    """A checkout with two rounds of FedHPL with five clients, nothing trained."""
    root = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="hetfl-record-")))
    workspace, scheme = Workspace(root), Iid(clients=CLIENTS)
    rng = Draws(0).numpy_generator("toy")

    def subset(samples: int) -> Subset:
        images = rng.integers(0, 256, (samples, 8, 8, 1)).astype(np.uint8)
        return Subset(images, np.arange(samples, dtype=np.int64) % CLASSES)

    write_dataset(
        workspace.dataset("toy"),
        name="toy",
        title="Toy",
        origin="tests",
        licence="none",
        source=[{"name": "toy", "from": "drawn"}],
        settings={},
        class_names=("a", "b", "c"),
        subsets={"train": subset(60), "test": subset(30)},
    )
    dataset = read_dataset(workspace.dataset("toy"))
    partition = make_partition(scheme, dataset, Draws(0))
    write_partition(workspace.partition("toy", "iid", 0), partition, scheme, dataset, 0)
    with seeded_library_code(0):
        write_tensors(weights_path(MODEL, workspace.weights), creator(MODEL)().state_dict())
    cell = Cell(
        experiment="toy",
        row="fedhpl",
        title="FedHPL",
        paper="fedhpl",
        split="iid",
        seed=0,
        dataset="toy",
        models=[MODEL] * CLIENTS,
        partition=scheme.model_dump(),
        input=InputSettings(),
        public=None,
        method="fedhpl",
        settings=METHODS["fedhpl"].Settings(rounds=ROUNDS, participation=1.0, batch_size=8).model_dump(),
    )
    return workspace, cell


@cache
def trained() -> Trained:
    """The project's cell, trained and evaluated as `hetfl train` and its stages do."""
    workspace, cell = project()
    run_cell(cell, workspace, torch.device("cpu"))
    evaluate_cell(cell, workspace, torch.device("cpu"))
    folder = workspace.runs / cell.path
    run = needed_run(folder)
    metrics = read_metrics(workspace.evaluations / cell.path, run)
    assert metrics is not None
    return Trained(folder, run, read_rounds(folder, finished=True), metrics)


def records_below(root: Path) -> Records:
    """All records below a root, those of cells that no settings describe too."""
    return Records(Workspace(root), NO_CELLS)


def make_run(path: Path | str | None = None, **changes: Any) -> Run:
    """A run that begins at ``<experiment>/<method>/<row>/<split>-s<seed>``, with other fields as given."""
    told = trained().run.as_json()
    del told["finished"]
    if path is not None:
        experiment, method, row, cell = Path(path).parts
        split, _, seed = cell.rpartition("-s")
        told |= {"experiment": experiment, "table": experiment, "method": method, "row": row}
        told |= {"split": split, "seed": int(seed)}
    return Run.model_validate({**told, "status": "running", **changes})


def make_round(number: int, **changes: Any) -> Round:
    """The trained run's round of that number, or its last one with that number, with other fields as given."""
    return Round.model_validate(trained().rounds[min(number, ROUNDS)].as_json() | {"round": number} | changes)


def make_metrics(**changes: Any) -> Metrics:
    """The trained run's evaluation with other fields as given."""
    return Metrics.model_validate(trained().metrics.as_json() | changes)


def write_record(
    runs: Path,
    path: Path | str,
    lines: Iterable[Round],
    status: str = "complete",
    finished: str = "2026-01-01T00:01:00+00:00",
    **changes: Any,
) -> Path:
    """Have the writer make a record.

    Args:
        runs: the folder of run records.
        path: of the cell below it.
        lines: its rounds.
        status: ``running`` leaves it unfinished.
        finished: when.
        **changes: of the run.

    Returns:
        The record's folder.
    """
    record = Record(runs / path)
    with mock.patch("hetfl.experiments.record.now", return_value=finished):
        record.begin(make_run(path, **changes), completed=0)
        last = 0
        for line in lines:
            record.append(line)
            last = line.round
        if status == "complete":
            record.finish(State(last, {"x": torch.zeros(1)}))
    return record.folder


def write_metrics(evaluations: Path, path: Path | str, **changes: Any) -> Path:
    """The evaluation's ``metrics.json`` of a cell, as an evaluation writes it; returns its folder."""
    write_json(evaluations / path / METRICS, make_metrics(**changes).as_json())
    return evaluations / path


def rewrite_run(folder: Path, change: Mapping[str, Any]) -> None:
    """Put other values into a record's ``run.json``."""
    told = needed_run(folder).as_json() | change
    write_json(folder / "run.json", Run.model_validate(told).as_json())


def rewrite_rounds(folder: Path, rounds: Iterable[Round]) -> None:
    """Put other lines into a record's ``rounds.jsonl``."""
    (folder / "rounds.jsonl").write_text("")
    for line in rounds:
        Record(folder).append(line)
