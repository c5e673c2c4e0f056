"""docs/certificates.md is generated, current and complete."""

from __future__ import annotations

import pytest
from page import PAGE, READINGS, equation_tests, page, same_page
from vector import Vector

from hetfl.files import write_text
from hetfl.methods import METHODS


def test_the_page_is_current(request):
    made = page()
    if request.config.getoption("--update-certificates"):
        write_text(PAGE, made)
    assert same_page(PAGE.read_text(), made) is None


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_certificate(name):
    """The authors' numbers, or a test that writes its equations down anew and is marked with its name."""
    vectors = [vector for vector in READINGS if Vector(vector).entry["hetfl"]["method"] == name]
    assert vectors or name in equation_tests()


def test_marks_name_methods():
    assert equation_tests().keys() <= METHODS.keys()


def test_last_digits_may_differ_and_nothing_else():
    shown = "| scores | 12 | 4e-14 | 0 |\n| *counter-check* | | 2e-03 | |\n"
    assert same_page(shown, shown.replace("4e-14", "2e-13").replace("| 0 |", "| 7e-14 |")) is None
    assert same_page(shown, shown.replace("4e-14", "5e-13")) is not None
    assert same_page(shown, shown.replace("2e-03", "3e-03")) is None
    assert same_page(shown, shown.replace("2e-03", "9e-03")) is not None
    assert same_page(shown, shown.replace("12", "13")) is not None
