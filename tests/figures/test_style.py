"""Colours and markers: a method looks the same everywhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hetfl.experiments.plan import load_params
from hetfl.figures.style import NEAR_HUNDRED, PALETTE, canvas, look, looks, near_hundred
from hetfl.methods import METHODS
from hetfl.tables.catalogue import table_entries, table_names


def test_a_method_looks_the_same_in_every_table() -> None:
    params = load_params(Path("params.yaml"))
    found: dict[str, set[int]] = {}
    for name, experiment in params.experiments.items():
        methods = {row: settings.method for row, settings in experiment.rows.items()}
        index = looks(methods)
        shown = [(look(i)["color"], look(i)["marker"]) for i in index.values()]
        assert len(shown) == len(set(shown)), name
        for row, method in methods.items():
            if row == method or [*methods.values()].count(method) == 1:
                found.setdefault(method, set()).add(index[row])
    assert all(len(some) == 1 for some in found.values()), found
    assert len({looks({name: name})[name] for name in METHODS}) == len(METHODS)


def test_the_methods_that_papers_compare_have_different_colours() -> None:
    params = load_params(Path("papers/params.yaml"))
    for name in table_names(params):
        index = looks({entry.method: entry.method for entry in table_entries(name, params)})
        assert len({i % len(PALETTE) for i in index.values()}) == len(index), name


def test_further_rows_of_a_method_take_colours_that_are_free() -> None:
    index = looks({"local": "fedhpl", "fedhpl": "fedhpl", "fedhpl-shallow": "fedhpl", "fedtgp": "fedtgp"})
    assert index["fedhpl"] == looks({"fedhpl": "fedhpl"})["fedhpl"]
    assert len({i % len(PALETTE) for i in index.values()}) == 4


def test_an_axis_close_to_100_percent_spreads_the_errors() -> None:
    axes = canvas(3, 3).subplots()
    near_hundred(axes, 0.0, 100.0)
    places = [axes.transData.transform((0, tick))[1] for tick in (0, 90, 99, 99.9, 100)]
    steps = [after - before for before, after in pairwise(places)]
    assert max(steps) - min(steps) < 1e-6 * steps[0]  # a tenth of the errors is one step up; 100 % is a last one
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"{tick:g}" for tick in NEAR_HUNDRED["ticks"]]
    low, high = axes.get_ylim()
    assert low < 0 and high == 100 - 0.01 * 10**-0.2
