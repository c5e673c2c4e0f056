"""Numbers of parameters that tables show without a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from settings_files import PAPER_PARAMS
from table_helpers import CELLS, by_place

from hetfl.compact import read_compact
from hetfl.experiments.plan import Cell, Workspace
from hetfl.report.table import build_table
from hetfl.schema import Parameters
from hetfl.tables.catalogue import table_spec
from hetfl.tables.counted.parameters import parameters
from hetfl.tables.records import Records

RESULTS = Path(__file__).parents[2] / "papers/results"


def recorded() -> Iterator[tuple[Cell, Parameters]]:
    """A cell of every row with a record in git, and its parameters as the real networks had them."""
    seen = set()
    for path in sorted(RESULTS.glob("*/*/*/*.json")):
        place = path.relative_to(RESULTS).with_suffix("")
        cell, kept = CELLS.get(place.parts[0], {}).get(place), read_compact(path)
        if cell is not None and kept is not None and place.parent not in seen:
            seen.add(place.parent)
            yield cell, kept.run.parameters


def test_they_are_those_of_every_record():
    known = [*recorded()]
    assert len({cell.method for cell, _ in known}) > 10
    for cell, found in known:
        assert parameters(cell) == found, cell.path


def test_the_printed_sums_of_clients_are_those_of_rounded_counts(tmp_path):
    """The paper's counts of single networks, and of FedGen's and FedTGP's server, have three digits."""
    spec, records = table_spec("fedhpl-table-2", PAPER_PARAMS), Records(Workspace(tmp_path), PAPER_PARAMS)
    cells = by_place(build_table(spec, records))
    differ = {row for (row, column), cell in cells.items() if cell["status"] == "differs"}
    assert differ == {"fedgen", "fedgh", "fedproto", "fedtgp", "fedhe"}
    for row in ("fedgen", "fedgh", "fedproto", "fedtgp", "fedmd", "fedhe"):
        (cell,) = (cell for cell in CELLS["fedhpl-resnet-cifar10"].values() if (cell.row, cell.split) == (row, "iid"))
        counts = parameters(cell)
        rounded = [round(count / 1024**2, 3) for count in (*counts.trainable, counts.server)]
        assert sum(rounded) == pytest.approx(cells[row, "cifar10-parameters"]["printed"])
