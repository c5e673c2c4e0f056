"""The tidy table of results: a line for each seed of each cell, in the units that it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from record_factory import make_round, records_below, write_metrics, write_record

from hetfl.errors import HetflError
from hetfl.figures.curves import curve_points
from hetfl.tables.results import CELL, cell_of, results
from hetfl.tables.spec import Entry

SIZES = [(0, 10), (1, 0), (2, 400), (3, 200)]
"""Round, and the elements that its two participants send together; 4 bytes each."""


def entry(**more: Any) -> Entry:
    return Entry(experiment="e", method="fedhpl", row="r", split="iid", **{"seeds": [0, 1, 2, 3]} | more)


def write(root: Path, seed: int, evaluated: bool = True) -> None:
    """A run whose clients are at 10, 30 and 20 percent after rounds 1, 2 and 3, the second a point above."""
    lines = []
    for number, elements in SIZES:
        shares = {1: 0.1, 2: 0.3, 3: 0.2}
        test = {"accuracy": [shares[number], shares[number] + 0.01], "pooled": 0.5} if number else {}
        size = {"elements": elements, "bytes": 4 * elements}
        test = test or {"accuracy": None, "pooled": None}
        lines.append(make_round(number, participants=[0, 1], up=size, down={"elements": 0, "bytes": 0}, **test))
    place, parameters = f"e/fedhpl/r/iid-s{seed}", {"trainable": [1024**2, 5], "total": [9, 9]}
    write_record(root / "runs", place, lines, fingerprint=f"{seed}" * 64, rounds=4, parameters=parameters)
    if evaluated:
        told = {"average": 0.205 + seed / 100, "lowest": 0.2, "highest": 0.21}
        write_metrics(root / "evaluations", place, fingerprint=f"{seed}" * 64, **told)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seeds 0 and 1 are done, 2 is not evaluated, 3 not run."""
    folder = tmp_path_factory.mktemp("results")
    for seed in (0, 1, 2):
        write(folder, seed, evaluated=seed < 2)
    return folder


def test_a_line_for_each_seed_of_each_cell(root: Path):
    entries = [entry(), entry(statistic="parameters", seeds=[1]), entry(round=2, seeds=[0])]
    frame = results(entries, records_below(root))
    assert frame[["statistic", "round", "seed", "status"]].values.tolist() == [
        ["average", 0, 0, "done"],
        ["average", 0, 1, "done"],
        ["average", 0, 2, "not evaluated"],
        ["average", 0, 3, "not run"],
        ["parameters", 0, 1, "done"],
        ["average", 2, 0, "done"],
    ]
    assert [*frame.problem] == ["", "", "run the evaluate stage of e", "", "", ""]
    done = frame[frame.status == "done"]
    assert done.value.tolist() == pytest.approx([20.5, 21.5, 1, 30.5])
    assert done.best.tolist()[:2] == pytest.approx([30.5, 30.5]) and done["last"].tolist()[0] == pytest.approx(20.5)
    assert done.lowest.isna().tolist() == [False, False, True, False]
    assert done.rounds.tolist() == [4, 4, 4, 2] and done.played.tolist() == [3, 3, 3, 2]
    assert [record.path for record in done.record] == [f"runs/e/fedhpl/r/iid-s{seed}" for seed in (0, 1, 1, 0)]


def test_sizes_are_one_client_s_over_the_rounds_that_send(root: Path):
    line = results([entry()], records_below(root)).iloc[0]
    assert (line.up_elements, line.up_bytes, line.up_first, line.up_last) == (150, 600, 200, 100)
    assert (line.up_varies, line.down_varies, line.down_elements) == (True, False, 0)
    assert (line.up_registration_elements, line.up_total_bytes) == (10, 4 * 610)


def test_a_pivot_over_seeds_finds_its_cell(root: Path):
    cells = [entry(), entry(statistic="highest")]
    frame = results(cells, records_below(root))
    means = frame[frame.status == "done"].groupby(CELL)["value"].agg(["mean", "count"])
    assert [means.loc[cell_of(cell)].tolist() for cell in cells] == [[21, 2], [21, 2]]


def test_a_cell_that_is_asked_for_twice_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch):
    read = []
    records = records_below(root)
    real = records.get
    monkeypatch.setattr(records, "get", lambda *given: read.append(given) or real(*given))
    assert len(results([entry(), entry(printed=3.0)], records)) == len(read) == 4


def test_a_damaged_record_says_what_is_wrong_without_a_folder_of_this_machine(root: Path, tmp_path: Path):
    write(tmp_path, 0)
    (tmp_path / "runs/e/fedhpl/r/iid-s0/rounds.jsonl").write_text("{}\n")
    line = results([entry()], records_below(tmp_path)).iloc[0]
    assert line.status == "broken" and line.problem.startswith("runs/e/fedhpl/r/iid-s0/rounds.jsonl: ")
    assert str(tmp_path) not in line.problem


def test_the_run_behind_a_table_is_found_by_its_fingerprint(root: Path):
    records = records_below(root)
    record = records.get(entry(), 0)
    assert record is not None and records.get(entry(), 0) is record
    source = {"run": record.path, "fingerprint": record.run.fingerprint}
    changed = source | {"fingerprint": "9" * 64}
    for some in (records, records_below(root)):
        assert some.of(source) == record and some.of(changed) is None
    cell = {"row": "r", "column": "iid", "provenance": [changed]}
    table = {"rows": {"r": "R"}, "columns": {"iid": "IID"}, "cells": [cell]}
    with pytest.raises(HetflError, match="runs/e/fedhpl/r/iid-s0: is not the run that the table shows"):
        curve_points(table, records)
    points = curve_points(table | {"cells": [cell | {"provenance": [source]}]}, records)
    assert points["round"].tolist() == [1, 2, 3] and points.accuracy.tolist()[-1] == pytest.approx(20.5)
