"""Run records shown in MLflow. The record is the truth; what is missing here can be made from it again."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock

from hetfl.errors import FailedCellsError, HetflError, foreseen, one_line, without_password
from hetfl.experiments.events import Event
from hetfl.files import sha256_file
from hetfl.schema import METRICS, PER_CLASS, ROUNDS, RUN, Run, read_metrics, read_rounds, read_run, record_folders
from hetfl.tracking.follow import following
from hetfl.tracking.mlflow_content import FORMAT, datasets, description, experiment_tags, params, tags
from hetfl.tracking.mlflow_database import (
    ARTIFACTS,
    FILES,
    create_database,
    leave_writing_to_the_system,
    origin,
    place_artifacts,
    repair_database,
    set_environment,
    sqlite_file,
)
from hetfl.tracking.mlflow_metrics import (
    AVERAGE,
    LAST,
    LAST_OF_ALL,
    LOSS,
    Point,
    evaluated,
    milliseconds,
    points,
    wants_all,
)
from hetfl.tracking.mlflow_model import NAME, write_model
from hetfl.tracking.mlflow_views import (
    MOST,
    TABLE,
    VIEW,
    address,
    comparison_view,
    table_view,
    tracking_uri,
    view_key,
)

EVERY = 2.0
"""Seconds from one write of a running cell to the next,"""
SHARE = 20
"""but at least so many times as long as the write took: beside training, it costs a twentieth at most."""
ALL = 3
"""MLflow's number for all runs, the deleted ones too (``ViewType.ALL``)."""
CALL = {"metrics": 800, "params": 100, "tags": 100}
"""Entries of one call: MLflow takes 1000 in all, and no more parameters and tags than these."""

TITLE, REMEDY = "MLflow", "`hetfl sync` copies them to MLflow"
"""What messages call the mirror, and what does later what it could not do."""

REMOTE = ("http", "databricks")
"""How the addresses of servers begin, which keep files themselves."""


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
    from hetfl.experiments.plan import Workspace  # these import torch, which a mirror beside training does without
    from hetfl.experiments.status import is_locked

    mirror, workspace, failures = MlflowMirror(root), Workspace(root), {}
    recorded = [folder for folder in folders if (folder / RUN).exists()]
    for folder in recorded:
        client = mirror.open()
        try:
            if mirror.mirror(folder) and not is_locked(Path(*folder.parts[-4:]), workspace):
                mirror.stop(folder)
        except Exception as error:
            with mirror.reaching():  # without MLflow, no other cell can be mirrored either
                client.search_experiments(max_results=1)
            failures[folder] = f"not mirrored to MLflow ({one_line(error)})"
    if recorded:
        with mirror.reaching():
            mirror.describe()
    if failures:
        raise FailedCellsError(failures)
    return len(recorded)


def try_sync(folders: Iterable[Path], root: Path = Path()) -> None:
    """:func:`sync` where MLflow must not stop anything, nor for longer than :data:`hetfl.tracking.follow.PATIENCE`.

    What goes wrong is said on stderr, and what repairs it.
    """
    with following([_Sync(folders, root)]):
        pass


class _Sync:
    """A subscriber that needs to be told of nothing."""

    title, remedy = TITLE, REMEDY

    def __init__(self, folders: Iterable[Path], root: Path) -> None:
        self._folders, self._root = list(folders), root

    def told(self, event: Event) -> None: ...

    def close(self) -> None:
        try:
            sync(self._folders, self._root)
        except FailedCellsError as error:
            for line in str(error).splitlines():
                print(f"hetfl: {line}", file=sys.stderr)


@dataclass
class _Place:
    """Where a cell stands in MLflow: run, files, state, the last round that is there, and what it lacks."""

    run_id: str
    experiment: str
    files: str
    fingerprint: str
    status: str
    last: int
    evaluation: str
    lacks: dict[str, dict[str, str]]


class MlflowMirror:
    """A subscriber that keeps one MLflow run per cell in step with the cell's record.

    Runs go to ``MLFLOW_TRACKING_URI``, or to ``mlruns/mlflow.db`` below the root. MLflow is imported and the
    database made when the first cell is written. An event says that a record has more to read, so none must come:
    what was missed is read when the mirror is closed. Errors are raised.

    Args:
        root: the repository's root, where ``data``, ``partitions`` and ``evaluations`` lie.
        folders: of the cells that are in step when the mirror is closed.

    Raises:
        HetflError: ``HETFL_MLFLOW`` is not valid.
    """

    title, remedy = TITLE, REMEDY

    def __init__(self, root: Path = Path(), folders: Iterable[Path] = ()) -> None:
        self.root = root.resolve()
        self.uri = tracking_uri(self.root)
        self._all = wants_all()
        self._database = sqlite_file(self.uri)
        # Another database than the checkout's own may hold what no record can bring back, and be of other folders.
        self._own = self._database == self.root / "mlruns" / "mlflow.db"
        # Beside the database, since checkouts may share one.
        self._beside = self.root / "mlruns" if self._database is None else self._database.parent
        self._lock = FileLock(self._beside / ".lock", timeout=60)
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
        """Write what is not written yet; what is not finished by now was stopped."""
        for folder in list(self._behind):
            self._write(folder)
        if self._experiments:
            for folder in self._due.keys() & self._places.keys():
                self.stop(folder)
            self.describe()

    def stop(self, folder: Path) -> None:
        """Say of a cell's run, unless it is finished, that nobody trains it now."""
        place = self._places[folder]
        if place.status == "RUNNING":
            self._client.update_run(place.run_id, status="KILLED")
            place.status = "KILLED"

    def _write(self, folder: Path) -> None:
        began = time.monotonic()
        del self._behind[folder]
        try:
            found = _read(folder)
        except HetflError:
            return  # whoever trains the cell says what is wrong with its record
        try:
            if found is not None:
                self._mirror(folder, *found)
        except Exception as error:
            # Closing a mirror that has failed must not fail again for every cell.
            self._behind.clear()
            self._experiments.clear()
            raise origin(error, self._database) from error
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
        found = _read(folder)
        return None if found is None else self._mirror(folder, *found)

    def _mirror(self, folder: Path, run: Run, shown: Mapping[int, Point]) -> str:
        client = self.open()
        place = self._places.get(folder)
        if place is None or run.complete or place.fingerprint != run.fingerprint:
            place = self._places[folder] = self._find_or_create(folder, run, shown)
        new = [metric for step, point in shown.items() if step > place.last for metric in point.metrics(self._all)]
        self._log(place.run_id, metrics=new, **place.lacks)
        place.lacks = {}
        place.last = max([place.last, *shown])
        status = "FINISHED" if run.complete else "RUNNING"
        if place.status != status and run.complete:
            client.log_inputs(place.run_id, datasets(run))
            self._add_files(place, self._files(folder, run))
            with self._lock:
                self._add_model(place, folder, run)
            client.set_terminated(place.run_id, status, milliseconds(run.finished or run.started))
        elif place.status != status:
            client.update_run(place.run_id, status=status)
        place.status = status
        if run.complete:
            self._add_evaluation(place, run)
        return place.run_id

    def describe(self) -> None:
        """Describe the experiments of the cells that were written, and save the comparisons of their runs."""
        for identity in self._experiments.values():
            with self._lock:
                runs = [run.data.tags for run in self._client.search_runs([identity], max_results=50_000)]
                ours = [run for run in runs if run.get("hetfl.format") == FORMAT]
                if not ours:
                    continue
                wanted, addresses = {f"{VIEW}{TABLE}": table_view()}, {}
                for split in sorted({run["split"] for run in ours}):
                    seeds = sorted((run["seed"] for run in ours if run["split"] == split), key=int)
                    view = comparison_view(split, seeds[0] if len(seeds) > MOST else None)
                    wanted[f"{VIEW}{view_key(split)}"] = view
                    addresses[split] = address(identity, view_key(split))
                wanted["mlflow.note.content"] = description(ours, addresses, address(identity, TABLE))
                self._tag_experiment(identity, wanted)

    def open(self) -> Any:
        """Connect to MLflow the first time; a local database that it cannot use is replaced, from the records.

        Returns:
            MLflow's client.

        Raises:
            HetflError: MLflow is not installed or cannot be reached.
        """
        if self._client is None:
            set_environment()
            try:
                from mlflow.tracking import MlflowClient
            except ImportError as error:
                raise HetflError("mlflow: is not installed; pip install 'hetfl[pipeline]'") from error
            broken = None
            with self.reaching():
                Path(self._lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
                with self._lock:
                    if self._own:
                        assert self._database is not None
                        broken = repair_database(self._database)
                        leave_writing_to_the_system(self._database)
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
            if self._database is None:
                check = "check MLFLOW_TRACKING_URI and the server"
                raise HetflError(f"MLflow could not be reached ({one_line(error)}); {check}") from error
            cause = origin(error, self._database)
            told = f"MLflow could not open it ({one_line(cause)}); check that it is MLflow's and may be written"
            raise (foreseen(cause) or HetflError(f"{self._database}: {told}")) from error

    def _rebuild(self, broken: Path, error: Exception) -> None:
        print(
            f"hetfl: {self._database}: MLflow cannot use it ({one_line(error)}); moved to {broken.name}, and all "
            "records go into a new one (`hetfl sync` continues that where it is interrupted)",
            file=sys.stderr,
        )
        for folder in record_folders(self.root / "runs"):
            with suppress(Exception):  # a damaged record is told of by whoever is asked for it
                self.mirror(folder)
        with suppress(Exception):
            self.describe()

    def _experiment(self, run: Run) -> str:
        name = run.experiment
        if name not in self._experiments:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                location = None if self.uri.startswith(REMOTE) else (self._beside / FILES).as_uri()
                identity = self._client.create_experiment(name, artifact_location=location)
            elif found.lifecycle_stage != "active":
                restore = f"mlflow experiments restore --experiment-id {found.experiment_id}"
                remedy = f"MLFLOW_TRACKING_URI={without_password(self.uri)} {restore}"
                raise HetflError(f"MLflow: experiment {name!r} was deleted; bring it back with {remedy}")
            else:
                identity = found.experiment_id
            if self._own and self._database is not None:
                place_artifacts(self._database, identity, ARTIFACTS)
            self._tag_experiment(identity, experiment_tags(run))
            self._experiments[name] = identity
        return self._experiments[name]

    def _tag_experiment(self, identity: str, wanted: Mapping[str, str]) -> None:
        """Set those tags of an experiment that are not as wanted."""
        tags = self._client.get_experiment(identity).tags
        for key, value in wanted.items():
            if tags.get(key) != value:
                self._client.set_experiment_tag(identity, key, value)

    def _find_or_create(self, folder: Path, run: Run, shown: Mapping[int, Point]) -> _Place:
        wanted = tags(folder, run)
        where = " and ".join(f"tags.{key} = '{wanted[key]}'" for key in ("row", "split", "seed"))
        # A live mirror and a sync of the same cell must not both make its run.
        with self._lock:
            experiment = self._experiment(run)
            # MLflow keeps deleted runs, so that results which come back, say from DVC's cache, come back here too.
            runs = self._client.search_runs([experiment], where, run_view_type=ALL, max_results=1000)
            same = [found for found in runs if _identity(found) == (FORMAT, run.fingerprint)]
            mine, last = next((found for found in same if self._shows(found, shown)), None), -1
            if mine is None:
                name, start = f"{run.row}/{folder.name}", milliseconds(run.started)
                mine = self._client.create_run(experiment, start_time=start, tags=wanted, run_name=name)
            else:
                marker = LAST_OF_ALL if self._all else LAST
                history = self._client.get_metric_history(mine.info.run_id, marker)
                last = max((metric.step for metric in history), default=-1)
            run_id = mine.info.run_id
            if mine.info.lifecycle_stage != "active":
                self._client.restore_run(run_id)
            # Where several checkouts write, the others' runs of this cell may be the ones that their records show.
            for found in runs if self._own else ():
                ours = found.info.run_id != run_id and "fingerprint" in found.data.tags
                if ours and found.info.lifecycle_stage == "active":
                    self._client.delete_run(found.info.run_id)
        lacking = {key: value for key, value in params(run).items() if key not in mine.data.params}
        changed = {key: value for key, value in wanted.items() if mine.data.tags.get(key) != value}
        return _Place(
            run_id,
            experiment,
            files=mine.info.artifact_uri,
            fingerprint=run.fingerprint,
            status=mine.info.status,
            last=last,
            evaluation=mine.data.tags.get("evaluation", ""),
            lacks={"params": lacking, "tags": changed},
        )

    def _shows(self, found: Any, shown: Mapping[int, Point]) -> bool:
        """Whether a run's curves are the record's; if not, it shows an older training with these settings."""
        for name in (AVERAGE, LOSS):
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

    def _files(self, folder: Path, run: Run) -> dict[Path, str]:
        """Files of a run that MLflow shows, and the folders that it shows them in."""
        partition = self.root / "partitions" / run.dataset / f"{run.split}-s{run.seed}"
        return {
            partition / "samples.png": "partition",
            partition / "card.json": "partition",
            folder / RUN: "record",
            folder / ROUNDS: "record",
        }

    def _add_files(self, place: _Place, files: Mapping[Path, str]) -> None:
        """Add those files to a run that exist."""
        local = self._folder(place.files)
        for path, under in files.items():
            if not path.exists():
                continue
            if local is None:
                self._client.log_artifact(place.run_id, str(path), under)
            else:
                _link(path, local / under / path.name)

    def _add_model(self, place: _Place, folder: Path, run: Run) -> None:
        """Add a finished run's model, unless another mirror has added it; the caller holds the lock."""
        from mlflow.entities import LoggedModelOutput

        found = self._client.search_logged_models([place.experiment], f"source_run_id = '{place.run_id}'")
        if any(model.status == "READY" for model in found):
            return
        model = self._client.create_logged_model(place.experiment, NAME, place.run_id, model_type=run.method)
        remote, local = self.uri.startswith(REMOTE), self._folder(model.artifact_location)
        with TemporaryDirectory() as temporary:
            target = local or Path(temporary) / NAME
            write_model(target, folder, run, self.root / "data", remote, model.model_id, place.run_id)
            if local is None:
                self._client.log_model_artifacts(model.model_id, str(target))
        self._client.finalize_logged_model(model.model_id, "READY")
        self._client.log_outputs(place.run_id, [LoggedModelOutput(model.model_id, step=place.last)])

    def _folder(self, place: str) -> Path | None:
        """The folder that an artifact URI names relative to the root; None for one that MLflow writes to itself."""
        return None if ":" in place or place.startswith("/") else self.root / place

    def _add_evaluation(self, place: _Place, run: Run) -> None:
        folder = self.root / "evaluations" / run.path
        found = read_metrics(folder, run)
        if found is None or (checksum := sha256_file(folder / METRICS)) == place.evaluation:
            return
        self._add_files(place, {folder / name: "evaluation" for name in (METRICS, PER_CLASS)})
        metrics = evaluated(found, time.time_ns() // 1_000_000, place.last)
        self._log(place.run_id, metrics=metrics, tags={"evaluation": checksum})
        place.evaluation = checksum


def _read(folder: Path) -> tuple[Run, dict[int, Point]] | None:
    """A record's description and its rounds; None where there is no record.

    Raises:
        HetflError: it is damaged.
    """
    run = read_run(folder)
    return None if run is None else (run, points(run, read_rounds(folder, finished=run.complete)))


def _identity(found: Any) -> tuple[str | None, str | None]:
    """What a run of MLflow shows: in which format, and the fingerprint of its record."""
    tags = found.data.tags
    return tags.get("hetfl.format"), tags.get("fingerprint")


def _link(path: Path, target: Path) -> None:
    """Put a file at a second place; as a hard link, if possible, so that it takes space once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, target)
