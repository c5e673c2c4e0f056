"""The panels of FedTGP's figures of runs: margins, training error over rounds, points in the plane."""

from pathlib import Path

import numpy as np
import pytest
import torch
from figure_helpers import PARAMS, cell, drawn_twice_alike, grid, sources, write_cell
from matplotlib.colors import to_hex
from record_factory import rewrite_rounds

from hetfl.errors import HetflError
from hetfl.figures.catalogue import figure
from hetfl.figures.lines import RoundsPanel
from hetfl.figures.prototypes import EmbeddingPanel, MarginPanel, embed
from hetfl.figures.style import CLASSES, DARK, INK, SERIES
from hetfl.schema import Round, read_rounds
from hetfl.tables.spec import Entry
from hetfl.tensors import read_tensors, write_tensors

NAMES = ("cat", "dog", "owl")


def change_lines(root: Path, entry: Entry, change, seed: int = 0) -> None:
    """Rewrite each line of a cell's rounds; a line that becomes None goes."""
    folder = root / "runs" / entry.path(seed)
    rewrite_rounds(folder, filter(None, map(change, read_rounds(folder))))


def both(entry: Entry) -> list[RoundsPanel]:
    """Training error and test accuracy."""
    kinds = ("training error", "test accuracy")
    return [RoundsPanel(title=shows, rows={"FedTGP": entry}, shows=shows) for shows in kinds]


def stored(root: Path, entry: Entry) -> Path:
    return root / "evaluations" / entry.path(0) / "prototypes.safetensors"


def write_prototypes(root: Path, entry: Entry, server: list[float]) -> None:
    """One-dimensional prototypes of three classes: of two clients, and of the server."""
    write_cell(root, entry, names=NAMES)
    clients = torch.tensor([[[0.0], [2.0], [7.0]], [[0.0], [3.0], [0.0]]])
    owned = torch.tensor([[True, True, True], [True, True, False]])
    arrays = {"clients": clients, "owned": owned, "global": torch.tensor(server)[:, None]}
    write_tensors(stored(root, entry), arrays | {"global_valid": torch.tensor([True, True, True])})


@pytest.mark.parametrize(("claim", "holds"), [("<", 2), (">", 1)])
def test_margins_are_bars_over_the_largest(tmp_path: Path, claim: str, holds: int) -> None:
    entry = cell()
    write_prototypes(tmp_path, entry, [0.0, 1.0, 11.0])
    (axes,) = grid(MarginPanel(title="FedProto", cell=entry, claim=claim)).draw(sources(tmp_path)).axes
    # The clients' largest margins are 3, 3, 5; the server's are 1, 1, 10.
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.3, 0.3, 0.5, 0.1, 0.1, 1.0])
    assert axes.get_xlabel() == f"Claim: global {claim} maximum; it holds in {holds} of 3 classes"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(NAMES)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["Maximum of the clients", "Global"]


def test_a_class_without_a_margin_has_no_bar_and_does_not_count(tmp_path: Path) -> None:
    entry = cell()
    write_prototypes(tmp_path, entry, [0.0, 1.0, 11.0])
    arrays, _ = read_tensors(stored(tmp_path, entry))
    write_tensors(stored(tmp_path, entry), arrays | {"global_valid": torch.tensor([True, True, False])})
    (axes,) = grid(MarginPanel(title="FedProto", cell=entry, claim="<")).draw(sources(tmp_path)).axes
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.6, 0.6, 1.0, 0.2, 0.2])
    assert axes.get_xlabel().endswith("in 2 of 2 classes")


def test_training_error_weighs_clients_by_their_training_samples(tmp_path: Path) -> None:
    entry = cell(seeds=[0, 1])
    for seed in entry.seeds:
        write_cell(tmp_path, entry, seed)
    # The second seed stopped after four rounds.
    change_lines(tmp_path, entry, lambda line: line if line.round <= 4 else None, seed=1)
    canvas = grid(*both(entry)).draw(sources(tmp_path))
    error, accuracy = canvas.axes
    records = sources(tmp_path).records(entry)
    samples = [sum(counts) for counts in records[0].run.class_counts.train]
    assert len(set(samples)) > 1
    right = [[np.dot(samples, line.train_accuracy) for line in record.training[:4]] for record in records]
    (line,) = error.lines
    assert list(line.get_xdata()) == [1, 2, 3, 4]
    assert list(line.get_ydata()) == pytest.approx(100 * (1 - np.mean(right, axis=0) / sum(samples)))
    pooled = [[line.pooled for line in record.training[:4]] for record in records]
    assert list(accuracy.lines[0].get_ydata()) == pytest.approx(100 * np.mean(pooled, axis=0))
    assert (error.get_ylabel(), accuracy.get_ylabel()) == ("Training error (%)", "Test accuracy (%)")
    assert error.get_ylim() != accuracy.get_ylim()


def test_curves_have_a_point_for_every_round_with_a_test(tmp_path: Path) -> None:
    entry = cell(seeds=[0, 1])

    def untested(line: Round) -> Round:
        tests = dict.fromkeys(("accuracy", "pooled", "train_accuracy"))
        return line if line.round % 2 == 0 else line.model_copy(update=tests)

    for seed in entry.seeds:
        write_cell(tmp_path, entry, seed)
        change_lines(tmp_path, entry, untested, seed=seed)
    canvas = grid(*both(entry)).draw(sources(tmp_path))
    assert [list(axes.lines[0].get_xdata()) for axes in canvas.axes] == [[2, 4, 6]] * 2
    record = sources(tmp_path).records(entry)[0]
    assert [line.round for line in record.tested] == [2, 4, 6] and record.played == 6
    assert record.until(3) is None and record.until(4) is not None


def test_without_training_accuracies_one_line_says_what_to_set(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    change_lines(tmp_path, entry, lambda line: line.model_copy(update={"train_accuracy": None}))
    with pytest.raises(HetflError, match=r"dir-s0/rounds.jsonl: has no train_accuracy; set it .* experiments\.some "):
        grid(*both(entry)).draw(sources(tmp_path))


def test_without_stored_prototypes_the_file_is_named(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    stored(tmp_path, entry).unlink()
    with pytest.raises(HetflError, match=r"prototypes\.safetensors: does not exist"):
        grid(EmbeddingPanel(title="FedTGP", cell=entry, points="features")).draw(sources(tmp_path))


def test_points_have_the_colours_of_their_classes_and_one_legend(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry, names=NAMES)
    panels = [EmbeddingPanel(title=points, cell=entry, points=points) for points in ("prototypes", "features")]
    canvas = grid(*panels, columns=2).draw(sources(tmp_path))
    prototypes, features = canvas.axes
    arrays, _ = read_tensors(stored(tmp_path, entry))

    def points(axes, marker):
        return {to_hex(line.get_color()): len(line.get_xdata()) for line in axes.lines if line.get_marker() == marker}

    assert points(prototypes, "o") == dict(zip(CLASSES, [4, 5, 5], strict=False))
    assert points(prototypes, "D") == dict.fromkeys(CLASSES[:3], 1)
    assert points(features, "o") == dict(zip(CLASSES, torch.bincount(arrays["labels"]).tolist(), strict=False))
    assert not points(features, "D")
    (legend,) = canvas.legends
    assert [text.get_text() for text in legend.get_texts()] == [*NAMES, "client", "global"]


def test_what_a_diverged_model_made_is_not_drawn(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry, names=NAMES)
    arrays, _ = read_tensors(stored(tmp_path, entry))
    embedding = EmbeddingPanel(title="FedTGP", cell=entry, points="features")
    shown, drawn = grid(embedding, MarginPanel(title="FedTGP", cell=entry, claim="<")), []
    for lost in (slice(1), slice(None)):
        for name in ("features", "clients", "global"):
            arrays[name][lost] = torch.nan
        write_tensors(stored(tmp_path, entry), arrays)
        drawn.append(shown.draw(sources(tmp_path)))
    (some, _), (features, margins) = (canvas.axes for canvas in drawn)
    assert sum(len(line.get_xdata()) for line in some.lines) == len(arrays["features"]) - 1
    assert [text.get_text() for axes in (features, margins) for text in axes.texts] == [
        "no finite features",
        "no finite prototypes",
    ]


def test_of_several_seeds_the_first_that_did_not_diverge_is_drawn(tmp_path: Path) -> None:
    entry = cell(seeds=[0, 1, 2])
    shown = grid(MarginPanel(title="FedTGP", cell=entry, claim="<"))
    for seed, drawn in ((0, 0), (1, 1), (2, 1)):
        assert (sources(tmp_path).one(entry) is None) == (seed == 0)
        write_cell(tmp_path, entry, seed, names=NAMES)
        if seed == 0:
            change_lines(tmp_path, entry, lambda line: line.model_copy(update={"diverged": [0]}))
        record = sources(tmp_path).one(entry)
        assert record is not None and record.run.seed == drawn
    assert shown.draw(sources(tmp_path)).axes[0].patches


def test_embedding_keeps_groups_together_and_is_the_same_every_time() -> None:
    groups = np.arange(60) % 3
    points = np.eye(8, dtype=np.float32)[groups] * 9 + np.random.default_rng(0).normal(0, 0.3, (60, 8))
    plane = embed(points)
    assert plane.shape == (60, 2)
    distances = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    np.testing.assert_array_equal(groups[distances.argmin(axis=1)], groups)
    np.testing.assert_array_equal(embed(points), plane)


def test_ten_classes_have_ten_colours_that_the_page_knows() -> None:
    assert len(set(CLASSES)) == 10
    assert set(CLASSES) <= {*SERIES, *DARK, INK}


@pytest.mark.parametrize("name", ["fedtgp-figure-1", "fedtgp-figure-4", "fashion-mnist-short-tsne"])
def test_bytes_are_the_same_every_time(tmp_path: Path, name: str) -> None:
    shown = figure(name, PARAMS)
    for entry in shown.entries:
        for seed in entry.seeds:
            write_cell(tmp_path, entry, seed, names=NAMES)
    drawn_twice_alike(shown, tmp_path, tmp_path)
