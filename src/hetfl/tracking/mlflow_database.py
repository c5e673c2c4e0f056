"""MLflow's database in a local SQLite file: made whole or not at all, and replaced where MLflow cannot use it."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from hetfl.errors import HetflError
from hetfl.files import atomic_path

# What SQLite keeps beside a database; beside another one it would be played back into that.
COMPANIONS = ("", "-journal", "-wal", "-shm")
# Errors that say nothing about a database's content: it is in use, the disk is full, files may not be written.
PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")
_REFUSED = {"SQLITE_FULL": errno.ENOSPC, "SQLITE_READONLY": errno.EROFS, "SQLITE_IOERR": errno.EIO}
"""Those that are of the disk, as the operating system's errors."""
WAIT = 20.0
"""Seconds to wait for whoever is writing to a database."""
FILES = "artifacts"
"""The folder of MLflow's files beside a database."""
ARTIFACTS = f"mlruns/{FILES}"
"""That of the checkout's own database, seen from the repository's root."""


# A mirror must neither hold up a run when it is away nor write into its display, unless the user wants it to.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # whoever calls it tells of its errors
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def set_environment() -> None:
    """Set what the user has not set, before MLflow is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def sqlite_uri(database: Path) -> str:
    """The tracking URI of a database file.

    MLflow reads ``%`` and ``?`` in the name of a folder as parts of the URI, and would make another file. Such a
    folder is left out, which is possible where commands run in the checkout.

    Raises:
        HetflError: the file cannot be named.
    """
    for path in (str(database), os.path.relpath(database)):
        if not {"%", "?"} & {*path}:
            return f"sqlite:///{path}"
    raise HetflError(f"{database}: MLflow takes no % or ? in a path; run the command in the checkout, or rename it")


def sqlite_file(uri: str) -> Path | None:
    """The file of a tracking URI such as ``sqlite:///mlruns/mlflow.db``, or None if it names no plain file."""
    path = uri.removeprefix("sqlite:///")
    return None if path in (uri, "", ":memory:") or "?" in path else Path(path).resolve()


def create_database(database: Path) -> None:
    """Make a database unless it exists; the caller holds a lock.

    MLflow makes one in about a hundred steps, and a process killed between two of them leaves one that never opens
    again. So it is made under another name.

    Raises:
        Exception: whatever MLflow and SQLite raise; there is no new database then.
    """
    if database.exists() and database.stat().st_size:
        _check(database)
        return
    # What killed processes left. The file itself is replaced in one go.
    for left in (*database.parent.glob(f".{database.name}.*"), *_companions(database)):
        if left != database:
            left.unlink()
    with atomic_path(database) as temporary:
        with _not_waiting_for_the_disk(temporary):
            _migrate(temporary)
        _add_default(temporary)


def repair_database(database: Path) -> tuple[Path, Exception] | None:
    """Bring an existing database to MLflow's present schema, or move it out of the way; the caller holds a lock.

    Returns:
        Where the database was moved to and why, or None if MLflow can use it or there is none.

    Raises:
        Exception: the database is in use, or its disk or its permissions are at fault; it stays.
    """
    if not database.exists():
        return None
    try:
        _check(database)
        _check_pages(database)
        _migrate(database)
    except Exception as error:
        if _is_passing(error):
            raise
        ending = f".broken-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        for path in _companions(database):
            path.rename(path.with_name(path.name.replace(database.name, database.name + ending, 1)))
        return database.with_name(database.name + ending), error
    return None


def place_artifacts(database: Path, experiment: str, location: str) -> None:
    """Have an experiment's future files lie at a path relative to the repository's root, in which MLflow runs.

    MLflow makes every path absolute when it creates an experiment, so files would be lost where the folder moves.

    Args:
        database: of MLflow.
        experiment: its id.
        location: the path.
    """
    with closing(sqlite3.connect(database, timeout=WAIT)) as connection, connection:
        change = "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?"
        connection.execute(change, (location, experiment))


def _check(database: Path) -> None:
    """Fail at once on what is no database: MLflow would try to open it for minutes."""
    with closing(sqlite3.connect(database, timeout=WAIT)) as connection:
        connection.execute("PRAGMA schema_version")


def _check_pages(database: Path) -> None:
    """Fail on a damaged file, such as one that was not all written out when the power failed; takes 2 ms per MB."""
    with closing(sqlite3.connect(database, timeout=WAIT)) as connection:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def _add_default(database: Path) -> None:
    """Add the experiment that MLflow adds to a database without it.

    MLflow writes the folder into its SQL, which breaks where the name has both kinds of quotes.
    """
    now = time.time_ns() // 10**6
    values = {"experiment_id": 0, "name": "Default", "artifact_location": ARTIFACTS, "lifecycle_stage": "active"}
    values |= {"creation_time": now, "last_update_time": now}
    with closing(sqlite3.connect(database)) as connection, connection:
        fields, places = ", ".join(values), ", ".join("?" * len(values))
        connection.execute(f"INSERT OR IGNORE INTO experiments ({fields}) VALUES ({places})", (*values.values(),))


def _migrate(database: Path) -> None:
    """What ``mlflow db upgrade`` does: make all tables of an empty database, or bring older ones up to date."""
    from mlflow.db import upgrade

    assert upgrade.callback is not None
    upgrade.callback(sqlite_uri(database))


@cache
def leave_writing_to_the_system(database: Path) -> None:
    """From now on, do not wait until the disk has what this process writes to a database.

    MLflow commits some twenty times for one run, and waits for the disk longer than it computes. A killed process
    still loses nothing; what a power failure damages, :func:`repair_database` finds. So this is for a database that
    can be made again.
    """
    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", _choosing(database, "synchronous = OFF"))


@contextmanager
def _not_waiting_for_the_disk(database: Path) -> Iterator[None]:
    """For a file that is of no use before it is whole and then written out at once: SQLite waits for every step."""
    from sqlalchemy import Engine, event

    connected = _choosing(database, "synchronous = OFF", "journal_mode = MEMORY")
    event.listen(Engine, "connect", connected)
    try:
        yield
    finally:
        event.remove(Engine, "connect", connected)


def _choosing(database: Path, *choices: str) -> Callable[[Any, Any], None]:
    """A listener for SQLAlchemy's new connections, which sets options of SQLite in those to one database."""
    path = os.path.realpath(database)

    def connected(connection: Any, record: Any) -> None:
        if [file for _, _, file in connection.execute("PRAGMA database_list")] == [path]:
            for choice in choices:
                connection.execute(f"PRAGMA {choice}")

    return connected


def _companions(database: Path) -> Iterator[Path]:
    paths = (database.with_name(database.name + ending) for ending in COMPANIONS)
    return (path for path in paths if path.exists())


def origin(error: BaseException, database: Path | None = None) -> BaseException:
    """The error of SQLite or of the operating system that caused one of MLflow's; that one itself if none did.

    A full or read-only disk is an OSError, as everywhere, that names the database.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HetflError | OSError | MemoryError | ImportError):
            return cause
        if isinstance(cause, sqlite3.Error):
            name = getattr(cause, "sqlite_errorname", "") or ""
            number = next((number for start, number in _REFUSED.items() if name.startswith(start)), None)
            return cause if number is None else OSError(number, os.strerror(number), str(database))
        cause = cause.__cause__ or cause.__context__
    return error


def _is_passing(error: BaseException) -> bool:
    """Whether an error, or what caused it, says nothing about the database's content."""
    cause = origin(error)
    if isinstance(cause, OSError | MemoryError | ImportError):
        return True
    name = getattr(cause, "sqlite_errorname", "") or ""
    return isinstance(cause, sqlite3.Error) and name.startswith(PASSING)
