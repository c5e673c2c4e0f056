"""The page on many clients has the sizes that rehearsals give now."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("scale")


@pytest.mark.slow
def test_the_page_has_the_sizes_of_the_messages_and_the_kinds_of_the_rules(scale):
    """A sum of large networks, a rule that learns, one that knows its clients, and one that compares."""
    lines = (ROOT / "docs/scale.md").read_text().splitlines()
    written = [[part.strip() for part in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    found = scale.all_costs(["fedavg", "fedtgp", "pfedpg", "fedmix"], timed=False)
    for name, cost in found.items():
        assert scale.row(name, cost) in written
    told = {name: (cost.streams, cost.merges, cost.compared > 0, cost.each > 8) for name, cost in found.items()}
    assert told == {
        "fedavg": (True, True, False, False),
        "fedtgp": (False, False, False, False),
        "pfedpg": (False, False, False, True),
        "fedmix": (True, True, True, True),
    }


def test_many_clients_cost_what_one_does_in_proportion(scale):
    cost = scale.all_costs(["fedkd"], timed=False)["fedkd"]
    cost = scale.replace(cost, once=1.0, more=0.5, fixed=10.0, each=4.0, up=100.0)
    assert cost.memory(1000) == 10 + 4000 + 100 and cost.seconds(1000) == 501
    assert scale.replace(cost, compared=20.0).memory(1000) == 10 + 4000 + 100 + 20_000
    assert [scale.duration(s) for s in (0.0123, 61, 7300, 1e6)] == ["12 ms", "1 min", "2 h", "12 d"]
