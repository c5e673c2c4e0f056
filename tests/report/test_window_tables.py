"""Tables and figures of accuracies over the last rounds, of records with accuracies of our choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from record_factory import make_metrics, make_round, make_run, records_below, write_metrics, write_record
from table_factory import pages

from hetfl.experiments.evaluation import of_window
from hetfl.figures.curves import accuracy_curves
from hetfl.report.formats import filled, render_csv, render_latex, render_markdown, render_text
from hetfl.report.table import build_table, write_table
from hetfl.tables.records import Record, accuracy_of
from hetfl.tables.spec import Entry, TableSpec

ROUNDS, WINDOW = 6, 2
POOLED = [0.1, 0.2, 0.3, 0.4, 0.5, 0.7]
LOWEST = [0.0, 0.1, 0.0, 0.2, 0.3, 0.5]


def record(root: Path, seed: int) -> None:
    """A run of three clients, of which the last has no test sample; another reading is a tenth better."""
    lines = [make_round(0, up=size(0), down=size(0), accuracy=None, pooled=None, clients={})]
    for number, (pooled, least) in enumerate(zip(POOLED, LOWEST, strict=True), start=1):
        pooled += seed / 100
        other = {"accuracy": [least + 0.1, 0.9, None], "pooled": pooled + 0.1}
        also = {"top-2": other} if number > ROUNDS - WINDOW else {}
        sizes = {"participants": [0, 1], "up": size(20), "down": size(30)}
        lines.append(make_round(number, accuracy=[least, 0.8, None], pooled=pooled, extra=also, **sizes))
    place = Path("windowed", "fgpt", "fgpt", f"s10-s{seed}")
    shared = {"fingerprint": f"{seed}" * 64}
    run = {"dataset": "d", "models": ["m"] * 3, "rounds": ROUNDS, "clients": 3}
    run |= {"parameters": {"trainable": [7] * 3, "total": [7] * 3}}
    run |= {"inputs": {"dataset": "d", "partition": str(seed), "weights": {}}}
    write_record(root / "runs", place, lines, **run, **shared)
    windows = of_window(lines[1:], {"window": WINDOW})
    write_metrics(root / "evaluations", place, accuracy=lines[-1].accuracy, **windows, **shared)


def size(elements: int) -> dict[str, int]:
    return {"elements": elements, "bytes": 4 * elements}


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    for seed in (0, 1):
        record(tmp_path, seed)

    def cell(**more: Any) -> Entry:
        return Entry(experiment="windowed", method="fgpt", row="fgpt", split="s10", seeds=[0, 1], **more)

    spec = TableSpec(
        name="windowed",
        title="Windowed",
        rows={"fgpt": "FGPT", "fgpt-u": "FGPT-U"},
        columns={"s10": "s = 10", "low": "Lowest"},
        entries={
            "fgpt": {
                "s10": cell(statistic="window_pooled", printed=60.6, printed_variance=25.0),
                "low": cell(statistic="window_lowest"),
            },
            "fgpt-u": {
                "s10": cell(statistic="window_pooled", reading="top-2"),
                "low": cell(statistic="window_lowest", reading="top-2"),
            },
        },
        decimals=2,
        curves=True,
    )
    return build_table(spec, records_below(tmp_path))


def test_cells_are_means_over_the_window_and_its_variance_stands_apart(table: dict[str, Any]):
    cells = {(cell["row"], cell["column"]): cell for cell in table["cells"]}
    pooled, low = cells["fgpt", "s10"], cells["fgpt", "low"]
    # Rounds 5 and 6: 50 and 70 percent, one more with the other seed.
    assert [run["value"] for run in pooled["provenance"]] == [60, 61]
    assert (pooled["value"], pooled["std"], pooled["variance"], pooled["window"]) == (60.5, 0.707107, 100, 2)
    # Ours is within half a point; 25 squared points would be another matter.
    assert (pooled["printed"], pooled["printed_variance"], pooled["printed_std"]) == (60.6, 25, None)
    assert (pooled["status"], pooled["difference"]) == ("match", -0.1)
    assert (low["value"], low["std"], low["status"]) == (40, 0, "ours")
    assert "variance" not in low and "printed_variance" not in low
    assert cells["fgpt-u", "s10"]["value"] == 70.5 and cells["fgpt-u", "low"]["value"] == 50
    # The best and the last round of what a reading has: its window alone.
    assert [(pooled[key], cells["fgpt-u", "s10"][key]) for key in ("best", "last")] == [(70.5, 80.5)] * 2


def test_every_face_of_a_table_tells_the_variance_from_a_deviation(table: dict[str, Any]):
    markdown = render_markdown(table)
    assert "| FGPT | 60.50 ± 0.71 (var 100.00)<br>printed 60.60 var 25.00 (-0.10), match | 40.00 ± 0.00 |" in markdown
    assert "mean over the last 2 rounds of each run, in percent, mean ± sample standard deviation" in markdown
    assert "Lowest client: in each of these rounds the client with the lowest accuracy." in markdown
    assert "var: variance between these rounds of one run, dividing by their number, in squared points" in markdown
    assert "Printed with var: the paper's bracket, between rounds of one run." in markdown
    assert r"{\small var 100.00}" in render_latex(table)
    assert "printed 60.60 var 25.00 (-0.10)" in render_text(table)
    first = render_csv(table).splitlines()
    line = dict(zip(first[0].split(","), first[1].split(","), strict=True))
    assert (line["variance"], line["printed_variance"], line["printed_std"], line["window"]) == (
        "100",
        "25.0",
        "",
        "2",
    )
    assert (line["statistic"], line["reading"]) == ("window_pooled", "")


def test_the_site_shows_the_variance_and_calls_it_no_range_of_clients(table: dict[str, Any], tmp_path: Path):
    write_table(table, tmp_path / "tables")
    accuracy_curves(table, records_below(tmp_path), tmp_path / "figures")
    text = pages(tmp_path / "tables")["tables/windowed.html"]
    assert '<span class="range">var 100.00</span>' in text and "clients from" not in text
    assert "printed 60.60 var 25.00 (-0.10), match" in text
    assert "mean over the last 2 rounds of each run" in text


def test_curves_show_each_column_s_own_accuracy(table: dict[str, Any], tmp_path: Path, monkeypatch):
    drawn: dict[tuple[str, str], list[float]] = {}
    plot = Axes.plot

    def spy(axes: Axes, x: Any, y: Any, *more: Any, **style: Any) -> Any:
        drawn[axes.get_title("left"), style["label"]] = [round(value, 6) for value in y]
        return plot(axes, x, y, *more, **style)

    monkeypatch.setattr(Axes, "plot", spy)
    accuracy_curves(table, records_below(tmp_path), tmp_path / "figures")
    assert drawn == {
        ("s = 10", "FGPT"): [10.5, 20.5, 30.5, 40.5, 50.5, 70.5],
        ("s = 10", "FGPT-U"): [60.5, 80.5],
        ("Lowest", "FGPT"): [0, 10, 0, 20, 30, 50],
        ("Lowest", "FGPT-U"): [40, 60],
    }
    assert "Test accuracy (%)" in (tmp_path / "figures/windowed-curves.svg").read_text()


def test_a_round_s_accuracy_leaves_out_clients_without_samples():
    other = {"accuracy": [0.2, None, 0.4], "pooled": 1.0}
    line = make_round(1, accuracy=[0.0, None, 0.5], pooled=0.3, extra={"top-2": other})
    asked = ("average", "lowest", "highest", "best_pooled", "window_pooled", "window_lowest")
    assert [accuracy_of(name, "", line) for name in asked] == [0.25, 0, 0.5, 0.3, 0.3, 0]
    assert accuracy_of("window_lowest", "top-2", line) == 0.2
    assert accuracy_of("window_pooled", "top-5", line) is accuracy_of("parameters", "", line) is None
    assert accuracy_of("average", "", make_round(3, accuracy=None, pooled=None)) is None


def test_a_record_cut_at_a_round_leaves_them_out_too():
    lines = [make_round(number, accuracy=[number / 10, None]) for number in (1, 2, 3)]
    record = Record("runs/x", make_run(rounds=3), lines, make_metrics())
    cut = record.until(2)
    assert record.until(4) is None
    assert cut is not None and cut.run.rounds == 2
    assert (cut.metrics.accuracy, cut.metrics.average) == ([0.2, None], 0.2)
    assert (cut.metrics.lowest, cut.metrics.highest, cut.metrics.pooled) == (0.2, 0.2, lines[1].pooled)


def test_tables_from_before_there_were_windows_read_the_same():
    cell = {"row": "a", "column": "b", "status": "ours", "printed": None, "value": 50.0, "provenance": []}
    old = filled({"table": "t", "title": "T", "rows": {"a": "A"}, "columns": {"b": "B"}, "cells": [cell]})
    assert "| A | **50.0** |" in render_markdown(old)
    assert "mean of the clients' test accuracies with the final model" in render_markdown(old)
