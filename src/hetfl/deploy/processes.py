"""What a deployment's processes have in common."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from hetfl.errors import HetflError
from hetfl.files import write_new

LONGEST = 8.0
"""Seconds between two starts of work that ends at once, see :func:`keep_running`."""
STEADY = 10.0
"""Seconds after which work that ends is started again without waiting."""
MISTAKE = 2
"""Exit status of a process that cannot begin for a mistake in the node's own files, as of all commands of hetfl. To
start it again would not help."""
PARENT = "HETFL_PARENT"
"""The environment variable with the id of the process that starts another: it may end before that one can ask."""
TICK = 0.1
"""Seconds between two looks whether work has ended."""


def new_secret(folder: Path) -> Path:
    """A file with a fresh secret that only its owner reads."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "secret"
    path.unlink(missing_ok=True)
    write_new(path, secrets.token_bytes(32), 0o600)
    return path


def ends_in_one_line(run: Callable[[], object]) -> None:
    """Do a process's work; a mistake in its own files is one line on standard error, and :data:`MISTAKE`."""
    try:
        run()
    except HetflError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(MISTAKE)


def free_port() -> int:
    """A port of the loopback interface that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started_by() -> int:
    """The id of the process that started this one, which may have ended since where :data:`PARENT` tells it."""
    return int(os.environ.get(PARENT, os.getppid()))


def end_with_parent() -> None:
    """End this process once the one that started it has ended, however that happened and however early."""
    parent = started_by()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def keep_running(work: Callable[[], object], say: Callable[[str], object], first: float = 1.0) -> None:
    """Do work in a fork of this process, and again each time it ends, until a signal or the parent's end.

    A fork has all that this process has imported. SIGTERM tells it to end, and it is waited for. If it ends with
    :data:`MISTAKE`, so does this process.

    Args:
        work: ends its process, or returns.
        say: is told in a line that the work is started again.
        first: seconds from one start to the next if it ends at once; they double up to :data:`LONGEST`.
    """
    parent, own, pause, ended = started_by(), str(os.getpid()), 0.0, threading.Event()
    handlers = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    while not ended.is_set() and os.getppid() == parent:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            try:
                os.environ[PARENT] = own
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                work()
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(1)
        told = False
        while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
            if not told and (ended.is_set() or os.getppid() != parent):
                ended.set()
                os.kill(child, signal.SIGTERM)
                told = True
            time.sleep(TICK)
        if (status := os.waitstatus_to_exitcode(found[1])) == MISTAKE:
            sys.exit(MISTAKE)
        since = time.monotonic() - began
        pause = 0.0 if since > STEADY else min(LONGEST, max(first, 2 * pause))
        if not ended.wait(max(0.0, pause - since)):
            say(f"ended with status {status}; starting it again")
