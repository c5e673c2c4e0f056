"""A rehearsed deployment in real processes, which are ended by their ids whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from hetfl.deploy.processes import free_port
from hetfl.deploy.rehearse import write_deployment
from hetfl.deploy.superlink import QUIET
from hetfl.experiments.plan import Cell, Workspace
from hetfl.schema import ROUNDS

POLL = 0.3
"""The longest time between two of a node's questions for work, in seconds."""


class Deployment:
    """A server and nodes, each node a process with its children.

    Args:
        project: that has data, partitions and weights.
        cells: what is trained.
        folder: for the deployment.
        nodes: how many; None: one for each client.
        insecure: without TLS and authentication.
        host: where the server listens.
        server: settings of the server's part that differ.

    Attributes:
        address: host and port where the server listens.
        enter: what a process does before all else, by its name, such as moving to another namespace.
    """

    def __init__(
        self,
        project: Path,
        cells: list[Cell],
        folder: Path,
        nodes: int | None = None,
        insecure: bool = False,
        host: str = "127.0.0.1",
        **server: Any,
    ) -> None:
        self.folder, self.cells, self.insecure = folder, cells, insecure
        run = [cell.path.as_posix() for cell in cells]
        self.address = (host, free_port())
        self.names = write_deployment(cells, run, Workspace(project), folder, nodes, f"{host}:{self.address[1]}")
        self.change("server", "server", **server)
        for name in self.names:
            self.change(name, "node", poll=POLL)
        if insecure:
            self._forget_keys()
        self.enter: dict[str, Callable[[], None]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._family: dict[int, psutil.Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for name, process in self._running.items():
            self.note_family(name)
            process.terminate()
        deadline = time.monotonic() + 20
        for process in self._running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        for process in self._family.values():
            if process.is_running():
                process.kill()

    def change(self, file: str, part: str, **settings: Any) -> None:
        """Change settings of a file; None removes one."""
        path = self.folder / f"{file}.yaml"
        content = yaml.safe_load(path.read_text())
        content[part] = {k: value for k, value in (content[part] | settings).items() if value is not None}
        path.write_text(yaml.safe_dump(content))

    def _forget_keys(self) -> None:
        for name in self.names:
            self.change(name, "node", key=None, authority=None)
        nodes = yaml.safe_load((self.folder / "server.yaml").read_text())["server"]["nodes"]
        bare = {name: {"clients": member["clients"]} for name, member in nodes.items()}
        self.change("server", "server", key=None, certificate=None, authority=None, nodes=bare)
        shutil.rmtree(self.folder / "certs")

    def start(self, command: str, name: str) -> subprocess.Popen[bytes]:
        """Start ``hetfl serve`` or ``hetfl join``."""
        return self.run(name, "-m", "hetfl", command, f"{name}.yaml", *(["--insecure"] if self.insecure else []))

    def run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Python program that is known by a name, and by the name of its log."""
        environment = {**os.environ, **QUIET, "OMP_NUM_THREADS": "1"}
        environment["FLWR_HOME"] = str(self.folder / name / "flwr")
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, *arguments]
            first = self.enter.get(name)
            process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, env=environment, preexec_fn=first
            )
        self._running[name] = process
        return process

    def begin(self) -> None:
        """Start the server, and then all nodes: a node that finds nobody waits longer and longer."""
        self.start("serve", "server")
        self.until(self._listens, 240, "a SuperLink")
        for name in self.names:
            if name not in self._running:
                self.start("join", name)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(self.address) == 0

    def kill(self, name: str) -> None:
        """Kill -9 of a process and all that it has started."""
        family = self.note_family(name)
        self._running[name].kill()
        for process in family:
            if process.is_running():
                process.kill()
        self._running[name].wait()

    def note_family(self, name: str) -> list[psutil.Process]:
        """The processes that a process has started."""
        try:
            family = psutil.Process(self._running[name].pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        self._family |= {process.pid: process for process in family}
        return family

    def child(self, name: str, module: str) -> psutil.Process:
        """The process that runs a module for a node or the server."""
        for process in self.note_family(name):
            if f"hetfl.deploy.{module}" in process.cmdline():
                return process
        raise LookupError(f"{name} has no {module}")

    def signal(self, name: str, module: str, number: signal.Signals) -> None:
        """Send a signal to such a process."""
        self.child(name, module).send_signal(number)

    def ended(self, name: str, seconds: float) -> int:
        """The exit status of a process that ends by itself."""
        return self._running[name].wait(seconds)

    def lines(self, cell: Cell) -> int:
        """How many rounds a cell's record has."""
        path = self.folder / "server" / "runs" / cell.path / ROUNDS
        return path.read_text().count("\n") if path.exists() else 0

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> float:
        """Wait for a condition; returns how long it took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"{what} after {seconds:g} s\n{self.log('server')[-3000:]}")
            server = self._running.get("server")
            if server is not None and server.poll() not in (None, 0, -signal.SIGKILL):
                raise RuntimeError(f"the server ended while waiting for {what}\n{self.log('server')[-3000:]}")
            time.sleep(0.1)
        return time.monotonic() - began

    def log(self, name: str) -> str:
        """What a process has said."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""
