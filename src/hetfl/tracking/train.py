"""Training of an experiment as a person sees it: checked first, shown live, mirrored into MLflow."""

from __future__ import annotations

from pathlib import Path

from hetfl.errors import HetflError
from hetfl.federation.plan import Cell, Workspace, cells, check_models, load_params
from hetfl.federation.schedule import identities, pick_device, run_cells, unfinished
from hetfl.tracking.mlflow_mirror import MlflowMirror
from hetfl.tracking.progress import Progress
from hetfl.tracking.watch import Subscriber, Watcher


def train_experiment(
    root: Path, experiment: str, row: str | None = None, split: str | None = None, seed: int | None = None
) -> None:
    """Train an experiment's cells, or those picked by row, split and seed; finished cells are kept.

    Args:
        root: the repository's root.
        experiment: a name of params.yaml.
        row, split, seed: train only cells that match.

    Raises:
        HetflError: a setting, name or input is wrong; nothing was written.
    """
    workspace = Workspace(root)
    params = load_params(workspace.params)
    chosen = pick(cells(params, experiment), row, split, seed)
    check_models(params, params.experiments[experiment].models)
    pick_device(params.compute.device)
    expected = identities(chosen, workspace)
    pending = unfinished(chosen, workspace, expected)
    rounds = sum(cell.settings["rounds"] for cell in chosen)
    subscribers: list[Subscriber] = [Progress(len(chosen), rounds), MlflowMirror(root)]
    with Watcher(list(expected), subscribers, fingerprints=expected):
        run_cells(pending, workspace, params.compute)


def pick(all_cells: list[Cell], row: str | None, split: str | None, seed: int | None) -> list[Cell]:
    """The cells that match what is given.

    Raises:
        HetflError: none does.
    """
    wanted = {"row": row, "split": split, "seed": seed}
    for key, value in wanted.items():
        known = list(dict.fromkeys(getattr(cell, key) for cell in all_cells))
        if value is not None and value not in known:
            raise HetflError(f"--{key}: unknown {key} {value!r}; known: {', '.join(map(str, known))}")
    return [
        cell
        for cell in all_cells
        if all(value is None or getattr(cell, key) == value for key, value in wanted.items())
    ]
