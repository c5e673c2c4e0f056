"""How many cells a GPU trains at once: measured while they train, with nothing thrown away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, median
from threading import Lock

from hetfl.experiments.events import Event
from hetfl.experiments.plan import Cell

GAIN = 1.1
"""Twice as many at once must train so many times as many rounds a second to be kept."""
ROUNDS = 3
"""Rounds of a cell that make a measurement."""
MOST = 16
"""Cells at once on one GPU."""


def kind(cell: Cell) -> str:
    """Cells of one kind load a device alike."""
    return f"{cell.experiment}/{cell.method}"


class Together:
    """A subscriber that times the rounds of one device's cells; safe to use from several threads.

    With n cells at once, each round takes longer than alone. If the same cells' rounds take s times as long as they
    did with n/2, twice as many cells train 2/s times as many rounds a second. The number is doubled while that is
    faster by :data:`GAIN`; a measured number is used from the beginning.

    Args:
        speeds: what is known of the device: by kind of cell, cells at once -> speed relative to one alone.
        clock: seconds.
    """

    def __init__(
        self, speeds: Mapping[str, Mapping[int, float]] = {}, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.speeds = {name: {1: 1.0, **known} for name, known in speeds.items()}
        self._clock, self._lock = clock, Lock()
        self._kinds: dict[Path, str] = {}
        self._training: set[Path] = set()
        self._changed = clock()
        self._seconds: dict[tuple[Path, int], list[float]] = {}

    def begins(self, folder: Path, kind: str) -> None:
        """A cell is given to the device."""
        with self._lock:
            self._kinds[folder] = kind
            self.speeds.setdefault(kind, {1: 1.0})

    def ends(self, folder: Path) -> None:
        """It is done, or has stopped."""
        with self._lock:
            self._kinds.pop(folder, None)
            self._training.discard(folder)
            self._changed = self._clock()

    def told(self, event: Event) -> None:
        """Take the time of a round, if the same cells trained throughout; a cell's first round here prepares much."""
        with self._lock:
            if event.folder not in self._kinds or event.run is not None:
                return
            for line in event.rounds:
                seconds = sum(line.seconds.values())
                if event.folder not in self._training:
                    self._training.add(event.folder)
                    self._changed = self._clock()
                elif self._clock() - seconds >= self._changed:
                    at_once = len(self._training)
                    self._seconds.setdefault((event.folder, at_once), []).append(seconds)
                    self._compare(at_once)

    def close(self) -> None:
        """Nothing is left to do."""

    def wanted(self, kind: str) -> int:
        """How many cells the device should train at once, where the next would be of this kind."""
        with self._lock:
            speeds, best = self.speeds.setdefault(kind, {1: 1.0}), 1
            while 2 * best <= MOST:
                if 2 * best not in speeds:
                    # The next number is tried once there is something to compare it with.
                    timed = (len(self._seconds.get((folder, best), ())) >= ROUNDS for folder in self._training)
                    return 2 * best if any(timed) else best
                if speeds[2 * best] < GAIN * speeds[best]:
                    break
                best *= 2
            return best

    def _compare(self, at_once: int) -> None:
        """Set the speed of this number, from the cells that were timed with it and with half as many."""
        ratios: dict[str, list[float]] = {}
        for folder in self._training:
            pair = self._seconds.get((folder, at_once // 2), []), self._seconds.get((folder, at_once), [])
            if at_once % 2 == 0 and min(map(len, pair)) >= ROUNDS:
                ratios.setdefault(self._kinds[folder], []).append(median(pair[0]) / median(pair[1]))
        for name, found in ratios.items():
            if at_once // 2 in self.speeds[name]:
                self.speeds[name][at_once] = 2 * self.speeds[name][at_once // 2] * mean(found)
