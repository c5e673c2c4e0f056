"""Run records shown in MLflow. The record is the truth; what is missing here can be made from it again."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from hetfl.errors import FailedCellsError, HetflError, one_line
from hetfl.experiments.events import Event
from hetfl.files import sha256_file
from hetfl.schema import METRICS, MODEL, PER_CLASS, ROUNDS, RUN, Run, read_metrics, read_rounds, read_run
from hetfl.tracking.mlflow_content import MARKER, Point, final, milliseconds, params, points, tags
from hetfl.tracking.mlflow_database import create_database, repair_database, sqlite_file

EVERY = 2.0
"""Seconds from one write of a running cell to the next,"""
SHARE = 20
"""but at least so many times as long as the write took: beside training, it costs a twentieth at most."""
CALL = {"metrics": 800, "params": 100, "tags": 100}
"""Entries of one call: MLflow takes 1000 in all, and no more parameters and tags than these."""

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
    """A subscriber that keeps one MLflow run per cell in step with the cell's record.

    Runs go to ``MLFLOW_TRACKING_URI``, or to ``mlruns/mlflow.db`` below the root. MLflow is imported and the
    database made when the first cell is written. An event says that a record has more to read, so none must come:
    what was missed is read when the mirror is closed. Errors are raised.

    Args:
        root: the repository's root, where ``partitions`` and ``evaluations`` lie.
        folders: of the cells that are in step when the mirror is closed.
    """

    def __init__(self, root: Path = Path(), folders: Iterable[Path] = ()) -> None:
        self.root = root.resolve()
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root}/mlruns/mlflow.db"
        self._database = sqlite_file(self.uri)
        # Beside the database, since checkouts may share one.
        place = self.root / "mlruns" if self._database is None else self._database.parent
        self._lock = FileLock(place / ".lock", timeout=60)
        self._client: Any = None
        self._experiments: dict[str, str] = {}
        self._places: dict[Path, _Place] = {}
        self._behind = dict.fromkeys(folders)
        self._due: dict[Path, float] = {}

    def told(self, event: Event) -> None:
        """Write a cell that is complete, and a running one from time to time."""
        complete, now = event.run is not None and event.run.complete, time.monotonic()
        self._behind[event.folder] = None
        if complete or now >= self._due.setdefault(event.folder, now + EVERY):
            self._write(event.folder)

    def close(self) -> None:
        """Write what is not written yet."""
        for folder in list(self._behind):
            try:
                read_run(folder)
            except HetflError:
                continue  # whoever trains the cell says what is wrong with its record
            self._write(folder)

    def _write(self, folder: Path) -> None:
        began = time.monotonic()
        try:
            self.mirror(folder)
        except Exception:
            # Closing a mirror that has failed must not fail again for every cell.
            self._behind.clear()
            raise
        del self._behind[folder]
        now = time.monotonic()
        self._due[folder] = now + max(EVERY, SHARE * (now - began))

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
        client, shown = self.open(), points(run, read_rounds(folder, finished=run.complete))
        place = self._places.get(folder)
        if place is None or run.complete or place.fingerprint != run.fingerprint:
            place = self._places[folder] = self._find_or_create(folder, run, shown)
        new = [metric for step, point in shown.items() if step > place.last for metric in point.metrics()]
        self._log(place.run_id, metrics=new)
        place.last = max([place.last, *shown])
        status = "FINISHED" if run.complete else "RUNNING"
        if place.status != status and run.complete:
            for path, under in self._artifacts(folder, run):
                client.log_artifact(place.run_id, str(path), under)
            client.set_terminated(place.run_id, status, milliseconds(run.finished or run.started))
        elif place.status != status:
            client.update_run(place.run_id, status=status)
        place.status = status
        if run.complete:
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

    def _find_or_create(self, folder: Path, run: Run, shown: Mapping[int, Point]) -> _Place:
        wanted = tags(folder, run)
        where = " and ".join(f"tags.{key} = '{wanted[key]}'" for key in ("row", "split", "seed"))
        # A live mirror and a sync of the same cell must not both make its run.
        with self._lock:
            experiment = self._experiment(run.experiment)
            runs = self._client.search_runs([experiment], where, max_results=1000)
            same = (found for found in runs if found.data.tags.get("fingerprint") == run.fingerprint)
            mine, last = next((found for found in same if self._shows(found, shown)), None), -1
            if mine is None:
                name, start = f"{run.row}/{folder.name}", milliseconds(run.started)
                mine = self._client.create_run(experiment, start_time=start, tags=wanted, run_name=name)
            else:
                history = self._client.get_metric_history(mine.info.run_id, MARKER)
                last = max((metric.step for metric in history), default=-1)
            run_id = mine.info.run_id
            for found in runs:
                old = found.data.tags.get("superseded")
                if found.info.run_id == run_id and old:
                    self._client.delete_tag(run_id, "superseded")
                elif found.info.run_id != run_id and not old:
                    self._client.set_tag(found.info.run_id, "superseded", "true")
        lacking = {key: value for key, value in params(run).items() if key not in mine.data.params}
        changed = {key: value for key, value in wanted.items() if mine.data.tags.get(key) != value}
        self._log(run_id, params=lacking, tags=changed)
        evaluation = mine.data.tags.get("evaluation", "")
        return _Place(run_id, run.fingerprint, mine.info.status, last, evaluation)

    def _shows(self, found: Any, shown: Mapping[int, Point]) -> bool:
        """Whether a run's curves are the record's; if not, it shows an older training with these settings."""
        for name in ("accuracy/average", "loss/average"):
            for metric in self._client.get_metric_history(found.info.run_id, name):
                point = shown.get(metric.step)
                value = point.values().get(name, math.nan) if point else math.nan
                if math.isfinite(value) and not math.isclose(metric.value, value, rel_tol=1e-9):
                    return False
        return True

    def _log(self, run_id: str, metrics: Iterable[Any] = (), **named: Mapping[str, str]) -> None:
        """Write metrics, ``params`` and ``tags`` in as few calls as MLflow allows."""
        from mlflow.entities import Param, RunTag

        waiting = {
            "metrics": list(metrics),
            "params": [Param(*item) for item in named.get("params", {}).items()],
            "tags": [RunTag(*item) for item in named.get("tags", {}).items()],
        }
        while any(waiting.values()):
            self._client.log_batch(run_id, **{kind: entries[: CALL[kind]] for kind, entries in waiting.items()})
            waiting = {kind: entries[CALL[kind] :] for kind, entries in waiting.items()}

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
        folder = self.root / "evaluations" / run.experiment / run.method / run.row / f"{run.split}-s{run.seed}"
        found = read_metrics(folder)
        if found is None or (checksum := sha256_file(folder / METRICS)) == place.evaluation:
            return
        self._log(place.run_id, metrics=final(found.as_json(), time.time_ns() // 1_000_000, run.rounds))
        for name in (METRICS, PER_CLASS):
            if (folder / name).exists():
                self._client.log_artifact(place.run_id, str(folder / name), "evaluation")
        self._log(place.run_id, tags={"evaluation": checksum})
        place.evaluation = checksum
