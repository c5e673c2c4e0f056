"""Every figure: what it asks for, its stage, and what the stage says."""

import json
from pathlib import Path

import pytest
import yaml
from settings_files import EMBEDDED_PARAMS, PAPERS, copy_params
from settings_files import PAPER_PARAMS as PARAMS
from stage_runner import run_stage

from hetfl.experiments.plan import cells
from hetfl.figures.catalogue import figure, figures, names

OF_PAPERS = [name for name in names() if name != "digits-theorem"]
STAGES = yaml.safe_load((PAPERS / "dvc.yaml").read_text())["stages"]


@pytest.mark.parametrize("name", OF_PAPERS)
def test_figures_have_a_stage_that_depends_on_what_they_show(name: str) -> None:
    stage, shown = STAGES[name], figure(name, PARAMS)
    assert (stage["cmd"], stage["desc"]) == (f"python pipeline/figure.py {name}", shown.title)
    assert stage["outs"] == [{f"figures/{name}": {"cache": False}}]
    data = {f"data/{dataset}" for dataset in shown.datasets(PARAMS)}
    read = data | {f"partitions/{dataset}" for dataset in shown.partitions()}
    assert read | {"pipeline/figure.py", "src/hetfl/figures"} <= set(stage["deps"])
    for entry in shown.entries:
        for folder in ("runs", "evaluations"):
            parts = (folder, *entry.path(entry.seeds[0]).parts)
            assert {"/".join(parts[:length]) for length in range(2, len(parts))} & set(stage["deps"])


def test_every_figure_shows_something_and_knows_what() -> None:
    for name, shown in figures(PARAMS).items():
        assert shown.of_runs == bool([*shown.entries]) == (name in names(of_runs=True)), name
        assert shown.of_runs != bool(shown.partitions() or shown.datasets(PARAMS)), name


@pytest.mark.parametrize("name", names(of_runs=True))
def test_figures_name_cells_that_exist(name: str) -> None:
    params = PARAMS if name in OF_PAPERS else EMBEDDED_PARAMS
    entries = [*figure(name, params).entries]
    known = {
        cell.path for experiment in {entry.experiment for entry in entries} for cell in cells(params, experiment)
    }
    assert {entry.path(seed) for entry in entries for seed in entry.seeds} <= known


def test_figures_name_partitions_that_exist() -> None:
    for shown in figures(PARAMS).values():
        for panel in shown.panels if shown.partitions() else ():
            assert panel.split in PARAMS.partitions[panel.dataset].splits


def test_a_project_without_a_paper_is_without_its_figures() -> None:
    assert [*figures(EMBEDDED_PARAMS)] == ["digits-theorem"]


def test_figure_is_drawn_from_the_cards_that_are_there(tmp_path: Path) -> None:
    papers = copy_params(tmp_path)
    card = papers / "partitions" / "cifar10" / "blocks-s0" / "card.json"
    card.parent.mkdir(parents=True)
    counts = {"train": [[3, 0], [0, 4]], "test": [[1, 0], [0, 900]]}
    card.write_text(json.dumps({"class_counts": counts, "class_names": ["a", "b"]}))
    done = run_stage(papers, "figure", "fedtgp-figure-7")
    assert done.status == 0, done.stderr
    assert "make it with dvc repro partition@fashion-mnist" in done.stdout
    text = (papers / "figures" / "fedtgp-figure-7" / "fedtgp-figure-7.svg").read_text()
    # Training and test samples together.
    assert "largest circle: 904 samples" in text
    assert text.count("not prepared") == 1


def test_figure_of_results_names_how_many_cells_there_are(tmp_path: Path, both_formats: None) -> None:
    done = run_stage(copy_params(tmp_path), "figure", "fedhpl-figure-10")
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines() == [
        "fedhpl-figure-10: 0 of 9 cells are there",
        "figures/fedhpl-figure-10/fedhpl-figure-10.svg",
        "figures/fedhpl-figure-10/fedhpl-figure-10.png",
    ]


def test_unknown_figure_is_one_line(tmp_path: Path) -> None:
    done = run_stage(copy_params(tmp_path), "figure", "fedtgp-figure-77")
    assert done.status == 2
    assert done.stderr == "error: unknown figure 'fedtgp-figure-77'; did you mean 'fedtgp-figure-7'?\n"
