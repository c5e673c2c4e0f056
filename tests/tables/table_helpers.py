"""What the tests of the papers' tables share: the committed experiments, and tables built from chosen numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record_factory import make_round, write_metrics, write_record
from settings_files import PAPER_PARAMS as PARAMS

from hetfl.experiments.evaluation import of_window
from hetfl.experiments.identity import fingerprint
from hetfl.experiments.plan import Cell, Workspace, cells
from hetfl.report.formats import render_text
from hetfl.report.table import build_table, write_table
from hetfl.schema import Inputs
from hetfl.tables.catalogue import table_spec
from hetfl.tables.records import Records
from hetfl.tables.spec import Entry, TableSpec

CELLS = {name: {cell.path: cell for cell in cells(PARAMS, name)} for name in PARAMS.experiments}


def entries(spec: TableSpec) -> Iterator[tuple[str, str, Entry]]:
    return ((row, column, entry) for row, cells in spec.entries.items() for column, entry in cells.items())


def runs(name: str) -> set[Path]:
    """The runs a table is made of."""
    return {entry.path(seed) for _, _, entry in entries(table_spec(name, PARAMS)) for seed in entry.seeds}


def identities(paper: str) -> list[str]:
    """What is trained in each run of a paper's experiments, whatever it is called."""
    excluded = {"experiment", "row", "title", "features"}
    of_paper = [cell for name in CELLS if name.startswith(f"{paper}-") for cell in CELLS[name].values()]
    return [cell.model_dump_json(exclude=excluded) for cell in of_paper]


def write_run(
    root: Path, entry: Entry, rounds: int, seed: int = 0, played: int | None = None, **changes: Any
) -> None:
    """A finished run of five clients that upload ``1000 * round`` elements each.

    After a round client k is at ``round + k`` percent, and all their test samples together are at ``round + 2.5``; in
    the last round but one at ten points more. Where a method reports a window of rounds, ensembles of n groups are n
    points better than that, and cosines are the round's number in thousandths.
    """
    cell: Cell = CELLS[entry.experiment][entry.path(seed)]
    played, window_size = played or rounds, cell.settings.get("window")
    many = {f"top-{number}": number for number in cell.settings.get("ensembles", ())} if window_size else {}
    cosines = ("cosine_shared", "cosine_group_global", "cosine_group_local") if window_size else ()
    lines = []
    for number in range(1, played + 1):
        size = {"elements": 5000 * number, "bytes": 20000 * number}
        accuracy = [(number + client) / 100 for client in range(5)]
        pooled = (number + 2.5 + 10 * (number == played - 1)) / 100
        tested = many if number > played - (window_size or 0) else {}
        extra = {name: {"accuracy": accuracy, "pooled": pooled + n / 100} for name, n in tested.items()}
        figures = {"diagnostics": dict.fromkeys(cosines, number / 1000), "clients": {}}
        lines.append(make_round(number, up=size, down=size, accuracy=accuracy, pooled=pooled, extra=extra, **figures))
    inputs = {"dataset": cell.dataset, "partition": f"{cell.dataset}/{cell.split}", "weights": {}}
    known = changes.get("fingerprint", fingerprint(cell, Inputs(**inputs)))
    run = {
        "fingerprint": known,
        "dataset": cell.dataset,
        "models": cell.models,
        "settings": cell.settings,
        "partition": cell.partition,
        "rounds": rounds,
        "parameters": {"trainable": [35338] * 5, "total": [35338] * 5},
        "inputs": inputs,
    }
    write_record(root / "runs", entry.path(seed), lines, **run | changes)
    metrics = {"average": sum(accuracy) / 5, "lowest": min(accuracy), "highest": max(accuracy), "pooled": pooled}
    write_metrics(
        root / "evaluations", entry.path(seed), fingerprint=known, **metrics, **of_window(lines, cell.settings)
    )


def built(name: str, root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """A table's cells by row and column; all its files can be written."""
    table = build_table(table_spec(name, PARAMS), Records(Workspace(root), PARAMS))
    for path in write_table(table, root / "tables"):
        assert path.stat().st_size
    assert (root / f"tables/{name}.tex").read_text().isascii()
    assert max(map(len, render_text(table).splitlines())) <= 150
    return by_place(table)


def cells_of(name: str, root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """A table's cells by row and column; nothing is written."""
    return by_place(build_table(table_spec(name, PARAMS), Records(Workspace(root), PARAMS)))


def by_place(table: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(cell["row"], cell["column"]): cell for cell in table["cells"]}
