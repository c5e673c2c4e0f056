"""When a training stops before its end, to go on later from its last completed round."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Stop = Callable[[float | None], bool]
"""Asked before each round with the seconds that it will probably take (None: not known yet): whether to stop here."""


def never(seconds: float | None) -> bool:
    """Train to the end."""
    return False


@dataclass(frozen=True)
class Deadline:
    """Stop before a round that would end after a time.

    Attributes:
        at: seconds since the epoch, so that it means the same on other machines.
        round: seconds of a round as foreseen, until the training has measured its own.
    """

    at: float = math.inf
    round: float = 0.0

    def __call__(self, seconds: float | None) -> bool:
        return time.time() + (self.round if seconds is None else seconds) > self.at


SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command: from a scheduler or a shutdown, and from a terminal that closes."""


@contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP raise SystemExit, with the status 128 + their number that shells use.

    So the round is given up, and what was begun is closed. Signals that the process handles or ignores (``nohup``)
    are left alone, and so are threads, which get none.
    """
    ours = threading.current_thread() is threading.main_thread()
    taken = [number for number in SIGNALS if ours and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: object) -> None:
    for other in SIGNALS:
        signal.signal(other, _closing)  # a second one would interrupt the closing
    raise SystemExit(128 + number)


def _closing(number: int, frame: object) -> None:
    """Do nothing. Python prints a traceback if a signal came just before SIG_IGN was set."""
