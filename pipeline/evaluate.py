"""Stage: test the checkpoints of one experiment or of one method in it, mirror the figures into MLflow."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl.cli import run
from hetfl.federation.plan import Workspace, cells, load_params
from hetfl.federation.schedule import evaluate_cells
from hetfl.tracking.mlflow_mirror import sync
from hetfl.tracking.train import pick


def main(experiment: str, method: Annotated[str | None, typer.Argument()] = None) -> None:
    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    chosen = pick(cells(params, experiment), method=method)
    evaluate_cells(chosen, workspace, params.compute)
    sync([workspace.runs / cell.path for cell in chosen], workspace.root)


if __name__ == "__main__":
    run(main)
