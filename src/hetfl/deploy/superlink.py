"""The server's side of Flower: the SuperLink, a process that only passes messages on, and what commands it.

The SuperLink executes nothing. Its Control API, which registers nodes and starts runs, answers only who knows a
secret that is made anew for each start: by itself Flower lets everyone who reaches the port use it.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hetfl.deploy.keys import public_key
from hetfl.deploy.processes import PARENT, end_with_parent
from hetfl.deploy.settings import Server
from hetfl.errors import HetflError, one_line

HEADER = "x-hetfl-secret"
"""The HTTP header that carries the secret."""

CONTROL = "/v1/control"

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
"""Flower's call that only those who know the secret may make."""

TAKEN = "a node with this key is connected"
"""What a SuperLink says to a node that may take part and cannot now."""

PATIENCE = 30.0
"""Seconds after which a line says that the SuperLink does not answer yet."""

LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""Addresses that stand for all of a machine's -> the one by which it reaches itself."""

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_LOG_LEVEL": "WARNING",
}
"""Environment in which Flower tells nobody anything and installs nothing."""


def environment(folder: Path) -> dict[str, str]:
    """The environment of processes that this one starts, and which end with it; Flower's files are below a folder."""
    told = {"FLWR_HOME": str(folder.absolute() / "flwr"), PARENT: str(os.getpid())}
    return {**os.environ, **QUIET, **direct(), **told}


def direct(*hosts: str) -> dict[str, str]:
    """Environment in which no proxy stands between this machine and itself, nor between it and some hosts."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    wanted = ",".join(dict.fromkeys([*filter(None, known.split(",")), "127.0.0.1", "::1", "localhost", *hosts]))
    return {"NO_PROXY": wanted, "no_proxy": wanted}


def start(server: Server, insecure: bool, secret: Path) -> subprocess.Popen[bytes]:
    """Start a SuperLink; it writes its log to ``superlink.log``.

    Raises:
        HetflError: nobody can listen at the server's address.
    """
    host, _, port = server.address.rpartition(":")
    check_address(host.strip("[]"), int(port))
    arguments = ["--host", host.strip("[]"), "--port", port, "--isolation", "process"]
    arguments += ["--superexec-auth-secret-file", str(secret), "--disable-runtime-dependency-installation"]
    if insecure:
        arguments += ["--insecure"]
    else:
        files = {"certfile": server.certificate, "keyfile": server.key, "ca-certfile": server.authority}
        arguments += [word for name, file in files.items() for word in (f"--ssl-{name}", str(file))]
        arguments += ["--enable-supernode-auth"]
    with (server.folder / "superlink.log").open("ab") as log:
        command = [sys.executable, "-m", __name__, str(secret), *arguments]
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment(server.folder), cwd=server.folder)


def check_address(host: str, port: int) -> None:
    """Check that a process can listen at an address.

    Raises:
        HetflError: another one does, or it is no address of this machine.
    """
    where = f"server.address: {host}:{port}"
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except socket.gaierror as error:
        raise HetflError(
            f"{where}: {host} has no address here; use one of this machine, or 0.0.0.0 for all"
        ) from error
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: "another process listens there; end it, or use another port",
            errno.EADDRNOTAVAIL: "is no address of this machine; use one that it has, or 0.0.0.0 for all",
            errno.EACCES: "a port below 1024 is for root; use a larger one",
        }
        raise HetflError(f"{where}: {reasons.get(error.errno or 0, str(error))}") from error


def run(secret: bytes, arguments: list[str]) -> None:
    """Be a SuperLink until a signal or its parent's end ends the process."""
    end_with_parent()  # before imports that take seconds

    from flwr.supercore.error import FlowerError
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse
    from starlette.types import ASGIApp, Receive, Scope, Send

    class Guard:
        """Lets only those use the Control API who know the secret."""

        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            """Answer a request, or hand it on."""
            given = dict(scope.get("headers") or ()).get(HEADER.encode(), b"")
            if scope.get("path", "").startswith(CONTROL) and not hmac.compare_digest(given, secret.hex().encode()):
                await PlainTextResponse("the control API is the server's own", 403)(scope, receive, send)
                return
            await self.app(scope, receive, send)

    activate = fleet_handlers.activate_node

    def activate_node(request: Any, state: Any) -> Any:
        """Admit a node; Flower's answer to one that is connected is that to a stranger."""
        try:
            return activate(request, state)
        except FlowerError as error:
            if state.get_node_id_by_public_key(request.public_key) is not None:
                error.public_details = TAKEN
            raise

    fleet_handlers.activate_node = activate_node
    before = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(Guard), *before())
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "nothing")


class Control:
    """Commands a SuperLink: registers nodes, begins runs and takes their tasks.

    Args:
        server: its settings.
        secret: that the SuperLink knows, too.
        insecure: whether it speaks plain HTTP.
    """

    def __init__(self, server: Server, secret: bytes, insecure: bool) -> None:
        self._secret, self._insecure = secret, insecure
        host, _, port = server.address.rpartition(":")
        # The server speaks to its own SuperLink by the loopback interface where that listens, too. Its certificate
        # names what nodes call it.
        own = LOOPBACK.get(host, host)
        self.address = f"{own}:{port}"
        os.environ |= direct(own.strip("[]"))  # where Flower's clients look for a proxy
        self._untrusted = (
            f"server.certificate: {server.certificate} is not signed by server.authority, or has expired; "
            "remove it and run hetfl certs"
        )
        self._verify: ssl.SSLContext | bool = False
        if not insecure:
            self._verify = ssl.create_default_context(cafile=server.authority)
            self._verify.check_hostname = False

    def _client(self, kind: Any, *interceptors: Any) -> Any:
        scheme = "http" if self._insecure else "https"
        return kind(f"{scheme}://{self.address}", interceptors=interceptors, verify=self._verify)

    @contextlib.contextmanager
    def _control(self) -> Iterator[Any]:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        secret = self._secret.hex()

        class Show:
            def intercept(self, context: Any, call_next: Any) -> Any:
                context.request.headers[HEADER] = secret
                return call_next(context)

        with self._client(ControlHttpClient, RuntimeVersionHttpInterceptor(component_name="hetfl"), Show()) as client:
            yield client

    def wait(self, process: subprocess.Popen[bytes], log: Path, tell: Callable[[str], None]) -> None:
        """Wait until a SuperLink that was started answers, for as long as its process is there.

        Args:
            process: the SuperLink's.
            log: its log.
            tell: is told in a line that it takes long.

        Raises:
            HetflError: it ended, or its certificate is not one that the authority signed and that is valid.
        """
        import httpx
        from flwr.proto.control_pb2 import ListNodesRequest

        spoke = time.monotonic()
        while True:
            if (code := process.poll()) is not None:
                told = f"the SuperLink ended with status {code}"
                raise HetflError(f"{told}; the last line of {log} is: {last_line(log)}")
            try:
                with self._control() as control:
                    control.ListNodes(ListNodesRequest())
                return
            except httpx.HTTPError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):  # waiting would not help
                    raise HetflError(self._untrusted) from error
                if time.monotonic() - spoke > PATIENCE:
                    spoke = time.monotonic()
                    tell(f"the SuperLink at {self.address} does not answer yet ({one_line(error)}); waiting for it")
                time.sleep(0.2)

    def register(self, keys: Mapping[str, Path]) -> dict[int, str]:
        """Admit nodes by their public keys; returns their names by Flower's numbers.

        Raises:
            HetflError: a file is no public key.
        """
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        found = {}
        with self._control() as control:
            for name, path in keys.items():
                content = public_key_to_bytes(public_key(f"server.nodes.{name}.key", path))
                found[control.RegisterNode(RegisterNodeRequest(public_key=content)).node_id] = name
        return found

    def begin(self) -> Any:
        """Begin a run and take its task; the grid by which its messages go, with a heartbeat."""
        import hashlib

        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto, run_from_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.fab import Fab
        from flwr.supercore.interceptors import (
            RuntimeTokenHttpInterceptor,
            RuntimeVersionHttpInterceptor,
            SuperExecAuthHttpInterceptor,
        )
        from flwr.supercore.runtime import RuntimeHttpClient
        from flwr.supercore.task_identity import TaskIdentity
        from flwr.superlink.grid import HttpGrid

        fab, _ = build_fab_from_files(APP)
        with self._control() as control:
            proto = fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))
            number = control.StartRun(StartRunRequest(fab=proto)).run_id
        version = RuntimeVersionHttpInterceptor(component_name="hetfl")
        allowed = SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods=ACQUIRE)
        with self._client(RuntimeHttpClient, version, allowed) as client:
            while True:
                found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if found.token and found.task.run_id == number:
                    break
                time.sleep(0.05)
        grid = HttpGrid(self.address, self._insecure, token=found.token)
        # Its own client checks the certificate's names, and ends the process when the SuperLink was restarted.
        caller = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        grid._client = self._client(
            RuntimeHttpClient, grid._tracing, caller, RuntimeTokenHttpInterceptor(found.token)
        )
        given = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid.set_run(run_from_proto(given.run))
        return grid


APP: dict[str, bytes | Path] = {
    "pyproject.toml": b"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "hetfl-node"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "hetfl"

[tool.flwr.app.components]
serverapp = "hetfl_node:server_app"
clientapp = "hetfl_node:client_app"
""",
    "hetfl_node.py": b"# Flower wants code with each run. Nodes and server run the hetfl that is installed there.\n",
}
"""The app that Flower wants for a run. Neither side executes it."""


if __name__ == "__main__":
    run(Path(sys.argv[1]).read_bytes(), sys.argv[2:])
