"""Keeps a node's two processes alive: the worker, which opens no connection, and the link, which has no data."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from filelock import FileLock, Timeout

from hetfl.deploy.handover import listens
from hetfl.deploy.processes import MISTAKE
from hetfl.deploy.settings import Node
from hetfl.deploy.superlink import environment
from hetfl.errors import HetflError

log = logging.getLogger("hetfl.node")

PROCESSES = ("worker", "link")
LONGEST = 30.0
"""Seconds between two starts of a process that ends at once."""
STEADY = 60.0
"""Seconds after which a process that ends is started again without waiting."""


class Supervisor:
    """Starts a node's processes, and again those that end.

    The link waits for the worker: the server asks nothing of a node that is not ready, and its deadline is for work.

    Args:
        file: the deployment's file.
        node: the node's part of it.
        insecure: whether to go without TLS and authentication.
    """

    def __init__(self, file: Path, node: Node, insecure: bool) -> None:
        self.file, self.node = file, node
        self._end = threading.Event()
        self._commands = {
            name: [
                sys.executable,
                "-m",
                f"hetfl.deploy.{name}",
                str(file.absolute()),
                *(["--insecure"] if insecure else []),
            ]
            for name in PROCESSES
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> int:
        """Keep the processes alive until SIGTERM or Ctrl-C, or a mistake in the node's own files, then end them.

        Returns:
            The exit status: 0, or :data:`MISTAKE` if one of them ended with it, having said why in a line.

        Raises:
            HetflError: another process does this for the node's folder.
        """
        folder = self.node.folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        try:
            with FileLock(folder / "lock", timeout=0):
                return self._run()
        except Timeout as error:
            told = f"{folder} is that of a node that has joined; end its hetfl join, or use another folder"
            raise HetflError(f"{self.file}: node.folder: {told}") from error

    def _run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end.set())
        starts = {name: 0.0 for name in PROCESSES}
        pause = {name: 0.0 for name in PROCESSES}
        try:
            while not self._end.is_set():
                for name in PROCESSES:
                    process = self._running.get(name)
                    if process is not None and process.poll() is None:
                        continue
                    if process is not None and process.returncode == MISTAKE:
                        return MISTAKE
                    if process is None and name == "link" and not listens(self.node.socket):
                        continue
                    since = time.monotonic() - starts[name]
                    if process is not None and since < pause[name]:
                        continue
                    if process is not None:
                        pause[name] = 1.0 if since > STEADY else min(LONGEST, 2 * pause[name])
                        log.warning("%s: the %s ended with status %d; starting it again", *self._said(name, process))
                    else:
                        pause[name] = 1.0
                    starts[name] = time.monotonic()
                    self._running[name] = self._start(name)
                self._end.wait(0.2)
            return 0
        finally:
            self.stop()

    def stop(self) -> None:
        """End the processes."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _said(self, name: str, process: subprocess.Popen[bytes]) -> tuple[str, str, int]:
        return self.node.name, name, process.returncode

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        env = environment(self.node.folder)
        if name == "worker":
            # Sums of floats depend on the number of threads.
            env |= {"OMP_NUM_THREADS": str(self.node.threads)}
        process = subprocess.Popen(self._commands[name], env=env, cwd=self.node.project)
        (self.node.folder / f"{name}.pid").write_text(f"{process.pid}\n")
        return process
