"""What `hetfl record` writes, and what it leaves alone; and that tables are the same from it as from the runs."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from ledger_helpers import cell_of, checkout, entry_of, record, write
from record_factory import rewrite_rounds, rewrite_run, write_metrics
from settings_files import EMBEDDED_PARAMS, PAPERS, ROOT
from table_helpers import CELLS, PARAMS, by_place, entries
from typer.testing import CliRunner

from hetfl.cli import app
from hetfl.compact import read_compact
from hetfl.errors import HetflError
from hetfl.experiments.plan import Workspace, cells
from hetfl.figures.catalogue import figure
from hetfl.figures.sources import Sources
from hetfl.ledger.recording import Recorded, kept_in_git, record_cells
from hetfl.overview import overview, render
from hetfl.report.formats import render_text
from hetfl.report.make import make_table
from hetfl.report.table import build_table
from hetfl.schema import read_rounds
from hetfl.tables.catalogue import table_spec
from hetfl.tables.records import Records
from hetfl.tables.spec import TableSpec


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return checkout(tmp_path)


@pytest.fixture
def fedproto():
    return entry_of("fedtgp-table-10", "fedproto", "blocks")


def outcome(workspace: Workspace, cell, source: Workspace | None = None) -> Recorded:
    [found] = record_cells([cell], source or workspace, workspace)
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_stale(path: Path) -> None:
    """Change the learning rate of a record, and with it the fingerprint."""
    stale = path.read_text().replace('"lr": 0.01', '"lr": 0.02')
    path.write_text(stale.replace('"fingerprint": "', '"fingerprint": "0', 1))


def test_a_cell_gets_the_record_that_has_its_identity_under_another_name(workspace):
    there = entry_of("fedtgp-table-10", "fedkd", "practical")
    names = ("fedkd", "fedkd-detached")
    same, other = (cell_of(entry_of("choices-fedtgp-table-10-practical", row, "practical-best")) for row in names)
    assert [found.outcome for found in record_cells([same, other], workspace, workspace)] == ["not run", "not run"]
    cell = record(workspace, there)
    kept = read_compact(workspace.compact(cell.path))
    written = Recorded(same.path.as_posix(), "written", f"is a copy of {cell.path.as_posix()}")
    assert record_cells([same, other], workspace, workspace) == [written, Recorded(str(other.path), "not run")]
    made = read_compact(workspace.compact(same.path))
    assert (made.run.path, made.run.copy_of, made.run.title) == (same.path, cell.path.as_posix(), same.title)
    assert (made.curves, made.metrics, made.files) == (kept.curves, kept.metrics, kept.files)
    before = files(workspace.results)
    assert outcome(workspace, same).outcome == "not run" and files(workspace.results) == before


def test_a_record_only_ever_gets_further(workspace, fedproto, tmp_path):
    cell = write(workspace, fedproto, rounds=3)
    folder, path = workspace.runs / cell.path, workspace.results / f"{cell.path}.json"
    begun = Workspace(tmp_path / "begun")
    shutil.copytree(folder, begun.runs / cell.path)
    rewrite_run(begun.runs / cell.path, {"status": "running"})
    assert outcome(workspace, cell_of(fedproto, 1)).outcome == "not run"
    empty = Workspace(tmp_path / "empty")
    shutil.copytree(begun.runs, empty.runs)
    rewrite_rounds(empty.runs / cell.path, [])
    assert outcome(workspace, cell, empty).outcome == "not run"
    assert outcome(workspace, cell, begun) == Recorded(str(cell.path), "written", "in progress, round 3 of 3")
    shutil.move(workspace.evaluations, tmp_path / "evaluated")
    assert outcome(workspace, cell).why == "trained"
    shutil.move(tmp_path / "evaluated", workspace.evaluations)
    assert outcome(workspace, cell).why == "finished"
    before = files(workspace.results)
    assert outcome(workspace, cell).outcome == "unchanged"
    assert outcome(workspace, cell, begun) == Recorded(str(cell.path), "kept", "is further: finished")
    # The same cell trained again, elsewhere: the recorded run stays.
    write(workspace, fedproto, rounds=4)
    assert "is another run, started" in outcome(workspace, cell).why
    assert files(workspace.results) == before
    found = read_compact(path)
    assert found is not None and {*found.files} == {"rounds.jsonl", "model.safetensors"}


def test_a_run_of_other_settings_is_not_recorded_and_gives_way(workspace, fedproto):
    cell = cell_of(fedproto)
    scaled = write(workspace, fedproto, rounds=20, settings={**cell.settings, "rounds": 20}, fingerprint="e" * 64)
    assert outcome(workspace, scaled) == Recorded(str(cell.path), "stale", "rounds 20, now 1000")
    assert not (workspace.results / f"{cell.path}.json").exists()


def test_a_record_of_other_settings_gives_way_to_a_run_that_has_just_begun(workspace, fedproto):
    cell = record(workspace, fedproto, rounds=60)
    make_stale(workspace.results / f"{cell.path}.json")
    rewrite_run(workspace.runs / write(workspace, fedproto, rounds=17).path, {"status": "running"})
    assert outcome(workspace, cell).outcome == "written"


def test_the_csv_lists_every_record(workspace, fedproto):
    cell = record(workspace, fedproto, rounds=3)
    begun = write(workspace, fedproto, seed=1, rounds=2)
    rewrite_run(workspace.runs / begun.path, {"status": "running"})
    record_cells([begun], workspace, workspace)
    with (workspace.results / "cells.csv").open() as file:
        lines = {line["cell"]: line for line in csv.DictReader(file)}
    assert [*lines] == [str(cell.path), str(begun.path)]
    done, going = lines.values()
    assert (done["state"], going["state"], done["round"], going["round"]) == ("finished", "in progress", "3", "2")
    assert done["best_pooled"] and not going["best_pooled"] and not going["pooled"]
    assert len(done["sha256"]) == len(done["fingerprint"]) == 64


def test_records_are_of_papers_and_of_comparisons():
    every = [cell for name in CELLS for cell in CELLS[name].values()]
    kept = {cell.experiment for cell in kept_in_git(every, PARAMS)}
    assert {"fedtgp-htcnn8-fashion-mnist", "choices-fedtgp"} <= kept and len(kept) > 50
    assert not any(name.endswith("-short") for name in kept)
    assert not kept_in_git(cells(EMBEDDED_PARAMS, "digits-fgpt"), EMBEDDED_PARAMS)


TABLES = {
    "fedtgp-table-10": 60,
    "fgpt-table-1": 60,
    "fgpt-table-11": 60,
    "fedhpl-table-1": 10,
    "fedhpl-table-3": 10,
    "fedhpl-table-10": 10,
    "fedhpl-table-13": 50,
}
"""All statistics, inference rules and rounds within a run; with the rounds of the runs that are made up."""


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_the_same_from_compact_records(workspace, name, monkeypatch):
    if name != "fedtgp-table-10":  # one table's curves will do
        monkeypatch.setattr("hetfl.report.make.accuracy_curves", lambda *given: [])
        monkeypatch.setattr("hetfl.report.make.communication_figure", lambda *given: [])
    spec = table_spec(name, PARAMS)
    wanted = {}
    for _, _, entry in entries(spec):
        for seed in entry.seeds[:2]:
            wanted.setdefault(entry.path(seed), (entry, seed))
    kept = dict([*wanted.items()][:12])
    cells = [write(workspace, entry, seed, TABLES[name]) for entry, seed in kept.values()]
    workspace.tables = workspace.root / "tables"
    make_table(name, workspace)
    folder = workspace.table(name)
    before = files(folder)
    assert {f"{name}.json", f"{name}.md", f"{name}.csv", f"{name}.tex"} <= before.keys()
    record_cells(cells, workspace, workspace)
    for gone in (workspace.runs, workspace.evaluations, folder):
        shutil.rmtree(gone)
    table = make_table(name, workspace)
    assert sum(bool(cell["seeds"]) for cell in table["cells"]) >= 3
    assert files(folder) == before
    shutil.rmtree(workspace.results)
    with pytest.raises(HetflError, match=rf"tables/{name}/{name}.json: stays, since none of its cells is finished"):
        make_table(name, workspace)
    assert files(folder) == before


def made(spec: TableSpec, workspace: Workspace):
    return build_table(spec, Records(workspace, PARAMS))


def test_a_stale_record_is_shown_as_not_run_with_the_reason(workspace, fedproto):
    cell = record(workspace, fedproto, rounds=60)
    spec = table_spec("fedtgp-table-10", PARAMS)
    [found] = [cell for cell in made(spec, workspace)["cells"] if cell["seeds"]]
    assert (found["row"], found["column"], found["value"]) == ("fedproto", "blocks", 71.5)
    make_stale(workspace.results / f"{cell.path}.json")
    table = made(spec, workspace)
    [stale] = [cell for cell in table["cells"] if cell["status"] == "stale"]
    assert stale["value"] is None and "Seed 0 is stale: lr 0.02, now 0.01." in stale["footnote"]
    text = render_text(table)
    assert "Seed 0 is stale: lr 0.02, now 0.01." in text and "71.50" not in text


def test_a_stale_run_is_no_number_of_the_table_and_gives_way_to_a_record_in_git(workspace, fedproto):
    def of_table():
        return by_place(made(spec, workspace))["fedproto", "blocks"]

    spec = table_spec("fedtgp-table-10", PARAMS)
    cell = write(workspace, fedproto, rounds=3)
    assert of_table()["value"] is not None
    changed = {"settings": {**cell.settings, "lr": 0.02}, "fingerprint": "0" * 64}
    rewrite_run(workspace.runs / cell.path, changed)
    write_metrics(workspace.evaluations, cell.path, fingerprint="0" * 64)
    stale = of_table()
    assert (stale["status"], stale["value"]) == ("stale", None)
    assert "Seed 0 is stale: lr 0.02, now 0.01." in stale["footnote"]
    other = Workspace(workspace.root / "elsewhere")
    write(other, fedproto, rounds=60)
    record_cells([cell], other, workspace)
    assert of_table()["value"] == 71.5


def test_status_shows_a_run_of_a_row_that_the_settings_no_longer_have(workspace, fedproto):
    cell = write(workspace, fedproto, rounds=3)
    assert overview([], PARAMS, workspace).adhoc == []
    gone = cell.path.parent.with_name("gone") / cell.path.name
    (workspace.runs / gone).parent.mkdir()
    (workspace.runs / cell.path).rename(workspace.runs / gone)
    assert [one.path for one in overview([], PARAMS, workspace).adhoc] == [gone.as_posix()]


def test_status_names_a_run_whose_evaluation_is_of_another_one(workspace, fedproto):
    cell = write(workspace, fedproto, rounds=3)
    assert "not evaluated" not in render(overview([str(cell.path)], PARAMS, workspace))
    write_metrics(workspace.evaluations, cell.path, fingerprint="0" * 64)
    shown = render(overview([str(cell.path)], PARAMS, workspace))
    assert f"trained and not evaluated; hetfl evaluate does it:\n  {cell.path}" in shown


@pytest.mark.parametrize("state", ["done", "in git"])
def test_status_names_a_run_that_went_on_without_a_client(workspace, fedproto, state):
    cell = write(workspace, fedproto, rounds=3)
    path = workspace.runs / cell.path / "rounds.jsonl"
    first, *others = path.read_text().splitlines()
    failed = json.dumps({**json.loads(first), "failed": {"2": "did not answer"}})
    path.write_text("\n".join([failed, *others, ""]))
    if state == "in git":
        record_cells([cell], workspace, workspace)
        shutil.rmtree(workspace.runs / cell.path)
    found = overview([str(cell.path)], PARAMS, workspace)
    assert found.experiments[cell.experiment][0].status.state == state
    assert f"went wrong in:\n  {cell.path}: went on without a client in round 1" in render(found)
    assert found.as_json()["experiments"][cell.experiment][0]["failed"] == 1


def test_a_damaged_record_is_said_in_the_table(workspace, fedproto):
    cell = record(workspace, fedproto)
    (workspace.results / f"{cell.path}.json").write_text("{")
    table = made(table_spec("fedtgp-table-10", PARAMS), workspace)
    [broken] = [cell for cell in table["cells"] if cell["status"] == "broken"]
    assert f"results/{cell.path}.json: is not JSON" in broken["footnote"]
    assert str(workspace.root) not in broken["footnote"]


def test_figures_show_compact_records_where_these_suffice(workspace):
    """A line over a setting is drawn; what needs the files of an evaluation says that it is not run."""
    drawn = figure("fedhpl-figure-3", PARAMS)
    for entry in [*drawn.entries][:2]:
        record(workspace, entry, rounds=10)
    assert Sources(workspace, PARAMS).count(drawn.entries)[0] == 2
    lacking = figure("fedhpl-figure-6", PARAMS)
    entry = [*lacking.entries][0]
    record(workspace, entry, rounds=10)
    sources = Sources(workspace, PARAMS)
    assert sources.records(entry) and not sources.records(entry, whole=True)
    for name, one in (("a", drawn), ("b", lacking)):
        assert all(path.exists() for path in one.write(sources, workspace.root / name))


def test_the_command_says_what_it_did(workspace, fedproto, monkeypatch):
    write(workspace, fedproto, rounds=3)
    shutil.copytree(PAPERS / "tables", workspace.root / "tables")
    monkeypatch.chdir(workspace.root)
    shown = CliRunner().invoke(app, ["record", "fedtgp-table-10", "fashion-mnist-short"])
    assert shown.exit_code == 0, shown.output
    assert "fedtgp-htcnn8-fashion-mnist/fedproto/fedproto/blocks-s0  written   finished" in shown.output
    assert "41 of 42 cells have no run" in shown.output
    assert (workspace.root / "ledger.md").exists()


def test_an_experiment_of_ones_own_is_recorded_without_a_ledger(tmp_path, monkeypatch):
    """The project of the digits prints no paper's table."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    params = (tmp_path / "params.yaml").read_text()
    compared = "      ours: {method: fedavg, against: fedavg, models: digits-resnet}\n      fedprox:\n"
    (tmp_path / "params.yaml").write_text(params.replace("      fedprox:\n", compared, 1))
    shown = CliRunner().invoke(app, ["record", "digits-homogeneous"])
    assert shown.exit_code == 0, shown.exception
    assert "no cell has a run" in shown.output and not (tmp_path / "ledger.md").exists()
    assert "has no table of a paper" in str(CliRunner().invoke(app, ["ledger"]).exception)


def test_a_damaged_run_is_named(workspace, fedproto):
    cell = write(workspace, fedproto, rounds=3)
    (workspace.runs / cell.path / "model.safetensors").unlink()
    with pytest.raises(HetflError, match=r"model\.safetensors: does not exist"):
        outcome(workspace, cell)


def test_status_shows_the_best_round_of_a_run_that_waits_for_it(workspace, fedproto):
    def shown():
        [one] = overview([cell.path.as_posix()], PARAMS, workspace).experiments[cell.experiment]
        told = one.as_json()
        return told["accuracy"], told["best"]

    cell = write(workspace, fedproto, rounds=3)
    lines = read_rounds(workspace.runs / cell.path)
    assert shown() == pytest.approx((100 * lines[-1].pooled, 100 * max(line.pooled for line in lines)))
    record(workspace, fedproto, rounds=3)
    kept = read_compact(workspace.compact(cell.path))
    assert shown() == pytest.approx((100 * kept.metrics.pooled, 100 * kept.metrics.best_pooled))


def test_a_record_of_another_partition_is_no_number_of_the_table(workspace, fedproto):
    cell = record(workspace, fedproto, rounds=60)
    path = workspace.results / f"{cell.path}.json"
    told = json.loads(path.read_text())
    told["run"]["partition"]["clients"] = 7
    path.write_text(json.dumps(told))
    table = made(table_spec("fedtgp-table-10", PARAMS), workspace)
    [stale] = [found for found in table["cells"] if found["status"] == "stale"]
    assert stale["value"] is None
    assert f"partition's clients 7, now {cell.partition['clients']}" in stale["footnote"]


def test_what_a_killed_write_left_is_no_record(workspace, fedproto):
    cell = record(workspace, fedproto, rounds=60)
    path = workspace.results / f"{cell.path}.json"
    path.with_name(f".{path.name}.x1y2z3.json").write_text("{")
    record(workspace, fedproto, seed=1)
    rows = [*csv.DictReader((workspace.results / "cells.csv").open())]
    assert len(rows) == 2
