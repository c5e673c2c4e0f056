"""What figures and their panels have in common: the cells in their fields, and how they are drawn and written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from hetfl.config import Settings
from hetfl.errors import HetflError, unknown
from hetfl.experiments.plan import Params
from hetfl.figures.sources import Sources
from hetfl.figures.style import Look, caption, look, looks, save, settle, styled
from hetfl.files import clear_leftovers
from hetfl.tables.spec import Entry, entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Legend = dict[str, Any]
"""Label -> handle."""


def _cell(written: Any, info: ValidationInfo) -> Any:
    if isinstance(written, Entry):
        return written
    more = dict(written) if isinstance(written, dict) else {"cell": written}
    names = str(more.pop("cell", "")).split("/")
    if len(names) != 3 or info.context is None:
        raise HetflError(f"{written!r} is no cell of a figure; write experiment/row/split")
    return entry(info.context, *names, **more)


Cell = Annotated[Entry, BeforeValidator(_cell)]
"""The runs of all seeds, ``experiment/row/split`` or ``{cell: experiment/row/split, reading: ...}``."""
Cells = dict[str, Cell]
"""Title -> cell."""


def named_in(kind: str, names: Callable[[Params], Iterable[str]]) -> AfterValidator:
    """A check that a name is among those of the settings; a figure made without settings is not checked."""

    def check(name: str, info: ValidationInfo) -> str:
        if info.context is not None and name not in names(info.context):
            raise unknown(kind, name, names(info.context))
        return name

    return AfterValidator(check)


class Part(Settings):
    """Base of figures and panels."""

    @property
    def entries(self) -> Iterator[Entry]:
        """All cells in the fields, in order."""
        for name in type(self).model_fields:
            yield from _entries(getattr(self, name))


def looks_of(cells: Cells) -> dict[str, Look]:
    """The look of each title: that of its cell's method."""
    return {title: look(index) for title, index in looks({t: cell.method for t, cell in cells.items()}).items()}


def _entries(value: Any) -> Iterator[Entry]:
    if isinstance(value, Entry):
        yield value
    elif isinstance(value, Part):
        yield from value.entries
    elif isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _entries(inner)


class Panel(Part, ABC):
    """One pair of axes of a figure."""

    title: str
    inches: ClassVar[tuple[float, float]] = (3.7, 3.1)
    grid: ClassVar[bool] = True
    """Whether lines run behind what is drawn."""
    one_range: ClassVar[bool] = True
    """Whether panels of this kind, side by side, have the same range where their vertical axes show the same."""
    whole: ClassVar[bool] = False
    """Whether it shows files of the evaluation that compact records lack."""
    sharey: ClassVar[bool] = False
    """Whether panels of this kind, side by side, have one vertical axis."""

    def size(self, sources: Sources) -> tuple[float, float]:
        """Inches that the panel needs, across and down."""
        return self.inches

    def missing(self, sources: Sources) -> str:
        """What stands in the panel if there is nothing to draw; empty if there is."""
        return "" if any(sources.records(entry, self.whole) for entry in self.entries) else "not run"

    @abstractmethod
    def draw(self, axes: Axes, sources: Sources) -> Legend:
        """Draw what is there, if :meth:`missing` says that something is; see :meth:`Figure.write` for errors."""


class Figure(Part, ABC):
    """A figure of a paper, or one like it of other experiments.

    Attributes:
        name: of the stage and the files.
        title: what the figure shows.
        caption: what a reader must know, printed below.
    """

    name: str
    title: str
    caption: str = ""
    of_runs: ClassVar[bool] = True
    """Whether it shows runs; others show partitions or samples."""
    settled: ClassVar[bool] = True
    """Whether the layout is rounded, see :func:`hetfl.figures.style.settle`."""
    style: ClassVar[Look] = {}
    """Settings of Matplotlib that differ from those of other figures."""

    def experiments(self) -> list[str]:
        """Experiments whose settings decide what is drawn."""
        return [*dict.fromkeys(entry.experiment for entry in self.entries)]

    def partitions(self) -> list[str]:
        """Data sets whose partitions are drawn."""
        return []

    def datasets(self, params: Params) -> list[str]:
        """Data sets whose samples are drawn."""
        return []

    def backbones(self, params: Params) -> list[str]:
        """Models whose weights are read."""
        return []

    @abstractmethod
    def draw(self, sources: Sources) -> Canvas:
        """The figure, without its caption; see :meth:`write` for errors."""

    def write(self, sources: Sources, path: Path) -> list[Path]:
        """Draw what is there as ``.svg`` and ``.png`` in place of the path's suffix; the two files.

        Raises:
            HetflError: a file that the figure needs is missing or damaged.
        """
        clear_leftovers(path.parent)
        with styled(self.style):
            canvas = self.draw(sources)
            if self.caption:
                caption(canvas, self.caption)
            if self.settled:
                settle(canvas)
            return save(canvas, path)
