"""Stage: lay out one experiment as a table with its figures."""

from pathlib import Path

from hetfl.cli import run
from hetfl.federation.plan import Workspace, load_params
from hetfl.report.figures import accuracy_curves, communication_figure
from hetfl.report.table import TableSpec, build_table, render_text, write_table


def main(name: str) -> None:
    workspace = Workspace(Path.cwd())
    experiment = load_params(workspace.params).experiments[name]
    spec = TableSpec(
        name=name,
        title=experiment.title,
        experiment=name,
        rows={row: settings.title for row, settings in experiment.rows.items()},
        columns=experiment.splits,
        seeds=experiment.seeds,
        note=experiment.note,
    )
    table = build_table(spec, workspace.runs, workspace.evaluations)
    write_table(table, workspace.tables)
    accuracy_curves(table, workspace.runs, workspace.figures)
    communication_figure(table, workspace.runs, workspace.figures)
    print(render_text(table))


if __name__ == "__main__":
    run(main)
