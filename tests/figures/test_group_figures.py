"""FGPT's and SGPT's figures: groups, trade-off, held-out clients, momenta; images and features of them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from figure_helpers import (
    CLIENTS,
    GROUPS,
    HELD_OUT,
    PARAMS,
    SAMPLES,
    cell,
    draw,
    drawn_twice_alike,
    grid,
    sources,
    without_layout,
    write_cell,
)
from matplotlib.colors import to_hex
from record_factory import rewrite_run

from hetfl.data.inputs import InputSettings
from hetfl.data.store import Dataset, Subset
from hetfl.errors import HetflError
from hetfl.figures.catalogue import figure
from hetfl.figures.groups import SelectionFigure
from hetfl.figures.lines import MetricLine, MetricPanel
from hetfl.figures.points import HeldOutPanel, TradeoffPanel, sides
from hetfl.figures.samples import FeatureFigure, Features, ImageFigure, read_features
from hetfl.figures.style import CLASSES
from hetfl.metrics.groups import entropy
from hetfl.models import Model, ModelOptions, build
from hetfl.tables.spec import Entry

CPU = torch.device("cpu")
SOME = {"name": "some", "title": "", "caption": "Caption.", "attribute": "coarse"}
FEATURES = FeatureFigure(experiment="some", blocks=[1, 2], columns=2, samples=30, **SOME)
IMAGES = ImageFigure(dataset="some", rows={"cat": "Cats", "dog": "Dogs"}, **SOME)


def dataset(samples: int = 40) -> Dataset:
    """Red and green squares in two shades, each a class; the last class is in one row alone."""
    coarse = np.arange(samples) % 2
    labels = 2 * coarse + np.arange(samples) // 2 % 2
    images = np.zeros((samples, 32, 32, 3), np.uint8)
    images[np.arange(samples), :, :, coarse] = (120 + 100 * (labels % 2))[:, None, None]
    split = Subset(images, labels, {"coarse": coarse})
    names = tuple("abcd")
    return Dataset("some", "Some", names, {"train": split, "test": split}, "0", {"coarse": ("cat", "dog")})


def backbone() -> Model:
    return build("digits_vit_small.random", 4, ModelOptions(prompts="inserted"), inputs=InputSettings())


def reading(entry: Entry, rule: str) -> Entry:
    return entry.model_copy(update={"reading": rule})


def points(axes) -> dict[str, tuple[float, float]]:
    """Where the point of each colour lies."""
    marks = [line for line in axes.lines if line.get_marker() not in ("None", None)]
    return {to_hex(line.get_color()): (line.get_xdata()[0], line.get_ydata()[0]) for line in marks}


def test_held_out_clients_are_weighed_by_their_test_samples(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    (record,) = sources(tmp_path).records(entry)
    here, there = sides(record)
    samples = np.array([2 * (SAMPLES["test"] + 10 * k) for k in range(CLIENTS)])
    accuracy = np.array([line.accuracy for line in record.training[-3:]])
    first = CLIENTS - HELD_OUT
    for side, which in ((here, range(first)), (there, range(first, CLIENTS))):
        part = accuracy[:, list(which)]
        assert side["pooled"] == pytest.approx(np.average(part, axis=1, weights=samples[list(which)]).mean())
        assert side["lowest"] == pytest.approx(part.min(axis=1).mean())
    # Both sides together are all clients.
    share = samples[:first].sum() / samples.sum()
    together = np.average(accuracy, axis=1, weights=samples).mean()
    assert share * here["pooled"] + (1 - share) * there["pooled"] == pytest.approx(together)


def test_a_client_without_test_samples_does_not_count(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    (record,) = sources(tmp_path).records(entry)
    before = sides(record)
    counts = record.run.class_counts
    lines = [line.model_copy(update={"accuracy": [*line.accuracy, None]}) for line in record.rounds]
    more = {"clients": CLIENTS + 1, "class_counts": counts.model_copy(update={"test": [*counts.test, [0, 0]]})}
    more["settings"] = record.run.settings | {"held_out": HELD_OUT + 1}
    run = record.run.model_copy(update=more)
    assert sides(replace(record, run=run, rounds=lines)) == before


@pytest.mark.parametrize("held_out", [0, CLIENTS, CLIENTS + 1])
def test_without_clients_on_both_sides_the_panel_says_so(tmp_path: Path, held_out: int) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    rewrite_run(tmp_path / "runs" / entry.path(0), {"settings": {"held_out": held_out, "window": 3}})
    panels = [HeldOutPanel(title="", rows={"FGPT": entry}, shows=shows) for shows in ("pooled", "lowest")]
    words = draw(grid(*panels), tmp_path, tmp_path / "figure")
    assert words.count("not run with clients held out") == 2


def test_held_out_clients_without_test_samples_are_none(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    (record,) = sources(tmp_path).records(entry)
    counts = record.run.class_counts
    empty = [*counts.test[:-HELD_OUT], *([[0, 0]] * HELD_OUT)]
    run = record.run.model_copy(update={"class_counts": counts.model_copy(update={"test": empty})})
    assert sides(record) is not None
    assert sides(replace(record, run=run)) is None


def test_both_sides_of_a_row_are_points_with_bars_of_seeds(tmp_path: Path) -> None:
    rows = {"FGPT": cell("fgpt", seeds=[0, 1]), "SGPT": cell("sgpt"), "PT-FedAvg": cell("missing")}
    for entry in [rows["FGPT"], rows["SGPT"]]:
        for seed in entry.seeds:
            write_cell(tmp_path, entry, seed)
    (axes,) = grid(HeldOutPanel(title="", rows=rows, shows="lowest")).draw(sources(tmp_path)).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["took part", "held out"]
    read = [[side["lowest"] for side in sides(record)] for record in sources(tmp_path).records(rows["FGPT"])]
    heights = [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert heights == pytest.approx(100 * np.mean(read, axis=0))
    assert len(axes.collections) == 2, "bars for the row of two seeds alone"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["FGPT", "SGPT"]


def test_trade_off_has_a_point_for_each_row_and_inference_rule(tmp_path: Path) -> None:
    entry = cell(seeds=[0, 1])
    for seed in entry.seeds:
        write_cell(tmp_path, entry, seed)
    rows = {"FGPT": entry, "FGPT-U": reading(entry, "top-5"), "U-2": reading(entry, "top-2"), "No": cell("no")}
    (axes,) = grid(TradeoffPanel(title="", rows=rows)).draw(sources(tmp_path)).axes
    metrics = [record.metrics for record in sources(tmp_path).records(entry)]
    for found, (x, y) in zip(
        (metrics, [each.extra["top-5"] for each in metrics]), points(axes).values(), strict=True
    ):
        assert x == pytest.approx(100 * np.mean([each.window_pooled for each in found]))
        assert y == pytest.approx(100 * np.mean([each.window_lowest for each in found]))


def test_numbers_over_a_setting_stand_beside_the_best_rival_and_the_printed_one(tmp_path: Path) -> None:
    cells = {0.0: cell("none"), 0.5: cell("half", seeds=[0, 1]), 0.9: cell("missing")}
    rivals = {row: cell(row) for row in ("good", "better", "missing-too")}
    for entry in [cells[0.0], cells[0.5], rivals["good"], rivals["better"]]:
        for seed in entry.seeds:
            write_cell(tmp_path, entry, seed)
    line = MetricLine(title="Global", metric="window_pooled", points=cells, rivals=rivals, printed=(0.5, 86.8))
    panel = MetricPanel(title="", xlabel="Momentum", ylabel="Accuracy", lines=[line])
    (axes,) = grid(panel).draw(sources(tmp_path)).axes

    def read(entry) -> float:
        return np.mean([100 * record.metrics.window_pooled for record in sources(tmp_path).records(entry)])

    level, curve, printed = axes.lines
    assert set(level.get_ydata()) == {max(map(read, [rivals["good"], rivals["better"]]))}
    assert list(curve.get_xdata()) == [0.0, 0.5]
    assert list(curve.get_ydata()) == pytest.approx([read(cells[0.0]), read(cells[0.5])])
    assert (printed.get_xdata()[0], printed.get_ydata()[0]) == (0.5, 86.8)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.5", "0.9"]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["Global", "printed", "best baseline"]


def test_groups_are_shares_of_all_samples_and_of_each_clients_own(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    rows = {"FGPT": entry, "SGPT": cell("missing")}
    shown = SelectionFigure(name="groups", title="", rows=rows, rounds=True)
    bars, _, heat, empty, rounds = shown.draw(sources(tmp_path)).axes
    (record,) = sources(tmp_path).records(entry)
    stored = sources(tmp_path).stored(record, "groups")
    total = np.bincount(stored["group"], minlength=GROUPS)
    assert [bar.get_height() for bar in bars.patches] == pytest.approx(100 * np.sort(total)[::-1] / total.sum())
    assert bars.get_title("right") == f"entropy {entropy(total):.2f}"
    (mesh,) = heat.collections
    shares = np.asarray(mesh.get_array())
    np.testing.assert_allclose(shares.sum(axis=1), 100)
    np.testing.assert_allclose(shares.mean(axis=0), [bar.get_height() for bar in bars.patches])
    favourites = shares.argmax(axis=1)
    assert list(favourites) == sorted(favourites)
    assert [text.get_text() for text in empty.texts] == ["not run"]
    (line,) = rounds.lines
    seen = [np.sum(line.clients["groups"], axis=0) for line in record.training]
    assert list(line.get_ydata()) == pytest.approx([entropy(groups) for groups in seen])


def test_without_stored_groups_the_file_is_named(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    (tmp_path / "evaluations" / entry.path(0) / "groups.safetensors").unlink()
    with pytest.raises(HetflError, match=r"groups\.safetensors: does not exist"):
        SelectionFigure(name="groups", title="", rows={"FGPT": entry}).draw(sources(tmp_path))


def test_features_are_the_class_token_of_some_test_samples_after_each_block() -> None:
    data, model = dataset(), backbone()
    found = read_features(FEATURES, data, model, CPU)
    assert [points.shape for points in found.points] == [(30, model.width)] * 2
    assert found.names == ("cat", "dog")
    again = read_features(FEATURES, data, model, CPU)
    np.testing.assert_array_equal(found.points, again.points)
    np.testing.assert_array_equal(found.values, again.values)
    # Equal images have equal features, others have others: the values belong to the points.
    for value in (0, 1):
        of_value = found.points[1][found.values == value]
        other = found.points[1][found.values != value]
        assert len(np.unique(of_value.round(3), axis=0)) == 2
        assert np.abs(of_value[:, None] - other[None]).max(axis=2).min() > 1e-3
    assert not np.allclose(found.points[0], found.points[1])


def test_an_attribute_that_is_not_there_is_one_line() -> None:
    with pytest.raises(HetflError, match="unknown attribute 'colour'"):
        read_features(FEATURES.model_copy(update={"attribute": "colour"}), dataset(), backbone(), CPU)


@pytest.mark.parametrize("columns", [1, 2])
def test_twenty_values_differ_in_colour_or_shape(columns: int) -> None:
    values = np.arange(60) % 20
    made = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    shown = FEATURES.model_copy(update={"blocks": [1], "columns": columns})
    canvas = shown.paint(Features([made], values, [f"n_{value}" for value in range(20)]))
    looks = [(to_hex(line.get_color()), line.get_marker()) for line in canvas.axes[0].lines]
    assert len(set(looks)) == 20
    assert {colour for colour, _ in looks} == set(CLASSES)
    # In the place of a panel where one is free.
    legend = canvas.axes[1].get_legend() if columns == 2 else canvas.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [f"n {value}" for value in range(20)]


def test_images_are_one_of_each_class_in_the_row_of_their_value() -> None:
    (axes,) = IMAGES.draw(SimpleNamespace(dataset=lambda name: dataset())).axes
    (shown,) = axes.images
    picture = np.asarray(shown.get_array())
    rows, columns = (np.array(picture.shape[:2]) // 70).tolist()
    assert (rows, columns) == (2, 2)
    colours = picture[32::70, 32::70]
    # Cats are red and dogs are green, a dark and a bright one of each.
    assert colours[..., :3].tolist() == [[[120, 0, 0], [220, 0, 0]], [[0, 120, 0], [0, 220, 0]]]
    assert (colours[..., 3] == 255).all()
    assert (picture[66::70, :, 3] == 0).all(), "nothing lies between rows"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["Cats", "Dogs"]


@pytest.mark.parametrize("name", ["fgpt-figure-2", "sgpt-figure-6"])
def test_bytes_of_runs_are_the_same_every_time(tmp_path: Path, name: str) -> None:
    shown = figure(name, PARAMS)
    for entry in shown.entries:
        for seed in entry.seeds:
            write_cell(tmp_path, entry, seed)
    with without_layout():
        drawn_twice_alike(shown, tmp_path, tmp_path)


def test_bytes_of_samples_are_the_same_every_time(tmp_path: Path, both_formats: None) -> None:
    given = SimpleNamespace(dataset=lambda name: dataset(), backbone=lambda name: (dataset(), backbone(), CPU))
    for shown in (IMAGES, FEATURES):
        one, two = (shown.write(given, tmp_path / copy) for copy in "ab")
        assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
