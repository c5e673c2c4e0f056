"""The ledger says of every printed number what git knows of it, and nothing else."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from ledger_helpers import checkout, entry_of, record, write
from record_factory import rewrite_rounds, rewrite_run
from settings_files import PAPERS as PROJECT
from table_helpers import PARAMS, entries
from typer.testing import CliRunner

from hetfl.cli import app
from hetfl.errors import HetflError
from hetfl.experiments.plan import Workspace
from hetfl.ledger import doubts
from hetfl.ledger.doubts import found_doubts, known_doubts
from hetfl.ledger.lines import Line, ledger
from hetfl.ledger.page import CSV, PAGE, files, page
from hetfl.ledger.recording import record_cells
from hetfl.report.formats import render_markdown
from hetfl.report.table import build_table
from hetfl.schema import read_rounds
from hetfl.tables.catalogue import PAPER_TABLES, table_spec
from hetfl.tables.notation import PAPERS
from hetfl.tables.records import Records
from hetfl.tables.spec import Entry
from hetfl.tables.verdict import pooled_noise

PRINTED = {
    (name, row, column): entry
    for name in PAPER_TABLES
    if name.partition("-")[0] in PAPERS
    for row, column, entry in entries(table_spec(name, PARAMS))
}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return checkout(tmp_path)


@pytest.fixture
def fedproto() -> Entry:
    return entry_of("fedtgp-table-10", "fedproto", "blocks")


def line_of(workspace: Workspace, table: str, row: str, column: str) -> Line:
    [found] = [line for line in ledger(workspace, PARAMS).lines if line.place == (table, row, column)]
    return found


def test_the_committed_pages_are_current():
    """Run `hetfl ledger` (or `hetfl record`) where this fails."""
    workspace = Workspace(PROJECT)
    for path, text in files(workspace, PARAMS).items():
        assert (PROJECT / path).read_text() == text, f"{path} is out of date; run hetfl ledger"


def test_every_printed_number_has_one_line():
    lines = ledger(Workspace(PROJECT), PARAMS).lines
    places = [line.place for line in lines]
    assert len(places) == len({*places}) and PRINTED.keys() <= {*places}
    assert len(PRINTED) > 690 and len(places) > 850
    assert {line.verdict for line in lines if line.place not in PRINTED} == {"counted"}


def test_what_a_machine_has_changes_nothing(workspace, fedproto):
    before = files(workspace, PARAMS)
    write(workspace, fedproto)
    for folder in (workspace.data, workspace.weights):
        folder.mkdir()
    assert files(workspace, PARAMS) == before


def test_a_cell_from_nothing_to_a_verdict(workspace, fedproto):
    place = "fedtgp-table-10", "fedproto", "blocks"
    never = line_of(workspace, *place)
    assert (never.says, never.because) == ("not run (hours)", "data Fashion-MNIST; 1000 rounds")

    begun = write(workspace, fedproto, rounds=17)
    rewrite_run(workspace.runs / begun.path, {"status": "running"})
    record_cells([begun], workspace, workspace)
    going = line_of(workspace, *place)
    assert (going.says, going.value, going.ours, going.rounds) == ("in progress (round 17)", None, "", 17)
    for _ in ("from runs/", "from git alone"):
        table = build_table(table_spec("fedtgp-table-10", PARAMS), Records(workspace, PARAMS))
        [cell] = [cell for cell in table["cells"] if (cell["row"], cell["column"]) == ("fedproto", "blocks")]
        assert (cell["status"], cell["value"]) == ("in progress", None)
        assert cell["footnote"] == "Seed 0 is in progress: round 17."
        assert "in progress [1]<br>printed 99.48±0.01" in render_markdown(table)
        shutil.rmtree(workspace.runs, ignore_errors=True)

    record(workspace, fedproto, rounds=60)
    one = line_of(workspace, *place)
    # The best round has 59 + 2.5 + 10 points.
    assert (one.says, one.value, one.ours, one.done, one.wanted) == ("worse", 71.5, "71.50", 1, 3)
    assert (one.printed, one.difference, one.std, one.rounds) == ("99.48±0.01", pytest.approx(-27.98), None, 60)
    assert one.device and one.commit and one.hours is not None

    record(workspace, fedproto, seed=1, rounds=62)
    two = line_of(workspace, *place)
    assert (two.ours, two.done) == ("72.50±1.41", 2)
    # Two seeds make the noise of the protocol known.
    assert pooled_noise(ledger(workspace, PARAMS).repeated["fedtgp"]) == pytest.approx(2**0.5)
    text = files(workspace, PARAMS)[PAGE]
    assert "**72.50±1.41** worse" in text and "1.414 points for fedtgp, of 2 runs of 1 cell;" in text


def test_the_ledger_says_which_runs_diverged(workspace, fedproto):
    cell = write(workspace, fedproto)
    rewrite_run(workspace.runs / cell.path, {"status": "running"})
    lines = read_rounds(workspace.runs / cell.path)
    rewrite_rounds(
        workspace.runs / cell.path,
        [line.model_copy(update={"diverged": [3]} if line.round >= 7 else {}) for line in lines],
    )
    record_cells([cell], workspace, workspace)
    place = "fedtgp-table-10", "fedproto", "blocks"
    assert line_of(workspace, *place).says == "in progress (round 60); seed 0 diverged in round 7"
    rewrite_run(workspace.runs / cell.path, {"status": "complete", "diverged": 7})
    record_cells([cell], workspace, workspace)
    assert line_of(workspace, *place).says == "worse; seed 0 diverged in round 7"
    assert "** worse; seed 0 diverged in round 7" in files(workspace, PARAMS)[PAGE]
    rewrite_run(workspace.runs / cell.path, {"failed": 2})
    record_cells([cell], workspace, workspace)
    told = "worse; seed 0 diverged in round 7, seed 0 went on without a client in round 2"
    assert line_of(workspace, *place).says == told


def test_a_divergence_after_the_round_of_a_cell_is_not_told_there(workspace):
    place, entry = next((place, entry) for place, entry in PRINTED.items() if entry.round and entry.unit == "%")
    cell = record(workspace, entry, rounds=entry.round + 2, diverged=entry.round + 1)
    line = line_of(workspace, *place)
    assert line.value is not None and line.diverged == ""
    whole = next(
        place for place, one in PRINTED.items() if one.round is None and cell.path in map(one.path, one.seeds)
    )
    assert line_of(workspace, *whole).diverged == f"seed 0 diverged in round {entry.round + 1}"


def test_runs_that_diverged_say_nothing_of_the_noise(workspace, fedproto):
    record(workspace, fedproto, rounds=60)
    record(workspace, fedproto, seed=1, rounds=90, diverged=3)
    book = ledger(workspace, PARAMS)
    assert not book.repeated["fedtgp"] and "no cell has two runs yet that did not diverge" in page(book)
    record(workspace, fedproto, seed=2, rounds=62)
    assert pooled_noise(ledger(workspace, PARAMS).repeated["fedtgp"]) == pytest.approx(2**0.5)


def test_a_run_that_has_no_number_breaks_neither_ledger_nor_table(workspace):
    place = "fgpt-table-11", "fgpt", "shared"
    cell = write(workspace, entry_of(*place))
    lines = read_rounds(workspace.runs / cell.path)
    rewrite_rounds(workspace.runs / cell.path, [line.model_copy(update={"diagnostics": {}}) for line in lines])
    record_cells([cell], workspace, workspace)
    line = line_of(workspace, *place)
    assert line.verdict == "not run" and line.because.endswith("rounds; seed 0 is run and lacks this")
    table = build_table(table_spec("fgpt-table-11", PARAMS), Records(workspace, PARAMS))
    [found] = [found for found in table["cells"] if (found["row"], found["column"]) == place[1:]]
    assert found["status"] == "broken" and "no cosine_shared in its last rounds" in found["footnote"]


def test_other_choices_stand_below_the_cell_that_they_are_compared_with(workspace):
    place, choices = ("fedtgp-table-10", "fedtgp", "blocks"), "choices-fedtgp-table-10"
    record(workspace, entry_of(*place))
    assert line_of(workspace, *place).tried == ()
    begun = write(workspace, entry_of(choices, "fedtgp-stale", "blocks-best"), rounds=17)
    rewrite_run(workspace.runs / begun.path, {"status": "running"})
    record_cells([begun], workspace, workspace)
    [going] = line_of(workspace, *place).tried
    # A run has ten points more in its last round but one, here in round 16.
    so_far = "+1.00 points against this cell in rounds 8–17"
    assert (going.experiment, going.says) == (choices, f"in progress, round 17; {so_far}")
    record(workspace, entry_of(choices, "fedtgp-stale", "blocks-best"), rounds=61)
    [stale] = line_of(workspace, *place).tried
    assert stale.title == "FedTGP: prototypes from before training (code)"
    assert stale.says == "72.50 (-27.06; 1 of 3 seeds)"  # printed 99.56
    page, rows = files(workspace, PARAMS)[PAGE], files(workspace, PARAMS)[CSV]
    where = f"[{choices}](tables/{choices}/{choices}.md)"
    assert f"- Pathological, with one other choice ({where}): *{stale.title}*, {stale.says}.\n" in page
    assert f"{stale.title}: {stale.says}" in rows
    # The other setting's cell is another one.
    assert line_of(workspace, "fedtgp-table-10", "fedtgp", "practical").tried == ()


def test_verdicts_use_the_noise_of_the_protocol(workspace):
    """With one seed: 2 * (0.375 + 0.01) points while nothing is known of the noise, 2 * (1.41 + 0.01) after."""
    table, row = "fedtgp-table-10", "fedproto"
    near = entry_of(table, row, "blocks")
    record(workspace, near, rounds=87)  # 98.5, printed 99.48±0.01
    assert line_of(workspace, table, row, "blocks").verdict == "worse"
    other = entry_of(table, "fml", "practical")
    record(workspace, other, rounds=60)
    record(workspace, other, seed=1, rounds=62)
    assert line_of(workspace, table, row, "blocks").verdict == "match"


def test_a_run_that_was_scaled_down_is_never_shown(workspace, fedproto):
    cell = record(workspace, fedproto)
    path = workspace.results / f"{cell.path}.json"
    path.write_text(
        path.read_text().replace('"rounds": 1000', '"rounds": 60').replace('"fingerprint": "', '"fingerprint": "f', 1)
    )
    line = line_of(workspace, "fedtgp-table-10", "fedproto", "blocks")
    assert (line.says, line.value, line.rounds, line.device) == ("not run (hours)", None, None, "")
    assert "a record is stale: rounds 60, now 1000" in line.because


def test_why_a_cell_is_not_run(workspace):
    for place, says, because in (
        (("fedhpl-table-1", "fedhpl", "cifar10-iid"), "not run (weights)", "weights vit_base_patch16_224"),
        (("fedtgp-table-1", "fml", "flowers102-blocks"), "not run (data)", "data "),
        (("fedtgp-table-3", "fml", "5"), "not run (hours)", "data CIFAR-100; 1000 rounds"),
    ):
        line = line_of(workspace, *place)
        assert line.says == says and line.because.startswith(because)


def test_counted_numbers_agree_or_differ_with_the_table_s_reason():
    agrees = line_of(Workspace(PROJECT), "fedhpl-table-5", "CIFAR10_SVHN", "entire-ViT-B")
    differs = line_of(Workspace(PROJECT), "fedhpl-table-5", "CIFAR10_SVHN", "entire-ViT-S")
    assert (agrees.verdict, agrees.because, agrees.doubts) == ("counted", "agrees", ())
    assert (differs.ours, differs.because, differs.difference) == ("20.67", "differs", pytest.approx(0.1, abs=0.01))
    assert "misprint" in differs.doubts[0]


def doubted(**changes: object) -> list[str]:
    """What is said of one printed number if the papers print it like this."""
    place = "fedtgp-table-10", "fedproto", "blocks"
    changed = PRINTED | {place: PRINTED[place].model_copy(update=changes)}
    return found_doubts(changed, PARAMS).get(place, [])


def test_implausible_numbers_are_flagged():
    assert doubted() == []
    assert doubted(printed_std=0.0) == ["A deviation of 0."]
    assert doubted(printed=9.9) == ["Not between chance (10) and 100."]
    assert doubted(printed=100.5) == ["Not between chance (10) and 100."]
    place = "fedhpl-table-3", "iid", "H-average"
    entry = PRINTED[place].model_copy(update={"printed": 97.0})
    assert (
        "The average client is below the lowest one (97.33)." in found_doubts(PRINTED | {place: entry}, PARAMS)[place]
    )


def test_inherited_and_contradicting_numbers_are_flagged():
    found = found_doubts(PRINTED, PARAMS)
    assert found["fgpt-table-1", "fedmix", "s10"] == [
        "The same setting is printed with 80.52 (0.41) in FGPT's Table 9."
    ]
    for row in ("H", "V"):
        [says] = found["fedhpl-table-12", row, "svhn-noniid"]
        assert says.endswith(f": FedHPL's Table 13, svhn/noniid-1.0, {row}-moco_2.")
    # The same runs in two tables with the same number are as they should be.
    assert ("fedtgp-table-6", "fedproto", "cifar100") not in found
    # Two papers with the same number of a method on a data set.
    mine, theirs = ("fedhpl-table-2", "fedproto", "cifar10-iid"), ("fedtgp-table-1", "fedproto", "cifar10-blocks")
    same = {"printed": 40.12, "printed_std": None}
    changed = PRINTED | {theirs: PRINTED[theirs].model_copy(update=same)}
    assert any("FedTGP's Table 1" in says for says in found_doubts(changed, PARAMS)[mine])


def test_known_doubts_name_printed_numbers(monkeypatch):
    assert {place for place in known_doubts()} <= {line.place for line in ledger(Workspace(PROJECT), PARAMS).lines}
    monkeypatch.setattr(doubts, "known_doubts", lambda: {("fedtgp-table-10", "fedprot", "blocks"): ["x"]})
    with pytest.raises(HetflError, match="did you mean 'fedtgp-table-10/fedproto/blocks'"):
        doubts.check_places(PRINTED)


def test_the_command_writes_page_csv_and_totals(workspace, monkeypatch):
    (workspace.root / "tables").symlink_to(PROJECT / "tables")
    monkeypatch.chdir(workspace.root)
    assert CliRunner().invoke(app, ["ledger"]).exit_code == 0
    with (workspace.root / CSV).open() as file:
        lines = [*csv.DictReader(file)]
    assert len(lines) == len(ledger(workspace, PARAMS).lines)
    assert lines[0]["paper"] == "fedhpl" and {"printed", "value", "verdict", "commit", "doubts"} <= lines[0].keys()
    readme = workspace.root.parent / "README.md"
    assert f"| **all** | {len(lines)} |" in readme.read_text()
    readme.write_text("no place")
    assert isinstance(CliRunner().invoke(app, ["ledger"]).exception, HetflError)
