"""MLflow's local database survives interruptions, and a broken one is replaced from the records."""

import os
import shutil
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from mlflow_helpers import describe, sync_forked, sync_in_a_process, write_cell

from hetfl.errors import HetflError
from hetfl.tracking import MlflowMirror, mlflow_database, sync

TRIES = 30
SPAN = 6.0
"""Seconds in which the tries lie; on a machine that needs longer to make a database, until it is made."""


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A database as MLflow makes it."""
    root = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        MlflowMirror(root).open()
    return root / "mlruns/mlflow.db"


@pytest.fixture
def copied(template, monkeypatch):
    """New databases are copies of one that MLflow made: that takes it a second."""
    migrate = mlflow_database._migrate

    def copied_or_migrated(database: Path) -> None:
        if database.exists() and database.stat().st_size:
            migrate(database)
        else:
            shutil.copy(template, database)

    monkeypatch.setattr(mlflow_database, "_migrate", copied_or_migrated)


def half_migrated(database: Path) -> None:
    # What a process leaves that MLflow's own migration was killed in.
    execute(database, "CREATE TABLE _alembic_tmp_runs (x INTEGER)")


def of_a_newer_mlflow(database: Path) -> None:
    execute(database, "CREATE TABLE alembic_version (version_num VARCHAR(32))")
    execute(database, "INSERT INTO alembic_version VALUES ('0123456789ab')")
    execute(database, "CREATE TABLE runs (x INTEGER)")


def no_database(database: Path) -> None:
    database.write_bytes(b"no database" * 1000)
    database.with_name(f"{database.name}-journal").write_bytes(b"its journal")


def execute(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(statement)
        connection.commit()


def seeds(root: Path) -> list[str]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{root}/mlruns/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    found = client.search_runs([experiment.experiment_id])
    assert {run.info.status for run in found} == {"FINISHED"}
    return sorted(run.data.tags["seed"] for run in found)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "mlruns").iterdir())


@pytest.mark.parametrize("broken", [half_migrated, of_a_newer_mlflow, no_database])
def test_a_database_that_mlflow_cannot_use_is_made_again_from_all_records(tmp_path, capfd, copied, broken):
    folders = [write_cell(tmp_path, describe("tiny", seed=seed)) for seed in range(2)]
    (tmp_path / "mlruns").mkdir()
    broken(tmp_path / "mlruns/mlflow.db")
    assert sync(folders[:1], tmp_path) == 1
    assert seeds(tmp_path) == ["0", "1"]
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("hetfl: ") and "mlflow.db: MLflow cannot use it" in line and "hetfl sync" in line
    (kept,) = (tmp_path / "mlruns").glob("mlflow.db.broken-*[0-9]")
    assert kept.name in line
    assert not (tmp_path / "mlruns/mlflow.db-journal").exists()
    sync(folders, tmp_path)
    assert seeds(tmp_path) == ["0", "1"] and capfd.readouterr().err == ""


def test_a_database_that_was_not_all_written_out_is_made_again(tmp_path, capfd, copied):
    folder = write_cell(tmp_path, describe("tiny"))
    sync([folder], tmp_path)
    database = tmp_path / "mlruns/mlflow.db"
    with closing(sqlite3.connect(database)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'metrics'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))
    assert sync([folder], tmp_path) == 1 and seeds(tmp_path) == ["0"]
    assert "mlflow.db: MLflow cannot use it" in capfd.readouterr().err


def test_a_database_in_use_stays(tmp_path, monkeypatch, copied):
    folder = write_cell(tmp_path, describe("tiny"))
    sync([folder], tmp_path)
    before = names(tmp_path)
    monkeypatch.setattr("hetfl.tracking.mlflow_database.WAIT", 0.05)
    with closing(sqlite3.connect(tmp_path / "mlruns/mlflow.db")) as user:
        user.execute("BEGIN EXCLUSIVE")
        with pytest.raises(HetflError, match="locked"):
            sync([folder], tmp_path)
    assert names(tmp_path) == before
    assert sync([folder], tmp_path) == 1 and seeds(tmp_path) == ["0"]


def test_another_database_than_the_checkouts_own_stays(tmp_path, monkeypatch):
    folder = write_cell(tmp_path, describe("tiny"))
    theirs = tmp_path / "theirs" / "mlflow.db"
    theirs.parent.mkdir()
    no_database(theirs)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{theirs}")
    began = time.monotonic()
    with pytest.raises(HetflError, match="theirs/mlflow.db: MLflow could not open it .*not a database"):
        sync([folder], tmp_path)
    assert time.monotonic() - began < 20
    assert theirs.read_bytes().startswith(b"no database") and not list(theirs.parent.glob("*broken*"))


@pytest.mark.parametrize("statement", [40, 150])
def test_an_interruption_while_the_database_is_made_leaves_none(tmp_path, statement):
    folder = write_cell(tmp_path, describe("tiny"))
    count = 0

    def interrupt(*_):
        nonlocal count
        count += 1
        if count == statement:
            raise KeyboardInterrupt

    import sqlalchemy

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            sync([folder], tmp_path)
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", interrupt)
    assert names(tmp_path) == [".lock"]
    assert sync([folder], tmp_path) == 1 and seeds(tmp_path) == ["0"]


def test_only_a_new_database_and_the_checkouts_own_are_not_waited_for(tmp_path):
    import sqlalchemy

    def options(name: str) -> tuple[int, str]:
        with sqlalchemy.create_engine(f"sqlite:///{tmp_path / name}").connect() as connection:
            synchronous, journal = (
                connection.exec_driver_sql(f"PRAGMA {option}").scalar() for option in ("synchronous", "journal_mode")
            )
            return synchronous, journal

    with mlflow_database._not_waiting_for_the_disk(tmp_path / "new"):
        assert (options("new"), options("other")) == ((0, "memory"), (2, "delete"))
    assert options("new") == (2, "delete")
    mlflow_database.leave_writing_to_the_system(tmp_path / "new")
    # The journal stays in a file: a process that is killed must not leave half a change.
    assert (options("new"), options("other")) == ((0, "delete"), (2, "delete"))
    MlflowMirror(tmp_path).open()
    assert options("mlruns/mlflow.db") == (0, "delete")


def size(path: Path) -> int:
    """Bytes of a file; 0 if it has just been removed, as SQLite's journals are."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_kill_while_the_database_is_made_leaves_one_that_works(tmp_path, capfd):
    folder = write_cell(tmp_path, describe("tiny"))
    process = sync_forked(tmp_path, folder)
    limit = time.monotonic() + 60
    while not (half := [path for path in tmp_path.glob("mlruns/.mlflow.db.*") if size(path) > 50_000]):
        assert process.running() and time.monotonic() < limit
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait().status == -signal.SIGKILL
    assert half and not (tmp_path / "mlruns/mlflow.db").exists()
    assert sync([folder], tmp_path) == 1 and seeds(tmp_path) == ["0"]
    assert names(tmp_path) == [".lock", "artifacts", "mlflow.db"]
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_at_every_moment_leaves_a_mirror_that_works(
    kind: signal.Signals, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write_cell(tmp_path / "reference", describe("tiny"))
    began = time.monotonic()
    process = sync_in_a_process(tmp_path / "reference", folder)
    assert process.wait(300) == 0
    span = max(SPAN, time.monotonic() - began)
    left: Counter[str] = Counter()
    for number in range(1, TRIES + 1):
        moment = span * number / TRIES
        root = tmp_path / str(number)
        folder = write_cell(root, describe("tiny"))
        process = sync_in_a_process(root, folder)
        time.sleep(moment)
        os.kill(process.pid, kind)
        process.communicate(timeout=300)
        found = root / "mlruns"
        states = {"half a database": ".mlflow.db.*", "a database": "mlflow.db", "a lock": ".lock"}
        state = next((state for state, files in states.items() if any(found.glob(files))), "nothing")
        left["all" if process.returncode == 0 else state] += 1
        capfd.readouterr()
        assert sync([folder], root) == 1, moment
        assert capfd.readouterr().err == "", moment  # nothing had to be repaired
        assert sorted(path.name for path in found.iterdir()) == [".lock", "artifacts", "mlflow.db"], moment
    with capfd.disabled():
        print(f"\n{TRIES} x {kind.name} in the first {span:.1f} s left: {dict(left)}")
    # The moments must have met the making of the database, or the test would prove nothing; an interruption, unlike a
    # kill, leaves the time to clear up.
    assert left["half a database" if kind is signal.SIGKILL else "a lock"] >= 1, left
