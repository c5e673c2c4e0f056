"""Curves of runs as text, in dots of Braille: two by four to a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from hetfl.compact import Compact, read_compact
from hetfl.errors import HetflError, unknown
from hetfl.experiments.standing import waits
from hetfl.schema import RUN, Round, Run, needed_run, read_rounds

if TYPE_CHECKING:
    from rich.text import Text

MOST = 8
"""Lines that can be told apart."""
COLOURS = ("blue", "red", "green", "magenta", "cyan", "yellow", "bright_black", "white")
LETTERS = "abcdefgh"
HEIGHT = 16
"""Of the drawing, in lines of text."""
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a Braille character, by row and column."""


def _percent(values: Sequence[float | None] | None, of: Callable[[list[float]], float]) -> float | None:
    known = [100 * value for value in values or () if value is not None]
    return of(known) if known else None


METRICS: dict[str, Callable[[Round], float | None]] = {
    "accuracy": lambda line: _percent(line.accuracy, mean),
    "lowest": lambda line: _percent(line.accuracy, min),
    "pooled": lambda line: None if line.pooled is None else 100 * line.pooled,
    "loss": lambda line: line.mean_loss,
}
TITLES = {
    "accuracy": "accuracy in %, mean over clients",
    "lowest": "accuracy in %, lowest client",
    "pooled": "accuracy in %, all test samples",
    "loss": "loss",
}
"""What the drawing calls each metric."""
AXES: dict[str, Callable[[Round], float]] = {
    "round": lambda line: 1.0,
    "megabytes": lambda line: (line.up.bytes + line.down.bytes) / 1e6,
    "seconds": lambda line: sum(line.seconds.values()),
}
"""What a round adds to the horizontal axis."""


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        row: the experiment and row that it is of.
        label: the run or row, as the legend names it.
        note: how far the run is.
        points: (x, y), in order of the rounds.
    """

    row: str
    label: str
    note: str
    points: Sequence[tuple[float, float]]

    def as_json(self) -> dict[str, Any]:
        """The curve as JSON."""
        return {"run": self.label, "note": self.note, "points": [[x, y] for x, y in self.points]}


def runs_below(target: str, runs: Path, results: Path | None = None) -> list[Path]:
    """The folders of run records that a path stands for: its own, or all below it.

    Args:
        target: a path of its own, or one below ``runs``.
        runs: the checkout's folder of runs.
        results: that of its compact records, whose names may be meant as well.

    Raises:
        HetflError: there is none.
    """
    if not target:
        raise HetflError("a run's name is empty; name a run, or a folder of runs")
    for folder in (Path(target), runs / target.removeprefix("runs/")):
        if (folder / RUN).is_file():
            return [folder]
        found = [path.parent for path in sorted(folder.glob(f"**/{RUN}")) if _shown(path.relative_to(folder))]
        if found:
            return found
    known = [path.parent.relative_to(runs) for path in runs.glob(f"**/{RUN}")]
    known += (
        [path.relative_to(results).with_suffix("") for path in results.glob("*/**/[!.]*.json")] if results else []
    )
    if not known:
        raise HetflError(f"{runs}: has no run {target!r}, nor any other yet; hetfl train or dvc repro makes some")
    depth = None if "/" in target.strip("/") else 1
    raise unknown("run", target, {"/".join(path.parts[:depth]) for path in known if _shown(path)}, str(runs))


def _shown(path: Path) -> bool:
    """Whether no folder of a path is hidden, as those of superseded records are."""
    return not any(part.startswith(".") for part in path.parts)


def curves(
    targets: Sequence[str], runs: Path, by: str, metric: str | None = None, results: Path | None = None
) -> tuple[list[Line], str]:
    """The curves of some runs; where they are more than :data:`MOST`, each row's mean over its splits and seeds.

    Args:
        targets: see :func:`runs_below`.
        runs: the checkout's folder of runs.
        results: that of its compact records, which stand for runs that are not there; None: of runs alone.
        by: the horizontal axis, one of :data:`AXES`.
        metric: the vertical axis, one of :data:`METRICS`; None: the accuracy that counts, see :class:`Standing`.

    Returns:
        The curves and their metric.

    Raises:
        HetflError: a name is unknown, or no round is recorded yet.
    """
    if by not in AXES:
        raise unknown("axis", by, AXES, "--by")
    if metric is not None and metric not in METRICS:
        raise unknown("metric", metric, METRICS, "--metric")
    records = dict[str, Path]()
    for target in targets:
        kept = _kept_below(target, results) if results else {}
        try:
            own = {_label(folder, runs): folder for folder in runs_below(target, runs, results)}
        except HetflError:
            if not kept:
                raise
            own = {}
        records |= kept | own
    if metric is None:
        metric = "pooled" if any(waits(_run(path).settings) for path in records.values()) else "accuracy"
    lines = [line for label, path in records.items() if (line := _line(label, path, by, metric)).points]
    if not lines:
        raise HetflError(f"{', '.join(targets)}: no round with {metric} is recorded yet")
    if len(lines) > MOST:
        rows: dict[str, list[Line]] = {}
        for line in lines:
            rows.setdefault(line.row, []).append(line)
        lines = sorted(map(_mean, rows.values()), key=lambda line: -line.points[-1][1])
    return lines, metric


def draw(lines: Sequence[Line], by: str, metric: str, columns: int) -> Text:
    """The drawing of some curves with their axes and a legend; of more than :data:`MOST` lines, the highest.

    Args:
        lines: from :func:`curves`.
        by, metric: names of the axes.
        columns: width of the terminal.
    """
    from rich.text import Text

    shown, width = lines[:MOST], max(20, min(columns, 110) - 10)
    xs = [x for line in shown for x, _ in line.points]
    ys = [y for line in shown for _, y in line.points]
    low, high, least, most = min(ys), max(ys), min(xs), max(xs)
    span, length = (high - low) or 1.0, (most - least) or 1.0
    dots: dict[tuple[int, int], tuple[int, int]] = {}
    marks: dict[tuple[int, int], int] = {}
    for number, line in enumerate(shown):
        places = [
            (round((x - least) / length * (2 * width - 3)), round((high - y) / span * (4 * HEIGHT - 1)))
            for x, y in line.points
        ]
        for across, down in _joined(places):
            place = down // 4, across // 2
            bits, _ = dots.get(place, (0, number))
            dots[place] = bits | DOTS[down % 4][across % 2], number
        across, down = places[-1]
        column = min(across // 2 + 1, width - 1)
        near = [down // 4 + step for step in (0, 1, -1, 2, -2)]
        row = next((row for row in near if 0 <= row < HEIGHT and (row, column) not in marks), down // 4)
        marks[row, column] = number
    text = Text()
    for row in range(HEIGHT):
        value = high - span * row / (HEIGHT - 1)
        text.append(f"{value:8.{2 if span < 10 else 1}f} " if row % 5 == 0 or row == HEIGHT - 1 else " " * 9)
        for column in range(width):
            if (row, column) in marks:
                number = marks[row, column]
                text.append(LETTERS[number], f"bold {COLOURS[number]}")
            elif (row, column) in dots:
                bits, number = dots[row, column]
                text.append(chr(0x2800 + bits), COLOURS[number])
            else:
                text.append(" ")
        text.append("\n")
    start, end = (f"{value:g}" if by == "round" else f"{value:,.4g}" for value in (least, most))
    title = f"{by}; {TITLES[metric]}"
    text.append(f"{'':9}{start}{title.center(width - len(start) - len(end))}{end}\n")
    for number, line in enumerate(shown):
        text.append(f"  {LETTERS[number]}  ", f"bold {COLOURS[number]}")
        text.append(f"{line.points[-1][1]:8.2f}  {line.label}  ({line.note})\n")
    if len(lines) > MOST:
        text.append(f"     and {len(lines) - MOST} more with lower values; name fewer to see them\n")
    text.rstrip()
    return text


def _joined(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The dots of straight lines from each place to the next."""
    found = [*places[:1]]
    for (x, y), (to_x, to_y) in zip(places, places[1:], strict=False):
        steps = max(abs(to_x - x), abs(to_y - y), 1)
        found += [(x + round((to_x - x) * at / steps), y + round((to_y - y) * at / steps)) for at in range(steps + 1)]
    return found


def _kept_below(target: str, results: Path) -> dict[str, Path]:
    """The compact records that a path stands for, by their path as runs."""
    name = target.removeprefix("runs/").strip("/")
    paths = [results / f"{name}.json", *sorted((results / name).glob("**/[!.]*.json"))]
    return {path.relative_to(results).with_suffix("").as_posix(): path for path in paths if path.is_file()}


def _label(folder: Path, runs: Path) -> str:
    return folder.relative_to(runs).as_posix() if folder.is_relative_to(runs) else str(folder)


def _run(path: Path) -> Run:
    """The run of a record's folder or of a compact record's file."""
    return needed_run(path) if path.is_dir() else _compact(path).run


def _compact(path: Path) -> Compact:
    record = read_compact(path)
    assert record is not None
    return record


def _line(label: str, path: Path, by: str, metric: str) -> Line:
    """The curve of a run's folder or of a compact record's file; without points if that has no rounds."""
    if path.is_dir():
        run, rounds = needed_run(path), read_rounds(path)
    else:
        run, rounds = (record := _compact(path)).run, record.rounds()
    lines = [line for line in rounds if not line.fine_tuning]
    sent = [*accumulate(AXES[by](line) if line.round or by != "round" else 0.0 for line in lines)]
    points = [
        (x, y) for x, line in zip(sent, lines, strict=True) if line.round and (y := METRICS[metric](line)) is not None
    ]
    played = max((line.round for line in lines), default=0)
    note = f"{played} rounds" if run.complete else f"round {played} of {run.rounds}"
    note += "" if path.is_dir() else ", in git"
    return Line(f"{run.experiment}/{run.row}", label, note, points)


def _mean(lines: Sequence[Line]) -> Line:
    """The mean of a row's curves, as far as all of them go; of a single one, this one."""
    if len(lines) == 1:
        return lines[0]
    length = min(len(line.points) for line in lines)
    points = [
        (mean(line.points[at][0] for line in lines), mean(line.points[at][1] for line in lines))
        for at in range(length)
    ]
    return Line(lines[0].row, lines[0].row, f"mean of {len(lines)} runs", points)
