"""The papers' figures by the name of their stage, from the layouts ``<paper>.yaml`` in this folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hetfl.config import read_yaml, validate
from hetfl.errors import HetflError, unknown
from hetfl.experiments.plan import Params
from hetfl.figures.base import Figure
from hetfl.figures.grid import PartitionFigure, RunFigure
from hetfl.figures.groups import SelectionFigure
from hetfl.figures.layout import expand
from hetfl.figures.samples import FeatureFigure, ImageFigure
from hetfl.figures.theorem import TheoremFigure

_FOLDER = Path(__file__).parent
_CLASSES: tuple[type[Figure], ...] = (
    RunFigure,
    TheoremFigure,
    SelectionFigure,
    PartitionFigure,
    FeatureFigure,
    ImageFigure,
)
KINDS = {cls.model_fields["kind"].default: cls for cls in _CLASSES}
"""The kinds of figures; one of panels that show runs need not name its kind."""


@cache
def _layouts() -> dict[str, tuple[str, dict[str, Any]]]:
    """Of every figure, its file and its layout with all repetitions written out."""
    found = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        for written in expand(read_yaml(path)["figures"]):
            caption = written.get("caption", "")
            words = caption if isinstance(caption, str) else " ".join(caption)
            found[written["name"]] = path.name, {"kind": "runs"} | written | {"caption": words}
    return found


def names(of_runs: bool | None = None) -> list[str]:
    """Every figure, or those that show runs, or those that show partitions and samples."""
    return [
        name
        for name, (_, written) in _layouts().items()
        if of_runs is None or KINDS[written["kind"]].of_runs == of_runs
    ]


def figure(name: str, params: Params) -> Figure:
    """A figure with the cells, data sets and partitions that it shows.

    Raises:
        HetflError: there is no figure of that name, its layout has a mistake, or the settings lack what it shows.
    """
    if name not in _layouts():
        raise unknown("figure", name, _layouts())
    file, written = _layouts()[name]
    if written["kind"] not in KINDS:
        raise unknown("kind", written["kind"], KINDS, f"figures/{file}: {name}")
    return validate(KINDS[written["kind"]], written, f"figures/{file}: {name}", context=params)


def figures(params: Params) -> dict[str, Figure]:
    """Every figure whose experiments, data sets and partitions are there: a project may be without some papers."""
    found = {}
    for name in names():
        try:
            found[name] = figure(name, params)
        except HetflError:
            continue
    return found
