"""Follow runs while they train: the record on disk is the event stream, so nothing has to be told twice."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from hetfl.errors import HetflError, one_line
from hetfl.schema import ROUNDS, RUN, Round, Run, read_round, read_run

# How long an interrupted run waits for its subscribers, in seconds.
GRACE = 5.0


class Subscriber(Protocol):
    """Something that wants to know what happens in the cells' folders; all calls come from one thread."""

    def started(self, folder: Path, run: Run) -> None:
        """A cell has a ``run.json``; called again if the cell is run anew."""

    def round(self, folder: Path, run: Run, line: Round) -> None:
        """One more line of ``rounds.jsonl``; every round once, in order."""

    def finished(self, folder: Path, run: Run) -> None:
        """``run.json`` says complete; all rounds were told before."""

    def close(self) -> None:
        """Nothing more will come. Called once, also after an error or an interruption."""


class Watcher:
    """Tells subscribers what happens in cell folders while the ``with`` block runs.

    Every subscriber has its own thread and its own place in each record, so a slow or failing one holds up
    nobody. One that raises is dropped with a line on stderr; the block itself never sees its error. Leaving
    the block reads everything once more and closes the subscribers; leaving it by an exception waits for
    them at most :data:`GRACE` seconds.

    Args:
        folders: the cells' folders; they need not exist yet.
        subscribers: who wants to know.
        interval: seconds between two looks at the folders.
        fingerprints: the only run that counts in a folder, by folder; an older one that still lies there is passed
            over. Folders that are not named take any run.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        subscribers: Sequence[Subscriber],
        interval: float = 0.5,
        fingerprints: Mapping[Path, str] | None = None,
    ) -> None:
        expected = {folder: (fingerprints or {}).get(folder) for folder in folders}
        self._followers = [_Follower(expected, subscriber, interval) for subscriber in subscribers]

    def __enter__(self) -> Watcher:
        for follower in self._followers:
            follower.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for follower in self._followers:
            follower.ending.set()
        for follower in self._followers:
            follower.join(None if kind is None else GRACE)
            if follower.is_alive():
                _warn(follower.subscriber, f"was still busy {GRACE:.0f} s after the interruption")


class _Follower(threading.Thread):
    def __init__(self, expected: Mapping[Path, str | None], subscriber: Subscriber, interval: float) -> None:
        super().__init__(name=f"watch-{type(subscriber).__name__}", daemon=True)
        self.subscriber = subscriber
        self.ending = threading.Event()
        self._cursors = [_Cursor(folder, fingerprint) for folder, fingerprint in expected.items()]
        self._interval = interval

    def run(self) -> None:
        try:
            self._follow()
        except Exception as error:
            _warn(self.subscriber, f"stopped: {one_line(error)}")
        try:
            self.subscriber.close()
        except Exception as error:
            _warn(self.subscriber, f"did not close: {one_line(error)}")

    def _follow(self) -> None:
        last = False
        while not last:
            last = self.ending.is_set()
            for cursor in self._cursors:
                cursor.advance(self.subscriber)
            if not last:
                self.ending.wait(self._interval)


class _Cursor:
    """How far one subscriber has read one cell's record."""

    def __init__(self, folder: Path, fingerprint: str | None) -> None:
        self._folder, self._fingerprint = folder, fingerprint
        self._stamp: tuple[int, ...] | None = None
        self._run: Run | None = None
        self._forget()

    def _forget(self) -> None:
        self._offset, self._last, self._done = 0, -1, False

    def advance(self, subscriber: Subscriber) -> None:
        """Tell the subscriber everything that is new."""
        run = self._read_run()
        if run is None or self._fingerprint not in (None, run.fingerprint):
            return
        if run is not self._run:
            before, self._run = self._run, run
            rerun = self._done and not run.complete
            if before is None or before.fingerprint != run.fingerprint or rerun:
                self._forget()
                subscriber.started(self._folder, run)
        if self._done:
            return
        for line in self._new_lines():
            # A resumed run writes the rounds after its resume point again, with the same numbers.
            if line.round > self._last:
                self._last = line.round
                subscriber.round(self._folder, run, line)
        if run.complete:
            self._done = True
            subscriber.finished(self._folder, run)

    def _read_run(self) -> Run | None:
        try:
            stat = (self._folder / RUN).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if stamp == self._stamp:
            return self._run
        self._stamp = stamp
        try:
            return read_run(self._folder)
        except HetflError:
            # Training says what is wrong with a damaged record, and must not lose its display over it.
            return None

    def _new_lines(self) -> Iterator[Round]:
        try:
            with (self._folder / ROUNDS).open("rb") as file:
                if self._offset:
                    # If the file was cut and rewritten, the place reached before is no line's end any more.
                    file.seek(self._offset - 1)
                    if file.read(1) != b"\n":
                        file.seek(0)
                        self._offset = 0
                content = file.read()
        except FileNotFoundError:
            return
        *lines, rest = content.split(b"\n")
        self._offset += len(content) - len(rest)
        for line in lines:
            # As above. Who reads the record afterwards names the line.
            with suppress(HetflError):
                yield read_round(line, self._folder / ROUNDS)


def _warn(subscriber: Subscriber, what: str) -> None:
    name = type(subscriber).__name__
    advice = "the training goes on and its record is complete; run `hetfl sync` afterwards to mirror it"
    print(f"hetfl: {name} {what}; {advice}", file=sys.stderr)
