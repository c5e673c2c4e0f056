"""Run records shown in MLflow. The record is the truth; what is missing here can be made from it again."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from filelock import FileLock

from hetfl.errors import FailedCellsError, HetflError, one_line
from hetfl.files import sha256_file
from hetfl.schema import (
    METRICS,
    MODEL,
    PER_CLASS,
    ROUNDS,
    RUN,
    Round,
    Run,
    read_metrics,
    read_rounds,
    read_run,
)
from hetfl.tracking.mlflow_database import create_database, repair_database, sqlite_file

# MLflow's own limits: characters of a parameter's value and of a name.
MAX_VALUE = 6000
MAX_NAME = 250
# A chunk of each kind makes one call, which may hold 1000 entries.
METRICS_PER_CALL, PARAMS_PER_CALL, TAGS_PER_CALL = 800, 100, 100
MAX_CLIENT_CURVES = 20
# Written last in every round: a round that has it has everything.
MARKER = "bytes/up_total"

# A mirror must neither hold up a run when it is away nor write into its display, unless the user wants it to.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def records(root: Path) -> list[Path]:
    """The folders of all run records below the repository's root, but for superseded ones."""
    return sorted(path.parent for path in (root / "runs").glob(f"[!.]*/**/{RUN}"))


def sync(folders: Iterable[Path], root: Path = Path()) -> int:
    """Bring MLflow up to date with run records: missing runs are made, incomplete ones completed.

    Args:
        folders: the cells' folders; those without a record are passed over.
        root: the repository's root.

    Returns:
        The number of cells that have a run in MLflow now.

    Raises:
        FailedCellsError: records are damaged or MLflow refuses them; all others are mirrored.
        HetflError: MLflow is not installed or cannot be reached.
    """
    mirror, failures = MlflowMirror(root), {}
    recorded = [folder for folder in folders if (folder / RUN).exists()]
    for folder in recorded:
        client = mirror.open()
        try:
            mirror.mirror(folder)
        except Exception as error:
            with mirror.reaching():  # without MLflow, no other cell can be mirrored either
                client.search_experiments(max_results=1)
            failures[folder] = f"not mirrored to MLflow ({one_line(error)})"
    if failures:
        raise FailedCellsError(failures)
    return len(recorded)


def try_sync(folders: Iterable[Path], root: Path = Path()) -> None:
    """:func:`sync` where MLflow must not stop anything: what goes wrong is said on stderr, and what repairs it."""
    try:
        sync(folders, root)
    except HetflError as error:
        for line in str(error).splitlines():
            print(f"hetfl: {line}; nothing else needs MLflow, run `hetfl sync` afterwards", file=sys.stderr)


@dataclass
class _Place:
    """Where a cell stands in MLflow: the run, its state, and the last round that is there."""

    run_id: str
    fingerprint: str
    status: str
    last: int
    evaluation: str


class MlflowMirror:
    """A watch subscriber that keeps one MLflow run per cell in step with the cell's record.

    Runs go to ``MLFLOW_TRACKING_URI``, or to ``mlruns/mlflow.db`` below the root. MLflow is imported and the
    database made when the first cell is written. Errors are raised; the watcher drops a mirror that raises.

    Args:
        root: the repository's root, where ``partitions`` and ``evaluations`` lie.
        every: seconds between two writes of one running cell.
    """

    def __init__(self, root: Path = Path(), every: float = 2.0) -> None:
        self.root = root.resolve()
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root}/mlruns/mlflow.db"
        self._every = every
        self._database = sqlite_file(self.uri)
        # Beside the database, since checkouts may share one.
        place = self.root / "mlruns" if self._database is None else self._database.parent
        self._lock = FileLock(place / ".lock", timeout=60)
        self._client: Any = None
        self._experiments: dict[str, str] = {}
        self._places: dict[Path, _Place] = {}
        self._written: dict[Path, float] = {}
        self._behind: set[Path] = set()

    def started(self, folder: Path, run: Run) -> None:
        """A cell begins; short ones are written once, when they finish."""
        self._behind.add(folder)
        self._written[folder] = time.monotonic()

    def round(self, folder: Path, run: Run, line: Round) -> None:
        """A cell is one round further."""
        self._behind.add(folder)
        if time.monotonic() - self._written[folder] >= self._every:
            self._write(folder)

    def finished(self, folder: Path, run: Run) -> None:
        """A cell is complete."""
        self._write(folder)

    def close(self) -> None:
        """Write what is not written yet."""
        for folder in sorted(self._behind):
            self._write(folder)

    def _write(self, folder: Path) -> None:
        try:
            self.mirror(folder)
        except Exception:
            # Closing a mirror that has failed must not fail again for every cell.
            self._behind.clear()
            raise
        self._behind.discard(folder)
        self._written[folder] = time.monotonic()

    def mirror(self, folder: Path) -> str | None:
        """Write to MLflow what it lacks of one cell; doing so twice changes nothing.

        Returns:
            The id of the cell's MLflow run, or None where the folder holds no record.

        Raises:
            HetflError: MLflow is not installed or the experiment was deleted in it.
            Exception: whatever MLflow, its database or its server raise.
        """
        run = read_run(folder)
        if run is None:
            return None
        client = self.open()
        complete = run.complete
        points = _points(run, read_rounds(folder, finished=complete))
        place = self._places.get(folder)
        if place is None or complete or place.fingerprint != run.fingerprint:
            place = self._places[folder] = self._find_or_create(folder, run, points)
        new = [metric for step, point in points.items() if step > place.last for metric in point.metrics()]
        self._log(place.run_id, metrics=new)
        place.last = max(place.last, *points)
        if complete and place.status != "FINISHED":
            for path, under in self._artifacts(folder, run):
                client.log_artifact(place.run_id, str(path), under)
            client.set_terminated(place.run_id, "FINISHED", _milliseconds(run.finished or run.started))
            place.status = "FINISHED"
        elif not complete and place.status != "RUNNING":
            client.update_run(place.run_id, status="RUNNING")
            place.status = "RUNNING"
        if complete:
            self._add_evaluation(place, run)
        return place.run_id

    def open(self) -> Any:
        """Connect to MLflow the first time; a local database that it cannot use is replaced, from the records.

        Returns:
            MLflow's client.

        Raises:
            HetflError: MLflow is not installed or cannot be reached.
        """
        if self._client is None:
            for name, value in ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            try:
                from mlflow.tracking import MlflowClient
            except ImportError as error:
                raise HetflError("mlflow: is not installed; pip install 'hetfl[pipeline]'") from error
            broken = None
            with self.reaching():
                Path(self._lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
                with self._lock:
                    # Another database than the checkout's own may hold what no record can bring back.
                    if self._database == self.root / "mlruns" / "mlflow.db":
                        broken = repair_database(self._database)
                    if self._database is not None:
                        create_database(self._database)
                    client = MlflowClient(tracking_uri=self.uri)
                    client.search_experiments(max_results=1)
            self._client = client
            if broken is not None:
                self._rebuild(*broken)
        return self._client

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Tell in one line that the server or the local database cannot be used.

        Raises:
            HetflError: instead of whatever the block raises.
        """
        try:
            yield
        except Exception as error:
            what, check = "MLflow could not be reached", "check MLFLOW_TRACKING_URI and the server"
            if self._database is not None:
                what, check = f"{self._database}: MLflow could not open it", "check its permissions and its disk"
            raise HetflError(f"{what} ({one_line(error)}); {check}") from error

    def _rebuild(self, broken: Path, error: Exception) -> None:
        print(
            f"hetfl: {self._database}: MLflow cannot use it ({one_line(error)}); moved to {broken.name}, and all "
            "records go into a new one (`hetfl sync` continues that where it is interrupted)",
            file=sys.stderr,
        )
        for folder in records(self.root):
            with suppress(Exception):  # a damaged record is told of by whoever is asked for it
                self.mirror(folder)

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                remote = self.uri.startswith(("http", "databricks"))
                location = None if remote else (self.root / "mlruns" / "artifacts").as_uri()
                self._experiments[name] = self._client.create_experiment(name, artifact_location=location)
            elif found.lifecycle_stage != "active":
                remedy = f"mlflow experiments restore --experiment-id {found.experiment_id}, or mlflow gc"
                raise HetflError(f"MLflow: experiment {name!r} was deleted; bring it back with {remedy}")
            else:
                self._experiments[name] = found.experiment_id
        return self._experiments[name]

    def _find_or_create(self, folder: Path, run: Run, points: Mapping[int, _Point]) -> _Place:
        tags = _tags(folder, run)
        where = " and ".join(f"tags.{key} = '{tags[key]}'" for key in ("row", "split", "seed"))
        # A live mirror and a sync of the same cell must not both make its run.
        with self._lock:
            experiment = self._experiment(run.experiment)
            runs = self._client.search_runs([experiment], where, max_results=1000)
            mine, last = None, -1
            for found in runs:
                if found.data.tags.get("fingerprint") == run.fingerprint and self._shows(found, points):
                    history = self._client.get_metric_history(found.info.run_id, MARKER)
                    mine, last = found, max((metric.step for metric in history), default=-1)
                    break
            if mine is None:
                name = f"{run.row}/{folder.name}"
                start = _milliseconds(run.started)
                mine = self._client.create_run(experiment, start_time=start, tags=tags, run_name=name)
            run_id = mine.info.run_id
            for found in runs:
                old = found.data.tags.get("superseded")
                if found.info.run_id == run_id and old:
                    self._client.delete_tag(run_id, "superseded")
                elif found.info.run_id != run_id and not old:
                    self._client.set_tag(found.info.run_id, "superseded", "true")
        params = {key: value for key, value in _params(run).items() if key not in mine.data.params}
        changed = {key: value for key, value in tags.items() if mine.data.tags.get(key) != value}
        self._log(run_id, params=params, tags=changed)
        evaluation = mine.data.tags.get("evaluation", "")
        return _Place(run_id, run.fingerprint, mine.info.status, last, evaluation)

    def _shows(self, found: Any, points: Mapping[int, _Point]) -> bool:
        """Whether a run's curves are the record's; if not, it shows an older training with these settings."""
        for name in ("accuracy/average", "loss/average"):
            for metric in self._client.get_metric_history(found.info.run_id, name):
                point = points.get(metric.step)
                value = point.values().get(name, math.nan) if point else math.nan
                if math.isfinite(value) and not math.isclose(metric.value, value, rel_tol=1e-9):
                    return False
        return True

    def _log(
        self,
        run_id: str,
        metrics: Sequence[Any] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Param, RunTag

        calls = zip_longest(
            _chunks(metrics, METRICS_PER_CALL),
            _chunks([Param(*item) for item in (params or {}).items()], PARAMS_PER_CALL),
            _chunks([RunTag(*item) for item in (tags or {}).items()], TAGS_PER_CALL),
            fillvalue=(),
        )
        for batch in calls:
            self._client.log_batch(run_id, *batch)

    def _artifacts(self, folder: Path, run: Run) -> Iterator[tuple[Path, str]]:
        partition = self.root / "partitions" / run.dataset / f"{run.split}-s{run.seed}"
        wanted = [
            (partition / "samples.png", "partition"),
            (partition / "card.json", "partition"),
            (folder / RUN, "record"),
            (folder / ROUNDS, "record"),
            (folder / MODEL, "checkpoint"),
        ]
        return ((path, under) for path, under in wanted if path.exists())

    def _add_evaluation(self, place: _Place, run: Run) -> None:
        from mlflow.entities import Metric

        folder = self.root / "evaluations" / run.experiment / run.method / run.row / f"{run.split}-s{run.seed}"
        found = read_metrics(folder)
        if found is None:
            return
        checksum = sha256_file(folder / METRICS)
        if checksum == place.evaluation:
            return
        now = time.time_ns() // 1_000_000
        metrics = found.as_json()
        for name, other in metrics.pop("extra", {}).items():
            metrics |= {f"{name}/{key}": value for key, value in other.items()}
        final = [
            Metric(_name(f"final/{name}"), float(value), now, run.rounds)
            for name, value in metrics.items()
            if _is_number(value)
        ]
        self._log(place.run_id, metrics=final)
        for name in (METRICS, PER_CLASS):
            if (folder / name).exists():
                self._client.log_artifact(place.run_id, str(folder / name), "evaluation")
        self._log(place.run_id, tags={"evaluation": checksum})
        place.evaluation = checksum


@dataclass
class _Point:
    """One round of a cell as MLflow shows it."""

    line: Round
    totals: dict[str, int]
    milliseconds: int

    def values(self) -> dict[str, float]:
        values = _curves(self.line) | self.totals
        values[MARKER] = values.pop(MARKER)
        return values

    def metrics(self) -> Iterator[Any]:
        from mlflow.entities import Metric

        for name, value in self.values().items():
            yield Metric(_name(name), float(value), self.milliseconds, self.line.round)


def _points(run: Run, lines: Iterable[Round]) -> dict[int, _Point]:
    # Times come from the record, so that writing a point again is no second point.
    clock = float(_milliseconds(run.started))
    totals = {f"{unit}/{way}_total": 0 for unit in ("elements", "bytes") for way in ("up", "down")}
    points = {}
    for line in lines:
        clock += 1000 * sum(line.seconds.values())
        for way, size in (("up", line.up), ("down", line.down)):
            totals[f"elements/{way}_total"] += size.elements
            totals[f"bytes/{way}_total"] += size.bytes
        points[line.round] = _Point(line, totals.copy(), round(clock))
    return points


def _curves(line: Round) -> dict[str, float]:
    values: dict[str, float] = {}
    clients = {k: 100 * value for k, value in enumerate(line.accuracy or ()) if value is not None}
    if percent := list(clients.values()):
        values["accuracy/average"] = sum(percent) / len(percent)
        values["accuracy/lowest"] = min(percent)
        values["accuracy/highest"] = max(percent)
        if len(percent) <= MAX_CLIENT_CURVES:
            values |= {f"accuracy/client-{client}": value for client, value in clients.items()}
    for title, shares in (("pooled", line.pooled), ("training", line.train_accuracy)):
        if (mean := _mean(shares)) is not None:
            values[f"accuracy/{title}"] = 100 * mean
    values |= {f"accuracy/pooled-{name}": 100 * other.pooled for name, other in line.extra.items()}
    if (mean := _mean(line.loss)) is not None:
        values["loss/average"] = mean
    values |= {f"seconds/{phase}": value for phase, value in line.seconds.items()}
    values["seconds/round"] = sum(line.seconds.values())
    if line.peak_memory is not None:
        values["memory/peak_mib"] = line.peak_memory / 2**20
    for group, figures in (("diagnostics", line.diagnostics), ("clients", line.clients)):
        for name, value in figures.items():
            if (mean := _mean(value)) is not None:
                values[f"{group}/{name}"] = mean
    return values


def _tags(folder: Path, run: Run) -> dict[str, str]:
    counts: Counter[str] = Counter(run.models)
    models = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
    where = "/".join(folder.parts[-5:])
    note = (
        f"{run.title} on {run.dataset}, split {run.split}, seed {run.seed}: "
        f"{run.clients} clients ({models}), {run.rounds} rounds. Record: `{where}`"
    )
    keys = ("paper", "table", "method", "row", "dataset", "split", "seed", "commit", "device", "engine", "precision")
    return {
        **{key: str(value) for key in (*keys, "fingerprint", "diverged") if (value := getattr(run, key)) is not None},
        "models": models,
        "mlflow.source.name": "hetfl",
        "mlflow.note.content": note,
    }


def _params(run: Run) -> dict[str, str]:
    told = run.as_json()
    named = {key: told[key] for key in ("partition", "inputs", "parameters", "versions")}
    return dict(_flatten({**run.settings, **named}))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield _name(f"{prefix}{key}"), text[:MAX_VALUE]


def _name(name: str) -> str:
    return re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)[:MAX_NAME]


def _mean(value: Any) -> float | None:
    """A figure itself, or the mean over its clients and theirs over classes; None where there are no numbers."""
    if isinstance(value, list):
        numbers = [mean for part in value if (mean := _mean(part)) is not None]
        return sum(numbers) / len(numbers) if numbers else None
    return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _milliseconds(when: str) -> int:
    return round(datetime.fromisoformat(when).timestamp() * 1000)


def _chunks(items: Sequence[Any], length: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + length] for start in range(0, len(items), length))
