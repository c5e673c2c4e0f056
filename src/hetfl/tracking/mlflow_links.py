"""Where the runs of the checkout's own MLflow database are in MLflow's pages."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

SERVER = "http://127.0.0.1:5000"
"""The server that ``make ui`` starts."""

_QUERY = """
select tags.value, runs.experiment_id, runs.run_uuid from tags join runs on runs.run_uuid = tags.run_uuid
where tags.key = 'fingerprint' and runs.lifecycle_stage = 'active' order by runs.start_time
"""


def mlflow_links(root: Path) -> dict[str, str]:
    """The page of each run by its fingerprint, the newest run where there are several; empty without a database.

    The database is only read, without MLflow, whose import takes seconds.

    Args:
        root: the repository's root.
    """
    database = root / "mlruns" / "mlflow.db"
    if not database.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            found = connection.execute(_QUERY).fetchall()
    except sqlite3.Error:  # no table yet, or in use: the report does without
        return {}
    return {fingerprint: f"{SERVER}/#/experiments/{experiment}/runs/{run}" for fingerprint, experiment, run in found}
