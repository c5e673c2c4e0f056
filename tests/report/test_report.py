"""Tables and figures, made from a small experiment with accuracies of our choice."""

from __future__ import annotations

import copy
import csv
import math
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from record_factory import make_round, records_below, rewrite_rounds, rewrite_run
from table_factory import (
    CLIENTS,
    COLUMNS,
    ROUNDS,
    ROWS,
    SEEDS,
    SPEC,
    cell_of,
    cell_spec,
    grid,
    make,
    pages,
    write_cell,
    write_experiment,
)

from hetfl.errors import HetflError
from hetfl.figures.curves import accuracy_curves, communication_figure, curve_points
from hetfl.files import read_json, write_json, write_text
from hetfl.report.comparison import compare_tables, render_comparison
from hetfl.report.formats import render_csv, render_latex, render_markdown, render_text
from hetfl.report.table import write_table
from hetfl.schema import needed_run, read_rounds
from hetfl.tables.spec import Block, TableSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cells of the experiment; never changed by a test."""
    root = tmp_path_factory.mktemp("finished")
    write_experiment(root)
    return root


@pytest.fixture
def experiment(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "experiment"))


def test_cell_arithmetic(finished: Path) -> None:
    table = make(finished, printed={"fedhpl": {"iid": 95.0}})
    assert list(table) == [
        "table",
        "title",
        "note",
        "head",
        "seeds",
        "columns",
        "rows",
        "decimals",
        "cells",
        "footnotes",
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
        "difference": -4,
        "seeds": [0, 1, 2],
        "wanted": [0, 1, 2],
        "random": False,
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
        (f"runs/digits-homogeneous/fedhpl/fedhpl/iid-s{seed}", seed, 90 + seed) for seed in SEEDS
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


def change_runs(root: Path, pattern: str, **changes: Any) -> None:
    for path in root.glob(f"runs/{pattern}/run.json"):
        rewrite_run(path.parent, changes)


def test_what_runs_differ_in_beside_their_identity_is_told(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    assert make(tmp_path / "copy")["provenance"]["differences"] == {}
    versions = {"hetfl": "0.1.0", "python": "3.11.7", "torch": "2.11.0"}
    change_runs(tmp_path / "copy", "*/fedavg/*/iid-s0", versions=versions, threads=2)
    table = make(tmp_path / "copy")
    total = len(list((tmp_path / "copy").rglob("run.json")))
    told = table["provenance"]["differences"]
    assert told == {"threads": {"1": total - 1, "2": 1}, "torch": {"2.15.0": total - 1, "2.11.0": 1}}
    line = f"torch 2.15.0 ({total - 1} runs), 2.11.0 (1 run)."
    for shown in (render_text(table), render_markdown(table)):
        assert "Runs differ in: " in shown and line in " ".join(shown.split())


def test_what_runs_differ_in_tells_where_one_went_on(experiment: Path) -> None:
    change_runs(experiment, "*/fedavg/*/iid-s0", changes=[{"round": 3, "threads": 2}])
    total = len(list(experiment.rglob("run.json")))
    assert make(experiment)["provenance"]["differences"] == {"threads": {"1": total - 1, "1, then 2": 1}}


def test_a_table_stays_as_it_is_where_only_the_commit_is_another(finished: Path, tmp_path: Path) -> None:
    root, tables = tmp_path / "copy", tmp_path / "tables"
    shutil.copytree(finished, root)
    paths = write_table(make(root), tables)
    before = [path.read_bytes() for path in paths]
    change_runs(root, "*/fedavg/*/*", commit="def456", source="0" * 64)
    write_table(make(root), tables)
    assert [path.read_bytes() for path in paths] == before
    change_runs(root, "*/*/*/*", device="cpu: another", commit="def456")
    write_table(make(root), tables)
    told = read_json(paths[0])["provenance"]
    assert (told["commits"], told["devices"]) == (["def456"], ["cpu: another"])
    paths[0].write_text("{")
    write_table(make(root), tables)
    assert read_json(paths[0])["provenance"] == told


def test_partial_participation_counts_participants(tmp_path: Path) -> None:
    spec = SPEC.model_copy(
        update={
            "rows": {"fedavg": "FedAvg"},
            "columns": {"iid": "IID"},
            "entries": grid(["fedavg"], ["iid"], partial(cell_spec, seeds=[0])),
        }
    )
    write_cell(tmp_path, "fedavg", "iid", 0)
    folder, size = tmp_path / "runs/digits-homogeneous/fedavg/fedavg/iid-s0", {"elements": 20000, "bytes": 80000}
    lines = read_rounds(folder)
    lines[2] = make_round(**lines[2].as_json() | {"number": 2, "participants": [3], "up": size, "down": size})
    rewrite_rounds(folder, lines)
    (cell,) = make(tmp_path, spec)["cells"]
    assert cell["up"]["elements"] == 20000
    assert cell["up"]["varies"] is False
    assert cell["std"] is None


def test_fine_tuning_is_the_last_value_and_no_round_of_communication(experiment: Path, tmp_path: Path) -> None:
    folder = experiment / "runs/digits-homogeneous/fedavg/fedavg/iid-s0"
    spec = one_cell("fedavg")
    (before,) = make(experiment, spec)["cells"]
    size = {"elements": CLIENTS * 30000, "bytes": CLIENTS * 120000}
    nothing = {"elements": 0, "bytes": 0}
    tuned = make_round(ROUNDS + 1, fine_tuning=True, accuracy=[0.95] * CLIENTS, pooled=0.95, up=nothing, down=size)
    rewrite_rounds(folder, [*read_rounds(folder), tuned])
    table = make(experiment, spec)
    (after,) = table["cells"]
    assert (after["last"], after["best"], after["rounds"]) == (95, 95, ROUNDS)
    assert after["up"] == before["up"]
    assert after["down"]["total"]["elements"] == before["down"]["total"]["elements"] + CLIENTS * 30000
    assert after["down"] | {"total": None} == before["down"] | {"total": None}
    assert "Rounds: 5." in render_text(table)
    records = records_below(experiment)
    assert curve_points(table, records)["fine_tuned"].tolist() == [""] * ROUNDS + ["yes"]
    accuracy_curves(table, records, tmp_path)


def one_cell(row: str, **more: Any) -> TableSpec:
    """A table of one cell."""
    entries = {row: {"iid": cell_spec(row, "iid", seeds=[0], **more)}}
    return SPEC.model_copy(update={"rows": {row: ROWS[row]}, "columns": {"iid": "IID"}, "entries": entries})


def test_a_cell_as_it_was_after_a_round(finished: Path) -> None:
    (cell,) = make(finished, one_cell("fedhpl", round=4))["cells"]
    (whole,) = make(finished, one_cell("fedhpl"))["cells"]
    # The fourth round is the best one.
    assert cell["value"] == cell["last"] == cell["best"] == whole["best"] > whole["value"]
    assert (cell["lowest"], cell["highest"], cell["rounds"]) == (
        pytest.approx(cell["value"] - 2),
        pytest.approx(cell["value"] + 2),
        4,
    )
    assert cell["up"]["last"] == 1300
    (never,) = make(finished, one_cell("fedhpl", round=ROUNDS + 1))["cells"]
    assert never["status"] == "not run"


@pytest.mark.parametrize(
    ("statistic", "value"),
    [
        ("lowest", 88),
        ("highest", 92),
        ("up_first", 5 * 1600 / 1024**2),
        ("up_last", 5 * 1200 / 1024**2),
        ("parameters", 1634 / 1024**2),
        ("parameters_total", 8236 / 1024**2),
    ],
)
def test_statistics_of_a_run(finished: Path, statistic: str, value: float) -> None:
    (cell,) = make(finished, one_cell("fedhpl", statistic=statistic, printed=0.008, digits=3))["cells"]
    assert cell["value"] == pytest.approx(value, abs=1e-6)
    assert cell["lowest"] is None
    assert (cell.get("unit") == "M") == (statistic not in ("lowest", "highest"))
    assert (cell["status"] == "match") == (statistic in ("up_first", "parameters_total"))


def test_the_best_round_of_all_test_samples_together(finished: Path, tmp_path: Path) -> None:
    spec = one_cell("fedavg", statistic="best_pooled", printed=90.0, printed_std=0.3)
    table = make(finished, spec.model_copy(update={"decimals": 2, "curves": True}))
    (cell,) = table["cells"]
    best = 85 - 30 * math.exp(-4) + 30 * math.exp(-5) + 2 + 5
    assert cell["value"] == cell["best"] == pytest.approx(best, abs=1e-5)
    assert (cell["last"], cell["lowest"], cell["highest"], cell["statistic"]) == (90, None, None, "best_pooled")
    _, md, csv_, tex = (path.read_text() for path in write_table(table, tmp_path))
    assert "91.65**<br>printed 90.00±0.30 (+1.65), better |" in md
    assert r"printed 90.00$\pm$0.30 (+1.65)} \\ {\small better}" in tex and ",90.0,0.3,1.65" in csv_
    for text in (md, render_text(table)):
        assert "over all their test samples" in " ".join(text.split()) and "highest client" not in text
    curves = [draw(table, records_below(finished), tmp_path)[0] for draw in (accuracy_curves, communication_figure)]
    assert all("Pooled accuracy (%)" in path.read_text() for path in curves)
    page = pages(tmp_path)[f"tables/{table['table']}.html"]
    assert "printed 90.00±0.30 (+1.65), better" in page and "Correct predictions of all clients" in page


def test_a_printed_value_of_another_setting_judges_nothing(finished: Path, tmp_path: Path) -> None:
    table = make(finished, one_cell("fedavg", printed=85.0, comparable=False))
    (cell,) = table["cells"]
    assert (cell["value"], cell["printed"], cell["difference"], cell["status"]) == (85, 85, None, "other setting")
    write_table(table, tmp_path)
    site = pages(tmp_path)
    page = site[f"tables/{table['table']}.html"]
    for text in (page, *(path.read_text() for path in tmp_path.glob("*.[mt]*")), render_text(table)):
        assert re.search(r"printed 85\.0(,|} \\\\ {\\small|)\s+other setting", text)
    assert "the two are not compared" in render_text(table)
    assert "1 of 1 numbers trained</span>" in site["index.html"]


def test_one_seed_is_no_mean_over_seeds(tmp_path: Path) -> None:
    write_cell(tmp_path, "fedavg", "iid", 0)
    entries = {"fedavg": {"iid": cell_spec("fedavg", "iid")}}
    rows = {"rows": {"fedavg": "FedAvg"}, "columns": {"iid": "IID"}}
    table = make(tmp_path, SPEC.model_copy(update=rows | {"entries": entries}))
    assert table["seeds"] == SEEDS and "over seeds" not in render_markdown(table)
    for draw in (accuracy_curves, communication_figure):
        drawn = draw(table, records_below(tmp_path), tmp_path)[0].read_text()
        assert "One seed" in drawn and "over seeds" not in drawn


def test_a_run_that_stopped_early_says_after_which_round(experiment: Path) -> None:
    folder = experiment / "runs/digits-homogeneous/fedavg/fedavg/iid-s1"
    rewrite_rounds(folder, read_rounds(folder)[:4])
    table = make(experiment)
    cell = cell_of(table, "fedavg", "iid")
    assert [run.get("rounds") for run in cell["provenance"]] == [None, 3, None]
    assert cell["rounds"] == ROUNDS
    assert "Rounds: 5; 1 of 27 runs stopped early, after 3." in render_text(table)
    lines = csv.DictReader(render_csv(table).splitlines())
    played = {line["rounds"] for line in lines if (line["row"], line["column"]) == ("fedavg", "iid")}
    assert played == {f"{round((5 + 3 + 5) / 3, 6)}"}


def test_parameters_of_the_server_count_where_asked(experiment: Path) -> None:
    folder = experiment / "runs/digits-homogeneous/fedhpl/fedhpl/iid-s0"
    parameters = needed_run(folder).parameters.as_json()
    rewrite_run(folder, {"parameters": parameters | {"server": 1024**2}})
    (plain,) = make(experiment, one_cell("fedhpl", statistic="parameters"))["cells"]
    (more,) = make(experiment, one_cell("fedhpl", statistic="parameters", server=True))["cells"]
    assert more["value"] == pytest.approx(plain["value"] + 1)


def test_random_backbone_weights_are_marked_everywhere(experiment: Path, tmp_path: Path) -> None:
    folder = experiment / "runs/digits-homogeneous/local/local/iid-s1"
    rewrite_run(folder, {"models": ["vit_base_patch16_224.random"] * CLIENTS})
    table = make(experiment)
    assert [cell["random"] for cell in table["cells"]].count(True) == 1
    files = write_table(table, tmp_path / "tables")
    texts = [path.read_text() for path in files] + [render_text(table)]
    texts.append(pages(tmp_path / "tables")[f"tables/{table['table']}.html"])
    for text in texts[1:2] + texts[4:]:
        assert "‡ Random backbone weights" in text
        assert text.count("‡") == 2
    assert r"$\ddagger$" in texts[3]
    assert texts[2].count("True") == 1 + texts[2].count("fedhpl,")


def test_a_diverged_run_is_marked_everywhere(experiment: Path, tmp_path: Path) -> None:
    assert "§" not in render_text(make(experiment))
    for seed, first in ((0, 4), (2, 2)):
        folder = experiment / f"runs/digits-homogeneous/local/local/iid-s{seed}"
        found = {True: {"diverged": [1]}, False: {}}
        rewrite_rounds(folder, [line.model_copy(update=found[line.round >= first]) for line in read_rounds(folder)])
    table = make(experiment)
    assert [run.get("diverged") for run in cell_of(table, "local", "iid")["provenance"]] == [4, None, 2]
    files = write_table(table, tmp_path / "tables")
    texts = [path.read_text() for path in files] + [render_text(table)]
    texts.append(pages(tmp_path / "tables")[f"tables/{table['table']}.html"])
    for text in texts[1:2] + texts[4:]:
        assert text.count("§") == 2
        assert "Local, IID: seed 0 in round 4, seed 2 in round 2." in re.sub(r"\s+", " ", text)
    assert texts[2].count('"seed 0 in round 4, seed 2 in round 2"') == 1
    assert texts[3].count(r"\S{}") == 2


def test_a_run_that_went_on_without_a_client_is_marked_everywhere(experiment: Path, tmp_path: Path) -> None:
    assert "¶" not in render_text(make(experiment))
    rewrite_run(experiment / "runs/digits-homogeneous/local/local/iid-s2", {"failed": 3})
    table = make(experiment)
    texts = [path.read_text() for path in write_table(table, tmp_path / "tables")]
    for text in (texts[1], render_text(table), pages(tmp_path / "tables")[f"tables/{table['table']}.html"]):
        assert text.count("¶") == 2 and "Local, IID: seed 2 in round 3." in re.sub(r"\s+", " ", text)
    assert texts[3].count(r"\P{}") == 2


def test_a_run_that_diverged_does_not_set_the_range_of_a_figure(experiment: Path, tmp_path: Path) -> None:
    folder = experiment / "runs/digits-homogeneous/local/local/iid-s0"
    lost = {"accuracy": [0.0] * CLIENTS, "pooled": 0.0, "diverged": [*range(CLIENTS)]}
    rewrite_rounds(
        folder, [line.model_copy(update=lost if line.round == ROUNDS else {}) for line in read_rounds(folder)]
    )
    table, records = make(experiment), records_below(experiment)
    limits = []

    def keep(figure: Figure, path: Path) -> list[Path]:
        limits.append(figure.axes[0].get_ylim())
        (caption,) = [" ".join(text.get_text().split()) for text in figure.texts if text.get_gid() == "caption"]
        assert "A line for each seed" in caption and "Cross: the run diverges in the next round" in caption
        return []

    with mock.patch("hetfl.figures.curves.save", keep):
        accuracy_curves(table, records, tmp_path)
        communication_figure(table, records, tmp_path)
    assert all(low > 40 for low, _ in limits) and len(limits) == 2
    seeds = curve_points(table, records).query("row == 'local' and column == 'iid'").groupby("seed").accuracy.min()
    assert seeds[0] == 0 and seeds[1] > 40


def test_a_row_that_sends_nothing_is_a_level_line_among_bytes(finished: Path, tmp_path: Path) -> None:
    drawn: list[Figure] = []
    with mock.patch("hetfl.figures.curves.save", lambda figure, path: drawn.append(figure) or []):
        communication_figure(make(finished), records_below(finished), tmp_path)
    lines = {line.get_label(): [*line.get_xdata()] for line in drawn[0].axes[0].lines}
    assert lines["Local"] == [0, 1] and len(lines["FedHPL"]) > 2


def test_close_to_100_percent_an_axis_is_logarithmic_in_the_errors(experiment: Path, tmp_path: Path) -> None:
    found: list[tuple[str, list[str], bool]] = []

    def keep(figure: Figure, path: Path) -> list[Path]:
        axes = figure.axes[0]
        labels = [label.get_text() for label in axes.get_yticklabels()]
        told = any("logarithmic in the share of errors" in " ".join(text.get_text().split()) for text in figure.texts)
        found.append((axes.get_yscale(), labels, told))
        return []

    def draw() -> None:
        accuracy_curves(make(experiment), records_below(experiment), tmp_path)
        communication_figure(make(experiment), records_below(experiment), tmp_path)

    folder = experiment / "runs/digits-homogeneous/fedavg/fedavg/iid-s0"
    with mock.patch("hetfl.figures.curves.save", keep):
        draw()
        lines = read_rounds(folder)
        for best in (0.997, 1.0):
            good = {"accuracy": [best] * CLIENTS, "pooled": best}
            rewrite_rounds(folder, [line.model_copy(update=good if line.round > 2 else {}) for line in lines])
            draw()
    assert all(scale == "linear" and not told for scale, _, told in found[:2])
    shown = ["50", "80", "90", "95", "98", "99", "99.5"]
    assert found[2:] == [("function", shown, True)] * 2 + [("function", [*shown, "99.8", "99.9"], True)] * 2


def test_blocks_and_footnotes(finished: Path, tmp_path: Path) -> None:
    left = Block(title="Left & first", rows=["fedhpl"], columns=["iid", "dirichlet"])
    right = Block(title="Right", rows=["fedavg", "local"], columns=["pathological"])
    entries = {row: {} for row in ROWS} | {
        row: {column: cell_spec(row, column) for column in block.columns}
        for block in (left, right)
        for row in block.rows
    }
    entries["local"]["pathological"] = cell_spec("local", "pathological", footnote="Printed upside down.", seeds=[7])
    changes = {"entries": entries, "blocks": [left, right], "footnotes": ["About all."], "decimals": 2, "head": "Row"}
    table = make(finished, SPEC.model_copy(update=changes))
    assert len(table["cells"]) == 4
    _, md, csv_, tex = (path.read_text() for path in write_table(table, tmp_path))
    assert md.index("**Left & first**") < md.index("| Row | IID |") < md.index("**Right**")
    assert "91.00 ± 1.00" in md and "not run [1]" in md
    assert "- [1] Printed upside down.\n- About all." in md
    assert len(csv_.splitlines()) == 5
    assert tex.count(r"\begin{tabular}{l") == 2 and r"Left \& first" in tex
    text = render_text(table)
    assert text.index("Left & first") < text.index("row ") < text.index("Right")
    page = pages(tmp_path)[f"tables/{table['table']}.html"]
    assert page.count('<table class="results"') == 2
    assert (
        '<h2 class="part">Left &amp; first</h2>' in page
        and "[1] Printed upside down." in page
        and "About all." in page
    )


def test_a_place_without_a_cell_stays_empty(finished: Path, tmp_path: Path) -> None:
    entries = {row: {"iid": cell_spec(row, "iid")} for row in ROWS} | {
        "local": {"dirichlet": cell_spec("local", "iid")}
    }
    table = make(finished, SPEC.model_copy(update={"entries": entries}))
    _, md, *_ = (path.read_text() for path in write_table(table, tmp_path))
    assert re.search(r"\| Local \|  \| \*\*71.0|\| Local \|  \| \*\*81.0", md)
    assert "Local" in render_text(table)
    pages(tmp_path)


def test_unfinished_cells(experiment: Path) -> None:
    write_cell(experiment, "local", "iid", 2, status="running")
    shutil.rmtree(experiment / "runs/digits-homogeneous/fedavg")
    (experiment / "evaluations/digits-homogeneous/local/local/iid-s0/metrics.json").unlink()
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
    assert {*missing, "footnote"} == set(partial)
    assert "Seed 0 is not evaluated" in partial["footnote"]
    markdown = "".join(path.read_text() for path in write_table(table, experiment / "tables"))
    assert "not run<br>printed 80" in markdown
    assert "81.0 [1] (79.0–83.0)<br>1/3 seeds" in markdown


def test_nothing_run(tmp_path: Path) -> None:
    table = make(tmp_path)
    assert {cell["status"] for cell in table["cells"]} == {"not run"}
    write_table(table, tmp_path / "tables")
    assert "nothing run yet" in render_text(table)
    accuracy_curves(table, records_below(tmp_path), tmp_path / "figures")
    communication_figure(table, records_below(tmp_path), tmp_path / "figures")
    pages(tmp_path / "tables")


def other_evaluation(root: Path, cell: str) -> None:
    path = root / "evaluations" / cell / "metrics.json"
    write_json(path, read_json(path) | {"fingerprint": "0" * 64})


DAMAGES = {
    "evaluation of another run": (
        other_evaluation,
        "not evaluated",
        "run the evaluate stage of digits-homogeneous",
    ),
    "damaged rounds": (
        lambda root, cell: write_text(root / "runs" / cell / "rounds.jsonl", '{"round": 1'),
        "broken",
        "rounds.jsonl: line 1 is not JSON",
    ),
    "damaged run.json": (
        lambda root, cell: (root / "runs" / cell / "run.json").write_bytes(b"\xff{"),
        "broken",
        "run.json: is not JSON",
    ),
    "evaluation lost": (
        lambda root, cell: shutil.rmtree(root / "evaluations" / cell),
        "not evaluated",
        "run the evaluate stage of digits-homogeneous",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_record_is_told_in_its_cell_and_takes_no_other_along(experiment: Path, damage: str) -> None:
    harm, status, reason = DAMAGES[damage]
    before = {(cell["row"], cell["column"]): cell for cell in make(experiment)["cells"]}
    seeds = before["local", "iid"]["seeds"]
    harm(experiment, f"digits-homogeneous/local/local/iid-s{seeds[0]}")
    table = make(experiment)
    after = {(cell["row"], cell["column"]): cell for cell in table["cells"]}
    cell = after.pop(("local", "iid"))
    assert all(cell == before[place] for place, cell in after.items())
    # The other seeds are still shown.
    assert cell["seeds"] == seeds[1:] and cell["value"] is not None
    assert f"Seed {seeds[0]} is {status}" in cell["footnote"] and reason in cell["footnote"]
    assert str(experiment) not in cell["footnote"]

    for seed in seeds[1:]:
        harm(experiment, f"digits-homogeneous/local/local/iid-s{seed}")
    table = make(experiment)
    cell = next(cell for cell in table["cells"] if (cell["row"], cell["column"]) == ("local", "iid"))
    assert (cell["status"], cell["value"]) == (status, None)
    write_table(table, experiment / "tables")
    page = pages(experiment / "tables", experiment)["tables/digits-homogeneous.html"]
    files = [experiment / "tables" / f"digits-homogeneous.{kind}" for kind in ("md", "tex", "csv")]
    for text in (render_text(table), page, *(path.read_text() for path in files)):
        assert status in text


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"dataset": "e" * 64}, "data set digits"),
        ({"partition": "e" * 64}, "partition digits/iid-s0"),
        ({"weights": {"digits_vit_base": "e" * 64}}, "weights of digits_vit_base"),
    ],
)
def test_cells_from_different_inputs(experiment: Path, change: dict[str, Any], kind: str) -> None:
    folder = experiment / "runs/digits-homogeneous/local/local/iid-s0"
    rewrite_run(folder, {"inputs": needed_run(folder).inputs.as_json() | change})
    with pytest.raises(HetflError, match=kind):
        make(experiment)


def test_seeds_with_different_public_data_are_refused(experiment: Path) -> None:
    for seed in (0, 1):
        cell = f"digits-homogeneous/local/local/iid-s{seed}"
        told = needed_run(experiment / "runs" / cell).inputs.as_json() | {"public": f"{seed}" * 64}
        change_runs(experiment, cell, inputs=told, public={"dataset": "shared", "subset": "train"})
    with pytest.raises(HetflError, match="data set shared has checksum"):
        make(experiment)


@pytest.fixture(scope="module")
def drawn(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The figures of the finished runs' table, in both formats."""
    return figures(finished, tmp_path_factory.mktemp("drawn"))


def figures(root: Path, folder: Path) -> list[Path]:
    table, records = make(root), records_below(root)
    return accuracy_curves(table, records, folder) + communication_figure(table, records, folder)


def test_same_bytes_again(both_formats: None, finished: Path, drawn: list[Path], tmp_path: Path) -> None:
    # The same records elsewhere: neither places nor times may enter.
    copied = Path(shutil.copytree(finished, tmp_path / "elsewhere"))
    for path in copied.glob("runs/*/*/*/*/run.json"):
        rewrite_run(path.parent, {"started": "2027", "finished": "2027"})
    contents = []
    for root, name in ((finished, "first"), (copied, "second")):
        folder = tmp_path / name
        write_table(make(root), folder)
        for path in drawn if root == finished else figures(root, tmp_path / "drawn again"):
            shutil.copy(path, folder)
        pages(folder)
        contents.append({path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 15


def test_markdown(finished: Path, tmp_path: Path) -> None:
    write_table(make(finished, printed={"fedhpl": {"iid": 91.25}}), tmp_path)
    text = (tmp_path / "digits-homogeneous.md").read_text()
    assert f"> **Note.** {SPEC.note}" in text
    assert "| FedHPL | **91.0 ± 1.0** (89.0–93.0)<br>printed 91.25 (-0.2), match | **81.0 ± 1.0** (79.0–83.0)" in text
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
    assert r"Dirichlet \\ {($\alpha$=0.1)}" in text
    assert r"{\bfseries\boldmath 91.0 $\pm$ 1.0}" in text
    assert text.isascii()
    typeset(text, tmp_path)


def typeset(text: str, folder: Path) -> str:
    """What LaTeX says of a table, with the widths of its parts before they are scaled; empty where there is none."""
    if not shutil.which("pdflatex"):
        return ""
    told = r"\renewcommand\resizebox[3]{\setbox0\hbox{#3}\typeout{WIDTH \the\wd0}\scaled{#1}{#2}{#3}}"
    head = rf"\documentclass{{article}}\usepackage{{booktabs,graphicx}}\let\scaled\resizebox{told}"
    (folder / "document.tex").write_text(head + r"\begin{document}" + text + r"\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "document.tex"]
    assert subprocess.run(command, cwd=folder, capture_output=True).returncode == 0
    return (folder / "document.log").read_text()


def test_a_large_table_is_legible_and_goes_on_in_further_floats(finished: Path, tmp_path: Path) -> None:
    rows = ROWS | {f"row-{index}": f"Local, with a rather long row title {index}" for index in range(24)}
    columns = COLUMNS | {f"split-{index}": f"A rather long split title {index}" for index in range(8)}
    whole = Block(title="All & more", rows=[*rows], columns=[*columns])
    changes = {"rows": rows, "columns": columns, "entries": grid(rows, columns, cell_spec), "blocks": [whole]}
    printed = {"local": {"iid": 81.0}, "row-1": {"split-0": 50.0}}
    text = render_latex(make(finished, SPEC.model_copy(update=changes), printed=printed))
    floats = text.split(r"\end{table}")
    assert text.count(r"\begin{table}") == len(floats) - 1 > 2
    labels = [SPEC.name, *(f"{SPEC.name}-{number}" for number in range(2, len(floats)))]
    assert re.findall(r"\\label{tab:(.*?)}", text) == labels
    first, *others = re.findall(r"\\caption{(.*)}", text)
    assert first == f"{SPEC.title}. {SPEC.note}"
    assert {*others} == {rf"{SPEC.title}, continued: All \& more."}
    assert text.count("Provenance:") == floats[-1].count("Provenance:") == 1
    # In every part of the columns each row, in every part of the rows each column.
    assert text.count(r"Local, with a rather long row \\ {title 23}") > 1
    assert text.count(r"A rather long \\ {split title 7}") > 1
    assert r"81.0 $\pm$ 1.0 \\ {\small 79.0--83.0} \\ {\small printed 81.0 (+0.0)} \\ {\small match}" in text
    log = typeset(text, tmp_path)
    assert "Float too large" not in log and "Overfull" not in log
    # \small is 9 pt, and the text 345 pt wide.
    assert all(float(width) * 6.5 < 345 * 9 for width in re.findall(r"WIDTH (.*)pt", log))


def test_text_fits_a_terminal(finished: Path) -> None:
    text = render_text(make(finished))
    assert SPEC.note in text
    assert "91.0 ± 1.0*" in text
    assert max(map(len, text.splitlines())) <= 150


def test_wide_text_is_cut_into_blocks(finished: Path) -> None:
    columns = COLUMNS | {f"split-{index}": f"A rather long split title {index}" for index in range(8)}
    wide = {"columns": columns, "entries": grid(ROWS, columns, cell_spec)}
    text = render_text(make(finished, SPEC.model_copy(update=wide)))
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


def test_comparison_is_by_name_and_in_no_order(finished: Path) -> None:
    """Not of the lowest client with a seed where one side lacks it; the same devices are the same machine."""
    table, fresh = make(finished), make(finished)
    cell_of(fresh, "local", "iid").pop("lowest")
    for some, devices in ((table, ["a", "b"]), (fresh, ["b", "a"])):
        some["provenance"]["devices"] = devices
    assert all(row["ok"] for row in compare_tables(table, fresh, 0, elsewhere_tolerance=50))
    cell_of(fresh, "local", "iid")["value"] += 0.3
    assert not all(row["ok"] for row in compare_tables(table, fresh, 0.2, elsewhere_tolerance=50))


def test_comparison_looks_at_each_seed(finished: Path) -> None:
    table, fresh = make(finished), make(finished)
    cell_of(fresh, "local", "iid")["provenance"][1]["value"] += 0.3
    (bad,) = [row for row in compare_tables(table, fresh, 0.2) if not row["ok"]]
    assert (bad["row"], bad["problem"]) == ("local", "an accuracy moved by 0.30 points")


@pytest.mark.parametrize(("kind", "value"), [("devices", ["cpu: another one"]), ("versions", {"torch": ["2.11.0"]})])
def test_between_processors_or_versions_of_torch_means_alone_are_compared(
    finished: Path, kind: str, value: object
) -> None:
    table, fresh = make(finished), make(finished)
    cell = cell_of(fresh, "local", "iid")
    cell["lowest"] += 9
    assert not all(row["ok"] for row in compare_tables(table, fresh, 1.0, elsewhere_tolerance=5.0))
    fresh["provenance"][kind] = value
    assert all(row["ok"] for row in compare_tables(table, fresh, 1.0, elsewhere_tolerance=5.0))
    cell["value"] += 6
    assert not all(row["ok"] for row in compare_tables(table, fresh, 1.0, elsewhere_tolerance=5.0))


def test_comparison_catches_parameters(finished: Path) -> None:
    table, fresh = make(finished), make(finished)
    cell_of(fresh, "local", "iid")["parameters"]["mean"] += 1
    (bad,) = [row for row in compare_tables(table, fresh, 1.0, 0.5) if not row["ok"]]
    assert (bad["row"], bad["problem"]) == ("local", "trainable parameters differ")


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


@pytest.mark.parametrize(("missing", "where"), [("old", "reference"), ("new", "fresh table")])
def test_comparison_of_sizes_that_one_table_lacks(finished: Path, missing: str, where: str) -> None:
    tables = {name: make(finished) for name in ("old", "new")}
    cell_of(tables[missing], "fedhpl", "iid").pop("up")
    (problem,) = [row["problem"] for row in compare_tables(*tables.values(), 0.5) if row["problem"]]
    assert problem == f"sizes of messages are missing in the {where}"


def test_comparison_of_absent_cells(finished: Path, experiment: Path) -> None:
    shutil.rmtree(experiment / "runs/digits-homogeneous/local")
    shutil.rmtree(experiment / "runs/digits-homogeneous/fedavg/fedavg/iid-s2")
    table, fresh = make(finished), make(experiment)
    fresh["cells"] = [cell for cell in fresh["cells"] if (cell["row"], cell["column"]) != ("fedhpl", "iid")]
    problems = {(row["row"], row["column"]): row["problem"] for row in compare_tables(table, fresh, 1.0)}
    assert problems["fedhpl", "iid"] == "missing in the fresh table"
    assert problems["local", "iid"] == "not run in the fresh table"
    assert problems["fedavg", "iid"] == "seeds [0, 1], not [0, 1, 2]"
    assert problems["fedavg", "dirichlet"] == ""


def test_figures_hold_every_row(drawn: list[Path]) -> None:
    assert [path.name for path in drawn] == [
        "digits-homogeneous-curves.svg",
        "digits-homogeneous-curves.png",
        "digits-homogeneous-communication.svg",
        "digits-homogeneous-communication.png",
    ]
    for path in drawn[::2]:
        text = path.read_text()
        assert all(name in text for name in ("FedHPL", "FedAvg &amp; co_", "Local", "2 classes &lt; 100%"))
        assert "accuracy (%)" in text


def test_tables_that_are_computed(tmp_path: Path) -> None:
    """Formulas as text, printed formulas beside them, and no word on accuracy."""
    cell = {"row": "a", "column": "b", "printed": None, "printed_text": "3 + n", "value": None, "value_text": "3 + n"}
    cell |= {"seeds": [], "status": "arithmetic", "unit": "K", "agrees": True, "footnote": None, "provenance": []}
    count = cell | {"column": "c", "printed": 20.57, "printed_text": "20.57", "value": 20.6656, "value_text": "20.67"}
    count |= {"agrees": False, "footnote": "A digit is wrong."}
    table = {"table": "plain", "title": "Plain", "columns": {"b": "B", "c": "C"}, "rows": {"a": "A"}}
    table |= {"cells": [cell, count], "footnotes": ["A digit is wrong.", "Other."]}
    _, md, _, tex = (path.read_text() for path in write_table(table, tmp_path))
    assert "3 + n<br>printed 3 + n, agrees | 20.67 [1]<br>printed 20.57, differs |" in md
    assert md.count("A digit is wrong.") == 1 and "Other." in md and "ccuracy" not in md + tex
    assert "Provenance: computed." in render_text(table)
    page = pages(tmp_path)[f"tables/{table['table']}.html"]
    assert "printed 20.57, differs" in page and "20.67</span> [1]" in page
    changed = copy.deepcopy(table)
    changed["cells"][0]["value_text"] = "4 + n"
    assert [row["ok"] for row in compare_tables(table, changed, 1.0)] == [False, True]
