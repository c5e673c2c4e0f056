"""The curves of a cell: its accuracy by round, averaged over seeds where that means something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from hetfl.tables.records import Point, Record


class At(NamedTuple):
    """One round of a curve.

    Attributes:
        round: its number.
        percent, low, high: mean, lowest and highest accuracy of the seeds.
        traffic: bytes of all messages up to the round's end, mean over the seeds.
        tuned: whether this is the clients' fine-tuning after the last round, which is drawn apart.
    """

    round: int
    percent: float
    low: float
    high: float
    traffic: float
    tuned: bool = False


@dataclass(frozen=True)
class Curve:
    """One line of a figure.

    Attributes:
        points: by round.
        seed: whose they are; None where they are averaged over all seeds of a cell.
        diverged: the first round in which a client's loss or scores were not finite; None: all were.
    """

    points: list[At]
    seed: int | None = None
    diverged: int | None = None

    @property
    def trained(self) -> list[At]:
        """The points of rounds; where no round was tested, all points."""
        return [at for at in self.points if not at.tuned] or self.points

    @property
    def tuned(self) -> At | None:
        """The point of fine-tuning, if there is one beside those of rounds."""
        return next((at for at in self.points[1:] if at.tuned), None)

    @property
    def sound(self) -> list[At]:
        """The rounds before the one in which the run diverged; all of them where that was the first one."""
        before = [at for at in self.points if self.diverged is None or at.round < self.diverged]
        return before or self.points


def averaged(runs: Sequence[Sequence[Point]]) -> list[At]:
    """The mean over the curves of some runs, as far as all of them go."""
    found = []
    for points in zip(*runs, strict=False):
        accuracies = [point.percent for point in points]
        traffic = fmean(point.traffic for point in points)
        ends = min(accuracies), max(accuracies)
        found.append(At(points[0].round, fmean(accuracies), *ends, traffic, points[0].tuned))
    return found


def curves(records: Sequence[Record], statistic: str, reading: str = "") -> list[Curve]:
    """The lines that show a cell: the mean over its seeds, or a line for each seed.

    There is a line for each seed if the runs end in different rounds, as those with patience do, or if one diverged.
    A mean over fewer and fewer seeds would jump where a run ends.

    Args:
        records: of the cell's seeds.
        statistic: that the cell reads, such as ``average``.
        reading: the inference rule, ``""`` for the method's own.

    Returns:
        The lines that have a point.
    """
    runs = [record.curve(statistic, reading) for record in records]
    if len({*map(len, runs)}) > 1 or any(record.diverged is not None for record in records):
        alone = [
            Curve(averaged([points]), record.run.seed, record.diverged)
            for record, points in zip(records, runs, strict=True)
        ]
    else:
        alone = [Curve(averaged(runs))]
    return [curve for curve in alone if curve.points]
