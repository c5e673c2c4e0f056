"""Figures of runs: all that there are, and the panels of FedHPL's."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from figure_helpers import PARAMS, cell, draw, drawn_twice_alike, grid, sources, without_layout, write_cell
from matplotlib.axes import Axes

from hetfl.errors import HetflError
from hetfl.figures.base import Figure
from hetfl.figures.catalogue import figure, names
from hetfl.figures.classes import ClassHeatMap, ClassLines, ClientPanel
from hetfl.figures.lines import SweepLine, SweepPanel
from hetfl.figures.points import GroupPanel
from hetfl.figures.theorem import TheoremFigure
from hetfl.metrics.theorem import series

RUN_FIGURES = [name for name in names(of_runs=True) if name != "digits-theorem"]


def theorem(settings: dict) -> TheoremFigure:
    """FedHPL's figure of the terms of Theorem 1, of other cells."""
    return figure("fedhpl-theorem", PARAMS).model_copy(update={"settings": settings, "caption": "Proxies."})


def heights(axes: Axes, style: str) -> list[float]:
    """Where the only line of a style runs."""
    (line,) = [line for line in axes.lines if line.get_linestyle() == style]
    return list(line.get_ydata())


def panels(figure: Figure) -> int:
    """How many panels a figure has while nothing was run."""
    if hasattr(figure, "panels"):
        return len(figure.panels)
    return len(figure.settings) if isinstance(figure, TheoremFigure) else len(figure.rows) + figure.rounds


@pytest.mark.parametrize("name", RUN_FIGURES)
def test_figures_without_runs_say_so(tmp_path: Path, name: str) -> None:
    shown = figure(name, PARAMS)
    assert draw(shown, tmp_path, tmp_path / name).count("not run") == panels(shown)
    there, wanted = sources(tmp_path).count(shown.entries)
    assert (there, wanted > 0) == (0, True)


# The theorem's is drawn from a part of its cells below.
@pytest.mark.parametrize("name", [name for name in RUN_FIGURES if name != "fedhpl-theorem"])
def test_figures_are_drawn_from_the_cells_that_are_there(tmp_path: Path, name: str) -> None:
    shown = figure(name, PARAMS)
    cells = {entry.path(seed): (entry, seed) for entry in shown.entries for seed in entry.seeds}
    for entry, seed in list(cells.values())[::2]:
        write_cell(tmp_path, entry, seed)
    assert sources(tmp_path).count(shown.entries) == (len([*cells][::2]), len(cells))
    known = ("cat", "Test accuracy (%)", "Global accuracy (%)", "All clients (%)")
    assert any("Round, homogeneous" in word or word in known for word in draw(shown, tmp_path, tmp_path / name))


def test_sweep_has_the_clients_statistics_of_the_last_and_of_the_best_round(tmp_path: Path) -> None:
    points = {2.0: cell("n2"), 1.0: cell("n1", seeds=[0, 1])}
    for entry in points.values():
        for seed in entry.seeds:
            write_cell(tmp_path, entry, seed)
    source = sources(tmp_path)

    def shown(round: str) -> Axes:
        line = SweepLine(title=round, points=points, round=round)
        (axes,) = grid(SweepPanel(title="prompts", xlabel="n", lines=[line])).draw(source).axes
        return axes

    found = [source.records(points[value]) for value in (1.0, 2.0)]
    lowest = [np.mean([100 * record.metrics.lowest for record in records]) for records in found]
    last, best = shown("last"), shown("best")
    assert heights(last, "-") == pytest.approx(
        [np.mean([100 * record.metrics.average for record in records]) for records in found]
    )
    assert min(map(min, (line.get_ydata() for line in last.lines))) == pytest.approx(min(lowest))
    # The best round is one point better than the last, for every client.
    assert heights(best, "-") == pytest.approx([value + 1 for value in heights(last, "-")])
    assert len(last.collections) == 3, "a band of seeds for each statistic"


def test_classes_are_means_over_clients_and_a_row_that_was_not_run_is_said(tmp_path: Path) -> None:
    there, missing = cell("there"), cell("missing")
    write_cell(tmp_path, there, names=["cat", "dog", "owl"])
    panel = ClassHeatMap(title="Classes", rows={"There": there, "Missing": missing})
    words = draw(grid(panel, caption="Caption."), tmp_path, tmp_path / "figure")
    with (tmp_path / "evaluations" / there.path(0) / "per_class.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in ("cat", "dog", "owl"):
        accuracy = np.mean([100 * float(row["accuracy"]) for row in rows if row["class"] == name])
        assert f"{accuracy:.0f}" in words
        assert name in words
    assert words.count("not run") == 1
    assert {"There", "Missing", "Caption."} <= set(words)


def test_a_class_without_test_samples_at_some_clients_is_the_mean_of_the_others(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    path = tmp_path / "evaluations" / entry.path(0) / "per_class.csv"
    path.write_text("client,class,accuracy,samples\n0,cat,0.5,2\n0,dog,,0\n1,cat,1.0,2\n1,dog,,0\n")
    (record,) = sources(tmp_path).records(entry)
    classes, accuracy = sources(tmp_path).by_class(record)
    assert classes == ["cat", "dog"]
    assert accuracy[0] == 75
    assert np.isnan(accuracy[1])


@pytest.mark.parametrize("kind", [ClassHeatMap, ClassLines])
def test_an_evaluation_without_accuracies_by_class_is_one_line(tmp_path: Path, kind: type) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    (tmp_path / "evaluations" / entry.path(0) / "per_class.csv").unlink()
    told = r"dir-s0/per_class\.csv: does not exist; run hetfl evaluate runs/some/fedhpl/fedhpl/dir-s0 --again$"
    with pytest.raises(HetflError, match=told):
        grid(kind(title="", rows={"FedHPL": entry})).draw(sources(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"client,class,samples\n0,cat,2\n",
        b"client,accuracy,samples\n0,0.5,2\n",
        b"client,class,accuracy,samples\n0,cat,high,2\n",
        b'client,class,accuracy,samples\n0,"cat,0.5,2\n',
        b"\xff\xfe\x00",
    ],
)
def test_accuracies_by_class_that_cannot_be_read_are_one_line(tmp_path: Path, content: bytes) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    path = tmp_path / "evaluations" / entry.path(0) / "per_class.csv"
    path.write_bytes(content)
    (record,) = sources(tmp_path).records(entry)
    with pytest.raises(
        HetflError, match=r"per_class\.csv: is not a table with the columns class and accuracy"
    ) as told:
        sources(tmp_path).by_class(record)
    assert "\n" not in str(told.value) and str(told.value).endswith(f"; run hetfl evaluate {record.path} --again")


def test_bars_are_clients(tmp_path: Path) -> None:
    entry = cell(seeds=[0, 1])
    for seed in entry.seeds:
        write_cell(tmp_path, entry, seed)
    panel = ClientPanel(title="FedTGP", xlabel="Classes", labels="classes", cell=entry)
    words = draw(grid(panel), tmp_path, tmp_path / "figure")
    means = np.mean([record.metrics.accuracy for record in sources(tmp_path).records(entry)], axis=0)
    assert {f"{100 * mean:.1f}" for mean in means} <= set(words)
    assert {"2", "4", "6", "8", "10"} <= set(words), "the classes of each client in the runs' partition"


def test_groups_stand_side_by_side(tmp_path: Path) -> None:
    groups = {title: {row: cell(row, title.lower()) for row in ("FedHPL", "Local")} for title in ("IID", "Dir")}
    for rows in groups.values():
        write_cell(tmp_path, rows["FedHPL"])
    write_cell(tmp_path, groups["Dir"]["Local"])
    (axes,) = grid(GroupPanel(title="Aggregation", groups=groups)).draw(sources(tmp_path)).axes
    places = sorted(float(line.get_xdata()[0]) for line in axes.lines)
    assert places == pytest.approx([-0.175, 0.825, 1.175])


def test_theorem_leaves_out_what_no_run_observed(tmp_path: Path) -> None:
    settings = {name: {"IID": cell(name, "iid"), "Dir": cell(name)} for name in ("homogeneous", "heterogeneous")}
    write_cell(tmp_path, settings["homogeneous"]["IID"])
    words = draw(theorem(settings), tmp_path, tmp_path / "figure")
    assert {"err01", "kd_loss", "upload_rate", "slack_pb", "bound_proxy", "lambda0", "Proxies."} <= set(words)
    # Not observed at all, or without a value.
    assert not {"kd_cap", "agg_conf"} & set(words)
    assert words.count("not run") == words.count("Round, heterogeneous") > 0


def test_theorem_is_the_mean_of_the_clients_over_rounds(tmp_path: Path) -> None:
    entry = cell(split="iid")
    write_cell(tmp_path, entry, rounds=4)
    shown = theorem({"homogeneous": {"IID": entry}})
    axes = {axes.get_title(): axes for axes in shown.draw(sources(tmp_path)).axes}
    (record,) = sources(tmp_path).records(entry)
    (risk,), (loss,) = axes["err01"].lines, axes["kd_loss"].lines
    assert list(risk.get_xdata()) == [0, 1, 2, 3, 4]
    assert list(risk.get_ydata()) == pytest.approx([np.mean(line.clients["err01"]) for line in record.rounds])
    assert list(loss.get_xdata()) == [1, 2, 3, 4]
    assert {*series(record.run, record.rounds)} & {*shown.terms} >= {*axes} - {""}


def test_theorem_is_drawn_where_a_client_has_no_test_samples(tmp_path: Path) -> None:
    entry = cell(split="iid")
    write_cell(tmp_path, entry)
    file = tmp_path / "runs" / entry.path(0) / "rounds.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["accuracy"][1] = None
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = draw(theorem({"homogeneous": {"IID": entry}}), tmp_path, tmp_path / "figure")
    assert {"lambda0", "bound_proxy"} <= set(words)


def test_bytes_of_both_formats_are_the_same_every_time(tmp_path: Path, both_formats: None) -> None:
    shown = figure("fedhpl-figure-3", PARAMS)
    for entry in shown.entries:
        write_cell(tmp_path, entry)
    drawn_twice_alike(shown, tmp_path, tmp_path)


def test_bytes_of_the_theorem_are_the_same_every_time(tmp_path: Path) -> None:
    entry = cell()
    write_cell(tmp_path, entry)
    with without_layout():
        drawn_twice_alike(theorem({"homogeneous": {"Dir": entry}}), tmp_path, tmp_path)
