"""Every system of the papers' tables has a row in an embedded table, which anybody can train in minutes."""

from __future__ import annotations

from typing import Any, Literal, get_origin

import pytest
from settings_files import EMBEDDED_PARAMS, PAPER_PARAMS
from table_helpers import entries

from hetfl.experiments.plan import Params
from hetfl.methods import METHODS
from hetfl.methods.base import MethodSettings
from hetfl.tables.catalogue import PAPER_TABLES, table_spec
from hetfl.tables.spec import Entry

EMBEDDED = [*EMBEDDED_PARAMS.experiments]
PRINTED = [name for name in PAPER_TABLES if name not in {*EMBEDDED, *PAPER_PARAMS.experiments}]

System = tuple[str, frozenset[tuple[str, Any]], bool]
"""A method, what its row chooses of it, and whether another inference rule of the same run is read, as FGPT-U's."""


def system(cell: Entry, params: Params) -> System:
    """What a cell shows, whatever its models, data, training and sizes are."""
    row = params.experiments[cell.experiment].rows[cell.row]
    chosen = set()
    for name, field in METHODS[cell.method].Settings.model_fields.items():
        of_all, of_readings = name in MethodSettings.model_fields, name in ("ensembles", "test_head")
        if name in row.settings and not of_all and not of_readings and not is_number(row.settings[name]):
            value, usual = (kind(setting, field.annotation) for setting in (row.settings[name], field.default))
            if value != usual:
                chosen.add((name, value))
    return cell.method, frozenset(chosen), bool(cell.reading)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def kind(value: Any, annotation: Any) -> Any:
    """One of a setting's words, or yes or no; of names and lists whether there are some."""
    return value if get_origin(annotation) is Literal else bool(value)


def systems(table: str) -> dict[str, System]:
    params = EMBEDDED_PARAMS if table in EMBEDDED else PAPER_PARAMS
    return {f"{row}, {column}": system(cell, params) for row, column, cell in entries(table_spec(table, params))}


@pytest.mark.parametrize("table", PRINTED)
def test_every_system_of_a_papers_table_has_a_row_in_an_embedded_one(table):
    embedded = {found for name in EMBEDDED for found in systems(name).values()}
    assert {cell: found for cell, found in systems(table).items() if found not in embedded} == {}


def test_systems_are_told_apart():
    found = {found for table in PRINTED for found in systems(table).values()}
    assert ("fgpt", frozenset({("encoder", True)}), False) in found
    assert ("fgpt", frozenset({("keys", "random")}), False) in found
    assert ("fgpt", frozenset(), True) in found
    assert ("fedhpl", frozenset({("communicate", False)}), False) in found
    assert ("fedtgp", frozenset({("network", False)}), False) in found
    assert ("pt-fedavg", frozenset({("group_blocks", False)}), False) in found


def test_every_method_has_a_row_in_an_embedded_table():
    assert {row.method for name in EMBEDDED for row in EMBEDDED_PARAMS.experiments[name].rows.values()} == {*METHODS}
