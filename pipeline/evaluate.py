"""Stage: test the checkpoints of one experiment or of one method in it, mirror the figures into MLflow."""

from pathlib import Path
from typing import Annotated

import typer

from hetfl.cli import run
from hetfl.errors import FailedCellsError


def main(experiment: str, method: Annotated[str | None, typer.Argument()] = None) -> None:
    # These import torch for seconds, where Ctrl-C is one line in here.
    from hetfl.experiments.plan import Workspace, cells, load_params, pick
    from hetfl.experiments.schedule import evaluate_cells
    from hetfl.tracking.mlflow_mirror import try_sync

    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    chosen = pick(cells(params, experiment), method=method)
    failures = evaluate_cells(chosen, workspace, params.compute)
    folders = [workspace.runs / cell.path for cell in chosen]
    try_sync([folder for folder in folders if folder not in failures], workspace.root)
    if failures:
        raise FailedCellsError(failures)


if __name__ == "__main__":
    run(main)
