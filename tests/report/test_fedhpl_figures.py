import csv
from pathlib import Path

import numpy as np
import pytest
from figure_helpers import PARAMS, cell, draw, results, write_cell
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hetfl.papers.figures import RESULT_FIGURES
from hetfl.papers.panels import (
    ClassPanel,
    ClientPanel,
    GroupPanel,
    Line,
    ResultFigure,
    SelectionFigure,
    SweepPanel,
    TheoremFigure,
)
from hetfl.report.results import result_figure
from hetfl.report.terms import theorem_figure


def heights(axes: Axes, style: str) -> list[float]:
    """Where the only line of a style runs."""
    (line,) = [line for line in axes.lines if line.get_linestyle() == style]
    return list(line.get_ydata())


@pytest.mark.parametrize("name", RESULT_FIGURES)
def test_figures_without_runs_say_so(tmp_path: Path, name: str) -> None:
    figure = RESULT_FIGURES[name](PARAMS)
    words = draw(figure, tmp_path)
    if isinstance(figure, TheoremFigure):
        panels = len(figure.settings)
    else:
        panels = len(figure.rows) + figure.rounds if isinstance(figure, SelectionFigure) else len(figure.panels)
    assert words.count("not run") == panels
    there, wanted = results(tmp_path).count(figure.entries)
    assert (there, wanted > 0) == (0, True)


@pytest.mark.parametrize("name", RESULT_FIGURES)
def test_figures_are_drawn_from_the_cells_that_are_there(tmp_path: Path, name: str) -> None:
    figure = RESULT_FIGURES[name](PARAMS)
    cells = {entry.path(seed): (entry, seed) for entry in figure.entries for seed in entry.seeds}
    for entry, seed in list(cells.values())[::2]:
        write_cell(tmp_path, entry, seed)
    assert results(tmp_path).count(figure.entries) == (len([*cells][::2]), len(cells))
    shown = ("cat", "Test accuracy (%)", "Global accuracy (%)", "All clients (%)")
    assert any("Round, homogeneous" in word or word in shown for word in draw(figure, tmp_path))


def test_sweep_has_the_clients_statistics_of_the_last_and_of_the_best_round(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    points = {1.0: cell("n1", seeds=[0, 1]), 2.0: cell("n2")}
    for entry in points.values():
        for seed in entry.seeds:
            write_cell(tmp_path, entry, seed)
    lines = (Line("final", points), Line("top1", points, "top1"))
    for line in lines:
        result_figure(ResultFigure((SweepPanel("prompts", "n", (line,)),), 1, ""), results(tmp_path), tmp_path)
    found = [results(tmp_path)(entry) for entry in points.values()]
    lowest = [np.mean([100 * record.metrics.lowest for record in records]) for records in found]
    final, best = (figure.axes[0] for figure in drawn)
    assert heights(final, "-") == pytest.approx(
        [np.mean([100 * record.metrics.average for record in records]) for records in found]
    )
    assert min(map(min, (line.get_ydata() for line in final.lines))) == pytest.approx(min(lowest))
    # The best round is one point better than the last, for every client.
    assert heights(best, "-") == pytest.approx([value + 1 for value in heights(final, "-")])
    assert len(final.collections) == 3, "a band of seeds for each statistic"


def test_classes_are_means_over_clients_and_a_row_that_was_not_run_is_said(tmp_path: Path) -> None:
    there, missing = cell("there"), cell("missing")
    write_cell(tmp_path, there, names=["cat", "dog", "owl"])
    panel = ClassPanel("Classes", {"There": there, "Missing": missing}, "heatmap")
    words = draw(ResultFigure((panel,), 1, "Caption."), tmp_path)
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
    (record,) = results(tmp_path)(entry)
    names, accuracy = results(tmp_path).by_class(record)
    assert names == ["cat", "dog"]
    assert accuracy[0] == 75
    assert np.isnan(accuracy[1])


def test_bars_are_clients(tmp_path: Path) -> None:
    entry = cell(seeds=[0, 1])
    for seed in entry.seeds:
        write_cell(tmp_path, entry, seed)
    words = draw(ResultFigure((ClientPanel("FedTGP", "Classes", tuple("24680"), entry),), 1, ""), tmp_path)
    means = np.mean([record.metrics.accuracy for record in results(tmp_path)(entry)], axis=0)
    assert {f"{100 * mean:.1f}" for mean in means} <= set(words)


def test_groups_stand_side_by_side(tmp_path: Path, drawn: list[Figure]) -> None:
    groups = {title: {row: cell(row, title.lower()) for row in ("FedHPL", "Local")} for title in ("IID", "Dir")}
    for rows in groups.values():
        write_cell(tmp_path, rows["FedHPL"])
    write_cell(tmp_path, groups["Dir"]["Local"])
    result_figure(ResultFigure((GroupPanel("Aggregation", groups),), 1, ""), results(tmp_path), tmp_path)
    (axes,) = drawn[0].axes
    places = sorted(float(line.get_xdata()[0]) for line in axes.lines)
    assert places == pytest.approx([-0.175, 0.825, 1.175])


def test_theorem_leaves_out_what_no_run_observed(tmp_path: Path) -> None:
    settings = {name: {"IID": cell(name, "iid"), "Dir": cell(name)} for name in ("homogeneous", "heterogeneous")}
    write_cell(tmp_path, settings["homogeneous"]["IID"])
    words = draw(TheoremFigure(settings, "Proxies."), tmp_path)
    assert {"err01", "kd_loss", "upload_rate", "slack_pb", "bound_proxy", "lambda0", "Proxies."} <= set(words)
    # Not observed at all, or without a value.
    assert not {"kd_cap", "agg_conf"} & set(words)
    assert words.count("not run") == words.count("Round, heterogeneous") > 0


def test_theorem_is_the_mean_of_the_clients_over_rounds(tmp_path: Path, drawn: list[Figure]) -> None:
    entry = cell(split="iid")
    write_cell(tmp_path, entry, rounds=4)
    theorem_figure(TheoremFigure({"homogeneous": {"IID": entry}}, ""), results(tmp_path), tmp_path)
    axes = {axes.get_title(loc="left"): axes for axes in drawn[0].axes}
    (record,) = results(tmp_path)(entry)
    (risk,), (loss,) = axes["err01"].lines, axes["kd_loss"].lines
    assert list(risk.get_xdata()) == [0, 1, 2, 3, 4]
    assert list(risk.get_ydata()) == pytest.approx([np.mean(line.clients["err01"]) for line in record.rounds])
    assert list(loss.get_xdata()) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["fedhpl-figure-3", "digits-theorem"])
def test_bytes_are_the_same_every_time(tmp_path: Path, name: str) -> None:
    figure = RESULT_FIGURES[name](PARAMS)
    for entry in figure.entries:
        write_cell(tmp_path, entry)
    for copy in "ab":
        draw(figure, tmp_path, copy)
    for suffix in (".svg", ".png"):
        one, two = ((tmp_path / copy).with_suffix(suffix).read_bytes() for copy in "ab")
        assert one == two
