"""The papers' tables: printed values in place, cells that exist, nothing run yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetfl.errors import HetflError
from hetfl.federation.plan import cells, load_params
from hetfl.papers.tables import PAPER_TABLES, table_spec
from hetfl.report.table import build_table

PARAMS = load_params(Path("params.yaml"))


@pytest.mark.parametrize("name", [*PAPER_TABLES, *PARAMS.experiments])
def test_every_cell_of_a_table_is_a_cell_of_its_experiment(name):
    spec = table_spec(name, PARAMS)
    for column in spec.columns.values():
        known = {(cell.row, cell.split, cell.seed) for cell in cells(PARAMS, column.experiment)}
        assert {(row, column.split, seed) for row in spec.rows for seed in spec.seeds} <= known


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_tables_can_be_built_before_anything_has_run(name, tmp_path):
    table = build_table(table_spec(name, PARAMS), tmp_path / "runs", tmp_path / "evaluations")
    assert {cell["status"] for cell in table["cells"]} == {"not run"}
    assert all(cell["printed"] is not None for cell in table["cells"])


def test_fedhpl_table_3_prints_what_the_paper_prints():
    printed = table_spec("fedhpl-table-3", PARAMS).printed
    assert printed["local"] == {
        "H-iid": 96.89, "H-dir": 95.77, "H-noniid": 96.20, "V-iid": 96.83, "V-dir": 95.66, "V-noniid": 95.71
    }  # fmt: skip
    assert printed["fedhpl-plus-h"]["H-noniid"] == 95.81


def test_unknown_tables_are_one_line():
    with pytest.raises(HetflError, match="unknown table 'fedhpl-table-33'; did you mean 'fedhpl-table-3'"):
        table_spec("fedhpl-table-33", PARAMS)
