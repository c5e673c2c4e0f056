"""Stage: lay out one table with its figures, from whatever has been run."""

from pathlib import Path

from hetfl.cli import run
from hetfl.experiments.plan import Workspace, load_params
from hetfl.figures.curves import accuracy_curves, communication_figure
from hetfl.report.formats import render_text
from hetfl.report.table import build_table, write_table
from hetfl.tables.catalogue import ARITHMETIC_TABLES, arithmetic_table, table_spec


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    params, folder = load_params(workspace.params), workspace.table(name)
    if name in ARITHMETIC_TABLES:
        table = arithmetic_table(name, params)
        write_table(table, folder)
    else:
        spec = table_spec(name, params)
        table = build_table(spec, workspace.runs, workspace.evaluations)
        write_table(table, folder)
        if spec.curves:
            accuracy_curves(table, workspace.runs, folder)
            communication_figure(table, workspace.runs, folder)
    print(render_text(table))


if __name__ == "__main__":
    run(main)
