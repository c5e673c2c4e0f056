"""How every figure looks, and how it is written: as SVG and PNG, the same bytes every time.

The SVGs keep their text as text and use a handful of fixed colours, so the site can restyle them for light
and dark pages. Matplotlib is imported where it draws: commands that need the names of figures only start without it.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from hetfl.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Look = dict[str, Any]
"""Properties of a line or marker, as Matplotlib names them."""

INK, MUTED, GRID, PAPER = "#1f2328", "#656d76", "#dfe3e8", "#ffffff"
HEAT, ON_HEAT = "#2c6fbb", "#fffffe"
# Okabe and Ito's colours without yellow, which is too pale for a line.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5fc7")
# Ten colours at once: without violet, which some readers see as blue, and with three that are darker.
DARK = ("#8a3214", "#3b1fa0", "#5b636b")
CLASSES = (*SERIES[:6], *DARK, INK)
PALETTE = (*SERIES, *DARK)
"""The colours of methods."""
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)))
MARKERS = "osD^vP>"
BAND: Look = {"alpha": 0.14, "linewidth": 0}
"""The area from the lowest to the highest seed or client."""
NEAR_HUNDRED: Mapping[str, Any] = {"start": 97, "ticks": [0, 50, 80, 90, 95, 98, 99, 99.5, 99.8, 99.9], "least": 0.01}
"""Where the best accuracy is ``start`` percent or more, errors tell methods apart: the axis of curves is logarithmic
in them, with numbers at ``ticks``. Less than ``least`` percent of errors is drawn as this."""
_CAPTION = 7.5

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "hetfl",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    # A title is plain text; a dollar in it is a dollar.
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}


@contextmanager
def styled(changes: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw in our style, with some of Matplotlib's settings changed."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE | dict(changes or {})):
        yield


def canvas(width: float, height: float) -> Figure:
    """An empty figure of so many inches that lays itself out."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@cache
def heat_map() -> Colormap:
    """From transparent to full colour: opacity, not lightness, shows the number, also on a dark page."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    return LinearSegmentedColormap.from_list("heat", [(*to_rgb(HEAT), 0.0), (*to_rgb(HEAT), 1.0)])


# Methods that are compared in one table differ in the last digit, which is the colour; the marker tells the others.
# fmt: off
_METHODS = {
    "fedhpl": 0, "fedtgp": 1, "fedproto": 2, "fedgen": 3, "fedgh": 4, "fedmd": 5, "fedhe": 6, "fml": 7, "fedkd": 8,
    "feddistill": 9, "fgpt": 10, "sgpt": 11, "pt-fedavg": 12, "fed-dualprompt": 13, "pfedhn": 14, "lg-fedavg": 15,
    "fedmix": 16, "fedavg": 17, "fedprox": 18, "scaffold": 19, "fedrep": 21, "pfedpt": 22,
    "pfedpg": 23, "fedbabu": 24, "fedmoon": 25, "fedpr": 27, "fgpt-fedmix": 28,
}
# fmt: on
_OTHERS = 30
"""Where the looks of other methods and of further rows begin; there are 70 in all."""


def looks(methods: Mapping[str, str]) -> dict[str, int]:
    """The look of each row of a table or figure, as :func:`look` takes it.

    A method has the same look everywhere: the row with its name has it, or else its first row. Further rows of the
    same method have colours that the others leave free.

    Args:
        methods: row -> method.
    """
    every = len(PALETTE) * len(MARKERS)
    first = {method: row for row, method in reversed([*methods.items()])}
    first |= {method: row for row, method in methods.items() if row.lower() == method}
    found = {row: _METHODS.get(method, _OTHERS + crc32(method.encode()) % 40) for method, row in first.items()}
    for row in methods:
        if row not in found:
            used = Counter(index % len(PALETTE) for index in found.values())
            free = [index for index in range(_OTHERS, every) if index not in found.values()]
            found[row] = min(free or range(_OTHERS, every), key=lambda index: used[index % len(PALETTE)])
    return {row: found[row] for row in methods}


def look(index: int) -> Look:
    """A line and its marker; each of 70 is different."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linewidth": 1.7,
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4.5,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.5,
    }


def handle(**properties: Any) -> Line2D:
    """A line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **properties)


def mean_line(axes: Axes, x: Sequence[float], seeds: Sequence[Sequence[float]], style: Look) -> Line2D:
    """The mean over seeds, in a band from the lowest to the highest where there are several.

    Args:
        axes: where to draw.
        x: [n].
        seeds: for each x, the values of the seeds that are there.
        style: of the line.
    """
    (line,) = axes.plot(x, [np.mean(values) for values in seeds], **style)
    if any(len(values) > 1 for values in seeds):
        lowest, highest = ([end(values) for values in seeds] for end in (np.min, np.max))
        axes.fill_between(x, lowest, highest, color=style["color"], **BAND)
    return line


def few_ticks(axis: Axis, most: int, integer: bool = False) -> None:
    """At most this many intervals between ticks."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=integer))


def near_hundred(axes: Axes, low: float, high: float) -> None:
    """Make a vertical axis of percentages logarithmic in the errors, 100 less the accuracy; see :data:`NEAR_HUNDRED`.

    Args:
        axes: of the panel, and of those that share its axis.
        low, high: ends of the values to be shown, in percent.
    """

    def to_level(percent: np.ndarray | float) -> np.ndarray:
        return -np.log10(np.maximum(100 - np.asarray(percent), NEAR_HUNDRED["least"]))

    def to_percent(level: np.ndarray) -> np.ndarray:
        return 100 - 10 ** -np.asarray(level)

    axes.set_yscale("function", functions=(to_level, to_percent))
    margin = 0.05 * (to_level(high) - to_level(low) or 1)
    bottom, top = (float(to_percent(end)) for end in (to_level(low) - margin, to_level(high) + margin))
    axes.set_ylim(bottom, top)
    ticks = [tick for tick in NEAR_HUNDRED["ticks"] if bottom <= tick <= top]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def one_range(panels: Sequence[Axes]) -> None:
    """One range for the vertical axes of some panels."""
    limits = [axes.get_ylim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def class_axis(axes: Axes, names: Sequence[str], offset: float, upright: int = 3) -> None:
    """Name up to 20 classes on the horizontal axis, at an angle if a name has more than ``upright`` letters.

    Of more classes, every tenth number is shown.
    """
    if len(names) > 20:
        axes.set_xticks(np.arange(0, len(names), 10) + offset, [str(label) for label in range(0, len(names), 10)])
        axes.set_xlabel("Class")
        return
    slanted = max(map(len, names)) > upright
    axes.set_xticks(
        np.arange(len(names)) + offset,
        names,
        rotation=35 if slanted else 0,
        ha="right" if slanted else "center",
        rotation_mode="anchor",
    )


def heat_cells(axes: Axes, values: np.ndarray, top: float, fine: bool) -> None:
    """A heat map of [rows, columns] from 0 to ``top``, the first row on top; thin borders if the cells are fine."""
    borders: Look = {"edgecolors": PAPER, "linewidth": 0.3 if fine else 0.8}
    axes.pcolormesh(np.ma.masked_invalid(values), cmap=heat_map(), vmin=0, vmax=top, **borders)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def heat_number(axes: Axes, row: int, column: int, share: float, text: str, size: float) -> None:
    """The number of a heat map's cell, in a colour that is readable on a share of the full colour."""
    colour = ON_HEAT if share > 0.8 else INK
    axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=colour, fontsize=size)


def not_there(axes: Axes, why: str) -> None:
    """Say in an empty panel why nothing is drawn."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=MUTED)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def caption(figure: Figure, text: str) -> None:
    """Lines below a figure, as wide as it is."""
    across = int(72 * figure.get_figwidth() / (0.53 * _CAPTION))
    figure.supxlabel(fill(text, across), x=0.005, ha="left", fontsize=_CAPTION, color=MUTED).set_gid("caption")


def settle(figure: Figure) -> None:
    """Fix the layout to six digits: the last digits of the solver's differ between runs, and so would the files."""
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # with "none" a file would be drawn twice
    for axes in figure.axes:
        axes.set_position(tuple(round(length, 6) for length in axes.get_position().bounds))
    for text in figure.texts:
        x, y = text.get_position()
        text.set_position((round(x, 6), round(y, 6)))


FORMATS: dict[str, Look] = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}
"""The files of every figure, and what they must not say so that they are the same every time."""


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure in every format in place of the path's suffix; the files."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    written = []
    FigureCanvasAgg(figure)
    for suffix, metadata in FORMATS.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=metadata, dpi=160)
        written.append(path.parent / (path.name.removesuffix(path.suffix) + suffix))
        write_bytes(written[-1], buffer.getvalue())
    return written
