"""Tables of rows that differ in one choice, of records with accuracies of our choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from record_factory import make_round, records_below, rewrite_rounds, rewrite_run, write_metrics, write_record
from settings_files import ROOT

from hetfl.errors import HetflError
from hetfl.experiments.plan import Params, load_params
from hetfl.report.formats import filled, render_latex, render_markdown, render_text
from hetfl.report.shown import best_cells, show
from hetfl.report.table import build_table
from hetfl.schema import read_rounds
from hetfl.tables.catalogue import CHOSEN, table_spec
from hetfl.tables.records import so_far, validated
from hetfl.tables.results import results
from hetfl.tables.spec import Entry, TableSpec
from hetfl.tables.verdict import mean_interval

SIZES = [10, 30]
"""Test samples of two clients."""
RIGHT = [(2, 9), (8, 6), (5, 12)]
"""Their correct predictions by round: together best in the last one, 17; alone in the second and in the last one."""
GAINS = {0: 1, 1: 2, 2: 3}
"""What the choice adds to the second client's correct predictions, by seed."""
SIZE = {"elements": 1, "bytes": 4}


def write(root: Path, row: str, seed: int, gain: int = 0) -> None:
    lines = [make_round(0, up=SIZE, down=SIZE, accuracy=None, pooled=None)]
    for number, (first, second) in enumerate(RIGHT, start=1):
        shares = [first / SIZES[0], (second + gain) / SIZES[1]]
        pooled = (first + second + gain) / sum(SIZES)
        lines.append(make_round(number, up=SIZE, down=SIZE, participants=[0, 1], accuracy=shares, pooled=pooled))
    place, shared = Path("e", "fedproto", row, f"s-s{seed}"), {"fingerprint": f"{seed}".ljust(64, row[-1])}
    counts = {"train": [[1], [1]], "test": [[size] for size in SIZES]}
    inputs = {"dataset": "d", "partition": str(seed), "weights": {}}
    write_record(root / "runs", place, lines, class_counts=counts, inputs=inputs, clients=2, **shared)
    write_metrics(root / "evaluations", place, **shared)


def entry(row: str, statistic: Any, against: str = "") -> Entry:
    told = {"experiment": "e", "method": "fedproto", "split": "s", "seeds": [0, 1, 2]}
    return Entry(row=row, statistic=statistic, against=against, **told)


@pytest.fixture
def spec() -> TableSpec:
    rows = {"base-a": "", "choice-b": "base-a"}
    return TableSpec(
        name="e",
        title="E",
        rows={row: row for row in rows},
        columns={statistic: name for statistic, name in CHOSEN.items()},
        entries={row: {s: entry(row, s, against) for s in CHOSEN} for row, against in rows.items()},
        decimals=2,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed, gain in GAINS.items():
        write(tmp_path, "base-a", seed)
        write(tmp_path, "choice-b", seed, gain)
    return tmp_path


def cells(spec: TableSpec, root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    table = build_table(spec, records_below(root))
    return {(cell["row"], cell["column"]): cell for cell in filled(table)["cells"]}


def test_no_client_chooses_the_round_in_which_it_is_tested(root: Path):
    lines = results([entry("base-a", "validated_pooled")], records_below(root))
    # The first client is tested in round 3, best for the second, and the second in round 2, best for the first.
    assert [*lines.value] == pytest.approx([100 * (5 + 6) / 40] * 3)
    assert validated(lines.record[0]) == 11 / 40


def test_a_choice_is_worth_the_mean_difference_of_runs_of_one_seed(spec: TableSpec, root: Path):
    found = cells(spec, root)
    base, worth = found["base-a", "last_pooled"], found["choice-b", "last_pooled"]
    assert (base["value"], base["unit"], base["against"]) == (42.5, "%", "")
    assert (worth["value"], worth["unit"], worth["against"]) == (5.0, "points", "base-a")
    assert worth["std"] == pytest.approx(2.5) and worth["seeds"] == [0, 1, 2]
    # Student's t with two degrees of freedom: 4.303.
    assert worth["interval"] == pytest.approx([5 - 4.30265 * 2.5 / 3**0.5, 5 + 4.30265 * 2.5 / 3**0.5], abs=1e-4)
    assert [run["value"] for run in worth["provenance"]] == [2.5, 5.0, 7.5]
    assert found["choice-b", "best_pooled"]["value"] == 5.0 and worth["last"] is None


def test_differences_have_a_sign_and_an_interval_in_every_face(spec: TableSpec, root: Path):
    table = build_table(spec, records_below(root))
    for face in (render_markdown, render_text, render_latex):
        shown = face(table)
        assert "+5.00" in shown and "-1.21 to +11.21" in shown and "42.50" in shown
        assert "Student" in shown and "Validated round" in shown


def test_a_run_in_progress_is_compared_in_the_rounds_that_both_have(spec: TableSpec, root: Path):
    going, base = (root / "runs/e/fedproto" / row / "s-s0" for row in ("choice-b", "base-a"))
    lines = read_rounds(going)
    rewrite_run(going, {"status": "running"})
    for rounds, told in ((2, "round 2; +2.50 points against base-a in rounds 1–2"), (1, "in round 1"), (0, "")):
        rewrite_rounds(going, lines[: 1 + rounds])
        worth = cells(spec, root)["choice-b", "last_pooled"]
        assert worth["seeds"] == [1, 2] and worth["value"] == pytest.approx(6.25)
        assert worth.get("footnote", "").endswith(f"{told}." if told else "")
    # Two unfinished runs are compared as well, and neither has a result.
    rewrite_rounds(going, lines)
    rewrite_run(base, {"status": "running"})
    found = cells(spec, root)
    assert found["base-a", "last_pooled"]["seeds"] == [1, 2]
    assert found["base-a", "last_pooled"]["footnote"] == "Seed 0 is in progress: round 3."
    assert "+2.50 points against base-a in rounds 1–3" in found["choice-b", "last_pooled"]["footnote"]


def test_runs_are_compared_by_the_inference_rule_that_each_is_read_by():
    ensemble = {"top-2": {"accuracy": [0.7, 0.7], "pooled": 0.7}}
    usual = {"participants": [0, 1], "accuracy": [0.5, 0.5], "pooled": 0.5}
    lines = [make_round(1, **usual), make_round(2, **usual, extra=ensemble)]
    assert so_far(lines, lines, "FGPT") == "+0.00 points against FGPT in rounds 1–2"
    assert so_far(lines, lines, "FGPT", ("top-2", "")) == "+20.00 points against FGPT in round 2"
    assert so_far(lines, lines, "FGPT", ("top-2", "top-2")) == "+0.00 points against FGPT in round 2"
    assert so_far(lines, lines[:1], "FGPT", ("top-2", "top-2")) == ""


def test_a_difference_is_emphasised_if_its_interval_does_not_contain_zero(spec: TableSpec, root: Path):
    table = filled(build_table(spec, records_below(root)))
    assert not best_cells(table)
    worth = {**table["cells"][-1], "value": -0.001, "interval": [-0.002, 0.002]}
    shown = show(table, worth, set())
    assert (shown.number, shown.range) == ("0.00", "-0.00 to +0.00")  # ends have their signs: does it contain zero?
    for seed in GAINS:
        write(root, "choice-b", seed, 3)
    table = filled(build_table(spec, records_below(root)))
    assert best_cells(table) == {("choice-b", column) for column in CHOSEN}


def test_a_seed_that_only_one_of_the_two_rows_has_does_not_count(spec: TableSpec, root: Path, tmp_path: Path):
    (tmp_path / "runs" / "e" / "fedproto" / "base-a" / "s-s1" / "run.json").unlink()
    found = cells(spec, root)
    assert found["base-a", "last_pooled"]["seeds"] == found["choice-b", "last_pooled"]["seeds"] == [0, 2]
    assert found["choice-b", "last_pooled"]["value"] == 5.0
    for seed in (0, 2):
        (tmp_path / "runs" / "e" / "fedproto" / "base-a" / f"s-s{seed}" / "run.json").unlink()
    lonely = cells(spec, root)["choice-b", "last_pooled"]
    assert (lonely["status"], lonely["value"]) == ("not run", None)


def test_a_row_may_be_compared_with_one_that_is_compared_itself(spec: TableSpec, root: Path):
    for seed in GAINS:
        write(root, "choice-c", seed, 5)
    more = {"choice-c": {s: entry("choice-c", s, "choice-b") for s in CHOSEN}}
    spec = spec.model_copy(update={"rows": {**spec.rows, "choice-c": "C"}, "entries": {**spec.entries, **more}})
    runs = cells(spec, root)["choice-c", "last_pooled"]["provenance"]
    assert [run["value"] for run in runs] == [10.0, 7.5, 5.0]


def test_a_difference_to_a_run_that_diverged_is_marked(spec: TableSpec, root: Path):
    folder = root / "runs/e/fedproto/base-a/s-s1"
    last = {3: {"diverged": [0]}}
    rewrite_rounds(folder, [line.model_copy(update=last.get(line.round, {})) for line in read_rounds(folder)])
    table = filled(build_table(spec, records_below(root)))
    assert {show(table, cell, set()).marks for cell in table["cells"]} == {" §"}
    [worth] = [cell for cell in table["cells"] if (cell["row"], cell["column"]) == ("choice-b", "last_pooled")]
    assert [run.get("base_diverged") for run in worth["provenance"]] == [None, 3, None]
    shown = " ".join(render_text(table).split())
    assert "base-a: seed 1 in round 3. A difference to such a run has the mark as well." in shown


def test_the_interval_of_equal_values_is_a_point():
    assert mean_interval([1.5, 1.5, 1.5]) == (1.5, 1.5)


def settings_with(rows: dict[str, Any], folder: Path) -> Params:
    """The embedded settings with one experiment of such rows."""
    told = yaml.safe_load((ROOT / "params.yaml").read_text()) | {"experiments": {"mine": {**MINE, "rows": rows}}}
    (folder / "params.yaml").write_text(yaml.safe_dump(told, sort_keys=False))
    return load_params(folder / "params.yaml")


def test_clients_that_share_their_test_samples_have_none_to_validate_with(tmp_path: Path):
    rows = {"local": {"method": "fedhpl"}, "fedhpl": {"against": "local"}}
    spec = table_spec("mine", settings_with(rows, tmp_path))
    assert [*spec.columns.values()] == ["IID, last round", "IID, best round"]
    assert [cell.against for cell in spec.entries["fedhpl"].values()] == ["local", "local"]


def test_a_split_that_the_other_row_lacks_shows_no_difference(tmp_path: Path):
    rows = {"fedavg": {"splits": ["iid"]}, "fedprox": {"against": "fedavg", "splits": ["iid", "dir"]}}
    spec = table_spec("mine", settings_with(rows, tmp_path))
    assert [*spec.entries["fedprox"]] == ["iid-last", "iid-best"] and "dir-last" in spec.columns
    assert build_table(spec, records_below(tmp_path))["cells"]


def test_another_test_of_the_same_runs_is_compared_with_the_usual_one(tmp_path: Path):
    told = {"shared_blocks": [1], "group_blocks": [2], "groups": 2}
    rows = {"pt-fedavg": {"settings": {key: told[key] for key in ("shared_blocks", "group_blocks")}}}
    rows["fgpt"] = {"against": "pt-fedavg", "settings": told | {"ensembles": [2]}}
    spec = table_spec("mine", settings_with(rows, tmp_path))
    assert spec.rows["fgpt-top-2"] == "Top-2 ensemble, against FGPT"
    # Only the last rounds have it, so there is no best one to compare.
    ((column, cell),) = spec.entries["fgpt-top-2"].items()
    assert (column, cell.row, cell.reading, cell.against) == ("iid-last", "fgpt", "top-2", "fgpt")


MINE = {"title": "Mine", "dataset": "digits", "models": "digits-homogeneous", "splits": {"iid": "IID"}, "seeds": 2}


@pytest.mark.parametrize("other", ["fedavg", "fedhpl"])
def test_a_row_is_compared_with_another_one_of_the_experiment(other: str, tmp_path: Path):
    with pytest.raises(HetflError, match=f"experiments.mine.rows.fedhpl.against: unknown row '{other}'"):
        settings_with({"fedhpl": {"against": other}, "local": {"method": "fedhpl"}}, tmp_path)
