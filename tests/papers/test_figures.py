import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from settings_files import copy_params

from hetfl.experiments.plan import cells, load_params
from hetfl.papers.figures import PARTITION_FIGURES, RESULT_FIGURES

ROOT = Path(__file__).parents[2]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


@pytest.mark.parametrize("name", PARTITION_FIGURES)
def test_figures_name_partitions_that_exist_and_have_a_stage(name: str) -> None:
    params = load_params(ROOT / "params.yaml")
    stage = STAGES[name]
    for dataset, split in PARTITION_FIGURES[name].panels.values():
        assert split in params.partitions[dataset].splits
        assert f"partitions/{dataset}" in stage["deps"]
    assert stage["cmd"] == f"python pipeline/figure.py {name}"
    assert stage["outs"] == [{f"figures/{name}": {"cache": False}}]


@pytest.mark.parametrize("name", RESULT_FIGURES)
def test_figures_name_cells_that_exist(name: str) -> None:
    params = load_params(ROOT / "params.yaml")
    entries = list(RESULT_FIGURES[name](params).entries)
    known = {
        cell.path for experiment in {entry.experiment for entry in entries} for cell in cells(params, experiment)
    }
    assert {entry.path(seed) for entry in entries for seed in entry.seeds} <= known


@pytest.mark.parametrize("name", RESULT_FIGURES)
def test_figures_of_results_have_a_stage_that_depends_on_their_runs(name: str) -> None:
    stage = STAGES[name]
    assert stage["cmd"] == f"python pipeline/figure.py {name}"
    assert stage["outs"] == [{f"figures/{name}": {"cache": False}}]
    for entry in RESULT_FIGURES[name](load_params(ROOT / "params.yaml")).entries:
        for folder in ("runs", "evaluations"):
            parts = (folder, *entry.path(entry.seeds[0]).parts)
            assert {"/".join(parts[:length]) for length in range(2, len(parts))} & set(stage["deps"])


def draw(folder: Path, name: str) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "pipeline" / "figure.py", name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_figure_is_drawn_from_the_cards_that_are_there(tmp_path: Path) -> None:
    copy_params(tmp_path)
    card = tmp_path / "partitions" / "cifar10" / "blocks-s0" / "card.json"
    card.parent.mkdir(parents=True)
    counts = {"train": [[3, 0], [0, 4]], "test": [[1, 0], [0, 900]]}
    card.write_text(json.dumps({"class_counts": counts, "class_names": ["a", "b"]}))
    done = draw(tmp_path, "fedtgp-figure-7")
    assert done.returncode == 0, done.stderr
    assert "make it with dvc repro partition@fashion-mnist" in done.stdout
    text = (tmp_path / "figures" / "fedtgp-figure-7" / "fedtgp-figure-7.svg").read_text()
    # Training and test samples together.
    assert "largest circle: 904 samples" in text
    assert text.count("not prepared") == 1


def test_figure_of_results_names_how_many_cells_there_are(tmp_path: Path) -> None:
    copy_params(tmp_path)
    done = draw(tmp_path, "fedhpl-figure-10")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "fedhpl-figure-10: 0 of 9 cells are there",
        "figures/fedhpl-figure-10/fedhpl-figure-10.svg",
        "figures/fedhpl-figure-10/fedhpl-figure-10.png",
    ]


def test_unknown_figure_is_one_line(tmp_path: Path) -> None:
    done = draw(tmp_path, "fedtgp-figure-77")
    assert done.returncode == 2
    assert done.stderr == "error: unknown figure 'fedtgp-figure-77'; did you mean 'fedtgp-figure-7'?\n"
