"""The papers' tables: printed values in place, cells that exist, from nothing run to a few runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from table_helpers import CELLS, PARAMS, built, cells_of, entries, identities, runs, write_run

from hetfl.errors import HetflError
from hetfl.experiments.plan import weights_read
from hetfl.schema import needed_run
from hetfl.tables.catalogue import PAPER_TABLES, table_spec

NOT_APPLICABLE = {
    "fedtgp-table-2": {(row, column) for row in ("lg-fedavg", "fedgen") for column in ("res34-htc4", "htfe8-htc4")},
    "fgpt-table-1": {("fgpt-u", "five")},
    "fgpt-table-11": {
        ("pt-fedavg-share", "group_global"),
        ("pt-fedavg-share", "group_local"),
        ("pt-fedavg", "group_global"),
    },
}


@pytest.mark.parametrize("name", [*PAPER_TABLES, *PARAMS.experiments])
def test_every_cell_of_a_table_is_a_cell_of_its_experiment(name):
    for _, _, entry in entries(table_spec(name, PARAMS)):
        assert {entry.path(seed) for seed in entry.seeds} <= set(CELLS[entry.experiment])


def test_images_are_normalised_as_pretrained_weights_ask():
    """FedHPL's protocol; None stands for the statistics of the checkpoint."""
    for name, of_experiment in CELLS.items():
        for cell in of_experiment.values() if name.startswith("fedhpl-") else ():
            if any(not model.endswith(".random") for model in weights_read(cell)):
                assert (cell.input.mean, cell.input.std) == (None, None), cell.path


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_rows_columns_and_blocks_name_every_cell_once(name):
    spec = table_spec(name, PARAMS)
    places = Counter((row, column) for row, column, _ in entries(spec))
    shown = [(row, column) for block in spec.blocks for row in block.rows for column in block.columns]
    whole = Counter(shown or [(row, column) for row in spec.rows for column in spec.columns])
    assert whole == places + Counter(NOT_APPLICABLE.get(name, ()))


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_tables_can_be_built_before_anything_has_run(name, tmp_path):
    cells = built(name, tmp_path)
    counted = {cell["column"] for cell in cells.values() if cell["value"] is not None}
    assert counted == ({"cifar10-parameters"} if name in ("fedhpl-table-1", "fedhpl-table-2") else set())
    assert {cell["status"] for cell in cells.values() if cell["column"] not in counted} == {"not run"}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "row", "column", "value", "of"),
    [
        ("fedhpl-table-1", "pfedpg", "cifar100-dir", 82.08, "fedhpl-homogeneous-cifar100/pfedpg/pfedpg/dir-s0"),
        ("fedhpl-table-1", "fedhpl", "cifar10-parameters", 0.034, "fedhpl-homogeneous-cifar10/fedhpl/fedhpl/iid-s0"),
        ("fedhpl-table-2", "fedmd", "svhn-noniid", 90.44, "fedhpl-resnet-svhn/fedmd/fedmd/noniid-s0"),
        ("fedhpl-table-2", "fedhpl-cnn", "svhn-iid", 72.43, "fedhpl-resnet-svhn/fedhpl/fedhpl-cnn/iid-s0"),
        ("fedhpl-table-2", "fedhpl", "svhn-dir", 90.75, "fedhpl-heterogeneous-svhn/fedhpl/fedhpl/dir-s0"),
        (
            "fedhpl-table-2",
            "fedhpl-cnn",
            "cifar10-parameters",
            0.078,
            "fedhpl-resnet-frame-3/fedhpl/fedhpl-cnn-w3/iid-s0",
        ),
        (
            "fedhpl-table-3",
            "noniid-0.5",
            "V-lowest",
            91.67,
            "fedhpl-alpha-heterogeneous-cifar10-0.5/fedhpl/fedhpl/noniid-0.5-s0",
        ),
        ("fedhpl-table-3", "iid", "H-highest", 98.19, "fedhpl-homogeneous-cifar10/fedhpl/fedhpl/iid-s0"),
        (
            "fedhpl-table-3",
            "fedhpl-plus-h",
            "H-noniid",
            95.81,
            "fedhpl-ablations-homogeneous/fedhpl/fedhpl-plus-h/noniid-s0",
        ),
        (
            "fedhpl-table-10",
            "V-noniid",
            "cifar10-first",
            0.531,
            "fedhpl-heterogeneous-cifar10/fedhpl/fedhpl/noniid-s0",
        ),
        (
            "fedhpl-table-11",
            "V-noniid",
            "svhn-average",
            89.40,
            "fedhpl-upload-heterogeneous-svhn/fedhpl/fedhpl-average-upload/noniid-s0",
        ),
        ("fedhpl-table-12", "V", "cifar100-iid", 71.63, "fedhpl-moco-heterogeneous-cifar100/fedhpl/fedhpl/iid-s0"),
        (
            "fedhpl-table-13",
            "svhn/noniid-0.1",
            "V-moco_2",
            53.73,
            "fedhpl-moco-alpha-heterogeneous-svhn/fedhpl/fedhpl/noniid-0.1-s0",
        ),
        (
            "fedhpl-table-14",
            "3",
            "V-average",
            92.48,
            "fedhpl-epochs-heterogeneous/fedhpl/fedhpl-local-epochs-3/noniid-0.1-s0",
        ),
    ],
)
def test_printed_numbers_stand_beside_their_runs(name, row, column, value, of):
    entry = table_spec(name, PARAMS).entries[row][column]
    assert (entry.printed, entry.path(0)) == (value, Path(of))


def test_the_run_matrix_of_fedhpl_is_complete_and_trains_nothing_twice():
    expected = {1: 72, 2: 72 + 1, 3: 6 + 24, 10: 18, 11: 36, 12: 18, 13: 18 + 18, 14: 8}
    assert {number: len(runs(f"fedhpl-table-{number}")) for number in expected} == expected
    assert len(runs("fedhpl-table-3") - runs("fedhpl-table-1") - runs("fedhpl-table-2")) == 6 + 18
    assert runs("fedhpl-table-10") <= runs("fedhpl-table-11")
    assert len(runs("fedhpl-table-14") - runs("fedhpl-table-3")) == 6
    of_tables = {path for number in expected for path in runs(f"fedhpl-table-{number}")}
    of_paper = {path for name in CELLS if name.startswith("fedhpl-") for path in CELLS[name]}
    # 3a, 11: 9 numbers of prompts; 3b: 5 shares; 3c: 6; 7-9: 12; 10: 3; 12: 22; batch 32: 2; swapped stems: 2.
    assert len(of_paper - of_tables) == 9 + 5 + 6 + 12 + 3 + 22 + 2 + 2
    assert len(set(identities("fedhpl"))) == len(of_paper)


def test_settings_are_fedhpls():
    of_paper = [cell for name in CELLS if name.startswith("fedhpl-") for cell in CELLS[name].values()]
    for cell in of_paper:
        family = cell.experiment.split("-")[1]
        own = {"resnet": 100, "moco": 50}.get(family, {"cifar10": 10, "cifar100": 15, "svhn": 15}[cell.dataset])
        assert cell.settings["rounds"] == (own if cell.method == "fedhpl" else 100), cell.path
        assert (cell.settings["batch_size"] == 32) == cell.experiment.startswith("fedhpl-batch-32-")
        small = family in ("resnet", "subsets") and cell.row not in ("fedhpl-cnn", "fedhpl-cnn-w3")
        assert cell.input.size == (32 if small else None)
        assert (cell.public is not None) == (cell.method == "fedmd")
    public = {(cell.dataset, cell.public.dataset) for cell in of_paper if cell.public}
    assert public == {("cifar10", "svhn"), ("cifar100", "cifar10"), ("svhn", "cifar10")}


def test_one_run_fills_every_cell_it_serves(tmp_path):
    entry = table_spec("fedhpl-table-1", PARAMS).entries["fedhpl"]["cifar10-iid"]
    write_run(tmp_path, entry, rounds=10)
    run = needed_run(tmp_path / "runs" / entry.path(0))
    of = {"run": f"runs/{entry.path(0)}", "seed": 0, "fingerprint": run.fingerprint}
    shown = {name: {k: c for k, c in cells_of(name, tmp_path).items() if c["seeds"]} for name in PAPER_TABLES}
    assert {name: list(found) for name, found in shown.items() if found} == {
        "fedhpl-table-1": [("fedhpl", "cifar10-parameters"), ("fedhpl", "cifar10-iid")],
        "fedhpl-table-3": [("iid", "H-lowest"), ("iid", "H-average"), ("iid", "H-highest"), ("fedhpl", "H-iid")],
        "fedhpl-table-10": [("H-iid", "cifar10-first"), ("H-iid", "cifar10-last")],
        "fedhpl-table-11": [("H-iid", "cifar10-all")],
    }
    cell = shown["fedhpl-table-1"]["fedhpl", "cifar10-iid"]
    assert (cell["value"], cell["difference"], cell["status"]) == (12, -85.89, "worse")
    assert cell["provenance"] == [of | {"value": 12}]
    assert shown["fedhpl-table-1"]["fedhpl", "cifar10-parameters"]["status"] == "match"
    left = shown["fedhpl-table-3"]
    assert [left["iid", f"H-{name}"]["value"] for name in ("lowest", "average", "highest")] == [10, 12, 14]
    built("fedhpl-table-1", tmp_path)
    text = (tmp_path / "tables/fedhpl-table-1.md").read_text()
    assert "12.00** (10.00–14.00)<br>printed 97.89 (-85.89), worse" in text


def test_table_10_sums_the_clients_uploads(tmp_path):
    entry = table_spec("fedhpl-table-10", PARAMS).entries["V-noniid"]["cifar10-first"]
    write_run(tmp_path, entry, rounds=10)
    table = built("fedhpl-table-10", tmp_path)
    first, last = (table["V-noniid", f"cifar10-{end}"] for end in ("first", "last"))
    assert first["value"] == pytest.approx(5000 / 1024**2, abs=1e-6)
    assert last["value"] == pytest.approx(50000 / 1024**2, abs=1e-6)
    assert first["unit"] == "M" and "50,618" in first["footnote"]
    text = (tmp_path / "tables/fedhpl-table-10.md").read_text()
    assert "0.005 [1]<br>printed 0.531 (-0.526), worse" in text
    assert "0.537K" in text and "49.316K" in text
    assert [f"{5 * n * (n + 1) / 1024:.3f}" for n in (10, 100)] == ["0.537", "49.316"]


def test_table_13_reads_one_run_of_moco_twice(tmp_path):
    spec = table_spec("fedhpl-table-13", PARAMS)
    for row in ("cifar10/noniid-0.1", "svhn/noniid-0.5"):
        write_run(tmp_path, spec.entries[row]["V-moco_2"], rounds=50)
    table = built("fedhpl-table-13", tmp_path)
    for row, few in (("cifar10/noniid-0.1", 10), ("svhn/noniid-0.5", 15)):
        early, late = table[row, "V-moco_1"], table[row, "V-moco_2"]
        assert (early["value"], late["value"]) == (few + 2, 52)
        assert (early["rounds"], late["rounds"]) == (few, 50)
        assert early["provenance"][0]["run"] == late["provenance"][0]["run"]
        assert table[row, "V-supervised"]["status"] == "not run"


def test_random_backbones_are_marked_in_the_papers_tables(tmp_path):
    entry = table_spec("fedhpl-table-12", PARAMS).entries["H"]["svhn-dir"]
    write_run(tmp_path, entry, rounds=50, models=["mocov3_vit_base.random"] * 5)
    found = {name: cells_of(name, tmp_path) for name in PAPER_TABLES}
    marked = [(name, *key) for name, shown in found.items() for key, cell in shown.items() if cell["random"]]
    assert marked == [("fedhpl-table-12", "H", "svhn-dir")]
    built("fedhpl-table-12", tmp_path)
    assert "52.00 ‡" in (tmp_path / "tables/fedhpl-table-12.md").read_text()


@pytest.mark.parametrize(
    ("name", "row", "column", "words"),
    [
        ("fedhpl-table-2", "fedhpl", "svhn-dir", "batch of 32"),
        ("fedhpl-table-2", "fedhpl-cnn", "cifar10-parameters", "width 3"),
        ("fedhpl-table-3", "fedhpl-plus-h", "H-noniid", "arrow down"),
        ("fedhpl-table-10", "V-noniid", "cifar10-first", "more than the 50,000"),
    ],
)
def test_what_the_paper_prints_wrongly_has_a_footnote(name, row, column, words):
    spec = table_spec(name, PARAMS)
    assert words in spec.entries[row][column].footnote
    assert any("keeps its Adam" in text for text in table_spec("fedhpl-table-2", PARAMS).footnotes)
    assert any("its runs differ by that much" in text for text in table_spec("fedhpl-table-11", PARAMS).footnotes)


def test_unknown_tables_are_one_line():
    with pytest.raises(HetflError, match="unknown table 'fedhpl-table-33'; did you mean 'fedhpl-table-3'"):
        table_spec("fedhpl-table-33", PARAMS)
