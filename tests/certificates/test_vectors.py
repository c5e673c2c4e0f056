"""hetfl against the authors' code, number by number; docs/certificates.md shows the outcome."""

from __future__ import annotations

import re

import pytest
from page import ENGINES, TOLERANCE, outcome, spoilt
from readings import READINGS
from vector import CONTENT, FOLDER, Vector

from hetfl.methods import METHODS


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", READINGS)
def test_vector(name, engine):
    """Losses, parameters, messages, server state, scores and predictions are the authors'."""
    apart = [one for one in outcome(name, engine) if not one.difference <= TOLERANCE]
    assert not apart, f"{len(apart)} tensors differ, first {apart[0]}"


@pytest.mark.parametrize("name", READINGS)
def test_everything_that_is_expected_is_compared(name):
    """Tensors may be read together, as the losses of two networks; none is left out."""
    numbers = {n: t for n, t in Vector(name).tensors.items() if n.startswith("expected/")}
    together = {"common_losses": "losses", "losses_shared": "losses", "losses_group": "losses"}
    seen = {(one.round, one.client, one.name) for one in outcome(name, "sequential")}
    for key in numbers:
        if place := re.fullmatch(r"expected/round(\d+)/(?:client(\d+)|server)/(.+)", key):
            last = together.get(place[3], place[3])
            assert (int(place[1]), int(place[2] or -1), last) in seen, key
        else:
            assert key.removeprefix("expected/") in {one[2] for one in seen}, key


@pytest.mark.parametrize("name", READINGS)
def test_a_slightly_wrong_setting_is_noticed(name):
    assert spoilt(name) > 1e-6


def test_every_vector_is_played():
    assert set(READINGS) == set(CONTENT)
    files = {path.name for path in FOLDER.glob("*.safetensors")}
    assert files == {entry["file"] for entry in CONTENT.values()}
    assert {entry["hetfl"]["method"] for entry in CONTENT.values()} - {None} <= set(METHODS)
