"""Commands that show and compare results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import hetfl.cli.names as names
from hetfl.cli.base import RESULTS, AsJson, app, doing, opened, print_json, tolerance
from hetfl.errors import HetflError, unknown


@app.command("show", rich_help_panel=RESULTS)
def show(
    tables: Annotated[
        list[str], typer.Argument(help="Tables that are made, in tables/.", autocompletion=names.made_tables)
    ],
    as_json: AsJson = False,
) -> None:
    """Print finished tables.

    Example: hetfl show digits-homogeneous
    """
    from hetfl.report.formats import render_text
    from hetfl.report.shown import read_table

    made = {table: Path("tables") / table / f"{table}.json" for table in tables}
    for table, path in made.items():
        if not path.exists():
            known = names.made_tables("")
            if table in names.tables():
                raise HetflError(f"{path}: is not made; hetfl table {table} or dvc repro {table} makes it")
            raise unknown("table", table, known, "tables/")
    found = [read_table(path) for path in made.values()]
    if as_json:
        print_json(found)
        return
    for one in found:
        print(render_text(one, _columns()))


@app.command("table", rich_help_panel=RESULTS)
def table(
    tables: Annotated[
        list[str], typer.Argument(help="Tables, see `hetfl tables`.", autocompletion=names.known_tables)
    ],
) -> None:
    """Write and print tables from what is there of their cells, if only in results/; nothing is trained.

    Example: hetfl --cd papers table fedhpl-table-3
    """
    workspace, params = opened(f"collecting the cells of {', '.join(tables)}")
    from hetfl.report.formats import render_text
    from hetfl.report.make import make_table
    from hetfl.tables.catalogue import check_tables

    check_tables(tables, params)
    for name in tables:
        print(render_text(make_table(name, workspace), _columns()))


@app.command("curve", rich_help_panel=RESULTS)
def curve(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Runs, or folders of several, as paths with or without runs/.", autocompletion=names.results
        ),
    ],
    by: Annotated[str, typer.Option(help="The horizontal axis: round, megabytes or seconds.")] = "round",
    metric: Annotated[
        str | None,
        typer.Option(
            help="The vertical axis: accuracy (mean over clients), pooled (over all test samples), lowest or loss. "
            "Without it: accuracy, or pooled if a run waits for its best round, as those of FedTGP do."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the curves of runs in the terminal, also while they train; of finished ones in git, too.

    Example: hetfl curve digits-homogeneous/fedavg digits-homogeneous/fedprox --by megabytes
    """
    from hetfl.report.terminal import curves, draw

    found, metric = curves(runs, Path("runs"), by, metric, Path("results"))
    if as_json:
        print_json([line.as_json() for line in found])
        return
    print(draw(found, by, metric, _columns(100)))


def _columns(most: int = 150) -> int:
    """The terminal's width, as far as it is pleasant to read; all of that where there is no terminal."""
    from shutil import get_terminal_size

    return min(most, max(60, get_terminal_size((most, 24)).columns))


@app.command("diff", rich_help_panel=RESULTS)
def diff(
    first: Annotated[
        str, typer.Argument(help="A run, a table, or a folder of runs or tables.", autocompletion=names.results)
    ],
    second: Annotated[str, typer.Argument(help="Another one of the kind.", autocompletion=names.results)],
    as_json: AsJson = False,
) -> None:
    """Say how two runs, two tables or two folders of them differ: settings, inputs, accuracy, bytes and time.

    Example: hetfl diff digits-homogeneous/fedavg/fedavg/iid-s0 digits-homogeneous/fedprox/fedprox/iid-s0

    Example: hetfl diff ../other/tables tables
    """
    from hetfl.report.difference import difference, render

    found = difference(first, second, Path.cwd())
    print_json(found) if as_json else print(render(found))


@app.command("report", rich_help_panel=RESULTS)
def report(
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Write the report over all tables that are made, and say where it is.

    `dvc repro report` makes the tables too, and does not see what is new in papers/ alone.

    Example: hetfl report --open
    """
    workspace, params = opened("laying out the tables", work=True)
    with doing("writing its pages"):
        from hetfl.site.build import build_site

        page = build_site(workspace, params)
    print(f"report: {page}")
    if show:
        typer.launch(Path(page).resolve().as_uri())


@app.command("compare", rich_help_panel=RESULTS)
def compare(
    reference: Annotated[Path, typer.Argument(help="A folder of tables, such as tables/.")],
    fresh: Annotated[Path, typer.Argument(help="A folder with new versions of these tables.")],
    accuracy: Annotated[
        float, typer.Option(help="Allowed difference in percentage points.", callback=tolerance)
    ] = 1.0,
    size: Annotated[
        float,
        typer.Option(
            help="Allowed relative difference of message sizes that depend on training.", callback=tolerance
        ),
    ] = 0.0,
    elsewhere: Annotated[
        float | None,
        typer.Option(
            help="Allowed difference of a mean, in percentage points, between processors or versions of torch.",
            callback=tolerance,
        ),
    ] = None,
) -> None:
    """Compare tables cell by cell; fail if a cell differs by more than is allowed. `hetfl diff` only shows.

    Example: hetfl compare tables ../fresh/tables --accuracy 0.5
    """
    from hetfl.report.comparison import compare_tables, render_comparison
    from hetfl.report.shown import read_table

    paths = sorted(reference.glob("*/*.json"))
    if not paths:
        raise HetflError(f"{reference}: has no tables (<name>/<name>.json); name a folder of tables")
    if not fresh.is_dir():
        raise HetflError(f"{fresh}: is no folder; name one with new versions of the tables in {reference}")
    good, lacking = True, []
    for path in paths:
        new = fresh / path.relative_to(reference)
        if not new.exists():
            lacking.append(path.stem)
            continue
        rows = compare_tables(read_table(path), read_table(new), accuracy, size, elsewhere)
        good = good and all(row["ok"] for row in rows)
        print(f"{path.stem}\n{render_comparison(rows)}\n")
    wrong = [] if good else [f"{fresh}: differs from {reference} by more than is allowed, see above"]
    wrong += [f"{fresh}: lacks {', '.join(lacking)} of {reference}"] if lacking else []
    if wrong:
        raise HetflError("\n".join(wrong))
