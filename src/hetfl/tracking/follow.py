"""Events of runs, from the processes that train to whoever shows them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from hetfl.errors import one_line
from hetfl.experiments.events import Callback, Event

GRACE = 5.0
"""Seconds that an interrupted training waits for its subscribers."""
UNREAD = 128
"""Events that the socket holds until they are read; only then a sender waits."""
WAITING = 1000
"""Events that wait for a busy subscriber; further ones are dropped."""


class Subscriber(Protocol):
    """Whoever wants to know what happens in runs; called from one thread of its own."""

    def told(self, event: Event) -> None:
        """Something happened. Of one cell the events come in order, but some may be missing."""

    def close(self) -> None:
        """Nothing more will come. Called once, also after an error or an interruption."""


@contextmanager
def following(subscribers: Sequence[Subscriber]) -> Iterator[Callback | None]:
    """Tell subscribers of the runs that are given the callback.

    Cells train in several processes, so events come through a socket that only this user can reach. A subscriber that
    is slow misses events, and one that raises is dropped with a line on stderr: training neither waits for them nor
    sees their errors. Leaving the block closes the subscribers; leaving it by an exception waits for them at most
    :data:`GRACE` seconds.

    Yields:
        The callback; None where there can be no socket, which a line on stderr tells.
    """
    followers = [_Follower(subscriber) for subscriber in subscribers]
    for follower in followers:
        follower.start()
    try:
        listener = Listener(family="AF_UNIX", backlog=UNREAD)
    except OSError as error:
        print(f"hetfl: training is not shown before it ends ({one_line(error)})", file=sys.stderr)
        listener = None
    else:
        reader = Thread(target=_listen, args=(listener, followers), name="events", daemon=True)
        reader.start()
    sender = _Sender(listener.address) if listener else None
    patience: float | None = GRACE
    try:
        yield sender
        patience = None
    finally:
        if sender:
            with suppress(OSError):
                sender(None)  # is read after all that was sent before
            reader.join(patience)
        for follower in followers:
            follower.events.put(None)
        for follower in followers:
            follower.join(patience)
            if follower.is_alive():
                _warn(follower.subscriber, f"was still busy {GRACE:.0f} s after the interruption")


@dataclass(frozen=True)
class _Sender:
    """A callback for any process of this machine."""

    address: str

    def __call__(self, event: Event | None) -> None:
        with Client(self.address) as connection:
            connection.send(event)


def _listen(listener: Listener, followers: Sequence[_Follower]) -> None:
    """Read events until there comes None."""
    with listener:
        while True:
            connection = listener.accept()
            with connection, suppress(EOFError, OSError):  # a process was killed while it sent
                event = connection.recv()
                if event is None:
                    break
                for follower in followers:
                    if follower.is_alive() and follower.events.qsize() < WAITING:
                        follower.events.put(event)


class _Follower(Thread):
    """One subscriber, its thread, and what it was not told yet; None is the end."""

    def __init__(self, subscriber: Subscriber) -> None:
        super().__init__(name=type(subscriber).__name__, daemon=True)
        self.subscriber = subscriber
        self.events: SimpleQueue[Event | None] = SimpleQueue()

    def run(self) -> None:
        try:
            for event in iter(self.events.get, None):
                self.subscriber.told(event)
        except Exception as error:
            _warn(self.subscriber, f"stopped: {one_line(error)}")
        try:
            self.subscriber.close()
        except Exception as error:
            _warn(self.subscriber, f"did not close: {one_line(error)}")


def _warn(subscriber: Subscriber, what: str) -> None:
    advice = "the training goes on and its record is complete; run `hetfl sync` afterwards to mirror it"
    print(f"hetfl: {type(subscriber).__name__} {what}; {advice}", file=sys.stderr)
