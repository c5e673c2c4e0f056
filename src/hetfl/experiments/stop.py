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


@contextmanager
def terminable() -> Iterator[None]:
    """Within, SIGTERM raises KeyboardInterrupt, as Ctrl-C does: the round is given up, what was begun is closed.

    Signals that the process handles itself are left alone, and so are threads, which get none.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
