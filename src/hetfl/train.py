"""Training of an experiment as a person sees it: checked first, shown live, mirrored into MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from hetfl.config import validate
from hetfl.errors import FailedCellsError
from hetfl.experiments.evaluation import is_evaluated
from hetfl.experiments.events import Callback
from hetfl.experiments.needs import check_needs
from hetfl.experiments.plan import (
    Cell,
    ComputeSettings,
    Params,
    Wanted,
    Workspace,
    cells,
    check_fit,
    load_params,
    pick,
)
from hetfl.experiments.record import Record
from hetfl.experiments.schedule import evaluate_cells, identities, pick_device, run_cells, unfinished
from hetfl.experiments.standing import Standing, standing
from hetfl.experiments.versions import check_versions, keys
from hetfl.planning import doubts, duration, rest_of_tables, short_plan, summary
from hetfl.schema import needed_run, read_rounds
from hetfl.tracking import Apart, MlflowMirror, Progress, Relay, following
from hetfl.tracking.mlflow_mirror import try_sync


def train_experiment(
    root: Path,
    experiment: str,
    engine: str | None = None,
    precision: str | None = None,
    evaluate: bool = False,
    **picked: Wanted,
) -> None:
    """Train an experiment's cells, or those picked; see :func:`train_cells`.

    Args:
        root: the repository's root.
        experiment: a name of params.yaml.
        engine, precision, evaluate: as for :func:`train_cells`.
        **picked: train only the cells of this ``method``, ``row``, ``split`` and ``seed``, see
            :func:`hetfl.experiments.plan.pick`.

    Raises:
        HetflError: a setting, name or input is wrong; nothing was written.
        FailedCellsError: some cells could not be trained or evaluated; the others are complete.
    """
    params = load_params(Workspace(root).params)
    train_cells(pick(cells(params, experiment), **picked), params, root, engine, precision, evaluate)


def train_cells(
    chosen: Sequence[Cell],
    params: Params,
    root: Path,
    engine: str | None = None,
    precision: str | None = None,
    evaluate: bool = False,
) -> None:
    """Train cells; finished cells are kept.

    The first lines are the plan of these cells, and of the other cells of each table that shows some of them. The
    last ones are what was trained and how accurate it is.

    Args:
        chosen: the cells.
        params: the settings that they are from.
        root: the repository's root.
        engine, precision: instead of those of params.yaml.
        evaluate: whether to evaluate the cells that are complete afterwards, so that tables show them.

    Raises:
        HetflError: a setting or input is wrong; nothing was written.
        FailedCellsError: some cells could not be trained or evaluated; the others are complete.
    """
    workspace = Workspace(root)
    check_cells(chosen, params, root)
    device = pick_device(params.compute.device)
    wanted = {key: value for key, value in (("engine", engine), ("precision", precision)) if value is not None}
    compute = validate(
        ComputeSettings, {**params.compute.model_dump(), **wanted}, " ".join(f"--{key}" for key in wanted)
    )
    check_needs(chosen, params, workspace)
    expected = identities(chosen, workspace)
    params = params.model_copy(update={"compute": compute})
    plan = short_plan(chosen, params, workspace, device)
    print("\n".join([summary(plan), *doubts(plan)]), flush=True)
    rest = rest_of_tables(chosen, params, workspace, device)
    for table, others in rest.items():
        in_git = sum(each.status.state == "in git" for each in others.left)
        among = f" ({in_git} of them in git)" if in_git else ""
        line = f"{table}: {len(others.left)} more cells of this table are not here{among}, {duration(others)}"
        print(line, flush=True)
    beyond = {table: others.seconds / others.at_once for table, others in rest.items() if others.seconds is not None}
    progress = Progress({each.cell.path: each.total for each in plan.forecasts}, beyond=beyond)
    # MLflow writes what it was told of while the cells are evaluated, and nobody waits for it to see the results.
    with following([Apart(partial(MlflowMirror, root, list(expected)))]) as mirror:
        with following([progress, *([Relay(mirror)] if mirror else [])]) as callback:
            pending = unfinished(chosen, workspace, expected, callback)
            failures = run_cells(pending, workspace, compute, callback)
        done = [cell for cell in pending if workspace.runs / cell.path not in failures]
        if done:
            print(results(done, workspace), flush=True)
        if evaluate:
            trained = [cell for cell in chosen if workspace.runs / cell.path not in failures]
            failures |= evaluate_trained(trained, workspace, compute, mirror=mirror)
    if failures:
        raise FailedCellsError(failures)


def results(trained: Sequence[Cell], workspace: Workspace) -> str:
    """The accuracies of some finished cells by row and split, mean over seeds, in percent.

    They are those of the last round, with those of the best one of a run with patience. See :class:`Standing`.
    """
    from tabulate import tabulate

    found: dict[tuple[str, str], list[Standing]] = {}
    for cell in trained:
        ended = standing(read_rounds(workspace.runs / cell.path), cell.settings["patience"])
        if ended.last is not None:
            found.setdefault((cell.row, cell.split), []).append(ended)
    rows, splits = ([*dict.fromkeys(names)] for names in zip(*found, strict=True)) if found else ([], [])
    shown = [[row, *(_shown(found.get((row, split), [])) for split in splits)] for row in rows]
    return tabulate(shown, headers=["accuracy (%)", *splits], disable_numparse=True)


def _shown(seeds: Sequence[Standing]) -> str:
    """``95.3``, or ``97.41, best 97.42 (3 seeds)``; empty without any."""
    if not seeds:
        return ""
    last = mean(seed.last for seed in seeds if seed.last is not None)
    best = [seed.best for seed in seeds if seed.best is not None]
    shown = f"{last:.2f}, best {mean(best):.2f}" if best else f"{last:.1f}"
    return shown + (f" ({len(seeds)} seeds)" if len(seeds) > 1 else "")


def evaluate_trained(
    trained: Sequence[Cell],
    workspace: Workspace,
    compute: ComputeSettings,
    again: bool = False,
    mirror: Callback | None = None,
) -> dict[Path, str]:
    """Evaluate those of some trained cells whose evaluation is missing or of another checkpoint, and tell MLflow.

    Args:
        trained: the cells.
        workspace: the checkout.
        compute: where and how.
        again: evaluate all of them.
        mirror: tells MLflow; without it, that is done here.

    Returns:
        What went wrong in one line, by the folder of the cell's record.
    """
    runs = {cell.path: needed_run(workspace.runs / cell.path) for cell in trained}
    pending = [cell for cell in trained if again or not is_evaluated(cell, workspace, runs[cell.path])]
    if not pending:
        return {}
    failures = evaluate_cells(pending, workspace, compute, again)
    evaluated = {
        folder: runs[cell.path] for cell in pending if (folder := workspace.runs / cell.path) not in failures
    }
    if mirror:
        for folder, run in evaluated.items():
            Record(folder, mirror).tell(run)
    else:
        try_sync(evaluated, workspace.root)
    print(f"{len(pending) - len(failures)} of {len(pending)} cells evaluated", flush=True)
    return failures


def check_cells(chosen: Sequence[Cell], params: Params, root: Path) -> None:
    """Check, before anything is written, all that cells need besides their inputs.

    Raises:
        HetflError: a model is unknown or does not support its method, or versions.yaml is out of date.
    """
    check_fit(params, chosen)
    check_versions(root, keys(chosen))
