"""Events of runs, from the processes that train to whoever shows them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from hetfl.errors import one_line
from hetfl.experiments.events import Callback, Event
from hetfl.spawn import SPAWN, start

GRACE = 0.3
"""Seconds that an interrupted training waits for its subscribers."""
PATIENCE = 60.0
"""Seconds that a training which has ended waits for them,"""
QUIET = 5.0
"""and those of them that pass without a word."""
LOWEST = 19
"""The priority of a process of which nobody waits for anything."""
UNREAD = 128
"""Events that the socket holds until they are read; only then a sender waits."""
WAITING = 1000
"""Events that wait for a busy subscriber; further ones are dropped."""


class Subscriber(Protocol):
    """Whoever wants to know what happens in runs; called from one thread of its own.

    It may have a ``title`` for messages, and a ``remedy``: what does later what it could not do.
    """

    def told(self, event: Event) -> None:
        """Something happened. Of one cell the events come in order, but some may be missing."""

    def close(self) -> None:
        """Nothing more will come. Called once, also after an error or an interruption."""


@contextmanager
def following(subscribers: Sequence[Subscriber]) -> Iterator[Callback | None]:
    """Tell subscribers of the runs that are given the callback.

    Cells train in several processes, so events come through a socket that only this user can reach. A subscriber that
    is slow misses events, and one that raises is dropped with a line on stderr: training neither waits for them nor
    sees their errors. Leaving the block closes the subscribers and waits for them, at most :data:`PATIENCE` seconds,
    or :data:`GRACE` where it is left by an exception.

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
    patience = GRACE
    try:
        yield sender
        patience = PATIENCE
    finally:
        deadline = time.monotonic() + patience
        if sender:
            with suppress(OSError):
                sender(None)  # is read after all that was sent before
            reader.join(patience)
        for follower in followers:
            follower.events.put(None)
        _await(followers, deadline, patience)


def _await(followers: Sequence[_Follower], deadline: float, patience: float) -> None:
    """Wait for subscribers until a deadline, and say so if they are slow."""
    quiet = min(deadline, time.monotonic() + QUIET)
    for follower in followers:
        follower.join(max(0.0, quiet - time.monotonic()))
    for follower in followers:
        if follower.is_alive() and (left := deadline - time.monotonic()) > 0:
            _tell(follower.subscriber, f"is not done; waiting for it, {left:.0f} s at most (Ctrl-C ends this)")
            follower.join(left)
        if follower.is_alive():
            _tell(follower.subscriber, f"was not done after {patience:g} s", left=True)


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
            _tell(self.subscriber, f"stopped ({one_line(error)})", left=True)
        try:
            self.subscriber.close()
        except Exception as error:
            _tell(self.subscriber, f"could not finish ({one_line(error)})", left=True)


def _tell(subscriber: Subscriber, what: str, left: bool = False) -> None:
    """Say on stderr what a subscriber does, and if something is ``left``, who does it."""
    name = getattr(subscriber, "title", type(subscriber).__name__)
    remedy = getattr(subscriber, "remedy", "")
    more = f"; the records have everything{', and ' * bool(remedy)}{remedy}" if left else ""
    print(f"hetfl: {name} {what}{more}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Relay:
    """A subscriber that hands events on to those of an outer block, which is left later.

    Attributes:
        told: the outer block's callback.
    """

    told: Callback

    def close(self) -> None:
        """Do nothing: the outer block closes its subscribers."""


class Apart:
    """A subscriber in a process of its own with the lowest priority, so that it takes little from the training.

    Args:
        make: makes the subscriber; picklable. Called here, too, so that its errors are raised at once.
    """

    def __init__(self, make: Callable[[], Subscriber]) -> None:
        self._make = make
        self._process: BaseProcess | None = None
        made = make()
        self.title = getattr(made, "title", type(made).__name__)
        self.remedy = getattr(made, "remedy", "")

    def told(self, event: Event) -> None:
        """Hand an event on; the process begins with the first."""
        self._send(event)

    def close(self) -> None:
        """Have the subscriber closed, and wait for it."""
        self._send(None)
        assert self._process is not None
        self._process.join()

    def _send(self, event: Event | None) -> None:
        if self._process is None:
            self._pipe, theirs = SPAWN.Pipe()
            self._process = start(_follow, theirs, self._make)
            theirs.close()
        with suppress(OSError):  # it has stopped and has said why
            self._pipe.send(event)


def _follow(pipe: Connection, make: Callable[[], Subscriber]) -> None:
    """Tell a subscriber what comes through a pipe, until that is None or the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes, and the first one decides
    os.nice(LOWEST)
    follower = _Follower(make())
    follower.start()
    with suppress(EOFError, OSError):
        while (event := pipe.recv()) is not None:
            if follower.is_alive() and follower.events.qsize() < WAITING:
                follower.events.put(event)
    follower.events.put(None)
    follower.join()
