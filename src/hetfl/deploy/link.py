"""A node's connection to the server: Flower's SuperNode, and beside it what answers its messages.

Flower would start a process for every message, which costs seconds of imports, and would run the code that came with
the run. Here one thread asks Flower's Runtime API for work and answers it with the installed ClientApp.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from flwr.app import Error, Message
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE, ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore import heartbeat
from flwr.supercore.constant import TaskType
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import RetryInvoker, exponential, make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode import fleet_http_connection
from flwr.supernode import start_client_internal as supernode
from flwr.supernode.cli import flower_supernode
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output
from httpx import HTTPStatusError, Response, codes

from hetfl.deploy.client_app import client_app
from hetfl.deploy.processes import MISTAKE, end_with_parent, ends_in_one_line, free_port, keep_running, new_secret
from hetfl.deploy.sent import noted_error
from hetfl.deploy.settings import Node, read_node
from hetfl.deploy.superlink import ACQUIRE, TAKEN
from hetfl.errors import one_line

log = logging.getLogger("hetfl.node")

HEARTBEAT = 15
"""Seconds that a node promises between two signs of life. It is away after two of them, and a node that was killed
can come back only then. Flower's own value is 30."""
OTHER = 3 * HEARTBEAT
"""Seconds after which a node with this key that is connected is another one. Before, it can be this one, killed."""
SHORTEST = 0.1
"""Seconds after which the server is asked again, once a message has come."""
AGAIN = 60.0
"""Seconds after which it is told again why the server cannot be reached."""
LONGEST = 4
"""The longest time between two tries to reach a server that does not answer, in seconds. Flower's own value is 20."""


class Waits:
    """The waits of the SuperNode's loop, which are numbers in Flower's code: 3 s for a message, 0.5 s for its reply.

    Args:
        longest: seconds between two questions to the server whether there is a message. After one has come they begin
            at :data:`SHORTEST` and double.
    """

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self.message, self.reply = threading.Event(), threading.Event()
        self._next = SHORTEST

    def sleep(self, seconds: float) -> None:
        """Stands where the loop calls :func:`time.sleep`."""
        if seconds < 1:
            self.message.set()
            self.reply.wait(seconds)
            self.reply.clear()
            self._next = SHORTEST
        else:
            time.sleep(min(self._next, self.longest))
            self._next *= 2


@contextmanager
def at_work(task: RuntimeHttpClient) -> Iterator[None]:
    """Within, Flower hears every :data:`HEARTBEAT` seconds that an answer is worked at.

    It gives up a message of whose answer it hears nothing for a minute, and a round of training can take longer.
    """
    done = threading.Event()

    def tell() -> None:
        while not done.wait(HEARTBEAT):
            try:
                task.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except Exception as error:  # the next one may come through
                log.warning("the SuperNode's Runtime API: %s: %s", type(error).__name__, error)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def answer_messages(node: Node, address: str, secret: bytes, waits: Waits) -> None:
    """Take each message that the SuperNode has received to the worker, and give it the reply; for good.

    Args:
        node: the node.
        address: of the SuperNode's Runtime API.
        secret: that the SuperNode knows, too.
        waits: say when a message has come, and are told of its reply.
    """
    app = client_app(node.name, node.socket)
    version = RuntimeVersionHttpInterceptor(component_name="hetfl")
    allowed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=ACQUIRE)
    client = RuntimeHttpClient.from_server_address(address, True, None, [version, allowed])
    while True:
        waits.message.wait()
        waits.message.clear()
        try:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            if not found.token:
                continue
            token = RuntimeTokenHttpInterceptor(found.token)
            with RuntimeHttpClient.from_server_address(address, True, None, [version, token]) as task:
                message, context, _, _ = pull_task_input(task)
                try:
                    with at_work(task):
                        reply = app(message=message, context=context)
                except Exception as error:
                    log.error("%s", error)
                    reason = noted_error(node, error)
                    reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
                push_message(task, reply, context)
                push_task_output(task, context, SubStatus.COMPLETED, "")
        except Exception as error:  # the server asks again what it gets no answer to
            log.warning("the SuperNode's Runtime API: %s: %s", type(error).__name__, error)
        waits.reply.set()


def soon(node: Node, told: dict[str, float]) -> RetryInvoker:
    """Flower's way to try again what did not reach the server, with shorter waits and reasons.

    A node that the server does not admit tries again, too, but ends with :data:`MISTAKE` if another one has its key.

    Args:
        node: whose server it is.
        told: when each reason was told last, by :func:`time.monotonic`.
    """
    invoker = make_simple_http_retry_invoker()
    invoker.wait_gen_factory = partial(exponential, max_delay=LONGEST)
    gives_up = invoker.should_giveup
    taken: list[float] = []

    def giving_reasons(error: Exception) -> bool:
        refused, reason = refusal(error)
        if reason == TAKEN:
            taken.append(time.monotonic())
            if taken[-1] - taken[0] > OTHER:
                known = f"{node.name}: node.key: {node.key}: {TAKEN} to {node.server}"
                print(f"error: {known}; end that one, or have hetfl certs make a key for this one", file=sys.stderr)
                sys.exit(MISTAKE)
        if time.monotonic() - told.get(reason, -AGAIN) >= AGAIN:
            told[reason] = time.monotonic()
            log.warning("%s: the server at %s cannot be reached (%s); trying again", node.name, node.server, reason)
        return not refused and (gives_up is None or gives_up(error))

    invoker.should_giveup = giving_reasons
    return invoker


def refusal(error: Exception) -> tuple[bool, str]:
    """Whether the server does not admit a node, and why it cannot be reached."""
    unknown = "it does not know this node's key"
    if not isinstance(error, HTTPStatusError):
        return False, one_line(error)
    said = FlowerError.from_json(error.response.text)
    if said and said.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        return True, said.public_details or unknown
    if error.response.status_code != codes.UNAUTHORIZED:
        return False, one_line(error)
    return False, skewed(error.response) or unknown


def skewed(response: Response) -> str | None:
    """That a server refuses a node for its clock, with which requests are signed; None: for another reason."""
    try:
        ahead = time.time() - parsedate_to_datetime(response.headers.get("date", "")).timestamp()
    except ValueError:
        return None
    # The server's time has no fractions of a second.
    if -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE - 1:
        return None
    return f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"


def connect(node: Node, insecure: bool) -> None:
    """Connect a node to its server, until the connection or a signal ends the process."""
    end_with_parent()
    waits = Waits(node.poll)
    vars(supernode)["time"] = SimpleNamespace(sleep=waits.sleep)
    vars(fleet_http_connection)["make_simple_http_retry_invoker"] = partial(soon, node, {})
    for module in (heartbeat, fleet_http_connection):
        vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = HEARTBEAT
    port, secret = free_port(), new_secret(node.folder)
    arguments = ["--superlink", node.server, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--superexec-auth-secret-file", str(secret)]
    if insecure:
        arguments += ["--insecure"]
    else:
        arguments += ["--root-certificates", str(node.authority), "--auth-supernode-private-key", str(node.key)]
    sys.argv = ["flower-supernode", *arguments]
    work = (node, f"127.0.0.1:{port}", secret.read_bytes(), waits)
    threading.Thread(target=answer_messages, args=work, daemon=True).start()
    try:
        flower_supernode()
    except SystemExit as ended:
        os._exit(MISTAKE if ended.code == MISTAKE else 1)
    finally:
        # Its HTTP server would keep a process without a connection alive.
        os._exit(1)


def run(file: Path, insecure: bool) -> None:
    """Keep a node connected to its server, until a signal ends the process.

    Flower ends the process when the SuperLink was started again and does not know the node, and when a connection
    breaks while keys are exchanged. To import Flower again would take seconds, on a busy machine twenty, so each
    connection is a fork.
    """
    node = read_node(file, insecure)
    keep_running(partial(connect, node, insecure), lambda line: log.warning("%s: the connection %s", node.name, line))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("flwr").propagate = False  # it writes its own lines
    ends_in_one_line(partial(run, Path(sys.argv[1]), "--insecure" in sys.argv))
