"""Figures as objects."""

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were drawn, instead of their files."""
    figures: list[Figure] = []
    for module in ("results", "terms", "groups", "images", "partitions"):
        monkeypatch.setattr(f"hetfl.report.{module}.save", lambda figure, path: figures.append(figure) or [])
    return figures
