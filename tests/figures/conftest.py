"""Figures in one format, which is faster."""

import pytest

from hetfl.figures.style import FORMATS


@pytest.fixture(autouse=True)
def svg_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no PNG but in a test that asks for ``both_formats``."""
    if "both_formats" not in request.fixturenames:
        monkeypatch.delitem(FORMATS, ".png")


@pytest.fixture
def both_formats() -> None:
    """Write PNG, too."""
