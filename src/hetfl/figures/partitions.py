"""Panels of partitions: heat maps as in FedHPL, circles as in FedTGP, bars of one client as in SGPT."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from hetfl.figures.base import Legend, Panel, named_in
from hetfl.figures.sources import Holdings, Sources
from hetfl.figures.style import HEAT, INK, Look, class_axis, heat_cells, heat_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DIAMETERS = 40


class PartitionPanel(Panel):
    """A partition of a data set: who holds how much of which class.

    Attributes:
        seed: None: the data set's first.
    """

    dataset: Annotated[str, named_in("data set", lambda params: params.partitions)]
    split: str
    seed: int | None = None
    one_range: ClassVar = False

    def holdings(self, sources: Sources) -> Holdings | None:
        """What the panel shows; None while the partition is not there."""
        return sources.partition(self.dataset, self.split, self.seed)

    def missing(self, sources: Sources) -> str:
        return "" if self.holdings(sources) else "not prepared"

    def size(self, sources: Sources) -> tuple[float, float]:
        held = self.holdings(sources)
        return self.room(*held.counts.shape) if held else (3.0, 1.6)

    def draw(self, axes: Axes, sources: Sources) -> Legend:
        if held := self.holdings(sources):
            self.paint(axes, *held)
        return {}

    @abstractmethod
    def room(self, clients: int, classes: int) -> tuple[float, float]:
        """Inches that so many clients and classes need, across and down."""

    @abstractmethod
    def paint(self, axes: Axes, counts: np.ndarray, class_names: Sequence[str]) -> None:
        """Draw counts [clients, classes]."""


class PartitionHeatMap(PartitionPanel):
    """Clients down, classes across; the number as opacity and, where there is room, in print."""

    kind: Literal["partition-heat-map"] = "partition-heat-map"
    grid: ClassVar = False

    def room(self, clients: int, classes: int) -> tuple[float, float]:
        width = max(3.6, 1.1 + (0.44 if classes <= 20 else 0.05) * classes)
        return width, 1.15 + (0.29 if _numbered(clients, classes) else 0.2 if clients <= 40 else 0.09) * clients

    def paint(self, axes: Axes, counts: np.ndarray, class_names: Sequence[str]) -> None:
        clients, classes = counts.shape
        top = max(int(counts.max()), 1)
        heat_cells(axes, counts, top, fine=classes > 20)
        axes.set(xlabel="Class", ylabel="Client")
        step = 1 if clients <= 20 else 5 if clients <= 50 else 10
        axes.set_yticks(np.arange(0, clients, step) + 0.5, [str(k) for k in range(0, clients, step)])
        class_axis(axes, class_names, 0.5, upright=5)
        if not _numbered(clients, classes):
            axes.set_xlabel(f"Class (full colour: {top} samples)")
            return
        for (client, label), count in np.ndenumerate(counts):
            if count:
                heat_number(axes, client, label, count / top, str(count), 7.5 if top < 1000 else 6)


class PartitionBubbles(PartitionPanel):
    """Clients across, classes up; the number as the area of a circle."""

    kind: Literal["partition-bubbles"] = "partition-bubbles"

    def room(self, clients: int, classes: int) -> tuple[float, float]:
        return max(2.8, 0.9 + _spacing(clients) * clients), max(2.6, 0.9 + _spacing(classes) * classes)

    def paint(self, axes: Axes, counts: np.ndarray, class_names: Sequence[str]) -> None:
        clients, classes = counts.shape
        client, label = np.nonzero(counts)
        held, top = counts[client, label], max(int(counts.max()), 1)
        # Points between neighbours; the few large circles may reach over theirs.
        across, up = (72 * (size - 0.9) / n for size, n in zip(self.room(*counts.shape), counts.shape, strict=True))
        largest = max(4.0, 2.4 * min(across, up))
        # A marker for each of some diameters: thousands of circles with a path each would make a heavy file.
        steps = np.ceil(_DIAMETERS * np.sqrt(held / top))
        for step in np.unique(steps):
            size = max(0.8, largest * step / _DIAMETERS)
            circle: Look = {"markersize": size, "color": HEAT, "alpha": 0.75, "markeredgewidth": 0, "clip_on": False}
            axes.plot(client[steps == step], label[steps == step], "o", **circle)
        axes.set(xlabel=f"Client (largest circle: {top} samples)", ylabel="Class")
        axes.set_xlim(-0.8, clients - 0.2)
        axes.set_ylim(-0.8, classes - 0.2)
        for axis, number in ((axes.xaxis, clients), (axes.yaxis, classes)):
            step = 1 if number <= 10 else 2 if number <= 20 else 10 if number <= 100 else 20
            axis.set_ticks(range(0, number, step))


class PartitionBars(PartitionPanel):
    """The classes that one client has samples of, as bars.

    Attributes:
        client: counted from 0.
    """

    kind: Literal["partition-bars"] = "partition-bars"
    client: int
    sharey: ClassVar = True

    def room(self, clients: int, classes: int) -> tuple[float, float]:
        return 4.2, 2.7

    def paint(self, axes: Axes, counts: np.ndarray, class_names: Sequence[str]) -> None:
        held = counts[self.client]
        there = np.flatnonzero(held).tolist()
        axes.bar(np.arange(len(there)), held[there], width=0.62, color=HEAT)
        for place, label in enumerate(there):
            look: Look = {"ha": "center", "va": "bottom", "fontsize": 7.5, "color": INK}
            axes.text(place, held[label] + 0.01 * held.max(), str(held[label]), **look)
        names = [class_names[label].replace("_", " ") for label in there]
        axes.set_xticks(np.arange(len(there)), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.margins(y=0.1)
        axes.grid(axis="x", visible=False)
        if (spec := axes.get_subplotspec()) and spec.is_first_col():
            axes.set_ylabel("Samples")


def _spacing(values: int) -> float:
    return 0.16 if values <= 20 else 0.09 if values <= 50 else 0.055 if values <= 110 else 0.035


def _numbered(clients: int, classes: int) -> bool:
    return classes <= 20 and clients <= 40
