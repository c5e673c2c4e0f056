"""What the figures of FGPT and SGPT ask for, and the stages that draw samples of data sets."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from settings_files import copy_params

from hetfl.data.store import Subset, write_dataset
from hetfl.experiments.plan import Cell, cells, load_params
from hetfl.models.registry import creator
from hetfl.papers.fgpt import METHODS
from hetfl.papers.fgpt_figures import DATA_FIGURES, FIGURES, MOMENTA, figure_2, figure_3, figure_6
from hetfl.papers.panels import FeatureFigure, ImageFigure, SelectionFigure
from hetfl.tables.spec import Entry

ROOT = Path(__file__).parents[2]
PARAMS = load_params(ROOT / "params.yaml")


def settled(entry: Entry) -> Cell:
    """A figure's cell with all its settings, of its first seed."""
    (cell,) = [cell for cell in cells(PARAMS, entry.experiment) if cell.path == entry.path(entry.seeds[0])]
    return cell


def test_trade_off_is_of_all_methods_and_the_ensemble_is_tested_where_it_is_shown() -> None:
    five = list(METHODS.values())
    for panel, shown in zip(figure_2(PARAMS).panels, [[*five, "FGPT-U"]] * 2 + [five], strict=True):
        assert list(panel.rows) == shown
        for title, entry in panel.rows.items():
            cell = settled(entry)
            assert (entry.reading == "top-5") == (title == "FGPT-U")
            assert not entry.reading or (cell.method == "fgpt" and 5 in cell.settings["ensembles"])
            assert cell.settings["window"] == 10
            assert entry.seeds == [0, 1, 2]


def test_rounds_are_of_the_six_methods_at_both_settings() -> None:
    ten, five = figure_3(PARAMS).panels
    assert list(ten.rows) == list(five.rows) == list(METHODS.values())
    assert {settled(entry).partition["classes_per_client"] for entry in ten.entries} == {10}
    assert {settled(entry).partition["classes_per_client"] for entry in five.entries} == {5}
    assert {settled(entry).settings["local_epochs"] for entry in (*ten.entries, *five.entries)} == {5}


def test_momenta_are_those_of_the_runs_and_the_other_one_is_the_default() -> None:
    keys, groups = figure_6(PARAMS).panels
    for panel, varied, other in (
        (keys, "key_momentum", "group_momentum"),
        (groups, "group_momentum", "key_momentum"),
    ):
        for line in panel.lines:
            assert tuple(line.points) == MOMENTA
            for value, entry in line.points.items():
                found = settled(entry)
                assert (found.method, found.dataset, found.split) == ("sgpt", "cifar100", "s10")
                assert (found.settings[varied], found.settings[other]) == (value, 0.5)
    rivals = [entry.row for entry in groups.lines[0].rivals]
    assert rivals == [row for row in METHODS if row != "fgpt"]


@pytest.mark.parametrize("name", ["fgpt-unseen", "cifar100-unseen-short-clients"])
def test_clients_are_held_out_as_the_caption_says(name: str) -> None:
    figure = FIGURES[name](PARAMS)
    for entry in figure.entries:
        cell = settled(entry)
        held_out, clients = cell.settings["held_out"], cell.partition["clients"]
        assert f"The last {held_out} of the {clients} clients never take part" in figure.caption
    assert [panel.shows for panel in figure.panels] == ["pooled", "lowest"]


def test_selections_are_of_methods_that_sort_samples_and_of_one_seed() -> None:
    figures = [figure for make in FIGURES.values() if isinstance(figure := make(PARAMS), SelectionFigure)]
    assert len(figures) == 2
    for figure in figures:
        for entry in figure.entries:
            assert entry.seeds == [0]
            assert "groups" in settled(entry).settings


@pytest.mark.parametrize("name", DATA_FIGURES)
def test_figures_of_samples_have_a_stage_and_a_data_set(name: str) -> None:
    figure, stage = DATA_FIGURES[name], yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][name]
    dataset = figure.dataset if isinstance(figure, ImageFigure) else PARAMS.experiments[figure.experiment].dataset
    assert dataset in PARAMS.data.sets
    assert {f"data/{dataset}", "pipeline/figure.py"} <= set(stage["deps"])
    assert stage["cmd"] == f"python pipeline/figure.py {name}"
    assert stage["outs"] == [{f"figures/{name}": {"cache": False}}]


def test_features_are_taken_after_the_first_and_the_last_block_and_between() -> None:
    for figure in DATA_FIGURES.values():
        if isinstance(figure, FeatureFigure):
            (model,) = PARAMS.models[PARAMS.experiments[figure.experiment].models]
            depth = len(creator(model)().blocks)
            assert (figure.blocks[0], figure.blocks[-1]) == (1, depth)
            assert list(figure.blocks) == sorted(set(figure.blocks))


def stage(folder: Path, name: str) -> tuple[list[str], str]:
    """What a stage prints before its files, and its figure."""
    copy_params(folder)
    command = [sys.executable, ROOT / "pipeline" / "figure.py", name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *said, svg, png = done.stdout.splitlines()
    assert [svg, png] == [f"figures/{name}/{name}.svg", f"figures/{name}/{name}.png"]
    return said, (folder / svg).read_text()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("sgpt-figure-5", "the weights of vit_base_patch16_224.orig_in21k are missing; "),
        ("cifar100-s10-short-tsne", "make them with dvc repro pretrain-cifar10"),
        ("sgpt-figure-7", "make it with dvc repro partition@cifar100"),
        ("sgpt-figure-8", "make it with dvc repro download-five"),
    ],
)
def test_what_is_missing_is_said_in_one_line_with_its_remedy(tmp_path: Path, name: str, remedy: str) -> None:
    said, text = stage(tmp_path, name)
    assert sum(remedy in line for line in said) == 1
    assert "not prepared" in text


def test_clients_have_a_panel_each_with_the_classes_they_hold(tmp_path: Path) -> None:
    card = tmp_path / "partitions" / "cifar100" / "s10-s0" / "card.json"
    card.parent.mkdir(parents=True)
    train = np.diag([171, 172, 173, 175, 180])
    card.write_text(
        json.dumps(
            {
                "class_counts": {"train": train.tolist(), "test": (train > 0).astype(int).tolist()},
                "class_names": ["red_fox", "owl", "cat", "dog", "elk"],
            }
        )
    )
    said, text = stage(tmp_path, "sgpt-figure-7")
    assert said == []
    for client, (name, count) in enumerate({"red fox": 172, "owl": 173, "cat": 174, "dog": 176}.items()):
        assert text.count(f"client {client}<") == text.count(f">{name}<") == text.count(f">{count}<") == 1
    assert ">elk<" not in text


def test_images_are_drawn_from_the_data_set_that_is_there(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    names = tuple(DATA_FIGURES["sgpt-figure-8"].rows)
    domain = np.repeat(np.arange(len(names)), 4)
    subset = Subset(
        draws.integers(0, 256, (20, 8, 8, 3), np.uint8), 2 * domain + np.arange(20) % 2, {"domain": domain}
    )
    write_dataset(
        tmp_path / "data" / "five",
        name="five",
        title="Five-Dataset",
        origin="",
        licence="",
        source=[],
        settings={},
        class_names=tuple(map(str, range(10))),
        subsets={"train": subset, "test": subset},
        attributes={"domain": names},
    )
    said, text = stage(tmp_path, "sgpt-figure-8")
    assert said == []
    assert text.count("<image") == 1
    assert all(f">{title}<" in text for title in DATA_FIGURES["sgpt-figure-8"].rows.values())
