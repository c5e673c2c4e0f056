"""What the figures of FGPT and SGPT ask for, and the stages that draw samples of data sets."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from settings_files import PAPER_PARAMS as PARAMS
from settings_files import copy_params
from stage_runner import run_stage

from hetfl.data.store import Subset, write_dataset
from hetfl.experiments.plan import Cell, cells
from hetfl.figures.base import Figure
from hetfl.figures.catalogue import figure, figures
from hetfl.figures.groups import SelectionFigure
from hetfl.figures.samples import FeatureFigure
from hetfl.models.fitting import on_meta
from hetfl.models.registry import creator
from hetfl.tables.notation import methods
from hetfl.tables.spec import Entry

METHODS = methods("fgpt")


MOMENTA = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


def shown(name: str) -> Figure:
    return figure(name, PARAMS)


def settled(entry: Entry) -> Cell:
    """A figure's cell with all its settings, of its first seed."""
    (cell,) = [cell for cell in cells(PARAMS, entry.experiment) if cell.path == entry.path(entry.seeds[0])]
    return cell


def test_trade_off_is_of_all_methods_and_the_ensemble_is_tested_where_it_is_shown() -> None:
    five = list(METHODS.values())
    for panel, rows in zip(shown("fgpt-figure-2").panels, [[*five, "FGPT-U"]] * 2 + [five], strict=True):
        assert list(panel.rows) == rows
        for title, entry in panel.rows.items():
            cell = settled(entry)
            assert (entry.reading == "top-5") == (title == "FGPT-U")
            assert not entry.reading or (cell.method == "fgpt" and 5 in cell.settings["ensembles"])
            assert cell.settings["window"] == 10
            assert entry.seeds == [0, 1, 2]


def test_rounds_are_of_the_six_methods_at_both_settings() -> None:
    ten, five = shown("fgpt-figure-3").panels
    assert list(ten.rows) == list(five.rows) == list(METHODS.values())
    assert {settled(entry).partition["classes_per_client"] for entry in ten.entries} == {10}
    assert {settled(entry).partition["classes_per_client"] for entry in five.entries} == {5}
    assert {settled(entry).settings["local_epochs"] for entry in (*ten.entries, *five.entries)} == {5}


def test_momenta_are_those_of_the_runs_and_the_other_one_is_the_default() -> None:
    keys, groups = shown("sgpt-figure-6").panels
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
    rivals = [entry.row for entry in groups.lines[0].rivals.values()]
    assert rivals == [row for row in METHODS if row != "fgpt"]


@pytest.mark.parametrize("name", ["fgpt-unseen", "cifar100-unseen-short-clients"])
def test_clients_are_held_out_as_the_caption_says(name: str) -> None:
    for entry in shown(name).entries:
        cell = settled(entry)
        held_out, clients = cell.settings["held_out"], cell.partition["clients"]
        assert f"The last {held_out} of the {clients} clients never take part" in shown(name).caption
    assert [panel.shows for panel in shown(name).panels] == ["pooled", "lowest"]


def test_selections_are_of_methods_that_sort_samples() -> None:
    selections = [one for one in figures(PARAMS).values() if isinstance(one, SelectionFigure)]
    assert len(selections) == 2
    for one in selections:
        for entry in one.entries:
            assert "groups" in settled(entry).settings


def test_features_are_taken_after_the_first_and_the_last_block_and_between() -> None:
    with on_meta():
        depth_of = cache(lambda model: len(creator(model)().blocks))
        for one in (figure for figure in figures(PARAMS).values() if isinstance(figure, FeatureFigure)):
            (model,) = one.backbones(PARAMS)
            depth = depth_of(model)
            assert (one.blocks[0], one.blocks[-1]) == (1, depth)
            assert list(one.blocks) == sorted(set(one.blocks))


def stage(folder: Path, name: str) -> tuple[list[str], str]:
    """What a stage prints before its files, and its figure."""
    papers = copy_params(folder)
    done = run_stage(papers, "figure", name)
    assert done.status == 0, done.stderr
    *said, svg = done.stdout.splitlines()
    assert svg == f"figures/{name}/{name}.svg"
    return said, (papers / svg).read_text()


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
    panels = {"sgpt-figure-5": 5, "cifar100-s10-short-tsne": 4, "sgpt-figure-7": 4}
    assert text.count("not prepared") == panels.get(name, 1)


def test_clients_have_a_panel_each_with_the_classes_they_hold(tmp_path: Path) -> None:
    card = tmp_path / "papers" / "partitions" / "cifar100" / "s10-s0" / "card.json"
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
    names = tuple(shown("sgpt-figure-8").rows)
    domain = np.repeat(np.arange(len(names)), 4)
    subset = Subset(
        draws.integers(0, 256, (20, 8, 8, 3), np.uint8), 2 * domain + np.arange(20) % 2, {"domain": domain}
    )
    write_dataset(
        tmp_path / "papers" / "data" / "five",
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
    assert all(f">{title}<" in text for title in shown("sgpt-figure-8").rows.values())
