"""Stage: test the checkpoints of one experiment, mirror the figures into MLflow."""

from pathlib import Path

from hetfl.cli import run
from hetfl.federation.evaluation import evaluate_cell
from hetfl.federation.plan import Workspace, cells, load_params
from hetfl.federation.schedule import pick_device
from hetfl.tracking.mlflow_mirror import sync


def main(experiment: str) -> None:
    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    chosen = cells(params, experiment)
    device = pick_device(params.compute.device)
    for cell in chosen:
        evaluate_cell(cell, workspace, device, params.compute.threads)
    sync([workspace.runs / cell.path for cell in chosen], workspace.root)


if __name__ == "__main__":
    run(main)
