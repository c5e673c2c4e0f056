"""Stage: lay out one table with its figures."""

from pathlib import Path

from hetfl.cli import run
from hetfl.federation.plan import Workspace, load_params
from hetfl.papers.tables import table_spec
from hetfl.report.figures import accuracy_curves, communication_figure
from hetfl.report.table import build_table, render_text, write_table


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    table = build_table(table_spec(name, load_params(workspace.params)), workspace.runs, workspace.evaluations)
    write_table(table, workspace.tables)
    accuracy_curves(table, workspace.runs, workspace.figures)
    communication_figure(table, workspace.runs, workspace.figures)
    print(render_text(table))


if __name__ == "__main__":
    run(main)
