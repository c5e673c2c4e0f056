"""The experiments that say what single choices are worth: a row differs from the other one in its choice alone."""

from __future__ import annotations

import pytest
from settings_files import PAPER_PARAMS

from hetfl.experiments.plan import cells
from hetfl.tables.catalogue import table_spec

CHOICES = [name for name in PAPER_PARAMS.experiments if name.startswith("choices-")]
AT_SCALE = {
    name: "fedtgp-htcnn8-fashion-mnist" for name in ("choices-fedtgp-table-10", "choices-fedtgp-table-10-practical")
}
"""Those in a paper's own setting, with the experiment whose cells their rows without ``against`` are."""
TOGETHER = [{"distance", "pull"}]
"""The paper's distance comes with a weight of its own."""


@pytest.mark.parametrize("name", CHOICES)
def test_a_row_differs_from_the_other_in_one_setting_or_in_the_method(name: str):
    rows = PAPER_PARAMS.experiments[name].rows
    found = {cell.row: cell for cell in cells(PAPER_PARAMS, name)}
    compared = {row: settings.against for row, settings in rows.items() if settings.against}
    assert compared
    for row, other in compared.items():
        one, two = found[row], found[other]
        if one.method == two.method:
            differ = {key for key in one.settings if one.settings[key] != two.settings[key]}
            assert len(differ) == 1 or differ in TOGETHER, f"{row} and {other} differ in {differ}"
        assert (one.models, one.input, one.split) == (two.models, two.input, two.split)


@pytest.mark.parametrize("name", AT_SCALE)
def test_the_rows_that_are_compared_with_are_the_papers_own_cells(name: str):
    names = {"experiment", "title", "paper", "features"}
    own = [cell.model_dump(exclude=names) for cell in cells(PAPER_PARAMS, AT_SCALE[name])]
    rows = PAPER_PARAMS.experiments[name].rows
    found = [cell for cell in cells(PAPER_PARAMS, name) if not rows[cell.row].against]
    assert found
    assert all(cell.model_dump(exclude=names) in own for cell in found)


@pytest.mark.parametrize("name", sorted({*CHOICES} - AT_SCALE.keys()))
def test_the_note_says_that_no_printed_number_is_of_this_setting(name: str):
    spec = table_spec(name, PAPER_PARAMS)
    assert "scaled-down setting, not comparable with any printed number" in spec.note
    assert all(entry.printed is None for row in spec.entries.values() for entry in row.values())
    assert all(len(entry.seeds) >= 3 for row in spec.entries.values() for entry in row.values())
