"""The notation of figures: repetition, variables, and one line for each mistake."""

from typing import Any

import pytest
from figure_helpers import PARAMS

from hetfl.errors import HetflError
from hetfl.figures import catalogue
from hetfl.figures.catalogue import figure
from hetfl.figures.layout import expand
from hetfl.tables.spec import entry


def test_an_item_of_a_list_is_repeated_for_every_combination_the_last_variable_fastest() -> None:
    written = [{"each": {"set": {"cifar10": "CIFAR10"}, "n": [1, 2]}, "title": "$Set, $n", "x": 3}, "last"]
    assert expand(written) == [{"title": "CIFAR10, 1", "x": 3}, {"title": "CIFAR10, 2", "x": 3}, "last"]


def test_keys_with_a_variable_are_repeated_and_a_written_key_replaces_in_place() -> None:
    written = {"each": {"n": [1, 2, 3]}, "$n": "run-${n}x", 2: "other", "more": ["$$n"]}
    assert expand(written) == {"1": "run-1x", "2": "other", "3": "run-3x", "more": ["$n"]}
    assert [*expand(written)] == ["1", "2", "3", "more"]


def test_a_value_brings_other_variables_and_inner_repetition_sees_outer_ones() -> None:
    written = {
        "each": {"kind": {"a": {"low": 1}, "b": {"low": 2}}},
        "$kind": {"each": {"n": [7, 8]}, "$n": "$low/$n"},
    }
    assert expand(written) == {"a": {"7": "1/7", "8": "1/8"}, "b": {"7": "2/7", "8": "2/8"}}


@pytest.mark.parametrize(("text", "told"), [("$depht", "'$depht': unknown variable 'depht'; did you mean 'depth'?")])
def test_a_variable_without_a_value_is_one_line(text: str, told: str) -> None:
    with pytest.raises(HetflError) as error:
        expand({"each": {"depth": [1]}, "$depth": text})
    assert str(error.value) == told
    with pytest.raises(HetflError, match=r"^'5 \$': a \$ is followed by no variable; write \$\$ for a dollar$"):
        expand("5 $")


def test_a_cell_is_looked_up_in_the_settings() -> None:
    (shown, *_), cell = figure("fgpt-figure-1", PARAMS).entries, entry(PARAMS, "fgpt-cifar100-s10", "fgpt", "s10")
    assert shown == cell and cell.seeds == [0, 1, 2]


PANEL = {"kind": "tradeoff", "title": "a", "rows": {"FGPT": "fgpt-five/fgpt/domains"}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"panels": [PANEL | {"rows": {"FGPT": "fgpt-five/fgpt"}}]}, "'fgpt-five/fgpt' is no cell of a figure"),
        ({"panels": [PANEL | {"rows": {"FGPT": "fgpt-five/fgpd/domains"}}]}, "unknown row 'fgpd'; did you mean 'fgp"),
        ({"panels": [PANEL | {"kind": "tradeof"}]}, "unknown kind 'tradeof'; did you mean 'tradeoff'?"),
        ({"panels": [PANEL | {"titel": "b"}]}, "unknown setting 'titel'; did you mean 'title'?"),
        ({"panels": []}, "panels: "),
        ({"columns": 0}, "columns: 0"),
        ({"kind": "run"}, "unknown kind 'run'; did you mean 'runs'?"),
    ],
)
def test_a_mistake_is_one_line(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], told: str) -> None:
    written = {"kind": "runs", "name": "mine", "title": "Mine", "columns": 1, "panels": [PANEL]}
    monkeypatch.setattr(catalogue, "_layouts", lambda: {"mine": ("mine.yaml", written | change)})
    with pytest.raises(HetflError) as error:
        figure("mine", PARAMS)
    assert told in str(error.value)
    assert len(str(error.value).splitlines()) == 1
