"""Names on the command line and the cells that they stand for."""

from __future__ import annotations

import pytest
from settings_files import EMBEDDED_PARAMS, PAPER_PARAMS

from hetfl.errors import HetflError
from hetfl.experiments.plan import Params, cells, pick
from hetfl.tables.catalogue import printed_by
from hetfl.targets import cells_of, needed_cells


@pytest.fixture(scope="module")
def params() -> Params:
    return PAPER_PARAMS


def test_a_target_is_a_table_an_experiment_or_a_part_of_one(params):
    whole = cells(params, "fedtgp-htcnn8-fashion-mnist")
    assert cells_of(["fedtgp-htcnn8-fashion-mnist"], params) == whole
    method = cells_of(["runs/fedtgp-htcnn8-fashion-mnist/fedtgp/"], params)
    assert method == [cell for cell in whole if cell.method == "fedtgp"]
    (one,) = cells_of([whole[0].path.as_posix()], params)
    assert one == whole[0]
    printed = cells_of(["fedtgp-table-10"], params)
    assert {cell.path for cell in printed} == printed_by("fedtgp-table-10", params)
    assert cells_of([one.path.as_posix(), "fedtgp-htcnn8-fashion-mnist"], params) == whole
    assert cells_of(["fedhpl-table-5"], params) == []


def test_a_counted_table_has_no_cells_to_work_on(params):
    with pytest.raises(HetflError, match="^fedhpl-table-5: has no cells, .* dvc repro fedhpl-table-5 makes it$"):
        needed_cells(["fedhpl-table-5"], params)
    assert needed_cells(["fedhpl-table-5", "fedtgp-table-10"], params) == cells_of(["fedtgp-table-10"], params)


def test_a_mistyped_target_is_one_line_with_the_nearest_name(params):
    with pytest.raises(HetflError, match="did you mean 'fedtgp-table-10'"):
        cells_of(["fedtgp-tabel-10"], params)
    with pytest.raises(HetflError, match="^adhoc-digits/fedavg: runs of hetfl run stand in no table; hetfl curve"):
        cells_of(["adhoc-digits/fedavg"], params)


def test_cells_are_picked_by_one_value_or_by_several():
    every = cells(EMBEDDED_PARAMS, "digits-homogeneous")
    some = pick(every, row=["fedavg", "fedprox"], split="iid", seed=[0], method=None)
    assert [(cell.row, cell.split, cell.seed) for cell in some] == [("fedavg", "iid", 0), ("fedprox", "iid", 0)]
    assert pick(every, row=[], seed=None) == every
    with pytest.raises(HetflError, match="--row: unknown row 'fedpro'; did you mean 'fedprox'"):
        pick(every, row=["fedavg", "fedpro"])
