"""Processes that begin as a copy of the test process, and so import nothing anew."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """How a process ended; negative for a signal."""

    status: int
    stdout: str
    stderr: str


class Forked:
    """A process that does some work in a folder."""

    def __init__(self, folder: Path, work: Callable[[], object]) -> None:
        self._said = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - until it was waited for
        self.pid = os.fork()
        if not self.pid:
            os._exit(self._status(folder, work))

    def _status(self, folder: Path, work: Callable[[], object]) -> int:
        for number, file in enumerate(self._said, start=1):
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            os.chdir(folder)
            work()
            return 0
        except SystemExit as end:
            return int(end.code or 0)
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    def running(self) -> bool:
        """Whether it has not ended; it still has to be waited for."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self) -> Ended:
        """How it ended and what it said."""
        _, status = os.waitpid(self.pid, 0)
        said = []
        for file in self._said:
            file.seek(0)
            said.append(file.read().decode())
            file.close()
        return Ended(os.waitstatus_to_exitcode(status), *said)


def of_checkout(root: Path) -> None:
    """In a forked process: from now on hetfl is imported from the checkout at ``root``."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "hetfl"]:
        del sys.modules[name]
    sys.path.insert(0, str(root / "src"))
    os.environ.pop("MLFLOW_TRACKING_URI", None)
