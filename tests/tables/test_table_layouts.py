"""The notation of the papers' tables: what a cell is made of, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from settings_files import EMBEDDED_PARAMS as PARAMS

from hetfl.config import read_yaml
from hetfl.errors import HetflError
from hetfl.tables import layout
from hetfl.tables.counted.layout import CountedLayout, rounded
from hetfl.tables.layout import RunLayout, layouts, paper_table
from hetfl.tables.notation import read_layouts
from hetfl.tables.spec import Entry, TableSpec

PAPER = """
titles: {fedavg: FedAvg}
cell: {statistic: best_pooled}
tables:
  digits-homogeneous:
    cell: {experiment: "digits-{kind}", kind: homogeneous}
    columns:
      - iid: {title: IID, footnote: Of the column.}
      - dirichlet: Dirichlet
    rows:
      fedavg: [91.50±0.30, 90.20 (0.40)]
      local: {title: Alone, server: true, footnote: Of the row., printed: [90.0, null]}
    cells:
      fedavg: {dirichlet: {split: "{table_column}-{kind}", footnote: Of the place.}}
"""


def made(change: Mapping[str, Any] | None = None, monkeypatch: Any = None) -> TableSpec:
    """The table of a paper with the file above, some keys of the table replaced."""
    told = yaml.safe_load(PAPER)
    table = told["tables"]["digits-homogeneous"] | (change or {})
    if "parts" in table:
        table = {key: value for key, value in table.items() if key not in ("columns", "rows", "cells")}
    told["tables"]["digits-homogeneous"] = table
    monkeypatch.setattr(layout, "PAPERS", ("paper",))
    monkeypatch.setattr(layout, "content", lambda paper: told)
    layouts.cache_clear()
    try:
        return paper_table("digits-homogeneous", PARAMS)
    finally:
        layouts.cache_clear()


def test_the_settings_of_a_cell_come_from_file_table_column_row_and_place(monkeypatch):
    spec = made(monkeypatch=monkeypatch)
    seeds = PARAMS.experiments["digits-homogeneous"].seeds
    shared = {"experiment": "digits-homogeneous", "seeds": seeds, "statistic": "best_pooled"}
    fedavg = {"method": "fedavg", "row": "fedavg"} | shared
    assert spec.entries == {
        "fedavg": {
            "iid": Entry(split="iid", printed=91.5, printed_std=0.3, digits=2, footnote="Of the column.", **fedavg),
            "dirichlet": Entry(
                split="dirichlet-homogeneous",
                printed=90.2,
                printed_variance=0.4,
                digits=2,
                footnote="Of the place.",
                **fedavg,
            ),
        },
        "local": {
            "iid": Entry(
                method="fedhpl",
                row="local",
                split="iid",
                printed=90,
                digits=1,
                server=True,
                footnote="Of the row.",
                **shared,
            )
        },
    }
    assert spec.rows == {"fedavg": "FedAvg", "local": "Alone"}
    assert spec.columns == {"iid": "IID", "dirichlet": "Dirichlet"}
    experiment = PARAMS.experiments["digits-homogeneous"]
    assert (spec.title, spec.note, spec.blocks) == (experiment.title, experiment.note, [])


def test_parts_stand_one_below_the_other(monkeypatch):
    cell = {"experiment": "digits-{kind}"}
    parts = [
        {"title": "First", "columns": {"iid": "IID"}, "rows": {"fedavg": [1]}},
        {"title": "Second", "columns": {"dirichlet": "Dirichlet"}, "rows": {"fedavg": [2], "local": [3]}},
    ]
    spec = made({"parts": [{**part, "cell": cell} for part in parts]}, monkeypatch)
    assert [(block.title, block.rows, block.columns) for block in spec.blocks] == [
        ("First", ["fedavg"], ["iid"]),
        ("Second", ["fedavg", "local"], ["dirichlet"]),
    ]
    assert {row: list(cells) for row, cells in spec.entries.items()} == {
        "fedavg": ["iid", "dirichlet"],
        "local": ["dirichlet"],
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": {"fedavg": [1]}}, "row fedavg prints 1 numbers, there are 2 columns; write null"),
        ({"rows": {"fedavg": ["1±", 2]}}, "prints '1±'; write 89.7, 89.7±0.3 or 89.7 (0.40)"),
        ({"rows": {"fedavgg": [1, 2]}, "cells": {}}, "unknown row 'fedavgg'; did you mean 'fedavg'"),
        ({"cells": {"fedavgg": {}}}, "paper.yaml: tables.digits-homogeneous.cells: unknown row 'fedavgg'"),
        ({"cells": {"fedavg": {"iidd": {}}}}, "unknown column 'iidd'; did you mean 'iid'"),
        ({"cell": {"experiment": "digits-{knd}"}}, "unknown variable 'k"),
        ({"cell": {"experiment": "digits-homogeneous", "statistc": "average"}}, "unknown setting 'statistc'"),
        ({"cell": {"experiment": "digits-homogeneouss"}, "cells": {}}, "unknown experiment 'digits-homogeneouss'"),
        ({"rows": None}, "digits-homogeneous.parts.0.rows: None should be a valid dictionary"),
        (
            {"cell": {"experiment": "digits-homogeneous", "after_rounds_of": "digits"}, "cells": {}},
            "unknown experiment",
        ),
        ({"heads": "Method"}, "unknown setting 'heads'; did you mean 'head'"),
    ],
)
def test_what_is_no_layout_is_one_line(change, message, monkeypatch):
    with pytest.raises(HetflError, match=re.escape(message)) as caught:
        made(change, monkeypatch)
    assert "\n" not in str(caught.value)


def test_a_cell_may_be_read_after_as_many_rounds_as_another_experiment_has(monkeypatch):
    cell = {"experiment": "digits-heterogeneous", "row": "fedhpl", "split": "iid"}
    monkeypatch.setitem(PARAMS.experiments["digits-homogeneous"].defaults, "rounds", 10)
    spec = made({"cell": cell | {"after_rounds_of": "digits-homogeneous"}, "cells": {}}, monkeypatch)
    assert spec.entries["fedavg"]["iid"].round == 10


@pytest.mark.parametrize("kind", [RunLayout, CountedLayout])
def test_a_setting_that_a_kind_of_table_does_not_know_is_one_line(kind):
    table = {"columns": {"a": {"thousandss": True, "splitt": "iid"}}, "rows": {"b": [1]}}
    told = {"tables": {"x": table | ({"models": {}} if kind is CountedLayout else {})}}
    with pytest.raises(HetflError, match="paper.yaml: tables.x: unknown setting '(thousandss|splitt)'"):
        read_layouts(kind, told, "paper.yaml", {})


FOLDER = Path(layout.__file__).parent


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yaml")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_shared_text_of_a_file_is_used(path):
    """What ``shared`` holds is what tables refer to."""
    shared = [item for items in read_yaml(path).get("shared", {}).values() for item in items]
    anchors = [line.split("&")[1].split()[0] for line in path.read_text().splitlines() if line.startswith("    - &")]
    assert len(anchors) == len(shared)
    assert [name for name in anchors if f"*{name}" not in path.read_text()] == []


@pytest.mark.parametrize(("value", "digits", "shown"), [(0.125, 2, "0.13"), (2.5, 0, "3"), (0.375, 2, "0.38")])
def test_counted_numbers_are_rounded_half_up(value: float, digits: int, shown: str) -> None:
    assert rounded(value, digits) == shown
