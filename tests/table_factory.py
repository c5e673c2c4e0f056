"""Tables of a small experiment with accuracies of our choice, and the pages that show them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from record_factory import NO_CELLS, make_round, records_below, write_metrics, write_record

from hetfl.experiments.plan import Workspace
from hetfl.report.table import build_table
from hetfl.site.build import build_site
from hetfl.tables.spec import Entry, TableSpec

CLIENTS = 5
ROUNDS = 5
ROWS = {"fedhpl": "FedHPL", "fedavg": "FedAvg & co_", "local": "Local"}
COLUMNS = {"iid": "IID", "dirichlet": "Dirichlet (α=0.1)", "pathological": "2 classes < 100%"}
SEEDS = [0, 1, 2]
# Elements one client sends and receives in one round; FedHPL's upload shrinks while it learns.
SIZES = {"fedhpl": (1600, 800), "fedavg": (20000, 20000), "local": (0, 0)}


def grid(rows: Iterable[str], columns: Iterable[str], make: Callable[[str, str], Entry]) -> dict[str, Any]:
    """A cell for every row and column."""
    return {row: {column: make(row, column) for column in columns} for row in rows}


def cell_spec(row: str, column: str, **more: Any) -> Entry:
    return Entry(experiment="digits-homogeneous", method=row, row=row, split=column, **{"seeds": SEEDS} | more)


SPEC = TableSpec(
    name="digits-homogeneous",
    title="Homogeneous models on digits",
    rows=ROWS,
    columns=COLUMNS,
    entries=grid(ROWS, COLUMNS, cell_spec),
    note="Embedded default: digits and tiny models. It proves the machinery; papers use other settings.",
)


def average(row: str, column: str, seed: int) -> float:
    """The final client average, as a fraction."""
    return 0.9 - 0.05 * list(ROWS).index(row) - 0.1 * list(COLUMNS).index(column) + 0.01 * (seed % 3)


def write_cell(root: Path, row: str, column: str, seed: int, status: str = "complete") -> None:
    """One cell's run record and evaluation; clients lie at -2, -1, 0, +1, +2 points around the average."""
    name = Path("digits-homogeneous", row, row, f"{column}-s{seed}")
    fingerprint = f"{list(ROWS).index(row)}{list(COLUMNS).index(column)}{seed}".ljust(64, "f")
    final = average(row, column, seed)
    described = {
        "fingerprint": fingerprint,
        "title": ROWS[row],
        "dataset": "digits",
        "rounds": ROUNDS,
        "inputs": {
            "dataset": "d" * 64,
            "partition": f"{column}{seed}".ljust(64, "0"),
            "weights": {"digits_vit_base": "b" * 64},
        },
        "parameters": {"trainable": [1634] * 4 + [1700], "total": [90000] * CLIENTS},
        "versions": {"hetfl": "0.1.0", "python": "3.11.7", "torch": "2.15.0"},
        "device": "cpu: 2 cores",
        "threads": 1,
        "commit": "abc123",
        "started": "2026-01-01T00:00:00+00:00",
    }
    up, down = SIZES[row]
    lines = []
    for number in range(ROUNDS + 1):
        registration = 10 if number == 0 and row == "fedhpl" else 0
        shrink = 100 * (number - 1) if row == "fedhpl" else 0
        up_elements = registration if number == 0 else CLIENTS * (up - shrink)
        # The server has nothing to say in the first round.
        down_elements = 0 if number < 2 else CLIENTS * down
        # The fourth round is the best, one point above the last.
        centre = final - 0.3 * math.exp(-number) + 0.3 * math.exp(-ROUNDS) + (0.02 if number == ROUNDS - 1 else 0)
        # The best clients have the most test samples.
        tested = {"accuracy": [centre + 0.01 * k for k in range(-2, 3)], "pooled": centre + 0.05}
        line = make_round(
            number,
            up={"elements": up_elements, "bytes": 4 * up_elements},
            down={"elements": down_elements, "bytes": 4 * down_elements},
            **(tested if number else {"accuracy": None, "pooled": None}),
        )
        lines.append(line)
    write_record(root / "runs", name, lines, status, **described)
    write_metrics(
        root / "evaluations",
        name,
        accuracy=[final + 0.01 * k for k in range(-2, 3)],
        average=final,
        lowest=final - 0.02,
        highest=final + 0.02,
        fingerprint=fingerprint,
    )


def make(root: Path, spec: TableSpec = SPEC, printed: dict[str, Any] | None = None) -> dict[str, Any]:
    """The table of what lies below ``root``."""
    entries = {
        row: {
            column: entry.model_copy(update={"printed": (printed or {}).get(row, {}).get(column, entry.printed)})
            for column, entry in cells.items()
        }
        for row, cells in spec.entries.items()
    }
    spec = spec.model_copy(update={"entries": entries})
    return build_table(spec, records_below(root))


def cell_of(table: dict[str, Any], row: str, column: str) -> dict[str, Any]:
    return next(cell for cell in table["cells"] if (cell["row"], cell["column"]) == (row, column))


def write_experiment(root: Path) -> None:
    """All cells of the experiment."""
    for row in ROWS:
        for column in COLUMNS:
            for seed in SEEDS:
                write_cell(root, row, column, seed)


def pages(tables: Path, root: Path | None = None, methods: Collection[str] = ()) -> dict[str, str]:
    """The report over the tables in a folder, written into ``report`` there: its pages by path.

    Args:
        tables: the folder of the tables.
        root: the checkout that has their runs, if any.
        methods: those that have a page.
    """
    workspace = Workspace(root or tables)
    workspace.tables, workspace.report = tables, tables / "report"
    with mock.patch("hetfl.site.build._vega", return_value=""):  # bundling it takes seconds
        build_site(workspace, NO_CELLS, methods)
    found = workspace.report.rglob("*.html")
    return {path.relative_to(workspace.report).as_posix(): path.read_text() for path in found}
