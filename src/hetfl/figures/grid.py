"""Figures that are a grid of panels."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from hetfl.figures.base import Figure, Legend, Panel
from hetfl.figures.classes import ClassHeatMap, ClassLines, ClientPanel
from hetfl.figures.lines import MetricPanel, RoundsPanel, SweepPanel
from hetfl.figures.partitions import PartitionBars, PartitionBubbles, PartitionHeatMap
from hetfl.figures.points import GroupPanel, HeldOutPanel, TradeoffPanel
from hetfl.figures.prototypes import EmbeddingPanel, MarginPanel
from hetfl.figures.sources import Sources
from hetfl.figures.style import Look, canvas, not_there, one_range, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

RunPanel = Annotated[
    SweepPanel
    | MetricPanel
    | RoundsPanel
    | GroupPanel
    | HeldOutPanel
    | TradeoffPanel
    | ClassHeatMap
    | ClassLines
    | ClientPanel
    | MarginPanel
    | EmbeddingPanel,
    Field(discriminator="kind"),
]
"""All kinds of panels that show runs."""
AnyPartition = Annotated[PartitionHeatMap | PartitionBubbles | PartitionBars, Field(discriminator="kind")]


class GridFigure(Figure):
    """Panels side by side and one below the other.

    Attributes:
        columns: panels side by side.
        panels: in reading order.
    """

    columns: int = Field(ge=1)
    panels: Sequence[Panel]

    def draw(self, sources: Sources) -> Canvas:
        columns = min(self.columns, len(self.panels))
        rows = ceil(len(self.panels) / columns)
        sizes = np.zeros((rows * columns, 2))
        sizes[: len(self.panels)] = [panel.size(sources) for panel in self.panels]
        widths, heights = sizes[:, 0].reshape(rows, columns).max(0), sizes[:, 1].reshape(rows, columns).max(1)
        figure = canvas(widths.sum(), heights.sum() + 0.4 * bool(self.caption))
        ratios = {"width_ratios": widths, "height_ratios": heights}
        lines, sharey = (any(getattr(panel, name) for panel in self.panels) for name in ("grid", "sharey"))
        with styled({"axes.grid": lines}):
            grid = [*figure.subplots(rows, columns, squeeze=False, sharey=sharey, gridspec_kw=ratios).flat]
        legends = [_draw(axes, panel, sources) for axes, panel in zip(grid, self.panels, strict=False)]
        for axes in grid[len(self.panels) :]:
            axes.set_visible(False)
        if len(set(map(type, self.panels))) == 1 and self.panels[0].one_range:
            for label in {axes.get_ylabel() for axes in grid} - {""}:
                one_range([axes for axes in grid if axes.get_ylabel() == label])
        _legends(figure, grid, legends)
        return figure


class RunFigure(GridFigure):
    """Panels that show runs."""

    kind: Literal["runs"] = "runs"
    panels: list[RunPanel] = Field(min_length=1)


class PartitionFigure(GridFigure):
    """Panels that show partitions."""

    kind: Literal["partitions"] = "partitions"
    panels: list[AnyPartition] = Field(min_length=1)
    of_runs: ClassVar = False
    # Such a figure lies in the folder of each partition, which runs depend on: its bytes must not change.
    settled: ClassVar = False

    def partitions(self) -> list[str]:
        return sorted({panel.dataset for panel in self.panels})


def _draw(axes: Axes, panel: Panel, sources: Sources) -> Legend:
    axes.set_title(panel.title)
    if why := panel.missing(sources):
        not_there(axes, why)
        return {}
    return panel.draw(axes, sources)


def _legends(figure: Canvas, grid: list[Axes], legends: list[Legend]) -> None:
    """One legend for all panels if one of them has what is in the others, else one below each."""
    longest = max(legends, key=len)
    if not longest:
        return
    if len(legends) > 1 and all(legend.keys() <= longest.keys() for legend in legends):
        figure.legend(longest.values(), longest.keys(), loc="outside upper left", ncols=5, handlelength=2.6)
        return
    below: Look = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.19), "ncols": 2, "fontsize": 8}
    for axes, legend in zip(grid, legends, strict=False):
        if legend:
            axes.legend(legend.values(), legend.keys(), handlelength=2.4, columnspacing=1.2, **below)
