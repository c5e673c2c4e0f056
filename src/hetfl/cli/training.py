"""Commands that train and evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import hetfl.cli.names as names
from hetfl.cli.base import TRAIN, Targets, app, doing, opened, tolerance
from hetfl.errors import HetflError, either
from hetfl.training.registry import choices

Engine = Annotated[str | None, typer.Option(help=f"Engine: {either(choices())}.")]
Precision = Annotated[str | None, typer.Option(help="Precision of products: auto, float32, tf32 or bfloat16.")]


@app.command("train", rich_help_panel=TRAIN)
def train(
    experiment: Annotated[
        str, typer.Argument(help="An experiment of params.yaml.", autocompletion=names.known_experiments)
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only the rows of this method; may be repeated.", autocompletion=names.methods),
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Only this row; may be repeated.", autocompletion=names.rows)
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Only this split, i.e. partition; may be repeated.", autocompletion=names.splits),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only this seed; may be repeated.")] = None,
    engine: Engine = None,
    precision: Precision = None,
) -> None:
    """Train and evaluate an experiment's cells, or the selected ones; finished cells are kept.

    Example: hetfl train digits-homogeneous --row fedprox --split iid
    """
    with doing(f"checking {experiment}", work=True):
        from hetfl.train import train_experiment

    train_experiment(
        Path.cwd(), experiment, engine, precision, evaluate=True, method=method, row=row, split=split, seed=seed
    )


@app.command("run", rich_help_panel=TRAIN)
def run_cell(
    method: Annotated[str, typer.Option(help="The method, see `hetfl methods`.", autocompletion=names.methods)],
    data: Annotated[
        str | None,
        typer.Option(
            help="A data set with partitions, see `hetfl data`; without it, that of --like, or the first.",
            autocompletion=names.datasets,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="One of its partitions; without it, the first of --like, or of all.", autocompletion=names.splits
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of partition and training.")] = 0,
    models: Annotated[
        str | None, typer.Option(help="A group of models of params.yaml.", autocompletion=names.model_groups)
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method, e.g. lr=0.01; may be repeated.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="Take everything else from this experiment; without it, from the first on the data set.",
            autocompletion=names.known_experiments,
        ),
    ] = None,
    engine: Engine = None,
    precision: Precision = None,
) -> None:
    """Train and evaluate a single cell that stands in no table, outside DVC; its record is like any other's.

    Example: hetfl run --method fedhpl --data digits --split dir --rounds 5

    Example: hetfl run --method fedprox --set mu=0.5 --set local_epochs=1
    """
    workspace, params = opened(f"checking {method}", work=True)
    with doing("importing"):
        from hetfl.adhoc import adhoc, assignments
        from hetfl.train import train_cells

    given = assignments(settings or [], rounds)
    params, cell = adhoc(params, method, data, split, seed, models, given, like)
    train_cells([cell], params, Path.cwd(), engine, precision, evaluate=True)
    folder = workspace.runs.relative_to(workspace.root) / cell.path
    print(f"record: {folder}\nits curve: hetfl curve {folder}")


@app.command("evaluate", rich_help_panel=TRAIN)
def evaluate(
    targets: Targets,
    again: Annotated[bool, typer.Option("--again", help="Also evaluate what is evaluated already.")] = False,
) -> None:
    """Test the final models of trained cells: accuracy by client and class, the numbers that tables show.

    Example: hetfl evaluate digits-homogeneous
    """
    workspace, params = opened("looking for trained cells", work=True)
    with doing("importing"):
        from hetfl.errors import FailedCellsError
        from hetfl.experiments.namesakes import finished
        from hetfl.experiments.schedule import run_cells
        from hetfl.experiments.status import status
        from hetfl.targets import needed_cells
        from hetfl.train import evaluate_trained

    chosen, known = needed_cells(targets, params), finished(workspace)
    states = {cell.path: status(cell, workspace, known) for cell in chosen}
    trained = [cell for cell in chosen if states[cell.path].state == "done"]
    if not trained:
        raise HetflError(f"{', '.join(targets)}: none of the {len(chosen)} cells is trained; hetfl train does it")
    # Training brings finished records that lie elsewhere.
    elsewhere = [cell for cell in trained if states[cell.path].elsewhere]
    failures = run_cells(elsewhere, workspace, params.compute) if elsewhere else {}
    there = [cell for cell in trained if workspace.runs / cell.path not in failures]
    failures |= evaluate_trained(there, workspace, params.compute, again)
    left = f"; {len(chosen) - len(trained)} are not trained" if len(trained) < len(chosen) else ""
    print(f"{len(trained) - len(failures)} of {len(chosen)} cells are evaluated{left}")
    if failures:
        raise FailedCellsError(failures)


@app.command("sweep", rich_help_panel=TRAIN)
def sweep(
    targets: Targets,
    budget: Annotated[str | None, typer.Option(help="Stop after this time, e.g. 90s, 25m or 1h30m.")] = None,
    on: Annotated[str, typer.Option(help="Where: local, slurm or ray.")] = "local",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the order, with value, cost and expected end.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for another sweep that uses a device of this machine.")
    ] = False,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; without it, Ray starts here.")] = None,
    slurm: Annotated[
        list[str] | None, typer.Option(help="A parameter of the Slurm jobs, e.g. partition=gpu; may be repeated.")
    ] = None,
) -> None:
    """Train and evaluate cells, the most valuable per second first; the same command goes on where it stopped.

    Example: hetfl --cd papers sweep fedtgp-table-10 --budget 25m
    """
    with doing(f"choosing among the cells of {', '.join(targets)}", work=True):
        import math

        from hetfl.sweep.sweep import duration, options
        from hetfl.sweep.sweep import sweep as begin

    seconds = math.inf if budget is None else duration(budget)
    begin(Path.cwd(), targets, seconds, on, dry_run, wait, address, options(slurm or []))


@app.command("reproduce", rich_help_panel=TRAIN)
def reproduce(
    cell: Annotated[str, typer.Argument(help="A cell with a record in results/, as a path below runs/.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be trained.")] = False,
    accuracy: Annotated[
        float,
        typer.Option(
            help="Allowed difference in percentage points on another device or with other versions.",
            callback=tolerance,
        ),
    ] = 1.0,
    size: Annotated[
        float,
        typer.Option(
            help="Allowed relative difference there of message sizes that depend on training.", callback=tolerance
        ),
    ] = 0.0,
) -> None:
    """Train a recorded cell anew, beside all others, and compare; fail if it differs by more than it may.

    Example: hetfl --cd papers reproduce fedtgp-htcnn8-fashion-mnist/fedproto/fedproto/blocks-s0 --dry-run
    """
    workspace, params = opened(f"reading the record of {cell}", work=True)
    from hetfl.ledger.reproduce import compare, describe, one_cell, plan_reproduction
    from hetfl.ledger.reproduce import reproduce as train_anew
    from hetfl.targets import cells_of

    plan = plan_reproduction(one_cell(cells_of([cell], params), cell), workspace, params)
    print(describe(plan))
    if dry_run:
        return
    found = compare(plan, train_anew(plan), accuracy, size)
    print("\n".join(found.lines))
    if not found.good:
        raise HetflError(f"{plan.cell.path.as_posix()}: differs from its record by more than it may, see above")
