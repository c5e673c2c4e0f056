"""Pictures of images: samples of a data set, and how a frozen backbone sees them after some of its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from hetfl.data.batches import DeviceImages
from hetfl.data.store import Dataset, Subset
from hetfl.draws import Draws
from hetfl.models import Model
from hetfl.papers.panels import FeatureFigure, ImageFigure
from hetfl.report.prototypes import embed
from hetfl.report.style import CLASSES, GRID, PAPER, STYLE, caption, not_run, save, settle

_BATCH = 50
_SIDE, _GAP = 64, 6
"""Pixels of an image and between images."""
_SHAPES = "oXs"


@dataclass(frozen=True, eq=False)
class Features:
    """Samples as a backbone sees them.

    Attributes:
        points: [n, d] after each of some blocks.
        values: int64 [n], of the attribute that is shown.
        names: of the values.
    """

    points: Sequence[np.ndarray]
    values: np.ndarray
    names: Sequence[str]


def read_features(figure: FeatureFigure, dataset: Dataset, model: Model, device: torch.device) -> Features:
    """What a figure shows of some test samples, drawn at random, the same every time.

    Raises:
        HetflError: the data set has no such attribute.
    """
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


def feature_figure(figure: FeatureFigure, features: Features | None, path: Path) -> list[Path]:
    """Each block's features in the plane, in the colours and shapes of an attribute.

    Args:
        figure: what it shows.
        features: of :func:`read_features`; None where there is no data set or backbone yet.
        path: the figure's path; its suffix is replaced by ``.svg`` and ``.png``.

    Returns:
        The two files.
    """
    rows = ceil(len(figure.blocks) / figure.columns)
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        spare = rows * figure.columns > len(figure.blocks)
        width = 3.0 * figure.columns + (0 if spare else 2.3)
        canvas = Figure(figsize=(width, 2.9 * rows + 0.7), layout="constrained")
        grid = canvas.subplots(rows, figure.columns, squeeze=False)
        for axes in grid.flat[len(figure.blocks) :]:
            axes.set_axis_off()
        for place, (axes, block) in enumerate(zip(grid.flat, figure.blocks, strict=False)):
            axes.set_title(f"After block {block}")
            if features is None:
                not_run(axes, "not prepared")
                continue
            plane = embed(features.points[place])
            for value in np.unique(features.values):
                axes.plot(*plane[features.values == value].T, linestyle="none", **_look(value, 3.4))
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=GRID)
            axes.margins(0.05)
        if features is not None:
            handles = [Line2D([], [], linestyle="none", **_look(value, 6)) for value in range(len(features.names))]
            names = [name.replace("_", " ") for name in features.names]
            look: dict[str, Any] = {"fontsize": 7.5, "handletextpad": 0.2, "labelspacing": 0.25}
            if spare:
                grid.flat[-1].legend(handles, names, loc="center left", **look)
            else:
                canvas.legend(handles, names, loc="outside right center", **look)
        caption(canvas, figure.caption)
        settle(canvas)
        return save(canvas, path)


def _look(value: int, size: float) -> dict[str, Any]:
    turn, place = divmod(int(value), len(CLASSES))
    return {
        "color": CLASSES[place],
        "marker": _SHAPES[turn % len(_SHAPES)],
        "markersize": size * (1, 1.25, 0.9)[turn % len(_SHAPES)],
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.25,
    }


def image_figure(figure: ImageFigure, dataset: Dataset | None, path: Path) -> list[Path]:
    """A row of training images, one of each class, for each value of an attribute; drawn at random, always the same.

    Args:
        figure: what it shows.
        dataset: prepared; None where it is not there yet.
        path: the figure's path; its suffix is replaced by ``.svg`` and ``.png``.

    Returns:
        The two files.

    Raises:
        HetflError: the data set has no such attribute.
    """
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        strips = [] if dataset is None else [_strip(figure, dataset, name) for name in figure.rows]
        columns = max((strip.shape[1] // (_SIDE + _GAP) for strip in strips), default=10)
        canvas = Figure(figsize=(1.3 + 0.62 * columns, 0.62 * len(figure.rows) + 0.5), layout="constrained")
        axes = canvas.subplots()
        if not strips:
            not_run(axes, "not prepared")
        else:
            width = max(strip.shape[1] for strip in strips)
            axes.imshow(np.concatenate([np.pad(s, ((0, 0), (0, width - s.shape[1]), (0, 0))) for s in strips]))
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            places = (_SIDE + _GAP) * np.arange(len(strips)) + _SIDE / 2
            axes.set_yticks(places, list(figure.rows.values()))
            axes.set_xticks([])
        caption(canvas, figure.caption)
        settle(canvas)
        return save(canvas, path)


def _strip(figure: ImageFigure, dataset: Dataset, name: str) -> np.ndarray:
    """An image of each class side by side, uint8 [height, width, 4], transparent between them."""
    split = dataset.subset("train")
    value = dataset.attributes[figure.attribute].index(name)
    order = Draws(0).numpy_generator("figure:images", value).permutation(len(split))
    order = order[dataset.attribute(figure.attribute, ["train"])[order] == value]
    labels, first = np.unique(split.labels[order], return_index=True)
    strip = np.zeros((_SIDE + _GAP, len(labels) * (_SIDE + _GAP), 4), np.uint8)
    for column, place in enumerate(order[first]):
        image = Image.fromarray(split.images[place].squeeze()).convert("RGBA")
        left = column * (_SIDE + _GAP)
        strip[:_SIDE, left : left + _SIDE] = np.asarray(image.resize((_SIDE, _SIDE), Image.Resampling.BOX))
    return strip
