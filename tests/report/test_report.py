"""Tables, figures and the site, made from a small made-up experiment."""

from __future__ import annotations

import copy
import csv
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetfl.errors import HetflError
from hetfl.files import read_json, write_json, write_text
from hetfl.papers.spec import TableSpec, columns_of
from hetfl.report.figures import accuracy_curves, communication_figure
from hetfl.report.partitions import Panel, partition_figure
from hetfl.report.site import build_site
from hetfl.report.table import (
    build_table,
    compare_tables,
    render_comparison,
    render_text,
    verdict,
    write_table,
)

CLIENTS = 5
ROUNDS = 5
ROWS = {"fedhpl": "FedHPL", "fedavg": "FedAvg & co_", "local": "Local"}
COLUMNS = {"iid": "IID", "dirichlet": "Dirichlet (α=0.1)", "pathological": "2 classes < 100%"}
SEEDS = [0, 1, 2]
# Elements one client sends and receives in one round; FedHPL's upload shrinks while it learns.
SIZES = {"fedhpl": (1600, 800), "fedavg": (20000, 20000), "local": (0, 0)}
SPEC = TableSpec(
    name="digits-homogeneous",
    title="Homogeneous models on digits",
    rows=ROWS,
    columns=columns_of("digits-homogeneous", COLUMNS),
    seeds=SEEDS,
    note="Embedded default: digits and tiny models. It proves the machinery; papers use other settings.",
)


def average(row: str, column: str, seed: int) -> float:
    """The final client average, as a fraction."""
    return 0.9 - 0.05 * list(ROWS).index(row) - 0.1 * list(COLUMNS).index(column) + 0.01 * (seed % 3)


def write_cell(root: Path, row: str, column: str, seed: int, status: str = "complete") -> None:
    """One cell's run record and evaluation; clients lie at -2, -1, 0, +1, +2 points around the average."""
    name = Path("digits-homogeneous", row, f"{column}-s{seed}")
    run = root / "runs" / name
    fingerprint = f"{list(ROWS).index(row)}{list(COLUMNS).index(column)}{seed}".ljust(64, "f")
    final = average(row, column, seed)
    write_json(
        run / "run.json",
        {
            "status": status,
            "fingerprint": fingerprint,
            "experiment": "digits-homogeneous",
            "row": row,
            "title": ROWS[row],
            "paper": "fedhpl",
            "table": "digits-homogeneous",
            "method": row,
            "dataset": "digits",
            "split": column,
            "seed": seed,
            "models": ["digits_vit_base"] * CLIENTS,
            "settings": {"optimiser": {"rate": 0.1}},
            "rounds": ROUNDS,
            "clients": CLIENTS,
            "inputs": {
                "dataset": "d" * 64,
                "partition": f"{column}{seed}".ljust(64, "0"),
                "weights": {"digits_vit_base": "b" * 64},
            },
            "parameters": {"trainable": [1634] * 4 + [1700], "total": [90000] * CLIENTS},
            "versions": {"hetfl": "0.1.0", "python": "3.11.7", "torch": "2.15.0"},
            "device": "cpu: 2 cores",
            "engine": "sequential",
            "commit": "abc123",
            "started": "2026-01-01T00:00:00",
            "finished": "2026-01-01T00:01:00",
        },
    )
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
        line: dict[str, Any] = {
            "round": number,
            "participants": list(range(CLIENTS)),
            "up": {"elements": up_elements, "bytes": 4 * up_elements},
            "down": {"elements": down_elements, "bytes": 4 * down_elements},
            "seconds": {"train": 0.5},
            "peak_memory": 1,
            "diagnostics": {},
        }
        if number:
            line |= {"accuracy": [centre + 0.01 * k for k in range(-2, 3)], "loss": [0.4] * CLIENTS}
        lines.append(json.dumps(line))
    write_text(run / "rounds.jsonl", "\n".join(lines) + "\n")
    write_json(
        root / "evaluations" / name / "metrics.json",
        {
            "accuracy": [final + 0.01 * k for k in range(-2, 3)],
            "average": final,
            "lowest": final - 0.02,
            "highest": final + 0.02,
            "fingerprint": fingerprint,
        },
    )


def make(root: Path, spec: TableSpec = SPEC, printed: dict[str, Any] | None = None) -> dict[str, Any]:
    """The table of what lies below ``root``."""
    spec = spec.model_copy(update={"printed": printed or {}})
    return build_table(spec, root / "runs", root / "evaluations")


def cell_of(table: dict[str, Any], row: str, column: str) -> dict[str, Any]:
    return next(cell for cell in table["cells"] if (cell["row"], cell["column"]) == (row, column))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cells of the experiment; never changed by a test."""
    root = tmp_path_factory.mktemp("finished")
    for row in ROWS:
        for column in COLUMNS:
            for seed in SEEDS:
                write_cell(root, row, column, seed)
    return root


@pytest.fixture
def experiment(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "experiment"))


@pytest.mark.parametrize(
    ("value", "std", "printed", "status"),
    [
        (90.0, 0.1, None, "ours"),
        (90.5, 0.1, 90.0, "match"),
        (90.6, 0.1, 90.0, "better"),
        (89.4, None, 90.0, "worse"),
        (88.0, 1.0, 90.0, "match"),
        (87.9, 1.0, 90.0, "worse"),
    ],
)
def test_verdict(value: float, std: float | None, printed: float | None, status: str) -> None:
    assert verdict(value, std, printed) == status


def test_cell_arithmetic(finished: Path) -> None:
    table = make(finished, printed={"fedhpl": {"iid": 95.0}})
    assert list(table) == [
        "table",
        "title",
        "note",
        "seeds",
        "columns",
        "rows",
        "cells",
        "provenance",
    ]
    cell = cell_of(table, "fedhpl", "iid")
    runs = cell.pop("provenance")
    # Averages are 90, 91, 92 percent.
    best = 91 - 30 * math.exp(-4) + 30 * math.exp(-5) + 2
    assert cell.pop("best") == pytest.approx(best, abs=1e-5)
    assert cell == {
        "row": "fedhpl",
        "column": "iid",
        "printed": 95.0,
        "printed_std": None,
        "value": 91,
        "std": 1,
        "seeds": [0, 1, 2],
        "lowest": 89,
        "highest": 93,
        "last": 91,
        "rounds": 5,
        "parameters": {"per_client": [1634, 1634, 1634, 1634, 1700], "mean": 1647.2},
        # 1600, 1500, ..., 1200 elements over five rounds.
        "up": {
            "elements": 1400,
            "bytes": 5600,
            "first": 1600,
            "last": 1200,
            "varies": True,
            "registration": {"elements": 10, "bytes": 40},
            "total": {"elements": 35010, "bytes": 140040},
        },
        "down": {
            "elements": 800,
            "bytes": 3200,
            "first": 800,
            "last": 800,
            "varies": False,
            "registration": {"elements": 0, "bytes": 0},
            "total": {"elements": 16000, "bytes": 64000},
        },
        "status": "worse",
    }
    assert [(run["run"], run["seed"], run["value"]) for run in runs] == [
        (f"runs/digits-homogeneous/fedhpl/iid-s{seed}", seed, 90 + seed) for seed in SEEDS
    ]
    assert runs[0]["fingerprint"].startswith("000f")
    assert cell_of(table, "fedavg", "iid")["up"]["varies"] is False
    assert cell_of(table, "fedavg", "iid")["status"] == "ours"


def test_shared_provenance(finished: Path) -> None:
    shared = make(finished)["provenance"]
    assert shared["datasets"] == {"digits": "d" * 64}
    assert shared["models"] == ["digits_vit_base"]
    assert shared["rounds"] == [5]
    assert shared["versions"] == {"hetfl": ["0.1.0"], "python": ["3.11.7"], "torch": ["2.15.0"]}
    assert len(shared["partitions"]) == 9


def test_partial_participation_counts_participants(tmp_path: Path) -> None:
    spec = SPEC.model_copy(
        update={
            "rows": {"fedavg": "FedAvg"},
            "columns": columns_of("digits-homogeneous", {"iid": "IID"}),
            "seeds": [0],
        }
    )
    write_cell(tmp_path, "fedavg", "iid", 0)
    path = tmp_path / "runs/digits-homogeneous/fedavg/iid-s0/rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2] |= {"participants": [3], "up": {"elements": 20000, "bytes": 80000}}
    lines[2] |= {"down": {"elements": 20000, "bytes": 80000}}
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
    (cell,) = make(tmp_path, spec)["cells"]
    assert cell["up"]["elements"] == 20000
    assert cell["up"]["varies"] is False
    assert cell["std"] is None


def test_unfinished_cells(experiment: Path) -> None:
    write_cell(experiment, "local", "iid", 2, status="running")
    shutil.rmtree(experiment / "runs/digits-homogeneous/fedavg")
    (experiment / "evaluations/digits-homogeneous/local/iid-s0/metrics.json").unlink()
    table = make(experiment, printed={"fedavg": {"iid": 80.0}})
    partial = cell_of(table, "local", "iid")
    assert (partial["seeds"], partial["value"], partial["std"]) == ([1], 81, None)
    missing = cell_of(table, "fedavg", "iid")
    assert (missing["status"], missing["value"], missing["seeds"], missing["printed"]) == (
        "not run",
        None,
        [],
        80,
    )
    assert set(missing) == set(partial)
    markdown = "".join(path.read_text() for path in write_table(table, experiment / "tables"))
    assert "not run<br>printed 80" in markdown
    assert "81.0 (79.0–83.0)<br>1/3 seeds" in markdown


def test_nothing_run(tmp_path: Path) -> None:
    table = make(tmp_path)
    assert {cell["status"] for cell in table["cells"]} == {"not run"}
    write_table(table, tmp_path / "tables")
    assert "nothing run yet" in render_text(table)
    accuracy_curves(table, tmp_path / "runs", tmp_path / "figures")
    communication_figure(table, tmp_path / "runs", tmp_path / "figures")
    build_site(tmp_path / "tables", tmp_path / "figures", tmp_path / "partitions", tmp_path / "report")


def test_evaluation_of_another_run(experiment: Path) -> None:
    path = experiment / "evaluations/digits-homogeneous/local/iid-s0/metrics.json"
    write_json(path, read_json(path) | {"fingerprint": "0" * 64})
    with pytest.raises(HetflError, match="run the evaluate stage of digits-homogeneous again"):
        make(experiment)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"dataset": "e" * 64}, "data set digits"),
        ({"partition": "e" * 64}, "partition iid-s0"),
        ({"weights": {"digits_vit_base": "e" * 64}}, "weights of digits_vit_base"),
    ],
)
def test_cells_from_different_inputs(experiment: Path, change: dict[str, Any], kind: str) -> None:
    path = experiment / "runs/digits-homogeneous/local/iid-s0/run.json"
    run = read_json(path)
    write_json(path, run | {"inputs": run["inputs"] | change})
    with pytest.raises(HetflError, match=kind):
        make(experiment)


def test_damaged_rounds(experiment: Path) -> None:
    write_text(experiment / "runs/digits-homogeneous/local/iid-s0/rounds.jsonl", '{"round": 1')
    with pytest.raises(HetflError, match="rounds.jsonl"):
        make(experiment)


def test_same_bytes_again(finished: Path, tmp_path: Path) -> None:
    # The same records elsewhere: neither places nor times may enter.
    copied = Path(shutil.copytree(finished, tmp_path / "elsewhere"))
    for path in copied.glob("runs/*/*/*/run.json"):
        write_json(path, read_json(path) | {"started": "2027", "finished": "2027"})
    contents = []
    for root, name in ((finished, "first"), (copied, "second")):
        folder = tmp_path / name
        table = make(root)
        write_table(table, folder)
        accuracy_curves(table, root / "runs", folder)
        communication_figure(table, root / "runs", folder)
        build_site(folder, folder, folder, folder)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 9


def test_markdown(finished: Path, tmp_path: Path) -> None:
    write_table(make(finished, printed={"fedhpl": {"iid": 91.25}}), tmp_path)
    text = (tmp_path / "digits-homogeneous.md").read_text()
    assert f"> **Note.** {SPEC.note}" in text
    assert "| FedHPL | **91.0 ± 1.0** (89.0–93.0)<br>printed 91.25, match | **81.0 ± 1.0** (79.0–83.0)" in text
    assert "| 1,634–1,700 | 1,400†<br>5.60 kB | 800<br>3.20 kB |" in text
    assert r"FedAvg & co\_ | 86.0 ± 1.0" in text
    assert "† The size changes with training; first → last round, elements: FedHPL up 1,600 → 1,200." in text
    assert "all clients together: FedHPL 40 B up" in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {8}


def test_csv(finished: Path, tmp_path: Path) -> None:
    write_table(make(finished), tmp_path)
    with (tmp_path / "digits-homogeneous.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 9
    assert (lines[0]["value"], lines[0]["seeds"], lines[0]["up_elements"]) == ("91", "0 1 2", "1400")
    assert (lines[0]["printed"], lines[0]["down_registration_bytes"]) == ("", "0")


def test_latex(finished: Path, tmp_path: Path) -> None:
    spec = SPEC.model_copy(update={"title": r"50% of {all} \ #1 ~ ^ <x> $"})
    write_table(make(finished, spec, printed={"local": {"iid": 81.0}}), tmp_path)
    text = (tmp_path / "digits-homogeneous.tex").read_text()
    assert r"50\% of \{all\} \textbackslash{} \#1 \textasciitilde{} \textasciicircum{} $<$x$>$ \$." in text
    assert r"FedAvg \& co\_ &" in text
    assert r"Dirichlet ($\alpha$=0.1)" in text
    assert r"{\bfseries\boldmath 91.0 $\pm$ 1.0}" in text
    assert text.isascii()
    if shutil.which("pdflatex"):
        head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
        document = head + text + r"\end{document}"
        (tmp_path / "document.tex").write_text(document)
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document.tex"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0


def test_text_fits_a_terminal(finished: Path) -> None:
    text = render_text(make(finished))
    assert SPEC.note in text
    assert "91.0 ± 1.0*" in text
    assert max(map(len, text.splitlines())) <= 150


def test_wide_text_is_cut_into_blocks(finished: Path) -> None:
    columns = COLUMNS | {f"split-{index}": f"A rather long split title {index}" for index in range(8)}
    text = render_text(make(finished, SPEC.model_copy(update={"columns": columns_of("digits-homogeneous", columns)})))
    assert max(map(len, text.splitlines())) <= 150
    assert text.count("method  ") == 3
    assert all(title in text for title in columns.values())


def test_comparison_of_equals(finished: Path) -> None:
    table = make(finished)
    rows = compare_tables(table, copy.deepcopy(table), accuracy_tolerance=0)
    assert all(row["ok"] and row["difference"] == 0 and row["sizes_equal"] for row in rows)
    assert "all 9 cells agree" in render_comparison(rows)


def test_comparison_catches_accuracy(finished: Path) -> None:
    table, fresh = make(finished), make(finished)
    cell_of(fresh, "local", "iid")["value"] += 0.3
    assert all(row["ok"] for row in compare_tables(table, fresh, 0.3))
    (bad,) = [row for row in compare_tables(table, fresh, 0.2) if not row["ok"]]
    assert (bad["row"], bad["column"], bad["difference"]) == ("local", "iid", 0.3)
    assert "1 of 9 cells differ" in render_comparison([bad] + [row for row in compare_tables(table, fresh, 9)][1:])


@pytest.mark.parametrize("key", ["elements", "bytes"])
def test_comparison_catches_sizes(finished: Path, key: str) -> None:
    table, fresh = make(finished), make(finished)
    cell_of(fresh, "fedavg", "iid")["down"][key] += 1
    (bad,) = [row for row in compare_tables(table, fresh, 1.0, size_tolerance=0.5) if not row["ok"]]
    assert (bad["row"], bad["sizes_equal"]) == ("fedavg", False)
    assert f"down {key}" in bad["problem"]


def test_comparison_of_sizes_that_depend_on_training(finished: Path) -> None:
    table, fresh = make(finished), make(finished)
    cell_of(fresh, "fedhpl", "iid")["up"]["bytes"] = 5600 + 56
    assert all(row["ok"] for row in compare_tables(table, fresh, 0, size_tolerance=0.01))
    assert not all(row["ok"] for row in compare_tables(table, fresh, 0, size_tolerance=0.009))


def test_comparison_of_absent_cells(finished: Path, experiment: Path) -> None:
    shutil.rmtree(experiment / "runs/digits-homogeneous/local")
    shutil.rmtree(experiment / "runs/digits-homogeneous/fedavg/iid-s2")
    table, fresh = make(finished), make(experiment)
    fresh["cells"] = [cell for cell in fresh["cells"] if (cell["row"], cell["column"]) != ("fedhpl", "iid")]
    problems = {(row["row"], row["column"]): row["problem"] for row in compare_tables(table, fresh, 1.0)}
    assert problems["fedhpl", "iid"] == "missing in the fresh table"
    assert problems["local", "iid"] == "not run in the fresh table"
    assert problems["fedavg", "iid"] == "seeds [0, 1], not [0, 1, 2]"
    assert problems["fedavg", "dirichlet"] == ""


def test_figures_hold_every_row(finished: Path, tmp_path: Path) -> None:
    table = make(finished)
    curves = accuracy_curves(table, finished / "runs", tmp_path)
    traffic = communication_figure(table, finished / "runs", tmp_path)
    assert [path.name for path in curves + traffic] == [
        "digits-homogeneous-curves.svg",
        "digits-homogeneous-curves.png",
        "digits-homogeneous-communication.svg",
        "digits-homogeneous-communication.png",
    ]
    for path in (curves[0], traffic[0]):
        text = path.read_text()
        assert all(name in text for name in ("FedHPL", "FedAvg &amp; co_", "Local", "2 classes &lt; 100%"))
        assert "accuracy (%)" in text


def test_site(finished: Path, tmp_path: Path) -> None:
    tables, figures, partitions = (tmp_path / name for name in ("tables", "figures", "partitions"))
    table = make(finished)
    write_table(table, tables)
    other = SPEC.model_copy(update={"name": "fedhpl-table-1", "title": "Table 1 <b>", "note": ""})
    write_table(make(finished, other, printed={"fedhpl": {"iid": 91.5}, "local": {"iid": 90.0}}), tables)
    accuracy_curves(table, finished / "runs", figures)
    communication_figure(table, finished / "runs", figures)
    panel = Panel("IID", np.array([[3, 0], [1, 4]]), ["a", "b"])
    partition_figure([panel], "heatmap", partitions / "digits" / "iid-s0" / "samples")
    path = build_site(tables, figures, partitions, tmp_path / "report")
    assert path == tmp_path / "report" / "index.html"
    page = path.read_text()
    assert page.count('<table class="results"') == 2
    assert "Table 1 &lt;b&gt;" in page
    assert page.index(SPEC.note) < page.index('<table class="results"')
    assert "printed 91.5, match" in page
    assert "printed 90, worse" in page
    assert page.count("<svg") == 3
    assert "runs/digits-homogeneous/fedhpl/pathological-s2" in page
    assert "d" * 64 in page
    links = re.findall(r"https?://[^\s\"'<>]+", page)
    assert [link for link in links if not link.startswith("http://www.w3.org/")] == []
    assert not re.search(r"<script|<link|<img|@import|url\((?!#)", page)
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(identifiers)


def test_site_takes_plain_tables(tmp_path: Path) -> None:
    """Only the fields that the interface fixes; rows and columns may be lists."""
    cell = {"row": "a", "column": "b", "printed": 12.0, "printed_std": None, "value": 12.0, "std": None}
    cell |= {"seeds": [], "best": None, "last": None, "status": "arithmetic", "provenance": []}
    table = {"table": "plain", "title": "Plain", "columns": ["b"], "rows": ["a"], "cells": [cell]}
    write_json(tmp_path / "tables" / "plain.json", table)
    assert "printed 12, arithmetic" in build_site(tmp_path / "tables", tmp_path, tmp_path, tmp_path).read_text()


def test_site_refuses_what_is_no_table(tmp_path: Path) -> None:
    write_json(tmp_path / "other.json", {"accuracy": 1})
    with pytest.raises(HetflError, match="is not a table"):
        build_site(tmp_path, tmp_path, tmp_path, tmp_path / "report")


def test_site_without_tables(tmp_path: Path) -> None:
    assert "No tables yet" in build_site(tmp_path, tmp_path, tmp_path, tmp_path / "report").read_text()
