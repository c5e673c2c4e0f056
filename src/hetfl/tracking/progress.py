"""What a person sees while cells train: a live display on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hetfl.schema import Round, Run

# A plain log is told the overall state when this many seconds passed without a line.
HEARTBEAT = 30.0
SHOWN_CELLS = 20


@dataclass
class _Cell:
    run: Run
    seen: float
    older: bool
    rounds: int = 0
    accuracy: list[float | None] = field(default_factory=list)
    up: int = 0
    down: int = 0
    seconds: float = 0.0
    diverged: int | None = None
    done: bool = False

    @property
    def name(self) -> tuple[str, str, str]:
        return self.run.row, self.run.split, f"s{self.run.seed}"

    def add(self, line: Round) -> None:
        if not line.fine_tuning:  # what comes after the last round is none of them
            self.rounds = max(self.rounds, line.round)
        self.accuracy = line.accuracy or self.accuracy
        if line.diverged and self.diverged is None:
            self.diverged = line.round
        self.up += line.up.bytes
        self.down += line.down.bytes
        self.seconds += sum(line.seconds.values())

    def score(self) -> str:
        """Mean (lowest-highest) accuracy in percent, and since when a loss or scores are not finite."""
        shown = "-"
        if percent := [100 * value for value in self.accuracy if value is not None]:
            shown = f"{sum(percent) / len(percent):.1f} ({min(percent):.1f}-{max(percent):.1f})"
        return shown if self.diverged is None else f"{shown}, diverged in round {self.diverged}"

    def traffic(self) -> str:
        return f"up {size(self.up)}, down {size(self.down)}"


class Progress:
    """A watch subscriber that shows how far all cells together are, and each running one.

    Args:
        total_cells: the number of cells that will be told of.
        total_rounds: the sum of their rounds.
        console: where to write; standard output by default.
    """

    def __init__(self, total_cells: int, total_rounds: int, console: Console | None = None) -> None:
        self._console = console or Console()
        self._total_cells, self._total_rounds = total_cells, total_rounds
        self._cells: dict[Path, _Cell] = {}
        self._begin = self._spoke = time.monotonic()
        self._born = datetime.now(UTC)
        self._found = 0
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)

    def started(self, folder: Path, run: Run) -> None:
        """A cell begins, resumes or is found complete."""
        older = datetime.fromisoformat(run.started) < self._born
        self._cells[folder] = _Cell(run, time.monotonic(), older)
        if self._live and not self._live.is_started:
            self._live.start()

    def round(self, folder: Path, run: Run, line: Round) -> None:
        """A cell is one round further."""
        cell, now = self._cells[folder], time.monotonic()
        before = cell.rounds
        cell.add(line)
        # What a resumed or complete cell brings along comes at once, and says nothing about the speed.
        if cell.older and now - cell.seen < 0.2:
            self._found += cell.rounds - before
        if not self._live and now - self._spoke >= HEARTBEAT:
            self._say(f"{self._share():4.0%} of {self._total_rounds} rounds, {self._left()}")

    def finished(self, folder: Path, run: Run) -> None:
        """A cell is complete."""
        cell = self._cells[folder]
        cell.run, cell.done = run, True
        if not self._live:
            count = f"{self._done():{len(str(self._total_cells))}}/{self._total_cells}"
            result = f"{cell.rounds} rounds, accuracy {cell.score()}, {cell.traffic()}, {cell.seconds:.1f} s"
            self._say(f"[{count}] {' '.join(cell.name)}: {result}")

    def close(self) -> None:
        """Leave the terminal as it was, the last state still readable."""
        if self._live:
            self._live.stop()
        elif self._cells:
            self._say(f"{self._done()} of {self._total_cells} cells complete after {_clock(self._elapsed())}")

    def _say(self, line: str) -> None:
        self._spoke = time.monotonic()
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _done(self) -> int:
        return sum(cell.done for cell in self._all())

    def _all(self) -> Iterator[_Cell]:
        # The display draws from its own thread.
        return iter(list(self._cells.values()))

    def _rounds(self) -> int:
        # What stopped early leaves no rounds to wait for.
        return sum(cell.run.rounds if cell.done else cell.rounds for cell in self._all())

    def _share(self) -> float:
        return min(1.0, self._rounds() / max(1, self._total_rounds))

    def _elapsed(self) -> float:
        return time.monotonic() - self._begin

    def _left(self) -> str:
        rounds = self._rounds()
        if rounds >= self._total_rounds:
            return "nothing left"
        new = rounds - self._found
        if new <= 0:
            return "time left unknown"
        return f"{_clock(self._elapsed() / new * (self._total_rounds - rounds))} left"

    def _render(self) -> RenderableType:
        overall = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, self._total_rounds), completed=self._rounds(), width=40)
        overall.add_row(bar, f"{self._share():.0%}", f"{self._done()}/{self._total_cells} cells", self._left())
        running = [cell for cell in self._all() if not cell.done]
        lines = Table.grid(padding=(0, 2))
        for cell in running[:SHOWN_CELLS]:
            columns = (*cell.name, f"round {cell.rounds}/{cell.run.rounds}", cell.score(), cell.traffic())
            lines.add_row(*(Text(column) for column in columns))
        if len(running) > SHOWN_CELLS:
            lines.add_row(Text(f"and {len(running) - SHOWN_CELLS} more"))
        return Group(overall, lines)


def size(count: float) -> str:
    """A number of bytes for a person, e.g. ``171 kB`` (powers of 1000, as in the tables)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "kB") else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
