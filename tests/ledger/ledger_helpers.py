"""Records of the papers' cells for tests: made up, but of the identity that the committed settings give them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from settings_files import PAPERS, ROOT, copy_params
from table_helpers import CELLS, PARAMS, write_run

from hetfl.experiments.identity import fingerprint
from hetfl.experiments.plan import Cell, Workspace
from hetfl.ledger.recording import record_cells
from hetfl.schema import Inputs
from hetfl.tables.catalogue import table_spec
from hetfl.tables.spec import Entry


def checkout(folder: Path) -> Workspace:
    """A checkout with the committed settings, a README with a place for totals, and the committed tables."""
    shutil.copy(ROOT / "README.md", folder)
    workspace = Workspace(copy_params(folder))
    workspace.tables = PAPERS / "tables"
    return workspace


def entry_of(table: str, row: str, column: str) -> Entry:
    """A cell of a table."""
    return table_spec(table, PARAMS).entries[row][column]


def cell_of(entry: Entry, seed: int = 0) -> Cell:
    """The cell of one seed."""
    return CELLS[entry.experiment][entry.path(seed)]


def write(workspace: Workspace, entry: Entry, seed: int = 0, rounds: int = 60, **changes: Any) -> Cell:
    """A run and its evaluation; five clients, see :func:`table_helpers.write_run`."""
    cell = cell_of(entry, seed)
    reads = Inputs(dataset="d" * 64, partition=f"{cell.split}{seed}".ljust(64, "0"), weights={})
    known = {"fingerprint": fingerprint(cell, reads), "inputs": reads, "partition": cell.partition}
    known |= {"input": cell.input.model_dump()}
    write_run(workspace.root, entry, rounds, seed, **known | changes)
    return cell


def record(workspace: Workspace, entry: Entry, seed: int = 0, rounds: int = 60, **changes: Any) -> Cell:
    """The compact record of such a run, which is not there itself."""
    cell = write(workspace, entry, seed, rounds, **changes)
    record_cells([cell], workspace, workspace)
    for folder in (workspace.runs, workspace.evaluations):
        shutil.rmtree(folder / cell.path)
    return cell
