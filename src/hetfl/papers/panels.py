"""What a figure of results shows: panels of cells, each with what its axes are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from hetfl.papers.spec import Entry


@dataclass(frozen=True)
class Line:
    """Accuracy over a setting.

    Attributes:
        title: the line's.
        points: setting -> cell.
        reading: after the last round, or the best of all rounds.
    """

    title: str
    points: Mapping[float, Entry]
    reading: Literal["final", "top1"] = "final"


@dataclass(frozen=True)
class SweepPanel:
    """Lowest, average and highest client over a setting.

    Attributes:
        level: title and cell of a horizontal line to compare with.
    """

    title: str
    xlabel: str
    lines: tuple[Line, ...]
    level: tuple[str, Entry] | None = None

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        for line in self.lines:
            yield from line.points.values()
        if self.level:
            yield self.level[1]


@dataclass(frozen=True)
class GroupPanel:
    """The clients' average accuracy of some rows, group by group.

    Attributes:
        groups: title of a group -> title of a row -> cell.
    """

    title: str
    groups: Mapping[str, Mapping[str, Entry]]

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        for rows in self.groups.values():
            yield from rows.values()


@dataclass(frozen=True)
class ClassPanel:
    """The accuracy of each class, averaged over clients.

    Attributes:
        rows: title -> cell.
        kind: a line of the heat map, or a line over the classes, for each row.
    """

    title: str
    rows: Mapping[str, Entry]
    kind: Literal["heatmap", "lines"]

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        yield from self.rows.values()


@dataclass(frozen=True)
class ClientPanel:
    """The accuracy of each client as bars.

    Attributes:
        labels: what stands below the bars, one per client.
    """

    title: str
    xlabel: str
    labels: tuple[str, ...]
    entry: Entry

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        yield self.entry


@dataclass(frozen=True)
class RoundsPanel:
    """A figure of all clients' samples together over the rounds, a line for each row.

    Attributes:
        rows: title -> cell.
        shows: the share of training samples that are predicted wrongly, or that of test samples predicted rightly.
    """

    title: str
    rows: Mapping[str, Entry]
    shows: Literal["training error", "test accuracy"]

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        yield from self.rows.values()


@dataclass(frozen=True)
class MarginPanel:
    """The margin of each class's global prototype beside the largest of the clients' own.

    Attributes:
        entry: a cell of one seed whose evaluation stored prototypes.
        claim: where the paper has the global margin to the clients' largest.
    """

    title: str
    entry: Entry
    claim: Literal["<", ">"]

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        yield self.entry


Points = Literal["prototypes", "features"]


@dataclass(frozen=True)
class EmbeddingPanel:
    """Points in feature space, embedded in the plane.

    Attributes:
        entry: a cell of one seed whose evaluation stored features.
        points: the clients' and the server's prototypes, or the features of test samples.
    """

    title: str
    entry: Entry
    points: Points

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        yield self.entry


@dataclass(frozen=True)
class TradeoffPanel:
    """The lowest client's accuracy over that of all test samples together, both means over a run's last rounds.

    Attributes:
        rows: title -> cell, with the inference rule that is read of it.
    """

    title: str
    rows: Mapping[str, Entry]

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        yield from self.rows.values()


@dataclass(frozen=True)
class HeldOutPanel:
    """Clients that took part beside those that were held out, a point for each row: means over a run's last rounds.

    Attributes:
        rows: title -> cell, with clients held out.
        shows: the accuracy of a side's test samples together, or of its lowest client.
    """

    title: str
    rows: Mapping[str, Entry]
    shows: Literal["pooled", "lowest"]

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        yield from self.rows.values()


@dataclass(frozen=True)
class MetricLine:
    """A number of the evaluation over a setting.

    Attributes:
        metric: its key in ``metrics.json``, a fraction; shown in percent.
        points: setting -> cell.
        rivals: cells whose best is a horizontal line to compare with.
        printed: setting and percent of a point that the paper prints.
    """

    title: str
    metric: str
    points: Mapping[float, Entry]
    rivals: tuple[Entry, ...] = ()
    printed: tuple[float, float] | None = None


@dataclass(frozen=True)
class MetricPanel:
    """Numbers of the evaluation over a setting."""

    title: str
    xlabel: str
    ylabel: str
    lines: tuple[MetricLine, ...]

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        for line in self.lines:
            yield from line.points.values()
            yield from line.rivals


Panel = (
    SweepPanel
    | GroupPanel
    | ClassPanel
    | ClientPanel
    | RoundsPanel
    | MarginPanel
    | EmbeddingPanel
    | TradeoffPanel
    | HeldOutPanel
    | MetricPanel
)


@dataclass(frozen=True)
class ResultFigure:
    """A figure that shows results.

    Attributes:
        panels: in reading order.
        columns: panels side by side.
        caption: what a reader must know.
    """

    panels: tuple[Panel, ...]
    columns: int
    caption: str

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        for panel in self.panels:
            yield from panel.entries


@dataclass(frozen=True)
class TheoremFigure:
    """The terms of FedHPL's Theorem 1 over rounds.

    Attributes:
        settings: title of a setting, whose panels stand side by side -> title of a line -> cell of one seed.
        caption: what a reader must know.
    """

    settings: Mapping[str, Mapping[str, Entry]]
    caption: str

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        for lines in self.settings.values():
            yield from lines.values()


@dataclass(frozen=True)
class SelectionFigure:
    """The groups that methods sort training samples into: of all clients together, and of each.

    Attributes:
        rows: title -> cell of one seed, side by side.
        rounds: whether the evenness of the groups of the participants' samples is drawn over the rounds as well.
        caption: what a reader must know.
    """

    rows: Mapping[str, Entry]
    caption: str
    rounds: bool = False

    @property
    def entries(self) -> Iterator[Entry]:
        """All its cells."""
        yield from self.rows.values()


@dataclass(frozen=True)
class FeatureFigure:
    """Test samples as a frozen backbone sees them after some of its blocks; needs no run.

    Attributes:
        experiment: whose data set, first model and images.
        blocks: counted from 1, a panel for each.
        attribute: of the samples, which their colour shows.
        columns: panels side by side.
        samples: how many are drawn.
        caption: what a reader must know.
    """

    experiment: str
    blocks: tuple[int, ...]
    attribute: str
    columns: int
    caption: str
    samples: int = 1000


@dataclass(frozen=True)
class ImageFigure:
    """Training images of a data set, one of each class, in a row for each value of an attribute.

    Attributes:
        rows: name of the value -> its title.
        caption: what a reader must know.
    """

    dataset: str
    attribute: str
    rows: Mapping[str, str]
    caption: str


def first_seed(cell: Entry) -> Entry:
    """The cell with the first of its seeds alone."""
    return cell.model_copy(update={"seeds": cell.seeds[:1]})
