"""A table with its figures, from whatever is there of its cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from hetfl.compact import WAYS
from hetfl.errors import HetflError
from hetfl.experiments.plan import Workspace, load_params
from hetfl.figures.curves import accuracy_curves, communication_figure, curve_points
from hetfl.files import clear_leftovers, read_json, write_text
from hetfl.report.table import build_table, write_table
from hetfl.tables.catalogue import ARITHMETIC_TABLES, arithmetic_table, check_tables, table_spec
from hetfl.tables.records import Records

METRICS, CURVES = "metrics.yaml", "curves.csv"
"""Files in a table's folder that ``dvc metrics`` and ``dvc plots`` read."""


def make_table(name: str, workspace: Workspace) -> dict[str, Any]:
    """Write ``tables/<name>/`` from ``runs/`` and ``evaluations/``, and where these have nothing from ``results/``.

    Nothing is trained.

    Returns:
        What the table's JSON file holds.

    Raises:
        HetflError: there is no such table, or its cells were made from different inputs, or none of them is finished
            here while the table that is there has some: that one stays.
    """
    params, folder = load_params(workspace.params), workspace.table(name)
    check_tables([name], params)
    clear_leftovers(folder)
    if name in ARITHMETIC_TABLES:
        table = arithmetic_table(name, params)
        write_table(table, folder)
        return table
    spec, records = table_spec(name, params), Records(workspace, params)
    table, there = build_table(spec, records), folder / f"{name}.json"
    if not _tells(table) and there.exists() and any(cell["seeds"] for cell in read_json(there)["cells"]):
        raise HetflError(
            f"{there.relative_to(workspace.root)}: stays, since none of its cells is finished here; hetfl show "
            f"{name} prints it, dvc pull or hetfl import brings cells, hetfl plan says what training them takes"
        )
    write_table(table, folder)
    write_text(folder / METRICS, yaml.safe_dump(headline(table), sort_keys=False))
    if spec.curves:
        points = curve_points(table, records)
        write_text(folder / CURVES, "" if points.empty else points.to_csv(index=False, lineterminator="\n"))
        accuracy_curves(table, records, folder)
        communication_figure(table, records, folder)
    return table


def _tells(table: Mapping[str, Any]) -> bool:
    """Whether a table has the number of a run, or says why one is none; it does not while all runs are elsewhere."""
    return any(cell["seeds"] or cell["status"] in ("stale", "broken") for cell in table["cells"])


def headline(table: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """A table's numbers in short: by row, the value of every column that has one, in the column's unit.

    ``megabytes`` is what a run sends in all, up and down, mean over the columns and their seeds.
    """
    found: dict[str, dict[str, float]] = {}
    for row in table["rows"]:
        done = [cell for cell in table["cells"] if cell["row"] == row and cell.get("value") is not None]
        run = [cell for cell in done if cell.get("up")]
        traffic = [cell[way]["total"]["bytes"] for cell in run for way in WAYS]
        if done:
            found[row] = {cell["column"]: round(cell["value"], 3 if cell.get("unit") == "M" else 2) for cell in done}
        if traffic:
            found[row]["megabytes"] = round(sum(traffic) / len(run) / 1e6, 3)
    return found
