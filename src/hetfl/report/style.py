"""How every figure looks, and how it is written: as SVG and PNG, the same bytes every time.

The SVGs keep their text as text and use a handful of fixed colours, so the site can restyle them for light
and dark pages.
"""

from __future__ import annotations

import io
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure

from hetfl.files import write_bytes

INK, MUTED, GRID, PAPER = "#1f2328", "#656d76", "#dfe3e8", "#ffffff"
HEAT, ON_HEAT = "#2c6fbb", "#fffffe"
# Opacity, not lightness, carries the number: it reads the same on a dark page.
HEAT_MAP = LinearSegmentedColormap.from_list("heat", [(*to_rgb(HEAT), 0.0), (*to_rgb(HEAT), 1.0)])
# Okabe and Ito's colours without yellow, which is too pale for a line.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5fc7")
# Ten colours at once: without violet, which is blue to some eyes, and with three that are darker than all of those.
DARK = ("#8a3214", "#3b1fa0", "#5b636b")
CLASSES = (*SERIES[:6], *DARK, INK)
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)))
MARKERS = "osD^vPX"
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


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as ``.svg`` and ``.png`` in place of the path's suffix; the two files."""
    written = []
    FigureCanvasAgg(figure)
    for suffix, metadata in ((".svg", {"Date": None, "Creator": None}), (".png", {"Software": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=metadata, dpi=160)
        written.append(path.parent / (path.name.removesuffix(path.suffix) + suffix))
        write_bytes(written[-1], buffer.getvalue())
    return written


def caption(figure: Figure, text: str) -> None:
    """Lines below a figure, as wide as it is."""
    across = int(72 * figure.get_figwidth() / (0.53 * _CAPTION))
    figure.supxlabel(fill(text, across), x=0.005, ha="left", fontsize=_CAPTION, color=MUTED).set_gid("caption")


def settle(figure: Figure) -> None:
    """Lay a figure out for good: the solver's last digits change from one time to the next, and files with them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(tuple(round(length, 6) for length in axes.get_position().bounds))
    for text in figure.texts:
        x, y = text.get_position()
        text.set_position((round(x, 6), round(y, 6)))


def not_run(axes: Axes, why: str = "not run") -> None:
    """Say that there is nothing to draw yet."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=MUTED)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
