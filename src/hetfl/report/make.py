"""A table with its figures, from whatever is there of its cells."""

from __future__ import annotations

from typing import Any

from hetfl.experiments.plan import Workspace, load_params
from hetfl.figures.curves import accuracy_curves, communication_figure
from hetfl.report.table import build_table, write_table
from hetfl.tables.catalogue import ARITHMETIC_TABLES, arithmetic_table, table_spec
from hetfl.tables.records import Compacts


def make_table(name: str, workspace: Workspace) -> dict[str, Any]:
    """Write ``tables/<name>/`` from ``runs/`` and ``evaluations/``, and where these have nothing from ``results/``.

    Nothing is trained.

    Returns:
        What the table's JSON file holds.

    Raises:
        HetflError: there is no such table, or its cells were made from different inputs.
    """
    params, folder = load_params(workspace.params), workspace.table(name)
    if name in ARITHMETIC_TABLES:
        table = arithmetic_table(name, params)
        write_table(table, folder)
        return table
    spec, compacts = table_spec(name, params), Compacts(workspace, params)
    table = build_table(spec, workspace.runs, workspace.evaluations, compacts)
    write_table(table, folder)
    if spec.curves:
        accuracy_curves(table, workspace.runs, folder, compacts)
        communication_figure(table, workspace.runs, folder, compacts)
    return table
