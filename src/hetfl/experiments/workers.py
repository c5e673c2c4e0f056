"""Processes of this machine that do one cell's work after another. One that dies costs its own cell a round."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from threadpoolctl import threadpool_limits

from hetfl.spawn import SPAWN, start

GRACE = 0.3
"""Seconds that interrupted processes have to write what they completed."""

Task = TypeVar("Task")


class Worker(Generic[Task]):
    """A process of its own, and the task that it does.

    Args:
        do: does a task and says what went wrong in one line, or None; picklable.
        threads: of libraries for linear algebra.
    """

    def __init__(self, do: Callable[[Task], str | None], threads: int) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = start(_work, theirs, do, threads)
        theirs.close()  # so that the pipe ends with the process
        self.task: Task | None = None

    @property
    def done(self) -> Task:
        """The task that it was given."""
        assert self.task is not None
        return self.task

    def give(self, task: Task) -> None:
        """Have it do a task; :attr:`pipe` is ready when its result is."""
        self.task = task
        with suppress(OSError):  # if it has died, its result says so
            self.pipe.send(task)

    def result(self) -> str | None:
        """What went wrong with its task in one line, or None. A worker that has died is not alive afterwards."""
        try:
            reason: str | None = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            reason = f"its process {_ending(self.process.exitcode)}; the same command continues the cell"
        self.task = None
        return reason


def end(workers: Iterable[Worker[Task]], interrupted: bool = False) -> None:
    """Let processes go, those that work at the moment after :data:`GRACE` seconds at most; all state is on disk.

    Args:
        workers: the processes.
        interrupted: tell them to give up what they do.
    """
    workers = list(workers)
    for worker in workers:
        worker.pipe.close()
        if interrupted:
            worker.process.terminate()
    deadline = time.monotonic() + GRACE
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        worker.process.kill()
        worker.process.join()


def orphaned(seconds: float | None = None) -> bool:
    """Whether the process that this one works for has died; a :data:`hetfl.experiments.stop.Stop`."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def _ending(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "was killed by the system, probably for memory (fewer compute.jobs need less)"
    # A process that handles a signal says so by its status.
    number = -code if code and code < 0 else (code or 0) - 128
    known = number in [*signal.Signals]
    return f"was ended by {signal.Signals(number).name}" if known else f"ended with status {code}"


def _work(pipe: Connection, do: Callable[[Task], str | None], threads: int) -> None:
    """Do tasks until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes, and the one that began them decides
    with threadpool_limits(threads):
        while True:
            try:
                task = pipe.recv()
                pipe.send(do(task))
            except (EOFError, OSError, KeyboardInterrupt):
                return
            gc.collect()
