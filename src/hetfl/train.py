"""Training of an experiment as a person sees it: checked first, shown live, mirrored into MLflow."""

from __future__ import annotations

from pathlib import Path

from hetfl.config import validate
from hetfl.errors import FailedCellsError, HetflError
from hetfl.experiments.plan import Cell, ComputeSettings, Workspace, cells, check_fit, check_models, load_params
from hetfl.experiments.schedule import identities, pick_device, run_cells, unfinished
from hetfl.experiments.versions import check_versions, keys
from hetfl.tracking.mlflow_mirror import MlflowMirror
from hetfl.tracking.progress import Progress
from hetfl.tracking.watch import Subscriber, Watcher


def train_experiment(
    root: Path, experiment: str, engine: str | None = None, precision: str | None = None, **picked: str | int | None
) -> None:
    """Train an experiment's cells, or those picked; finished cells are kept.

    Args:
        root: the repository's root.
        experiment: a name of params.yaml.
        engine, precision: instead of those of params.yaml.
        **picked: train only the cells of this ``method``, ``row``, ``split`` and ``seed``, see :func:`pick`.

    Raises:
        HetflError: a setting, name or input is wrong; nothing was written.
        FailedCellsError: some cells could not be trained; the others are complete.
    """
    workspace = Workspace(root)
    params = load_params(workspace.params)
    chosen = pick(cells(params, experiment), **picked)
    settings = params.experiments[experiment]
    for group in dict.fromkeys(settings.rows[cell.row].models or settings.models for cell in chosen):
        check_models(params, group)
    check_fit(params, chosen)
    check_versions(root, keys(chosen))
    pick_device(params.compute.device)
    wanted = {key: value for key, value in (("engine", engine), ("precision", precision)) if value is not None}
    compute = validate(ComputeSettings, {**params.compute.model_dump(), **wanted}, "hetfl train")
    expected = identities(chosen, workspace)
    pending = unfinished(chosen, workspace, expected)
    rounds = sum(cell.settings["rounds"] for cell in chosen)
    subscribers: list[Subscriber] = [Progress(len(chosen), rounds), MlflowMirror(root)]
    with Watcher(list(expected), subscribers, fingerprints=expected):
        failures = run_cells(pending, workspace, compute)
    if failures:
        raise FailedCellsError(failures)


def pick(all_cells: list[Cell], **wanted: str | int | None) -> list[Cell]:
    """The cells that match what is given, by attribute of a cell; None matches all.

    Raises:
        HetflError: none does.
    """
    chosen = all_cells
    for key, value in wanted.items():
        if value is None:
            continue
        known = list(dict.fromkeys(getattr(cell, key) for cell in chosen))
        chosen = [cell for cell in chosen if getattr(cell, key) == value]
        if not chosen:
            raise HetflError(f"--{key}: unknown {key} {value!r}; known: {', '.join(map(str, known))}")
    return chosen
