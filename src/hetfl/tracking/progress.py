"""What a person sees while cells train: bars on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from rich import progress as bars
from rich.console import Console
from rich.filesize import decimal

from hetfl.experiments.events import Event
from hetfl.experiments.standing import Standing
from hetfl.schema import Round, Run, in_words, troubles

# A plain log is told the overall state when this many seconds passed without a line.
HEARTBEAT = 30.0


@dataclass
class _Cell:
    run: Run
    bar: bars.TaskID
    standing: Standing
    end: int
    rounds: int = 0
    accuracy: list[float | None] = field(default_factory=list)
    up: int = 0
    down: int = 0
    seconds: float = 0.0
    troubles: dict[str, int] = field(default_factory=dict)
    missed: set[str] = field(default_factory=set)

    def add(self, line: Round) -> None:
        if not line.fine_tuning:  # what comes after the last round is none of them
            self.rounds = max(self.rounds, line.round)
        self.accuracy = line.accuracy or self.accuracy
        self.standing = self.standing.after(line)
        if (end := self.standing.end) is not None:
            self.end = min(self.run.rounds, max(self.end, end))
        self.troubles = troubles([line]) | self.troubles
        self.up += line.up.bytes
        self.down += line.down.bytes
        self.seconds += sum(line.seconds.values())

    def news(self, line: Round) -> Iterator[str]:
        """What goes wrong in a round for the first time."""
        if line.diverged and "diverged" not in self.troubles:
            some = f"{len(line.diverged)} of {self.run.clients} clients"
            yield f"the loss or scores of {some} are not finite in round {line.round}"
        for client, reason in line.failed.items():
            if client not in self.missed:
                yield f"client {client} {reason}; round {line.round} went on without it"
            self.missed.add(client)

    def score(self) -> str:
        """The accuracy in percent, and when a run first diverged, or went on without a client.

        It is the clients' mean (lowest-highest); of a run with patience see :class:`Standing`.
        """
        shown = "-"
        if self.standing.best is not None:
            shown = str(self.standing)
        elif percent := [100 * value for value in self.accuracy if value is not None]:
            shown = f"{sum(percent) / len(percent):.1f} ({min(percent):.1f}-{max(percent):.1f})"
        return ", ".join(filter(None, [shown, in_words(self.troubles)]))

    def traffic(self) -> str:
        return f"up {decimal(self.up)}, down {decimal(self.down)}"


class Progress:
    """A subscriber that shows how far all cells together are, and each running one.

    Args:
        expected: how many rounds each cell that will be told of is expected to play in all, by its path. One that was
            complete before counts, and is not shown. A run with patience plays on while its best round is young.
        console: where to write; standard output by default.
        beyond: seconds that tables need after these cells, by name.
    """

    def __init__(
        self,
        expected: Mapping[Path, int],
        console: Console | None = None,
        beyond: Mapping[str, float] | None = None,
    ) -> None:
        self._expected = dict(expected)
        self._beyond = dict(beyond or {})
        self._console = console or Console()
        self._plain = not self._console.is_terminal or self._console.is_dumb_terminal
        self._running: dict[Path, _Cell] = {}
        self._cells, self._done, self._trained = len(expected), 0, 0
        self._begin = self._spoke = time.monotonic()
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[note]}", markup=False),
            bars.TimeRemainingColumn(),
            console=self._console,
            refresh_per_second=4,
            transient=True,
            speed_estimate_period=float("inf"),
            disable=self._plain,
        )
        self._total = sum(expected.values())
        self._bars.add_task("rounds", total=self._total, note=self._count())
        self._all = self._bars.tasks[0]

    def told(self, event: Event) -> None:
        """Show an event."""
        if event.run and event.run.complete:
            self._finish(event.folder, event.run)
        elif event.run:
            self._start(event.folder, event.run)
        cell = self._running.get(event.folder)
        if cell is None:
            return
        before, end = cell.rounds, cell.end
        for line in event.rounds:
            for told in cell.news(line):
                self._say(f"{_name(cell.run)}: {told}")
            cell.add(line)
        self._total += cell.end - end
        self._advance(cell.rounds - before, found=event.run is not None)
        self._bars.update(cell.bar, completed=cell.rounds, total=cell.end, note=f"{cell.score()}  {cell.traffic()}")
        if self._plain and time.monotonic() - self._spoke >= HEARTBEAT:
            seconds = self._all.time_remaining
            left = "time left unknown" if seconds is None else f"{_clock(seconds)} left{self._tables()}"
            self._say(f"{self._all.percentage:3.0f}% of {self._all.total} rounds, {left}")

    def close(self) -> None:
        """Leave the terminal as it was, the last state still readable."""
        self._bars.stop()
        took = _clock(time.monotonic() - self._begin)
        if self._trained or self._running:
            there = self._done - self._trained
            before = f", {there} were complete before" if there else ""
            unfinished = f", {len(self._running)} not finished" if self._running else ""
            self._say(f"{self._trained} of {self._cells} cells trained in {took}{before}{unfinished}")
        elif self._done:
            self._say(f"{self._done} of {self._cells} cells were complete before")

    def _start(self, folder: Path, run: Run) -> None:
        self._bars.start()  # not before a cell trains: of those that were there, there is nothing to show
        end = self._end(run)
        bar = self._bars.add_task(_name(run), total=end, note="")
        self._running[folder] = _Cell(run, bar, Standing(run.settings.get("patience")), end)

    def _finish(self, folder: Path, run: Run) -> None:
        self._done += 1
        cell = self._running.pop(folder, None)
        # What stopped early leaves no rounds to wait for.
        self._advance(cell.end - cell.rounds if cell else self._end(run), found=cell is None)
        self._bars.update(self._all.id, note=self._count())
        if cell is None:
            return
        self._trained += 1
        self._bars.remove_task(cell.bar)
        count = f"{self._done:{len(str(self._cells))}}/{self._cells}"
        result = f"{cell.rounds} rounds, accuracy {cell.score()}, {cell.traffic()}, {cell.seconds:.1f} s"
        self._say(f"[{count}] {_name(run)}: {result}")

    def _end(self, run: Run) -> int:
        return self._expected.get(run.path, run.rounds)

    def _advance(self, rounds: int, found: bool) -> None:
        """Count rounds; those that a record holds already say nothing about the speed."""
        done = int(self._all.completed) + rounds
        if found and rounds:
            self._bars.reset(self._all.id, total=self._total, completed=done, note=self._count())
        else:
            self._bars.update(self._all.id, total=self._total, completed=done)

    def _count(self) -> str:
        return f"{self._done}/{self._cells} cells{self._tables()}"

    def _tables(self) -> str:
        """The time left of whole tables, as soon as that of these cells is known."""
        own = self._all.time_remaining if self._bars.tasks else None
        if own is None:
            return ""
        return "".join(f"; {table}: {_clock(own + seconds)} left" for table, seconds in self._beyond.items())

    def _say(self, line: str) -> None:
        self._spoke = time.monotonic()
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _name(run: Run) -> str:
    return f"{run.row} {run.split} s{run.seed}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
