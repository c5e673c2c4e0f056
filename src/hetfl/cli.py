"""The command line, for everything besides `dvc repro`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from hetfl.errors import HetflError

app = typer.Typer(
    help="Reproducible tables of heterogeneous federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Experiment = Annotated[str, typer.Argument(help="An experiment of params.yaml.")]
Targets = Annotated[list[str], typer.Argument(help="Tables, experiments, or cells as paths below runs/.")]


def run(command: Callable[..., Any]) -> None:
    """Run a typer command or app. A :class:`HetflError` is printed in one line, with exit status 2."""
    try:
        typer.run(command) if not isinstance(command, typer.Typer) else command()
    except HetflError as error:
        for line in str(error).replace(f"{Path.cwd()}/", "").splitlines():
            print(f"error: {line}", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as end:
        # typer turns Ctrl-C into this status.
        if end.code == 130:
            print("interrupted; the same command continues from the last completed round", file=sys.stderr)
        raise


def main() -> None:
    """Entry point of ``hetfl``."""
    run(app)


@app.command("check")
def check() -> None:
    """Check all settings and names, whether methods support their models, and whether DVC's stages are up to date."""
    from hetfl.experiments.plan import cells, check_fit, check_models, load_params
    from hetfl.stages import check as check_stages

    params = load_params(Path("params.yaml"))
    for group in params.models:
        check_models(params, group)
    for experiment in params.experiments:
        check_fit(params, cells(params, experiment))
    check_stages(params, Path.cwd())
    print(f"params.yaml: {len(params.experiments)} experiments, no mistakes")


@app.command("stages")
def stages() -> None:
    """Update every dvc.yaml, after adding or removing an experiment, a data set or a table."""
    from hetfl.experiments.plan import load_params
    from hetfl.stages import write

    for file in write(load_params(Path("params.yaml")), Path.cwd()):
        print(f"{file}: written")


@app.command("tables")
def tables() -> None:
    """List the tables: how many cells their stages train, how many they print, and how many of these are done."""
    from tabulate import tabulate

    from hetfl.experiments.plan import Workspace, cells, load_params
    from hetfl.experiments.status import status
    from hetfl.stages import printed_by, table_names, trained_by

    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    every = {cell.path: cell for name in params.experiments for cell in cells(params, name)}
    state = cache(lambda path: status(every[path], workspace).state)
    trained, rows = trained_by(params), []
    for name in table_names(params):
        printed = printed_by(name, params)
        # What the next training would train anew is not done, whatever its record says.
        found = Counter(map(state, printed))
        rows.append((name, len(trained[name]), len(printed), found["done"]) if printed else (name, "counted", "", ""))
    print(tabulate(rows, headers=["table", "trains", "prints", "done"]))


@app.command("methods")
def methods() -> None:
    """List the methods: whether clients' models may differ, and what clients and server send each other."""
    from tabulate import tabulate

    from hetfl.methods import METHODS

    rows = [
        (name, cls.title, "yes" if cls.heterogeneous else "no", cls.travels, cls.source)
        for name, cls in sorted(METHODS.items())
    ]
    print(tabulate(rows, headers=["method", "title", "models may differ", "what travels", "source"]))


@app.command("data")
def data(
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the prepared files against their checksums.")
    ] = False,
) -> None:
    """List the data sets: which are prepared, from which files, and their licences."""
    from tabulate import tabulate

    from hetfl.data.catalogue import CATALOGUE
    from hetfl.data.store import read_card, verify_dataset
    from hetfl.experiments.plan import Workspace

    workspace = Workspace(Path.cwd())
    rows = []
    for name, entry in CATALOGUE.items():
        sizes, origin = "not prepared", ""
        if (folder := workspace.dataset(name)).exists():
            if verify:
                verify_dataset(folder)
            card = read_card(folder)
            sizes = ", ".join(f"{subset} {size}" for subset, size in card.subset_sizes.items())
            origin = ", ".join(dict.fromkeys(file["from"] for file in card.source))
        rows.append((name, entry.title, len(entry.class_names), sizes, origin, entry.licence))
    print(tabulate(rows, headers=["name", "title", "classes", "prepared", "from", "licence"]))


@app.command("cells")
def list_cells(
    targets: Targets,
    settings: Annotated[
        bool, typer.Option("--settings", help="Print each row's settings and where they are set.")
    ] = False,
) -> None:
    """List cells: whether they are done and, if a record is stale, why."""
    from tabulate import tabulate

    from hetfl.experiments.plan import Workspace, load_params, origins
    from hetfl.experiments.status import status
    from hetfl.targets import cells_of

    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    chosen = cells_of(targets, params)
    if settings:
        for cell in {(cell.experiment, cell.row): cell for cell in chosen}.values():
            lines = [(name, str(value), origin) for name, (value, origin) in origins(params, cell).items()]
            print(f"{cell.row}: {cell.method} on {', '.join(dict.fromkeys(cell.models))}")
            print(tabulate(lines, headers=["setting", "value", "from"], disable_numparse=True), end="\n\n")
        return
    several = len({cell.experiment for cell in chosen}) > 1
    rows = [
        (*([cell.experiment] if several else []), cell.method, cell.row, cell.split, cell.seed, str(found), found.why)
        for cell in chosen
        for found in [status(cell, workspace)]
    ]
    heads = [*(["experiment"] if several else []), "method", "row", "split", "seed", "status", "because"]
    print(tabulate(rows, headers=heads))


@app.command("plan")
def plan(
    targets: Targets,
    measure: Annotated[
        bool, typer.Option("--calibrate", help="First measure a few steps of each network here; kept for later.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with one entry for each cell.")] = False,
) -> None:
    """Say what training would take: cells, rounds, images, operations, bytes, time, data and weights.

    Example: hetfl plan fedtgp-table-10
    """
    import json

    from hetfl.experiments.plan import Workspace, load_params
    from hetfl.experiments.schedule import pick_device
    from hetfl.planning import make_plan, render
    from hetfl.targets import cells_of

    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    told = (lambda case: print(f"measuring {case.key}", file=sys.stderr)) if measure else None
    made = make_plan(cells_of(targets, params), params, workspace, pick_device(params.compute.device), told)
    print(json.dumps(made.as_json(), indent=1) if as_json else render(made))


@app.command("export")
def export(
    targets: Targets,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("cells.tar"),
) -> None:
    """Write trained and interrupted cells into one file, to go on elsewhere: `hetfl import` takes them over.

    Example: hetfl export fedtgp-table-10 -o table-10.tar
    """
    from rich.filesize import decimal

    from hetfl.experiments.plan import Workspace, load_params
    from hetfl.experiments.share import export_cells
    from hetfl.targets import cells_of

    workspace = Workspace(Path.cwd())
    wanted = cells_of(targets, load_params(workspace.params))
    written = export_cells(wanted, workspace, out)
    print(f"{out}: {len(written)} of {len(wanted)} cells, {decimal(out.stat().st_size)}")


@app.command("import")
def import_(file: Annotated[Path, typer.Argument(help="A file that `hetfl export` wrote.")]) -> None:
    """Take over the cells of a file after checking checksums and identity. Doing it twice changes nothing."""
    from tabulate import tabulate

    from hetfl.experiments.plan import Workspace, cells, load_params
    from hetfl.experiments.share import import_cells

    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    every = [cell for name in params.experiments for cell in cells(params, name)]
    taken = import_cells(file, every, workspace)
    print(tabulate([(one.cell, one.outcome, one.why) for one in taken], headers=["cell", "outcome", "because"]))


@app.command("versions")
def versions() -> None:
    """Update versions.yaml, which DVC's stages depend on, and print the changes."""
    from hetfl.experiments.versions import FILE, write_versions

    changed = write_versions(Path.cwd())
    for key, (old, new) in changed.items():
        print(f"{key}: {'new' if old is None else old} -> {'gone' if new is None else new}")
    print(f"{FILE}: {len(changed) or 'no'} change{'' if len(changed) == 1 else 's'}")


@app.command("superseded")
def superseded() -> None:
    """List finished records that a retrained cell has replaced; a cell uses them again when it has their settings."""
    from rich.filesize import decimal
    from tabulate import tabulate

    from hetfl.experiments.plan import Workspace
    from hetfl.experiments.superseded import listing

    rows = [
        (found["cell"], found["fingerprint"][:12], found["finished"], decimal(found["bytes"]), found["now"])
        for found in listing(Workspace(Path.cwd()).runs)
    ]
    print(tabulate(rows, headers=["cell", "fingerprint", "finished", "size", "its successor"]))


@app.command("prune")
def prune(
    everything: Annotated[
        bool, typer.Option("--all", help="Also remove records of cells without a finished record.")
    ] = False,
) -> None:
    """Remove superseded records (see `hetfl superseded`) of cells that have a finished record."""
    from rich.filesize import decimal

    from hetfl.experiments.plan import Workspace
    from hetfl.experiments.superseded import listing
    from hetfl.experiments.superseded import prune as remove

    workspace = Workspace(Path.cwd())
    removed, freed = remove(workspace, everything)
    kept = len(listing(workspace.runs))
    print(f"{removed} superseded records removed, {decimal(freed)} freed, {kept} kept")


@app.command("train")
def train(
    experiment: Experiment,
    method: Annotated[str | None, typer.Option(help="Only the rows of this method.")] = None,
    row: Annotated[str | None, typer.Option(help="Only this row.")] = None,
    split: Annotated[str | None, typer.Option(help="Only this split, i.e. partition.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only this seed.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine: auto, sequential or batched.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Precision of frozen blocks: auto, float32 or bfloat16.")
    ] = None,
) -> None:
    """Train and evaluate an experiment's cells, or the selected ones; finished cells are kept.

    Example: hetfl train digits-homogeneous --row fedprox --split iid
    """
    from hetfl.train import train_experiment

    picked = {"method": method, "row": row, "split": split, "seed": seed}
    train_experiment(Path.cwd(), experiment, engine, precision, evaluate=True, **picked)


@app.command("sweep")
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

    Example: hetfl sweep fedtgp-table-10 --budget 25m
    """
    import math

    from hetfl.sweep.sweep import duration, options
    from hetfl.sweep.sweep import sweep as begin

    seconds = math.inf if budget is None else duration(budget)
    begin(Path.cwd(), targets, seconds, on, dry_run, wait, address, options(slurm or []))


new = typer.Typer(no_args_is_help=True, help="Write a working skeleton: of a method, or of an experiment.")
app.add_typer(new, name="new")


@new.command("method")
def new_method(
    name: Annotated[str, typer.Argument(help="The method's name, e.g. fedmine.")],
    experiment: Annotated[
        str, typer.Option(help="An experiment of params.yaml that gets a row of it.")
    ] = "digits-homogeneous",
) -> None:
    """Write a method that differs from FedAvg in one step, its test, and its row in an experiment.

    Example: hetfl new method fedmine
    """
    from hetfl.new import new_method as write

    print("\n".join(write(name, Path.cwd(), experiment)))


@new.command("experiment")
def new_experiment(
    name: Annotated[str, typer.Argument(help="The name of the experiment and of its table.")],
    dataset: Annotated[str, typer.Option(help="A data set with partitions in params.yaml.")] = "digits",
    models: Annotated[str, typer.Option(help="A group of models of params.yaml.")] = "digits-resnet",
    method: Annotated[list[str] | None, typer.Option(help="A row of the table; may be repeated.")] = None,
    split: Annotated[list[str] | None, typer.Option(help="A column of the table; may be repeated.")] = None,
) -> None:
    """Add an experiment to params.yaml, and its table's stages; without options 3 methods x 2 splits on digits.

    Example: hetfl new experiment mine --method fedavg --method scaffold --split dir
    """
    from hetfl.new import new_experiment as write

    print("\n".join(write(name, Path.cwd(), dataset, models, method or (), split or ())))


@app.command("sync")
def sync() -> None:
    """Copy run records to MLflow: create runs that are missing there and complete the others."""
    from hetfl.tracking.mlflow_mirror import records
    from hetfl.tracking.mlflow_mirror import sync as mirror

    print(f"{mirror(records(Path.cwd()), Path.cwd())} run records mirrored")


@app.command("show")
def show(tables: Annotated[list[str], typer.Argument(help="Names of tables, i.e. folders in tables/.")]) -> None:
    """Print finished tables."""
    from hetfl.files import read_json
    from hetfl.report.formats import render_text

    for table in tables:
        print(render_text(read_json(Path("tables") / table / f"{table}.json")))


@app.command("table")
def table(names: Annotated[list[str], typer.Argument(help="Tables, see `hetfl tables`.")]) -> None:
    """Write and print tables from what is there of their cells, if only in results/; nothing is trained."""
    from hetfl.experiments.plan import Workspace
    from hetfl.report.formats import render_text
    from hetfl.report.make import make_table

    for name in names:
        print(render_text(make_table(name, Workspace(Path.cwd()))))


@app.command("record")
def record(
    targets: Targets,
    source: Annotated[
        Path | None, typer.Option("--from", help="Another checkout, which has the runs and evaluations.")
    ] = None,
) -> None:
    """Write compact records of the papers' trained cells into results/, which git keeps, and update the ledger.

    Example: hetfl record fedtgp-table-10
    """
    from tabulate import tabulate

    from hetfl.experiments.plan import Workspace, load_params
    from hetfl.ledger.page import write_ledger
    from hetfl.ledger.recording import of_papers, record_cells
    from hetfl.targets import cells_of

    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    wanted = of_papers(cells_of(targets, params), params)
    found = record_cells(wanted, Workspace(source.resolve()) if source else workspace, workspace)
    there = [(one.cell, one.outcome, one.why) for one in found if one.outcome != "not run"]
    print(tabulate(there, headers=["cell", "record", "because"]) if there else "no cell has a run")
    print(f"{len(found) - len(there)} of {len(found)} cells have no run")
    write_ledger(workspace, params)


@app.command("ledger")
def ledger() -> None:
    """Write ledger.md, results/ledger.csv and the totals in the README: all printed numbers, with ours."""
    from hetfl.experiments.plan import Workspace, load_params
    from hetfl.ledger.page import write_ledger

    workspace = Workspace(Path.cwd())
    for path in write_ledger(workspace, load_params(workspace.params)):
        print(f"{path}: written")


@app.command("reproduce")
def reproduce(
    cell: Annotated[str, typer.Argument(help="A cell with a record in results/, as a path below runs/.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be trained.")] = False,
    accuracy: Annotated[
        float, typer.Option(help="Allowed difference in percentage points on another device or with other versions.")
    ] = 1.0,
    size: Annotated[
        float, typer.Option(help="Allowed relative difference there of message sizes that depend on training.")
    ] = 0.0,
) -> None:
    """Train a recorded cell anew, beside all others, and compare; fail if it differs by more than it may."""
    from hetfl.experiments.plan import Workspace, load_params
    from hetfl.ledger.reproduce import compare, describe, one_cell, plan_reproduction
    from hetfl.ledger.reproduce import reproduce as train_anew
    from hetfl.targets import cells_of

    workspace = Workspace(Path.cwd())
    params = load_params(workspace.params)
    plan = plan_reproduction(one_cell(cells_of([cell], params), cell), workspace, params)
    print(describe(plan))
    if dry_run:
        return
    found = compare(plan, train_anew(plan, params), accuracy, size)
    print("\n".join(found.lines))
    if not found.good:
        raise HetflError(f"{plan.cell.path.as_posix()}: differs from its record by more than it may, see above")


@app.command("compare")
def compare(
    reference: Annotated[Path, typer.Argument(help="A folder of tables, such as tables/.")],
    fresh: Annotated[Path, typer.Argument(help="A folder with new versions of these tables.")],
    accuracy: Annotated[float, typer.Option(help="Allowed difference in percentage points.")] = 1.0,
    size: Annotated[
        float, typer.Option(help="Allowed relative difference of message sizes that depend on training.")
    ] = 0.0,
    elsewhere: Annotated[
        float | None,
        typer.Option(
            help="Allowed difference of a mean, in percentage points, between processors or versions of torch."
        ),
    ] = None,
) -> None:
    """Compare tables cell by cell; fail if a cell differs by more than is allowed."""
    from hetfl.files import read_json
    from hetfl.report.comparison import compare_tables, render_comparison

    paths = sorted(reference.glob("*/*.json"))
    if not paths:
        raise HetflError(f"{reference}: has no tables (<name>/<name>.json); name a folder of tables")
    good = True
    for path in paths:
        told, made = read_json(path), read_json(fresh / path.relative_to(reference))
        rows = compare_tables(told, made, accuracy, size, elsewhere)
        good = good and all(row["ok"] for row in rows)
        print(f"{path.stem}\n{render_comparison(rows)}\n")
    if not good:
        raise HetflError(f"{fresh}: differs from {reference} by more than is allowed, see above")


@app.command("weights")
def weights(
    name: Annotated[str, typer.Argument(help="A timm model with the tag of its weights, or a MoCo-v3 model.")],
    folder: Annotated[Path, typer.Option(help="The folder to store them in.")] = Path("weights"),
    source: Annotated[
        Path | None, typer.Option("--from", help="Convert this checkpoint instead of downloading.")
    ] = None,
) -> None:
    """Store a backbone's weights as safetensors, from a checkpoint, from weights/ of the mirror, or from the hub."""
    from hetfl.experiments.plan import load_params
    from hetfl.files import sha256_file
    from hetfl.models.registry import convert_weights, fetch_weights, weights_path

    mirror = load_params(Path("params.yaml")).data.folder() if source is None else None
    if mirror is not None and (copy := weights_path(name, mirror / "weights")).is_file():
        source = copy
    path = convert_weights(name, source, folder) if source else fetch_weights(name, folder)
    print(f"{path}: SHA-256 {sha256_file(path)}")


if __name__ == "__main__":
    main()
