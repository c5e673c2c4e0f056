"""Figures of samples: images of a data set, and how a frozen backbone sees them after some of its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from hetfl.draws import Draws
from hetfl.experiments.plan import Params
from hetfl.figures.base import Figure, named_in
from hetfl.figures.prototypes import embed, scatter
from hetfl.figures.sources import Sources
from hetfl.figures.style import CLASSES, PAPER, Look, canvas, handle, not_there

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure as Canvas

    from hetfl.data.store import Dataset
    from hetfl.models import Model

_BATCH = 50
_SIDE, _GAP = 64, 6
"""Pixels of an image and between images."""
_SHAPES = "oXs"


class Features(NamedTuple):
    """Samples as a backbone sees them.

    Attributes:
        points: [n, d] after each of some blocks.
        values: int64 [n], of the attribute that is shown.
        names: of the values.
    """

    points: Sequence[np.ndarray]
    values: np.ndarray
    names: Sequence[str]


class SampleFigure(Figure):
    """Samples of a data set; needs no run."""

    of_runs: ClassVar = False
    style: ClassVar[Look] = {"axes.grid": False}


class FeatureFigure(SampleFigure):
    """Test samples as a frozen backbone sees them after some of its blocks.

    Attributes:
        experiment: whose data set, first model and images.
        blocks: counted from 1, a panel for each.
        attribute: of the samples, which their colour shows.
        columns: panels side by side.
        samples: how many are drawn.
    """

    kind: Literal["features"] = "features"
    experiment: Annotated[str, named_in("experiment", lambda params: params.experiments)]
    blocks: list[int]
    attribute: str
    columns: int
    samples: int = 1000

    def experiments(self) -> list[str]:
        return [self.experiment]

    def datasets(self, params: Params) -> list[str]:
        return [params.experiments[self.experiment].dataset]

    def backbones(self, params: Params) -> list[str]:
        return params.models[params.experiments[self.experiment].models][:1]

    def draw(self, sources: Sources) -> Canvas:
        found = sources.backbone(self.experiment)
        return self.paint(read_features(self, *found) if found else None)

    def paint(self, features: Features | None) -> Canvas:
        """Features in the colours and shapes of their attribute; None: there is no data set or backbone yet."""
        rows = ceil(len(self.blocks) / self.columns)
        spare = rows * self.columns > len(self.blocks)
        figure = canvas(3.0 * self.columns + (0 if spare else 2.3), 2.9 * rows + 0.7)
        grid = figure.subplots(rows, self.columns, squeeze=False)
        for axes in grid.flat[len(self.blocks) :]:
            axes.set_axis_off()
        for place, (axes, block) in enumerate(zip(grid.flat, self.blocks, strict=False)):
            axes.set_title(f"After block {block}")
            if features is None:
                not_there(axes, "not prepared")
                continue
            styles = [_look(value, 3.4) for value in range(len(features.names))]
            scatter(axes, embed(features.points[place]), features.values, styles)
            axes.margins(0.05)
        if features is not None:
            handles = [handle(linestyle="none", **_look(value, 6)) for value in range(len(features.names))]
            names = [name.replace("_", " ") for name in features.names]
            text = {"fontsize": 7.5, "handletextpad": 0.2, "labelspacing": 0.25}
            if spare:
                grid.flat[-1].legend(handles, names, loc="center left", **text)
            else:
                figure.legend(handles, names, loc="outside right center", **text)
        return figure


class ImageFigure(SampleFigure):
    """Training images of a data set, one of each class, in a row for each value of an attribute; drawn at random.

    Attributes:
        rows: name of the value -> its title.
    """

    kind: Literal["images"] = "images"
    dataset: Annotated[str, named_in("data set", lambda params: params.data.sets)]
    attribute: str
    rows: dict[str, str]

    def datasets(self, params: Params) -> list[str]:
        return [self.dataset]

    def draw(self, sources: Sources) -> Canvas:
        dataset = sources.dataset(self.dataset)
        strips = [] if dataset is None else [self._strip(dataset, name) for name in self.rows]
        columns = max((strip.shape[1] // (_SIDE + _GAP) for strip in strips), default=10)
        figure = canvas(1.3 + 0.62 * columns, 0.62 * len(self.rows) + 0.5)
        axes = figure.subplots()
        if not strips:
            not_there(axes, "not prepared")
            return figure
        width = max(strip.shape[1] for strip in strips)
        axes.imshow(np.concatenate([np.pad(s, ((0, 0), (0, width - s.shape[1]), (0, 0))) for s in strips]))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_yticks((_SIDE + _GAP) * np.arange(len(strips)) + _SIDE / 2, list(self.rows.values()))
        axes.set_xticks([])
        return figure

    def _strip(self, dataset: Dataset, name: str) -> np.ndarray:
        """An image of each class side by side, uint8 [height, width, 4], transparent between them."""
        from PIL import Image

        values, split = dataset.attribute(self.attribute, ["train"]), dataset.subset("train")
        value = dataset.attributes[self.attribute].index(name)
        order = Draws(0).numpy_generator("figure:images", value).permutation(len(split))
        order = order[values[order] == value]
        labels, first = np.unique(split.labels[order], return_index=True)
        strip = np.zeros((_SIDE + _GAP, len(labels) * (_SIDE + _GAP), 4), np.uint8)
        for column, place in enumerate(order[first]):
            image = Image.fromarray(split.images[place].squeeze()).convert("RGBA")
            left = column * (_SIDE + _GAP)
            strip[:_SIDE, left : left + _SIDE] = np.asarray(image.resize((_SIDE, _SIDE), Image.Resampling.BOX))
        return strip


def read_features(figure: FeatureFigure, dataset: Dataset, model: Model, device: torch.device) -> Features:
    """What a figure shows of some test samples, drawn at random, the same every time.

    Raises:
        HetflError: the data set has no such attribute.
    """
    import torch

    from hetfl.data.batches import DeviceImages
    from hetfl.data.store import Subset

    values = dataset.attribute(figure.attribute, ["test"])
    order = Draws(0).numpy_generator("figure:features").permutation(len(values))
    chosen = np.sort(order[: figure.samples])
    split = dataset.subset("test")
    images = DeviceImages([Subset(split.images[chosen], split.labels[chosen])], model.spec, device)
    everything = torch.arange(len(images), device=device)
    points = [
        torch.cat([model.query(batch.images, block).float() for batch in images.batches(everything, _BATCH)])
        for block in figure.blocks
    ]
    return Features([found.cpu().numpy() for found in points], values[chosen], dataset.attributes[figure.attribute])


def _look(value: int, size: float) -> Look:
    turn, place = divmod(value, len(CLASSES))
    return {
        "color": CLASSES[place],
        "marker": _SHAPES[turn % len(_SHAPES)],
        "markersize": size * (1, 1.25, 0.9)[turn % len(_SHAPES)],
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.25,
    }
