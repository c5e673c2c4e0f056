"""FGPT's tables: 67 runs per seed, the paper's settings, the mean over the last rounds of each run."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest
from table_helpers import CELLS, PARAMS, built, entries, identities, runs, write_run

from hetfl.files import read_json
from hetfl.report.formats import render_text
from hetfl.tables.catalogue import table_spec
from hetfl.tables.notation import content, methods
from hetfl.tables.verdict import verdict

METHODS = methods("fgpt")
TABLES = [*content("fgpt")["tables"]]
OF_PAPER = [name for name in CELLS if name.startswith("fgpt-")]
OF_TABLES = [name for name in OF_PAPER if name != "fgpt-unseen"]
OF_SGPT = [name for name in CELLS if name.startswith("sgpt-")]
NEW = {1: 30, 3: 8, 4: 1, 7: 12, 8: 12, 9: 2, 10: 1, 11: 1}
"""Runs of a seed that no table before has: the blocks A to H of the run matrix."""


def test_the_run_matrix_is_complete_and_trains_nothing_twice():
    seen: set[Path] = set()
    for name in TABLES:
        number, new = int(name.split("-")[2]), runs(name) - seen
        assert len(new) == 3 * NEW.get(number, 0), name
        seen |= new
    assert len(seen) == 3 * 67
    extra = {path for path in CELLS["fgpt-cifar100-s10"] if "fedpr" in path.parts}
    assert seen | extra == {path for name in OF_TABLES for path in CELLS[name]} and len(extra) == 3
    assert len(identities("fgpt")) == len(set(identities("fgpt"))) == 3 * (67 + 1 + 3)
    assert len(identities("sgpt")) == len(set(identities("sgpt"))) == 3 * (1 + 1 + 10 + 1 + 1)


@pytest.mark.parametrize(
    ("name", "dataset", "split", "clients", "participants", "epochs", "groups"),
    [
        ("fgpt-cifar100-s10", "cifar100", "s10", 100, 5, 5, 20),
        ("fgpt-cifar100-s5", "cifar100", "s5", 100, 5, 5, 25),
        ("fgpt-cifar100c-s10", "cifar100c", "s10", 50, 5, 5, 20),
        ("fgpt-cifar100c-s2", "cifar100c", "s2", 50, 5, 5, 25),
        ("fgpt-five", "five", "domains", 20, 2, 5, 5),
        ("fgpt-cifar100-e2-s10", "cifar100", "s10", 100, 5, 2, 20),
        ("fgpt-cifar100-e2-s5", "cifar100", "s5", 100, 5, 2, 25),
        ("fgpt-cifar100-dirichlet", "cifar100", "pachinko-0.1", 100, 5, 5, 20),
        ("fgpt-cifar100-dirichlet", "cifar100", "pachinko-0.01", 100, 5, 5, 20),
    ],
)
def test_settings_are_the_papers(name, dataset, split, clients, participants, epochs, groups):
    of_split = [cell for cell in CELLS[name].values() if cell.split == split]
    assert {cell.method for cell in of_split} >= set(METHODS)
    common = {"rounds": 60, "window": 10, "batch_size": 40, "optimiser": "sgd", "lr": 0.01, "momentum": 0.9}
    common |= {"weight_decay": 1e-5, "shared_blocks": (1,), "prompt_length": 5, "local_epochs": epochs, "held_out": 0}
    for cell in of_split:
        assert common.items() <= cell.settings.items(), cell.path
        assert (cell.dataset, cell.partition["clients"]) == (dataset, clients)
        assert int(cell.settings["participation"] * clients) == participants
        assert cell.settings.get("groups", groups) == groups
        alone = cell.method == "fedpr" or cell.row == "pt-fedavg-share"
        assert cell.settings["group_blocks"] == (() if alone else (6,))
        assert cell.models == ["vit_base_patch16_224.orig_in21k"]
    usual = {"keys": "orthogonal", "encoder": None, "branches": 1}
    assert all(usual.items() <= cell.settings.items() for cell in of_split if cell.method == "fgpt")


def test_images_are_prepared_as_the_authors_do():
    for name in (*OF_PAPER, *OF_SGPT):
        experiment = PARAMS.experiments[name]
        mean, std = (experiment.input.mean, experiment.input.std)
        assert (experiment.input.interpolation, experiment.input.size) == ("bilinear", None)
        if experiment.dataset.startswith("cifar100"):
            assert (mean, std) == ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
        elif experiment.dataset == "five":
            assert (mean, std) == (None, None)
        else:
            assert (mean, std) == ((0, 0, 0), (1, 1, 1))
        augment = experiment.input.augment
        assert (augment.flip, augment.rotation) == ((True, 30) if name == "sgpt-office" else (False, 0))


def test_variants_differ_in_one_setting_each():
    of_row = {cell.row: cell.settings for name in OF_PAPER for cell in CELLS[name].values()}
    for size in (15, 20, 25, 30, 35):
        assert of_row[f"fgpt-groups-{size}"]["groups"] == size
    assert (of_row["fgpt-random-keys"]["keys"], of_row["fgpt-resnet"]["encoder"]) == ("random", "resnet50.tv_in1k")
    of_fgpt = [cell for name in OF_PAPER for cell in CELLS[name].values() if cell.row == "fgpt"]
    ensembles = {cell.experiment: cell.settings["ensembles"] for cell in of_fgpt}
    assert ensembles.pop("fgpt-five") == ensembles.pop("fgpt-unseen") == ()
    assert {name for name, sizes in ensembles.items() if sizes == (2, 5)} == {
        "fgpt-cifar100-s10",
        "fgpt-cifar100c-s10",
    }
    assert set(ensembles.values()) == {(2, 5), (5,)}


def test_held_out_clients_leave_as_many_participants():
    for name, experiment in (("fgpt-unseen", "fgpt-cifar100-s10"), ("cifar100-unseen-short", "cifar100-s10-short")):
        usual = {cell.method: cell.settings for cell in CELLS[experiment].values()}
        assert {cell.method for cell in CELLS[name].values()} == {"fgpt", "sgpt", "pt-fedavg"}
        for cell in CELLS[name].values():
            assert cell.settings["held_out"] == 20 and int(cell.settings["participation"] * 80) == 5
            if cell.method in usual:
                free = {"held_out", "participation", "ensembles"} | ({"rounds"} if "short" in name else set())
                differ = {key for key, value in usual[cell.method].items() if cell.settings[key] != value}
                assert differ <= free


def test_settings_of_sgpt_are_the_authors():
    of_row = {(name, cell.row): cell for name in OF_SGPT for cell in CELLS[name].values()}
    low, upper = ((1, 2, 3, 4), (5, 6, 7)), ((1, 2, 3, 4, 5), (6, 7))
    for (name, row), cell in of_row.items():
        s = cell.settings
        office = name in ("sgpt-office", "sgpt-domainnet")
        assert (s["shared_blocks"], s["group_blocks"]) == (upper if office or name == "sgpt-cifar100-s50" else low)
        assert (s["rounds"], s["batch_size"], s["participation"]) == ((40, 50, 1) if office else (60, 40, 0.05))
        assert (s["query_block"], s["vote"]) == ((6, True) if office else (None, False))
        assert s["groups"] == {"sgpt-office": 4, "sgpt-domainnet": 6}.get(name, 20)
        key, group = (0.0 if office else 0.5), 0.5
        if name.endswith("-momentum"):
            which, _, value = row.removeprefix("sgpt-").split("-")
            key, group = (float(value), 0.5) if which == "key" else (0.5, float(value))
        assert (s["key_momentum"], s["group_momentum"]) == (key, group), row


@pytest.mark.parametrize(
    ("name", "row", "column", "value", "of", "reading"),
    [
        ("1", "fgpt-u", "s5", (80.15, 0.14), "cifar100-s5/fgpt/fgpt/s5", "top-5"),
        ("1", "pt-fedavg", "five", (77.82, 23.17), "five/pt-fedavg/pt-fedavg/domains", ""),
        ("1", "fedmix", "c-s2", (61.47, 8.44), "cifar100c-s2/fedmix/fedmix/s2", ""),
        ("3", "20", "s10", (81.09, 0.40), "cifar100-s10/fgpt/fgpt/s10", ""),
        ("3", "20", "s5", (78.25, 0.40), "groups-s5/fgpt/fgpt-groups-20/s5", ""),
        ("3", "35", "s10", (79.21, 0.42), "groups-s10/fgpt/fgpt-groups-35/s10", ""),
        ("4", "fgpt-random-keys", "accuracy", (80.56, None), "random-keys/fgpt/fgpt-random-keys/s10", ""),
        ("4", "fgpt-u", "accuracy", (82.45, None), "cifar100-s10/fgpt/fgpt/s10", "top-5"),
        ("6", "fgpt-u2", "c-s10", (71.51, 0.38), "cifar100c-s10/fgpt/fgpt/s10", "top-2"),
        ("6", "fgpt-u", "s10", (82.45, 0.41), "cifar100-s10/fgpt/fgpt/s10", "top-5"),
        ("7", "fedmoon", "0.01", (78.97, 0.03), "cifar100-dirichlet/fedmoon/fedmoon/pachinko-0.01", ""),
        ("8", "pfedhn", "s5-e2", (71.06, 2.04), "cifar100-e2-s5/pfedhn/pfedhn/s5", ""),
        ("8", "fgpt", "s5-e5", (78.32, 0.35), "cifar100-s5/fgpt/fgpt/s5", ""),
        ("9", "fgpt-fedmix", "c-s10", (71.40, 0.30), "cifar100c-s10/fgpt-fedmix/fgpt-fedmix/s10", ""),
        ("9", "fedmix", "s10", (80.52, 0.41), "cifar100-s10/fedmix/fedmix/s10", ""),
        ("10-accuracy", "fgpt-resnet", "accuracy", (80.53, 0.64), "resnet/fgpt/fgpt-resnet/s10", ""),
        ("11", "pt-fedavg-share", "shared", (0.8334, None), "share/pt-fedavg/pt-fedavg-share/s10", ""),
        ("11", "fed-dualprompt", "accuracy", (77.48, 0.11), "cifar100-e2-s10/fed-dualprompt/fed-dualprompt/s10", ""),
    ],
)
def test_printed_numbers_stand_beside_their_runs(name, row, column, value, of, reading):
    entry = table_spec(f"fgpt-table-{name}", PARAMS).entries[row][column]
    assert (entry.printed, entry.printed_variance, entry.reading) == (*value, reading)
    assert [entry.path(seed) for seed in entry.seeds] == [Path(f"fgpt-{of}-s{seed}") for seed in (0, 1, 2)]
    if column in ("shared", "group_local", "group_global"):
        assert (entry.statistic, entry.unit) == (f"cosine_{column}", "")
    else:
        assert (entry.statistic, entry.unit) == ("window_pooled", "%")


def test_one_run_fills_every_cell_it_serves_with_the_mean_of_its_last_rounds(tmp_path):
    entry = table_spec("fgpt-table-1", PARAMS).entries["fgpt"]["s10"]
    for seed, rounds in ((0, 60), (1, 61), (2, 62)):
        write_run(tmp_path, entry, rounds, seed)
    shown = {name: {k: c for k, c in built(name, tmp_path).items() if c["seeds"]} for name in TABLES}
    assert {name: list(found) for name, found in shown.items() if found} == {
        "fgpt-table-1": [("fgpt", "s10"), ("fgpt-u", "s10")],
        "fgpt-table-3": [("20", "s10")],
        "fgpt-table-4": [("fgpt", "accuracy"), ("fgpt-u", "accuracy")],
        "fgpt-table-6": [("fgpt", "s10"), ("fgpt-u2", "s10"), ("fgpt-u", "s10")],
        "fgpt-table-8": [("fgpt", "s10-e5"), ("fgpt-u", "s10-e5")],
        "fgpt-table-9": [("fgpt", "s10")],
        "fgpt-table-10-accuracy": [("fgpt", "accuracy")],
    }
    # Rounds 51 to 60 are at 53.5 to 62.5 percent, round 59 ten points above.
    pooled = [number + 2.5 + 10 * (number == 59) for number in range(51, 61)]
    cell, other = shown["fgpt-table-1"].values()
    assert [run["value"] for run in cell["provenance"]] == [59, 60, 61]
    assert (cell["value"], cell["std"], cell["window"], cell["status"]) == (60, 1, 10, "worse")
    assert cell["variance"] == pytest.approx(statistics.pvariance(pooled))
    assert (cell["printed"], cell["printed_std"], cell["printed_variance"]) == (81.09, None, 0.40)
    assert (cell["best"], cell["last"], cell["lowest"]) == (72.5, 63.5, None)
    assert (other["value"], other["reading"], other["statistic"]) == (65, "top-5", "window_pooled")
    assert shown["fgpt-table-6"]["fgpt-u2", "s10"]["value"] == 62
    assert other["variance"] == pytest.approx(cell["variance"])
    text = (tmp_path / "tables/fgpt-table-1.md").read_text()
    assert "60.00 ± 1.00 (var 24.25)<br>printed 81.09 var 0.40 (-21.09), worse |" in text
    assert "mean over the last 10 rounds of each run, in percent" in text
    assert "between rounds of one run. It enters no verdict." in text
    assert r"printed 81.09 var 0.40 (-21.09)" in (tmp_path / "tables/fgpt-table-1.tex").read_text()
    with (tmp_path / "tables/fgpt-table-1.csv").open(newline="") as file:
        line = next(line for line in csv.DictReader(file) if line["value"])
    assert (line["value"], line["variance"], line["printed_variance"]) == ("60", "24.25", "0.4")
    text = render_text(read_json(tmp_path / "tables/fgpt-table-6.json"))
    assert "65.00 ± 1.00 [1]*" in text and "var 24.25" in text


def test_the_printed_variance_never_widens_a_match():
    entry = table_spec("fgpt-table-1", PARAMS).entries["pt-fedavg"]["five"]
    # 23.17 squared points would be a deviation of 4.8 points.
    assert entry.printed_variance == 23.17
    assert verdict(entry.printed - 1.6, None, entry.printed, entry.statistic) == "worse"
    assert verdict(entry.printed - 1.6, 0.5, entry.printed, entry.statistic) == "match"


def test_cosines_are_means_over_the_last_rounds_and_only_match_or_differ(tmp_path):
    spec = table_spec("fgpt-table-11", PARAMS)
    for seed in (0, 1, 2):
        write_run(tmp_path, spec.entries["fgpt"]["shared"], 60, seed)
    cells = built("fgpt-table-11", tmp_path)
    shared, group = cells["fgpt", "shared"], cells["fgpt", "group_global"]
    assert (shared["value"], shared["difference"]) == (0.0555, pytest.approx(0.0555 - 0.8462))
    assert (shared["status"], shared["unit"], shared["best"]) == ("differs", "", None)
    assert (group["status"], "variance" in group) == ("differs", False)
    assert cells["fgpt", "accuracy"]["value"] == 59
    text = (tmp_path / "tables/fgpt-table-11.md").read_text()
    assert "0.0555 ± 0.0000<br>printed 0.8462 (-0.7907), differs" in text
    assert verdict(0.8420, None, 0.8462, "cosine_shared") == "match"
    assert verdict(0.8400, None, 0.8462, "cosine_shared") == "differs"


def test_what_an_evaluation_lacks_is_one_line(tmp_path):
    spec = table_spec("fgpt-table-6", PARAMS)
    write_run(tmp_path, spec.entries["fgpt"]["s10"], 60)
    path = tmp_path / "evaluations" / spec.entries["fgpt"]["s10"].path(0) / "metrics.json"
    path.write_text(path.read_text().replace('"top-5"', '"top-4"'))
    lacking = built("fgpt-table-6", tmp_path)["fgpt-u", "s10"]
    assert lacking["status"] == "broken"
    assert "fgpt/fgpt/s10-s0: its evaluation has no window_pooled of top-5; train" in lacking["footnote"]


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("cifar100-s10-short", {"fgpt-top-5": "FGPT-U (top-5)"}, "s10"),
        ("office-caltech10-short", {"fgpt-top-2": "FGPT-U (top-2)"}, "domains"),
        ("cifar100-unseen-short", {}, "s10"),
    ],
)
def test_own_tables_show_the_window_and_its_lowest_client(name, rows, columns, tmp_path):
    spec = table_spec(name, PARAMS)
    experiment = PARAMS.experiments[name]
    own = {row: settings.title for row, settings in experiment.rows.items()}
    assert spec.rows == own | rows and list(spec.rows)[0] == "fgpt"
    title = experiment.splits[columns]
    assert spec.columns == {columns: title, f"{columns}-lowest": f"{title}, lowest client"}
    assert spec.curves and "not" in spec.note
    for row in spec.rows:
        both = spec.entries[row]
        assert [both[column].statistic for column in spec.columns] == ["window_pooled", "window_lowest"]
        assert {entry.reading for entry in both.values()} == {"top-" + row.split("-top-")[1] if row in rows else ""}
    write_run(tmp_path, spec.entries["fgpt"][columns], rounds=20)
    cells = built(name, tmp_path)
    size = next(iter(CELLS[name].values())).settings["window"]
    # Client 0 is the lowest in every round.
    assert cells["fgpt", f"{columns}-lowest"]["value"] == statistics.mean(range(21 - size, 21))
    text = (tmp_path / f"tables/{name}.md").read_text()
    assert f"mean over the last {size} rounds" in text and "the client with the lowest accuracy" in text


@pytest.mark.parametrize(
    ("name", "row", "column", "words"),
    [
        ("1", "fgpt-u", "s10", "a variance of 0.39, Table 6 prints it with 0.41"),
        ("6", "fgpt-u", "s10", "a variance of 0.39, Table 6 prints it with 0.41"),
        ("1", "fedmoon", "five", "Underlined"),
        ("9", "fedmix", "s10", "80.23 (0.40) in Tables 1, 8 and 10 and as 80.52 (0.41)"),
        ("8", "fed-dualprompt", "s10-e2", "a variance of 0.41, Table 11 prints it with 0.11"),
        ("11", "fed-dualprompt", "accuracy", "a variance of 0.41, Table 11 prints it with 0.11"),
        ("3", "25", "s5", "same runs as in Table 1"),
    ],
)
def test_what_the_paper_prints_in_two_ways_has_a_footnote(name, row, column, words):
    assert words in table_spec(f"fgpt-table-{name}", PARAMS).entries[row][column].footnote


def test_what_the_paper_leaves_open_is_said_where_it_matters():
    said = {name: " ".join(table_spec(name, PARAMS).footnotes) for name in TABLES}
    assert all("authors' later code" in text for text in said.values())
    corrupted = {name for name, text in said.items() if "the first ten in the order" in text}
    assert corrupted == {"fgpt-table-1", "fgpt-table-6", "fgpt-table-9"}
    assert "50 classes" in said["fgpt-table-1"] and "20 groups" in said["fgpt-table-7"]
    for name, text in said.items():
        shown = {entry.method for _, _, entry in entries(table_spec(name, PARAMS))}
        assert ("a prompt at layer 6" in text) == ("pt-fedavg" in shown), name
    assert "5 local epochs; Tables 8 and 11 have 2" in said["fgpt-table-8"]
    four = [cells["accuracy"].printed for cells in table_spec("fgpt-table-4", PARAMS).entries.values()]
    assert round(four[2] - four[1], 2) == 0.53 and round(four[3] - four[2], 2) == 1.36
    assert "0.53" in said["fgpt-table-4"] and "1.36" in said["fgpt-table-4"]
