"""Commands that keep a checkout in order, and carry cells and weights between checkouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetfl.cli.base import CHECKOUT, AsJson, Targets, app, doing, opened, print_json, project
from hetfl.errors import HetflError


@app.command("check", rich_help_panel=CHECKOUT)
def check() -> None:
    """Check all settings and names, whether methods support their models, and whether DVC's stages are up to date.

    Example: hetfl check
    """
    workspace, params = opened("checking settings and names", work=True)
    with doing(f"checking the models of {len(params.experiments)} experiments", work=True):
        from hetfl.experiments.plan import cells, check_fit, check_models
        from hetfl.stages import check as check_stages

        for group in params.models:
            check_models(params, group)
        for experiment in params.experiments:
            check_fit(params, cells(params, experiment))
    with doing("checking DVC's stages", work=True):
        check_stages(params, workspace.root)
    print(f"params.yaml: {len(params.experiments)} experiments, no mistakes")


@app.command("stages", rich_help_panel=CHECKOUT)
def stages() -> None:
    """Update every dvc.yaml, after adding or removing an experiment, a data set or a table.

    Example: hetfl stages
    """
    workspace, params = opened()
    from hetfl.stages import write

    changed = write(params, workspace.root)
    print("\n".join(f"{file}: written" for file in changed) or "DVC's stages are up to date")


@app.command("versions", rich_help_panel=CHECKOUT)
def versions() -> None:
    """Update versions.yaml, which DVC's stages depend on, and print the changes.

    Example: hetfl versions
    """
    with doing("importing methods and models"):
        from hetfl.experiments.versions import FILE, write_versions

    changed = write_versions(project().root)
    for key, (old, new) in changed.items():
        print(f"{key}: {'new' if old is None else old} -> {'gone' if new is None else new}")
    print(f"{FILE}: {len(changed) or 'no'} change{'' if len(changed) == 1 else 's'}")


@app.command("sync", rich_help_panel=CHECKOUT)
def sync() -> None:
    """Copy run records to MLflow: create runs that are missing there and complete the others.

    Example: hetfl sync
    """
    with doing("looking for run records", work=True):
        from hetfl.schema import record_folders
        from hetfl.tracking.mlflow_mirror import sync as mirror

    workspace = project()
    print(f"{mirror(record_folders(workspace.runs), workspace.root)} run records mirrored")


@app.command("record", rich_help_panel=CHECKOUT)
def record(
    targets: Targets,
    source: Annotated[
        Path | None, typer.Option("--from", help="Another checkout, which has the runs and evaluations.")
    ] = None,
) -> None:
    """Write compact records of trained cells into results/, which git keeps, and update the papers' ledger.

    Example: hetfl --cd papers record fedtgp-table-10
    """
    workspace, params = opened()
    from tabulate import tabulate

    from hetfl.experiments.plan import Workspace
    from hetfl.ledger.lines import printed_tables
    from hetfl.ledger.page import write_ledger
    from hetfl.ledger.recording import KEPT, kept_in_git, record_cells
    from hetfl.targets import needed_cells

    wanted = kept_in_git(needed_cells(targets, params), params)
    if not wanted:
        raise HetflError(f"{', '.join(targets)}: have no record in git, {KEPT}")
    if source is not None and not (source / "runs").is_dir():
        raise HetflError(f"--from {source}: has no folder runs; name the project's folder, such as ../other/papers")
    found = record_cells(wanted, Workspace(source.resolve()) if source else workspace, workspace)
    there = [(one.cell, one.outcome, one.why) for one in found if one.outcome != "not run"]
    print(tabulate(there, headers=["cell", "record", "because"]) if there else "no cell has a run")
    if len(there) < len(found):
        print(f"{len(found) - len(there)} of {len(found)} cells have no run")
    if printed_tables(params):
        write_ledger(workspace, params)


@app.command("ledger", rich_help_panel=CHECKOUT)
def ledger() -> None:
    """Write ledger.md, results/ledger.csv and the totals in the README: all printed numbers, with ours.

    Example: hetfl --cd papers ledger
    """
    workspace, params = opened("collecting all printed numbers", work=True)
    from hetfl.ledger.lines import printed_tables
    from hetfl.ledger.page import write_ledger

    if not printed_tables(params):
        raise HetflError("params.yaml: has no table of a paper to make a ledger of; try hetfl --cd papers ledger")
    for path in write_ledger(workspace, params):
        print(f"{path}: written")


@app.command("superseded", rich_help_panel=CHECKOUT)
def superseded(as_json: AsJson = False) -> None:
    """List finished records that a retrained cell has replaced; a cell uses them again when it has their settings.

    Example: hetfl superseded
    """
    with doing("reading all records"):
        from rich.filesize import decimal
        from tabulate import tabulate

        from hetfl.experiments.superseded import listing

    every = listing(project())
    if as_json:
        print_json(every)
        return
    if not every:
        print("no superseded records")
        return
    rows = [
        (found["cell"], found["fingerprint"][:12], found["finished"], decimal(found["bytes"]), found["now"])
        for found in every
    ]
    print(tabulate(rows, headers=["cell", "fingerprint", "finished", "size", "its successor"]))


@app.command("prune", rich_help_panel=CHECKOUT)
def prune(
    everything: Annotated[
        bool, typer.Option("--all", help="Also remove records of cells without a finished record.")
    ] = False,
) -> None:
    """Remove superseded records (see `hetfl superseded`) of cells that have a finished record.

    Example: hetfl prune
    """
    with doing("reading all records"):
        from rich.filesize import decimal

        from hetfl.experiments.superseded import listing
        from hetfl.experiments.superseded import prune as remove

    workspace = project()
    removed, freed = remove(workspace, everything)
    kept = len(listing(workspace))
    print(f"{removed} superseded records removed, {decimal(freed)} freed, {kept} kept")


@app.command("export", rich_help_panel=CHECKOUT)
def export(
    targets: Targets,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("cells.tar"),
) -> None:
    """Write trained and interrupted cells into one file, to go on elsewhere: `hetfl import` takes them over.

    Example: hetfl --cd papers export fedtgp-table-10 -o table-10.tar
    """
    workspace, params = opened()
    from rich.filesize import decimal

    from hetfl.experiments.share import export_cells
    from hetfl.experiments.status import is_locked
    from hetfl.targets import needed_cells

    wanted = needed_cells(targets, params)
    written = export_cells(wanted, workspace, out)
    running = sum(is_locked(cell.path, workspace) for cell in wanted if cell.path.as_posix() not in written)
    left = f"; {running} that are being trained are left out" if running else ""
    print(f"{out}: {len(written)} of {len(wanted)} cells, {decimal(out.stat().st_size)}{left}")


@app.command("import", rich_help_panel=CHECKOUT)
def import_(file: Annotated[Path, typer.Argument(help="A file that `hetfl export` wrote.")]) -> None:
    """Take over the cells of a file after checking checksums and identity. Doing it twice changes nothing.

    Example: hetfl --cd papers import cells.tar
    """
    workspace, params = opened()
    from tabulate import tabulate

    from hetfl.experiments.plan import all_cells
    from hetfl.experiments.share import import_cells

    taken = import_cells(file, all_cells(params), workspace)
    print(tabulate([(one.cell, one.outcome, one.why) for one in taken], headers=["cell", "outcome", "because"]))


@app.command("weights", rich_help_panel=CHECKOUT)
def weights(
    name: Annotated[str, typer.Argument(help="A timm model with the tag of its weights, or a MoCo-v3 model.")],
    folder: Annotated[Path, typer.Option(help="The folder to store them in.")] = Path("weights"),
    source: Annotated[
        Path | None, typer.Option("--from", help="Convert this checkpoint instead of downloading.")
    ] = None,
) -> None:
    """Store a backbone's weights as safetensors, from a checkpoint, from weights/ of the mirror, or from the hub.

    Example: hetfl --cd papers weights vit_base_patch16_224.augreg_in21k_ft_in1k
    """
    with doing(f"looking for {name}", work=True):
        from hetfl.experiments.plan import load_params
        from hetfl.files import sha256_file
        from hetfl.models.registry import convert_weights, fetch_weights, weights_path

    mirror = load_params(Path("params.yaml")).data.folder() if source is None else None
    if mirror is not None and (copy := weights_path(name, mirror / "weights")).is_file():
        source = copy
    path = convert_weights(name, source, folder) if source else fetch_weights(name, folder)
    print(f"{path}: SHA-256 {sha256_file(path)}")
