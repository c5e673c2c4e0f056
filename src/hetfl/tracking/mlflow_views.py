"""Saved views of MLflow's pages, and links to them: the one place that knows MLflow's addresses."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from hetfl.errors import without_password
from hetfl.tracking.mlflow_database import set_environment, sqlite_file, sqlite_uri
from hetfl.tracking.mlflow_metrics import AVERAGE, LAST, LOSS

SERVER = "http://127.0.0.1:5000"
"""Where ``make ui`` shows the checkout's own database."""
MOST = 50
"""Runs of a comparison; MLflow's charts of more are slow."""
VIEW = "mlflow.sharedViewState."
"""An experiment's tag with this and a key is what the Share button of MLflow's page saves."""

TABLE = "table"
"""The key of the list of all runs."""
COLUMNS = (
    *(f"tags.`{name}`" for name in ("row", "split", "seed")),
    *(
        f"metrics.`{name}`"
        for name in (AVERAGE, "accuracy/lowest", "accuracy/pooled", "bytes/total", "seconds/total")
    ),
)
TRAINING = {"workflowType": "machine_learning"}
"""Without this in an address, MLflow shows its pages for language-model applications around any experiment."""
SECTION = "Accuracy and bytes"
CHARTS = ((AVERAGE, ""), (AVERAGE, LAST), ("accuracy/lowest", ""), ("accuracy/lowest", LAST), (LOSS, ""), (LAST, ""))
"""Of a comparison: metric, and the metric of the horizontal axis; rounds where that is empty."""


def tracking_uri(root: Path) -> str:
    """Where runs go: ``MLFLOW_TRACKING_URI``, or ``mlruns/mlflow.db`` below the repository's root."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(root.resolve() / "mlruns" / "mlflow.db")


def view_key(split: str) -> str:
    """The key of the comparison of one split's runs."""
    return f"split-{split}"


def table_view() -> str:
    """All runs of an experiment with the figures that most people look for, the most accurate first."""
    return json.dumps(_view(""))


def comparison_view(split: str, seed: str | None) -> str:
    """A page of charts of all runs of a split, in which the seeds of a method are one curve.

    Args:
        split: the split.
        seed: show only the runs of this one; None: all.
    """
    only = "" if seed is None else f" AND tags.seed = '{seed}'"
    view = _view(f"tags.split = '{split}'{only}") | {
        "runsHiddenMode": "SHOW_ALL",
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "row"}]},
        "useGroupedValuesInCharts": True,
        "compareRunSections": [{"uuid": SECTION, "name": SECTION, "display": True, "isReordered": False}],
        "compareRunCharts": [_chart(*chart) for chart in CHARTS],
        "isAccordionReordered": True,
    }
    return json.dumps(view)


def address(experiment_id: str, key: str) -> str:
    """A saved view of an experiment's runs, as an address within MLflow's pages."""
    asked = {"viewStateShareKey": key, "compareRunsMode": "TABLE" if key == TABLE else "CHART", **TRAINING}
    return f"#/experiments/{experiment_id}/runs?{urlencode(asked)}"


VIEWED = f"{VIEW}{view_key('')}"
"""How the tags of comparisons begin."""


class Links:
    """Addresses of runs and comparisons in MLflow, for pages that are not MLflow's.

    What MLflow does not have, or cannot say now, has no address. A local database is read without MLflow, in
    milliseconds; a new run comes after an older one with the same fingerprint.

    Args:
        root: the repository's root.

    Attributes:
        runs: the page of each run, by its fingerprint.
        comparisons: the charts of an experiment's runs of one split, at most :data:`MOST`, by experiment and split.
    """

    def __init__(self, root: Path = Path()) -> None:
        uri = tracking_uri(root)
        self._server = without_password(uri).rstrip("/") if uri.startswith("http") else SERVER
        self.runs: dict[str, str] = {}
        self.comparisons: dict[tuple[str, str], str] = {}
        database = sqlite_file(uri)
        if database is not None and database.exists():
            with suppress(sqlite3.Error):  # `hetfl sync` says what is wrong with the database
                self._read(database)
        elif database is None:
            with suppress(Exception):  # the server is away
                self._ask(uri)

    def _add_run(self, fingerprint: str, experiment: str, run: str) -> None:
        self.runs[fingerprint] = f"{self._server}/#/experiments/{experiment}/runs/{run}?{urlencode(TRAINING)}"

    def _add_view(self, name: str, key: str, experiment: str) -> None:
        split = key.removeprefix(VIEWED)
        self.comparisons[name, split] = f"{self._server}/{address(experiment, view_key(split))}"

    def _read(self, database: Path) -> None:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            for run in connection.execute(
                "SELECT value, experiment_id, run_uuid FROM tags JOIN runs USING (run_uuid) "
                "WHERE key = 'fingerprint' AND lifecycle_stage = 'active' ORDER BY start_time"
            ):
                self._add_run(*run)
            for view in connection.execute(
                "SELECT name, key, experiment_id FROM experiment_tags JOIN experiments USING (experiment_id) "
                "WHERE key LIKE ? AND lifecycle_stage = 'active'",
                (f"{VIEWED}%",),
            ):
                self._add_view(*view)

    def _ask(self, uri: str) -> None:
        set_environment()
        from mlflow.tracking import MlflowClient

        client = MlflowClient(uri)
        for experiment in client.search_experiments():
            token: Any = ""
            while token is not None:
                runs = client.search_runs(
                    [experiment.experiment_id], page_token=token or None, order_by=["attributes.start_time"]
                )
                for run in runs:
                    if fingerprint := run.data.tags.get("fingerprint"):
                        self._add_run(fingerprint, experiment.experiment_id, run.info.run_id)
                token = runs.token or None
            for key in experiment.tags:
                if key.startswith(VIEWED):
                    self._add_view(experiment.name, key, experiment.experiment_id)


def _view(runs: str) -> dict[str, Any]:
    """What all views have in common; ``runs`` selects those that are shown."""
    return {
        "searchFilter": runs,
        "orderByKey": f"metrics.`{AVERAGE}`",
        "orderByAsc": False,
        "selectedColumns": list(COLUMNS),
    }


def _chart(metric: str, against: str) -> dict[str, Any]:
    return {
        "uuid": f"{metric} by {against}",
        "type": "LINE",
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "metricSectionId": SECTION,
        "runsCountToCompare": MOST,
        "deleted": False,
        "isGenerated": False,
        "xAxisKey": "metric" if against else "step",
        "selectedXAxisMetricKey": against,
        "useGlobalXaxisKey": False,
        "lineSmoothness": 0,
        "useGlobalLineSmoothing": True,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "range": {},
        "ignoreOutliers": False,
    }
