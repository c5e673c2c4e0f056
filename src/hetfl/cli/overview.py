"""Commands that say what there is: tables, methods, data sets, cells, and what training them takes."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

import hetfl.cli.names as names
from hetfl.cli.base import LOOK, AsJson, Targets, app, doing, opened, print_json
from hetfl.errors import HetflError


@app.command("status", rich_help_panel=LOOK)
def status(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables, experiments or cells; without any, all that began.", autocompletion=names.targets
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what runs now, what is done, what is stale and why, and how accurate it is.

    Example: hetfl status

    Example: hetfl status digits-homogeneous --json
    """
    workspace, params = opened()
    from hetfl.overview import overview, render

    found = overview(targets or [], params, workspace)
    print_json(found.as_json()) if as_json else print(render(found))


@app.command("tables", rich_help_panel=LOOK)
def tables(as_json: AsJson = False) -> None:
    """List the tables: how many cells their stages train and how many they print, and how many of these are finished.

    They are done here, or in git, from where tables take their numbers.

    Example: hetfl tables
    """
    workspace, params = opened("reading params.yaml and all records")
    from tabulate import tabulate

    from hetfl.experiments.namesakes import finished
    from hetfl.experiments.plan import all_cells
    from hetfl.experiments.status import status
    from hetfl.stages import trained_by
    from hetfl.tables.catalogue import printed_by, table_names

    every = {cell.path: cell for cell in all_cells(params)}
    # What the next training would train anew is not done, whatever its record says.
    known = finished(workspace)
    state = cache(lambda path: status(every[path], workspace, known).state)
    rows: list[dict[str, Any]] = []
    with doing("reading all records"):
        trained = trained_by(params)
        for name in table_names(params):
            printed = [*map(state, printed_by(name, params))]
            rows.append(
                {"table": name, "trains": len(trained[name]), "prints": len(printed)}
                | {what: printed.count(what) for what in ("done", "in git")}
            )
    if as_json:
        print_json(rows)
        return
    shown = [[*row.values()] if row["prints"] else [row["table"], "counted"] for row in rows]
    print(tabulate(shown, headers=["table", "trains", "prints", "done", "in git"]))


@app.command("methods", rich_help_panel=LOOK)
def methods(as_json: AsJson = False) -> None:
    """List the methods: whether clients' models may differ, and what clients and server send each other.

    Example: hetfl methods
    """
    with doing("importing the methods"):
        from tabulate import tabulate

        from hetfl.methods import METHODS

    rows = [
        (name, cls.title, "yes" if cls.heterogeneous else "no", cls.travels, cls.source)
        for name, cls in sorted(METHODS.items())
    ]
    heads = ["method", "title", "models may differ", "what travels", "source"]
    if as_json:
        print_json([dict(zip(heads, row, strict=True)) for row in rows])
        return
    print(tabulate(rows, headers=heads))


@app.command("data", rich_help_panel=LOOK)
def data(
    sets: Annotated[
        list[str] | None, typer.Argument(help="Data sets; without any, all.", autocompletion=names.datasets)
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the prepared files against their checksums.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Draw every split, show it, and say what to change where none can be drawn."),
    ] = False,
    split: Annotated[str | None, typer.Option(help="Check only this split.", autocompletion=names.splits)] = None,
    seed: Annotated[int | None, typer.Option(help="Check only this seed; otherwise all are drawn.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the data sets: which are prepared, from which files, and their licences; or check their splits.

    Of data sets that are named it also tells how to cite them.

    Example: hetfl data

    Example: hetfl data digits --check --split noniid
    """
    if check or split is not None or seed is not None:
        if verify:
            raise HetflError("--verify: checks files, and --check, --split and --seed draw splits; do one at a time")
        _check_splits(sets or [], split, seed, as_json)
        return
    with doing("reading the catalogue"):
        from tabulate import tabulate

        from hetfl.data.catalogue import CATALOGUE
        from hetfl.data.store import read_card, verify_dataset
        from hetfl.errors import unknown
        from hetfl.experiments.plan import Workspace, load_params

    workspace = Workspace(Path.cwd())
    own = load_params(workspace.params).data.own if workspace.params.exists() else {}
    known = {name: (entry.title, str(len(entry.class_names)), entry.licence) for name, entry in CATALOGUE.items()}
    known |= {name: (settings.title or name, "", settings.licence) for name, settings in own.items()}
    cited = {name: entry.citation for name, entry in CATALOGUE.items()}
    rows = []
    for name in sets or known:
        if name not in known:
            raise unknown("data set", name, known)
        (title, classes, licence), sizes, origin = known[name], "not prepared", ""
        if name in own:
            origin = own[name].path
        if (folder := workspace.dataset(name)).exists():
            if verify:
                with doing(f"checking {name}"):
                    verify_dataset(folder)
            card = read_card(folder)
            classes = str(len(card.class_names))
            sizes = ", ".join(f"{subset} {size}" for subset, size in card.subset_sizes.items())
            origin = ", ".join(dict.fromkeys(file["from"] for file in card.source))
        rows.append((name, title, classes, sizes, origin, licence))
    heads = ["name", "title", "classes", "prepared", "from", "licence"]
    if as_json:
        print_json([dict(zip(heads, row, strict=True)) | {"citation": cited.get(row[0])} for row in rows])
        return
    print(tabulate(rows, headers=heads))
    for name in sets or []:
        if name in cited:
            print(f"\n{name}: {cited[name]}")


def _check_splits(sets: list[str], split: str | None, seed: int | None, as_json: bool) -> None:
    workspace, params = opened()
    from hetfl.partition_doctor import check_splits, render

    found = []
    for check in check_splits(params, workspace, sets, split, seed):
        found.append(check)
        if not as_json:
            print(render(check), flush=True)
    if as_json:
        print_json([check.as_json() for check in found])
    if failed := [check for check in found if check.problem]:
        raise HetflError(f"{len(failed)} of {len(found)} splits cannot be drawn, see above")


@app.command("cells", rich_help_panel=LOOK)
def list_cells(
    targets: Targets,
    settings: Annotated[
        bool, typer.Option("--settings", help="Print each row's settings and where they are set.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List cells: whether they are done and, if a record is stale, why.

    Example: hetfl --cd papers cells fedtgp-table-10

    Example: hetfl cells digits-homogeneous --settings
    """
    workspace, params = opened()
    from tabulate import tabulate

    from hetfl.experiments.namesakes import finished
    from hetfl.experiments.needs import one_of_each_row
    from hetfl.experiments.plan import origins
    from hetfl.experiments.status import status
    from hetfl.targets import needed_cells

    chosen = needed_cells(targets, params)
    if settings:
        found_in = [(cell, origins(params, cell)) for cell in one_of_each_row(chosen)]
        if as_json:
            print_json(
                [
                    {"row": cell.row, "method": cell.method, "models": [*dict.fromkeys(cell.models)]}
                    | {"settings": {name: {"value": value, "from": place} for name, (value, place) in found.items()}}
                    for cell, found in found_in
                ]
            )
            return
        for cell, found in found_in:
            lines = [(name, str(value), origin) for name, (value, origin) in found.items()]
            print(f"{cell.row}: {cell.method} on {', '.join(dict.fromkeys(cell.models))}")
            print(tabulate(lines, headers=["setting", "value", "from"], disable_numparse=True), end="\n\n")
        return
    known = finished(workspace)
    states = [(cell, status(cell, workspace, known)) for cell in chosen]
    if as_json:
        print_json(
            [
                {"cell": cell.path.as_posix(), "experiment": cell.experiment, "method": cell.method, "row": cell.row}
                | {"split": cell.split, "seed": cell.seed, "status": found.state, "round": found.round}
                | {"rounds": found.rounds, "because": found.because}
                for cell, found in states
            ]
        )
        return
    several = {cell.experiment for cell in chosen} != {*targets}
    # What a cell in git lacks here concerns only those who would train it again.
    whys = ["" if found.state == "in git" else found.because for _, found in states]
    rows = [
        (*([cell.experiment] if several else []), cell.method, cell.row, cell.split, cell.seed, str(found), why)
        for (cell, found), why in zip(states, whys, strict=True)
    ]
    heads = [*(["experiment"] if several else []), "method", "row", "split", "seed", "status", "because"]
    print(tabulate(rows, headers=heads).replace(f"{workspace.root}/", ""))


@app.command("plan", rich_help_panel=LOOK)
def plan(
    targets: Targets,
    measure: Annotated[
        bool, typer.Option("--calibrate", help="First measure a few steps of each network here; kept for later.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what training would take: cells, rounds, images, operations, bytes, time, data and weights.

    Example: hetfl --cd papers plan fedtgp-table-10
    """
    workspace, params = opened()
    with doing("counting images, operations and bytes"):
        from hetfl.experiments.schedule import pick_device
        from hetfl.planning import make_plan, render
        from hetfl.targets import cells_of

        told = (lambda case: print(f"measuring {case.key}", file=sys.stderr)) if measure else None
        made = make_plan(cells_of(targets, params), params, workspace, pick_device(params.compute.device), told)
    print_json(made.as_json()) if as_json else print(render(made))


@app.command("doctor", rich_help_panel=LOOK)
def doctor(
    targets: Annotated[
        list[str] | None,
        typer.Argument(help="Tables, experiments or cells; without any, all tables.", autocompletion=names.targets),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check environment, device, disk, settings and MLflow; say which tables lack data or weights, and what to do.

    Example: hetfl doctor

    Example: hetfl --cd papers doctor fedhpl-table-3
    """
    from hetfl.doctor import examine

    with doing("looking at the environment"):
        found = examine(Path.cwd(), targets or [])
    if as_json:
        print_json(found.as_json())
    else:
        print(found.render())
    if not found.good:
        raise typer.Exit(1)
