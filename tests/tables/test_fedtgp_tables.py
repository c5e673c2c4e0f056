"""FedTGP's tables: 200 cells of three trials, the paper's settings, the best round of each run."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from table_helpers import CELLS, PARAMS, built, entries, identities, runs, write_run

from hetfl.draws import Draws
from hetfl.files import read_json
from hetfl.methods import create
from hetfl.models import build
from hetfl.report.formats import render_text
from hetfl.tables.catalogue import table_spec
from hetfl.tables.notation import content, methods

METHODS = methods("fedtgp")
TABLES = [*content("fedtgp")["tables"]]
OF_PAPER = [name for name in CELLS if name.startswith("fedtgp-")]
HTC4 = ("fedtgp-classifiers-res34-htc4", "fedtgp-classifiers-htfe8-htc4")
OF_FEDTGP = ("fedtgp-ablations", "fedtgp-margin", "fedtgp-server")
"""How the names of experiments with FedTGP alone begin."""
SHORT = "fashion-mnist-short"


def places(name: str) -> set[tuple[str, str, str]]:
    """The cells of the run matrix that a table prints, whatever the seed."""
    return {(entry.experiment, entry.row, entry.split) for _, _, entry in entries(table_spec(name, PARAMS))}


def test_the_run_matrix_is_complete_and_trains_nothing_twice():
    expected = {1: 56, 2: 52, 3: 21, 4: 21, 6: 15, 7: 7, 10: 14, 11: 21}
    assert {number: len(places(f"fedtgp-table-{number}")) for number in expected} == expected
    assert len(places("fedtgp-table-6") - places("fedtgp-table-1")) == 9
    assert len(places("fedtgp-table-7") - places("fedtgp-table-1")) == 6
    names = [f"fedtgp-table-{number}" for number in expected]
    assert len(set().union(*map(places, names))) == 200
    assert set().union(*map(runs, names)) == {path for name in OF_PAPER for path in CELLS[name]}
    assert len(identities("fedtgp")) == len(set(identities("fedtgp"))) == 600


def test_every_experiment_has_the_methods_that_fit_its_heads():
    for name in OF_PAPER:
        methods = {cell.method for cell in CELLS[name].values()}
        if name.startswith(OF_FEDTGP):
            assert methods == {"fedtgp"}
            continue
        assert methods == set(METHODS) - ({"lg-fedavg", "fedgen"} if name in HTC4 else set()), name


def test_settings_are_the_papers():
    common = {"rounds": 1000, "patience": 100, "batch_size": 10, "lr": 0.01, "momentum": 0, "weight_decay": 0}
    common |= {"optimiser": "sgd", "shuffle": False, "drop_last": True, "reduce": "pool", "stem": "imagenet"}
    common |= {"init": "torch"}
    own = {
        "lg-fedavg": {},
        "fedgen": {"noise": 32, "hidden": None, "server_steps": 100, "server_lr": 0.1, "server_decay": 0.99},
        "fml": {"alpha": 0.5, "beta": 0.5, "clip": 10, "reduction": "elements", "detach": False},
        "fedkd": {"energy_start": 0.95, "energy_end": 0.95, "clip": 10, "reduction": "elements", "detach": False},
        "feddistill": {"alpha": 1, "regulariser": "mse", "collect": "training"},
        "fedproto": {"pull": 10, "distance": "mse", "collect": "training", "average": "plain", "flat": None},
        "fedtgp": {"pull": 10, "distance": "mse", "collect": "sweep", "flat": None, "server_lr": None},
    }
    varied = {"participation": 1.0, "local_epochs": 1, "embedding": 512}
    varied_by = {"fedtgp": {"margin": "adaptive", "margin_cap": 100, "server_epochs": 100, "network": True}}
    for cell in (cell for name in OF_PAPER for cell in CELLS[name].values()):
        assert (common | own[cell.method]).items() <= cell.settings.items(), cell.path
        usual = varied | varied_by.get(cell.method, {})
        changed = {name for name, value in usual.items() if cell.settings[name] != value}
        # A row that is named after its method has the usual settings, any other changes one of them.
        assert len(changed) == (cell.row != cell.method or cell.experiment == "fedtgp-clients"), cell.path
    every = {name: {cell.row: cell.settings for cell in CELLS[name].values()} for name in OF_PAPER}
    epochs, sizes = every["fedtgp-epochs"], every["fedtgp-embedding"]
    for method in METHODS:
        assert every["fedtgp-clients"][method]["participation"] == 0.5
        assert [epochs[f"{method}-local-epochs-{many}"]["local_epochs"] for many in (5, 10, 20)] == [5, 10, 20]
        assert [sizes[f"{method}-embedding-{size}"]["embedding"] for size in (64, 256, 1024)] == [64, 256, 1024]
    for name, setting in (("fedtgp-margin", "margin_cap"), ("fedtgp-server", "server_epochs")):
        assert [settings[setting] for settings in every[name].values()] == [1, 10, 1000]
    settings = every["fedtgp-ablations-cifar100"]
    assert settings["fedtgp-scl"]["margin"] == "none" and not settings["fedtgp-no-f"]["network"]
    assert (settings["fedtgp-fm"]["margin"], settings["fedtgp-fm"]["margin_cap"]) == ("fixed", 100)


def test_images_common_networks_and_what_figures_need():
    sizes = {"flowers102": 64, "tiny-imagenet": 64, "fashion-mnist": 28}
    smallest = {"fedtgp-htfe3": "resnet10", "fedtgp-htfe9": "resnet4", "fedtgp-htcnn8": "htcnn2"}
    for name in OF_PAPER:
        experiment = PARAMS.experiments[name]
        shown = {"cifar10", "fashion-mnist"} & {experiment.dataset}
        for cell in CELLS[name].values():
            assert cell.input.size == sizes.get(cell.dataset, 32)
            assert cell.input.mean == cell.input.std == (0.5, 0.5, 0.5)
            if cell.method in ("fml", "fedkd"):
                assert cell.settings["auxiliary"] == smallest.get(experiment.models, "cnn")
            assert cell.features == (2000 if shown else 0)
            assert cell.settings["train_accuracy"] == name.startswith("fedtgp-htfe8-flowers102")  # Figure 4


def test_trials_share_a_partition_of_as_many_clients_as_the_paper_has():
    for name in (*OF_PAPER, SHORT):
        for cell in CELLS[name].values():
            many = cell.split.partition("-")[2]
            assert (cell.partition["clients"], cell.partition["seed"]) == (int(many or 20), 1)


def test_groups_of_models_deal_the_architectures_in_the_papers_order():
    groups = {name.removeprefix("fedtgp-"): models for name, models in PARAMS.models.items() if "fedtgp" in name}
    large = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
    assert groups["htfe8"] == ["cnn", "googlenet", "mobilenet_v2", *large]
    assert groups["htfe9"] == ["resnet4", "resnet6", "resnet8", "resnet10", *large]
    heads = ["", "-h512", "-h256", "-h128"]
    assert groups["res34-htc4"] == [f"resnet34{head}" for head in heads]
    assert groups["htfe8-htc4"] == [model + head for model, head in zip(groups["htfe8"], heads * 2, strict=True)]
    for name in ("res34-htc4", "htfe8-htc4"):
        assert groups[f"{name}-relu"] == [f"{model}-relu" for model in groups[name]]


@pytest.mark.parametrize(
    ("number", "row", "column", "value", "of"),
    [
        (1, "fedgen", "flowers102-blocks", (59.90, 0.15), "htfe8-flowers102-pathological/fedgen/fedgen/blocks"),
        (
            1,
            "fedtgp",
            "tiny-imagenet-practical",
            (27.37, 0.12),
            "htfe8-tiny-imagenet-practical/fedtgp/fedtgp/practical",
        ),
        (2, "fedkd", "htfe9", (42.15, 0.36), "extractors-htfe9/fedkd/fedkd/practical"),
        (2, "fedproto", "htfe8-htc4", (25.57, 0.72), "classifiers-htfe8-htc4/fedproto/fedproto/practical"),
        (2, "lg-fedavg", "100", (35.14, 0.47), "clients/lg-fedavg/lg-fedavg/practical-100"),
        (3, "fml", "20", (36.02, 0.22), "epochs/fml/fml-local-epochs-20/practical"),
        (4, "feddistill", "1024", (40.09, 0.27), "embedding/feddistill/feddistill-embedding-1024/practical"),
        (6, "fedtgp-no-f", "flowers102", (49.39, None), "ablations-flowers102/fedtgp/fedtgp-no-f/practical"),
        (6, "fedproto", "cifar100", (36.34, None), "htfe8-cifar100-practical/fedproto/fedproto/practical"),
        (7, "1000", "tau", (46.09, None), "margin/fedtgp/fedtgp-margin-cap-1000/practical"),
        (7, "1000", "server", (47.01, None), "server/fedtgp/fedtgp-server-epochs-1000/practical"),
        (7, "100", "server", (46.94, None), "htfe8-cifar100-practical/fedtgp/fedtgp/practical"),
        (10, "feddistill", "practical", (97.48, 0.04), "htcnn8-fashion-mnist/feddistill/feddistill/practical"),
        (11, "fedgen", "resnet34", (43.71, 0.04), "same-resnet34/fedgen/fedgen/practical"),
    ],
)
def test_printed_numbers_stand_beside_their_runs(number, row, column, value, of):
    entry = table_spec(f"fedtgp-table-{number}", PARAMS).entries[row][column]
    assert (entry.printed, entry.printed_std) == value
    assert [entry.path(seed) for seed in entry.seeds] == [Path(f"fedtgp-{of}-s{seed}") for seed in (0, 1, 2)]


def test_one_run_fills_every_cell_it_serves_with_its_best_round(tmp_path):
    entry = table_spec("fedtgp-table-1", PARAMS).entries["fedtgp"]["cifar100-practical"]
    for seed, rounds in ((0, 30), (1, 31), (2, 32)):
        write_run(tmp_path, entry, rounds, seed)
    shown = {name: {k: c for k, c in built(name, tmp_path).items() if c["seeds"]} for name in TABLES}
    assert {name: list(found) for name, found in shown.items() if found} == {
        "fedtgp-table-1": [("fedtgp", "cifar100-practical")],
        "fedtgp-table-6": [("fedtgp", "cifar100")],
        "fedtgp-table-7": [("100", "tau"), ("100", "server")],
    }
    (cell,) = shown["fedtgp-table-1"].values()
    # Round 29 of 30 is at 29 + 2.5 + 10 percent.
    assert [run["value"] for run in cell["provenance"]] == [41.5, 42.5, 43.5]
    assert (cell["value"], cell["best"], cell["last"], cell["std"]) == (42.5, 42.5, 33.5, 1)
    assert (cell["printed"], cell["printed_std"], cell["difference"], cell["status"]) == (46.94, 0.12, -4.44, "worse")
    assert cell["statistic"] == "best_pooled" and cell["lowest"] is None
    text = (tmp_path / "tables/fedtgp-table-1.md").read_text()
    assert "**42.50 ± 1.00**<br>printed 46.94±0.12 (-4.44), worse |" in text
    assert "test samples, in the best round of each run, in percent, mean ± sample standard deviation" in text
    assert r"printed 46.94$\pm$0.12 (-4.44)" in (tmp_path / "tables/fedtgp-table-1.tex").read_text()
    with (tmp_path / "tables/fedtgp-table-1.csv").open(newline="") as file:
        line = next(line for line in csv.DictReader(file) if line["value"])
    assert (line["value"], line["printed"], line["printed_std"]) == ("42.5", "46.94", "0.12")
    assert "42.50 ± 1.00 [2]*" in render_text(read_json(tmp_path / "tables/fedtgp-table-6.json"))


def test_runs_that_stopped_early_say_when(tmp_path):
    entry = table_spec("fedtgp-table-7", PARAMS).entries["100"]["tau"]
    for seed, played in ((0, 30), (1, 40), (2, 50)):
        write_run(tmp_path, entry, 50, seed, played)
    cells = built("fedtgp-table-7", tmp_path)
    assert [run.get("rounds") for run in cells["100", "tau"]["provenance"]] == [30, 40, None]
    assert cells["100", "tau"]["rounds"] == 50
    text = (tmp_path / "tables/fedtgp-table-7.md").read_text()
    assert "Rounds: 50; 2 of 3 runs stopped early, after 30–40." in text


def test_places_without_a_method_stay_empty(tmp_path):
    built("fedtgp-table-2", tmp_path)
    text = (tmp_path / "tables/fedtgp-table-2.md").read_text()
    assert [line for line in text.splitlines() if line.endswith("|  |  |")] == [
        "| LG-FedAvg |  |  |",
        "| FedGen |  |  |",
    ]


def test_few_rounds_are_no_reproduction_of_table_10(tmp_path):
    spec, paper = table_spec(SHORT, PARAMS), table_spec("fedtgp-table-10", PARAMS)
    for (row, column, ours), (*_, theirs) in zip(entries(spec), entries(paper), strict=True):
        assert (ours.printed, ours.printed_std) == (theirs.printed, theirs.printed_std)
        assert ours.path(0) == Path(SHORT, row, row, f"{column}-s0") and ours.seeds == [0]
    short, whole = ({cell.path.parts[2:]: cell for cell in CELLS[name].values()} for name in (SHORT, OF_PAPER[-1]))
    for name, cell in short.items():
        same = whole[name]
        assert cell.settings | {"rounds": 1000} == same.settings and cell.settings["rounds"] < 1000
        assert (cell.models, cell.input, cell.partition) == (same.models, same.input, same.partition)
    assert "no reproduction" in " ".join(spec.note.split())
    # In the paper's setting this would be a match.
    write_run(tmp_path, spec.entries["lg-fedavg"]["blocks"], rounds=88)
    cell = built(SHORT, tmp_path)["lg-fedavg", "blocks"]
    assert (cell["value"], cell["printed"]) == (99.5, 99.39)
    assert (cell["status"], cell["difference"], cell["comparable"]) == ("other setting", None, False)
    text = (tmp_path / f"tables/{SHORT}.md").read_text()
    assert "**99.50**<br>printed 99.39±0.01, other setting |" in text
    assert not any(word in text for word in ("match", "better", "worse"))


def test_what_the_text_says_otherwise_is_in_a_footnote():
    groups, ablations = (table_spec(f"fedtgp-table-{number}", PARAMS).entries for number in (2, 6))
    falls = [
        round(row["htfe2"].printed - row["htfe9"].printed, 2) for name, row in groups.items() if name != "fedtgp"
    ]
    gains = [
        [
            f"{ablations[variant][dataset].printed - ablations['fedproto'][dataset].printed:.2f}"
            for variant in ("fedtgp-scl", "fedtgp-fm", "fedtgp")
        ]
        for dataset in ("flowers102", "cifar100")
    ]
    said = {number: " ".join(table_spec(f"fedtgp-table-{number}", PARAMS).footnotes) for number in (2, 6)}
    assert (min(falls), max(falls)) == (3.53, 11.23)
    assert "15.04" in said[2] and "3.53 (FML) to 11.23 (FedProto)" in said[2]
    assert all(gain in said[6] for gain in (*gains[0], *gains[1]))


@pytest.mark.parametrize(
    ("number", "row", "column", "words"),
    [
        (1, "fml", "flowers102-blocks", "leave two of the 102 classes out"),
        (2, "fedkd", "htfe3", "code sends zeros; ours sends the tensor at full rank"),
        (6, "fedtgp-fm", "tiny-imagenet", "does not state FM's margin; ours is τ = 100"),
        (6, "fedproto", "cifar100", "same runs as in Table 1"),
        (7, "100", "server", "same runs as in Table 1"),
    ],
)
def test_what_a_reader_stumbles_over_has_a_footnote(number, row, column, words):
    assert words in table_spec(f"fedtgp-table-{number}", PARAMS).entries[row][column].footnote


def test_fedkds_common_network_has_1x1_convolutions_where_the_footnote_says_so():
    """Such a kernel has one singular value: without it no energy is left, and the authors' code sends zeros."""
    said: dict[str, set[bool]] = {}
    for name in TABLES:
        for _, _, entry in entries(table_spec(name, PARAMS)):
            cell = CELLS[entry.experiment][entry.path(entry.seeds[0])]
            if cell.method == "fedkd":
                said.setdefault(cell.settings["auxiliary"], set()).add("1x1 convolutions" in entry.footnote)
    has = {}
    for auxiliary in said:
        model = build(auxiliary, 10, create("fedkd", {"auxiliary": auxiliary}, 10).model_options())
        fresh = model.init(Draws(0), 0)
        has[auxiliary] = {any(fresh[name].shape[2:] == (1, 1) for name in model.names(["auxiliary"]))}
    assert said == has
    assert {auxiliary for auxiliary, there in has.items() if there == {True}} == {"resnet10"}


def test_the_protocols_weak_points_are_told_where_they_apply():
    for number in (1, 2, 3, 4, 6, 7, 10, 11):
        footnotes = " ".join(table_spec(f"fedtgp-table-{number}", PARAMS).footnotes)
        assert "chosen on the test samples" in footnotes
        assert ("divide by the number of trials" in footnotes) == (number not in (6, 7))
