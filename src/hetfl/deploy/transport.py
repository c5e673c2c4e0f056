"""Carries requests to nodes and their replies back, by the messages of Flower's grid."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

from hetfl.deploy.agreement import FINISHED
from hetfl.deploy.messages import QUERY, TRAIN, pack, pull
from hetfl.deploy.processes import new_secret
from hetfl.deploy.settings import Server
from hetfl.deploy.superlink import Control, start
from hetfl.errors import one_line
from hetfl.training.host import LIMIT
from hetfl.training.remote import Lost

HEARTBEAT = 10.0
"""Seconds between two signs of life; Flower takes a run for dead after 60 s without one."""
LOOK = 2.0
"""Seconds between two looks whether nodes have come back."""
RETURN = 60.0
"""Seconds in which nodes that are there find a SuperLink that was started again."""
NOTICE = 3600.0
"""Seconds in which a node may fetch the notice that a run is finished."""
AWAY = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""Flower's errors that say that a node is not there."""


@dataclass
class Sent:
    """A request that waits for its answer.

    Attributes:
        host: name of the node.
        body: the request.
        began: when it was first sent, by :func:`time.monotonic`.
        most: bytes of the answer.
        activated: when the node had last connected, as Flower says it.
    """

    host: str
    body: bytes
    began: float
    most: int
    activated: str = ""


@dataclass
class Carried:
    """What went over the network to a node and back, and how long it took.

    Attributes:
        down, up: bytes of the bodies of requests and replies, without hetfl's header and what Flower and HTTP add.
        waited: seconds from requests to replies.
        worked: seconds of them in the node's worker.
    """

    down: int = 0
    up: int = 0
    waited: float = 0.0
    worked: float = 0.0


class FlowerTransport:
    """A :class:`hetfl.training.remote.Transport` over a SuperLink that it starts and restarts.

    Args:
        server: its settings.
        insecure: whether to go without TLS and authentication.
        tell: is told in a line what an operator wants to know.

    Attributes:
        headers: what goes with each node's requests, by the node's name.
    """

    trusted = False

    def __init__(self, server: Server, insecure: bool = False, tell: Callable[[str], None] = print) -> None:
        self.server, self.insecure, self.tell = server, insecure, tell
        self.clients: Mapping[str, Sequence[int]] = {name: one.clients for name, one in server.nodes.items()}
        self.headers: dict[str, dict[str, Any]] = {name: {} for name in self.clients}
        self._carried: dict[str, Carried] = {name: Carried() for name in self.clients}
        self._sent: dict[str, Sent] = {}
        self._waiting: list[Sent] = []
        self._ready: list[tuple[str, bytes | Lost]] = []
        self._looked = 0.0
        self._told: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._end = threading.Event()
        try:
            self._connect()
        except BaseException:  # such as SIGTERM
            self.close()
            raise
        threading.Thread(target=self._live, daemon=True).start()

    def send(self, host: str, request: bytes, most: int = LIMIT) -> None:
        """See :meth:`Transport.send`."""
        self._push(Sent(host, request, time.monotonic(), most))

    def receive(self, hosts: Sequence[str], timeout: float | None) -> tuple[str, bytes | Lost] | None:
        """See :meth:`Transport.receive`."""
        ends = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            try:
                self._pull()
                self._look()
            except httpx.HTTPError as error:
                self._connect_again(error)
            if self._ready:
                break
            if ends is not None and time.monotonic() > ends:
                return None
            time.sleep(self.server.poll)
        return self._ready.pop(0)

    def replace(self, host: str) -> bool:
        """See :meth:`Transport.replace`: nobody else has the node's data."""
        return False

    def deal(self, loads: Sequence[float]) -> bool:
        """See :meth:`Transport.deal`: clients live where their data is."""
        return False

    def close(self) -> None:
        """End the SuperLink."""
        self._end.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def forget(self) -> None:
        """No longer wait for any answer, at the end of a run, nor count what was carried in it."""
        self._sent.clear()
        self._waiting.clear()
        self._ready.clear()
        self.take_carried()

    def finish(self, run: str) -> None:
        """Tell all nodes that a run's record is complete. Nobody waits for their answers but :meth:`settle`."""
        for number, name in self._names.items():
            message = Message(pack({FINISHED: run}, b""), dst_node_id=number, message_type=TRAIN, ttl=NOTICE)
            with contextlib.suppress(httpx.HTTPError):
                self._told |= {key: name for key in self._grid.push_messages([message]) if key}

    def settle(self, seconds: float) -> None:
        """Wait some time until all nodes know which runs are finished, before the SuperLink ends.

        A node that is not told keeps what it has, and is told when the server is started again.
        """
        ends = time.monotonic() + seconds
        while self._told:
            with contextlib.suppress(httpx.HTTPError):
                for key, answer in pull(self._grid, dict.fromkeys(self._told, 0)):
                    if not isinstance(answer, Error):
                        self._told.pop(key, None)
            if self._told and time.monotonic() > ends:
                names = ", ".join(sorted(set(self._told.values())))
                self.tell(f"nodes {names} could not be told which runs are finished, and keep their state")
                return
            time.sleep(self.server.poll)

    def wait_for_nodes(self, seconds: float | None) -> None:
        """Wait until all nodes are there, or for some time."""
        ends = None if seconds is None else time.monotonic() + seconds
        told = time.monotonic()
        while True:
            try:
                there = self._online()
            except httpx.HTTPError as error:
                self._connect_again(error)
                continue
            missing = [name for name in self.clients if name not in there]
            if not missing or (ends is not None and time.monotonic() > ends):
                return
            if time.monotonic() - told > 10:
                told = time.monotonic()
                self.tell(f"waiting for nodes {', '.join(missing)}")
            time.sleep(0.3)

    def take_carried(self) -> dict[str, Carried]:
        """What was carried since the last call, by node."""
        found, self._carried = self._carried, {name: Carried() for name in self.clients}
        return found

    def _connect(self) -> None:
        """Start a SuperLink, admit the nodes and begin a run."""
        folder = self.server.folder
        folder.mkdir(parents=True, exist_ok=True)
        if self._process is None or self._process.poll() is not None:
            secret = new_secret(folder)
            self._process = start(self.server, self.insecure, secret)
            self._control = Control(self.server, secret.read_bytes(), self.insecure)
            self._control.wait(self._process, folder / "superlink.log", self.tell)
            keys = {name: one.key for name, one in self.server.nodes.items() if one.key}
            self._names: dict[int, str] = {} if self.insecure else self._control.register(keys)
            self._told.clear()
        self._grid = self._control.begin()
        self._activated: dict[str, str] = {}

    def _connect_again(self, error: Exception) -> None:
        """After the SuperLink was lost: start another one, and ask again what was not answered."""
        if self._process is not None and self._process.poll() is None and isinstance(error, httpx.TransportError):
            time.sleep(self.server.poll)  # it is there, and busy
            return
        self.tell(f"the SuperLink was lost ({one_line(error)}); starting it again")
        unanswered = [*self._sent.values(), *self._waiting]
        self._sent, self._waiting = {}, []
        self._connect()
        self.wait_for_nodes(
            min(self.server.deadline, RETURN) if self.server.missing == "go-on" else self.server.deadline
        )
        for sent in unanswered:
            self._push(sent)

    def _push(self, sent: Sent) -> None:
        """Hand a request to the SuperLink."""
        while True:
            try:
                number = next((k for k, name in self._names.items() if name == sent.host), None)
                if number is None:
                    self._waiting.append(sent)  # its node was never there
                    return
                content = pack(self.headers[sent.host], sent.body)
                message = Message(content, dst_node_id=number, message_type=TRAIN, ttl=self._ttl)
                (key,) = self._grid.push_messages([message])
                if not key:
                    self._waiting.append(sent)  # admitted, and was never there
                    return
                break
            except httpx.HTTPError as error:
                self._connect_again(error)
        sent.activated = self._activated.get(sent.host, "")
        self._sent[key] = sent
        self._carried[sent.host].down += len(sent.body)

    @property
    def _ttl(self) -> float:
        # A node that comes back later finds no old work.
        return self.server.deadline if self.server.missing == "go-on" else 7 * 24 * 3600.0

    def _pull(self) -> None:
        """Take the replies that have arrived."""
        if not self._sent:
            return
        for key, answer in pull(self._grid, {key: sent.most for key, sent in self._sent.items()}):
            sent = self._sent.pop(key, None)
            if sent is None:
                continue
            if isinstance(answer, Error):
                self._failed(sent, answer)
                continue
            if isinstance(answer, ValueError):
                self._lose(sent, f"sent what cannot be read: {answer}")
                continue
            header, body = answer
            carried, worked, waited = self._carried[sent.host], header.get("seconds"), time.monotonic() - sent.began
            carried.up += len(body)
            carried.waited += waited
            carried.worked += worked if isinstance(worked, float) and 0 <= worked <= waited else 0.0
            self._ready.append((sent.host, bytes(body)))

    def _failed(self, sent: Sent, error: Error) -> None:
        """What becomes of a request that Flower or the node's app could not answer."""
        if error.code not in AWAY:
            self._lose(sent, f"cannot answer: {error.reason}")
        elif self.server.missing == "wait":
            self.tell(f"node {sent.host} is away; waiting for it")
            self._waiting.append(sent)
        else:
            self._lose(sent, "was lost: its node is away")

    def _lose(self, sent: Sent, reason: str) -> None:
        """Report a request that gets no answer, unless the server has given it up before."""
        if self.server.missing == "wait" or time.monotonic() - sent.began < self.server.deadline:
            self._ready.append((sent.host, Lost(reason)))

    def _look(self) -> None:
        """Ask again those nodes that have come back without what they were asked."""
        if time.monotonic() - self._looked < LOOK:
            return
        self._looked = time.monotonic()
        there = self._online()
        if self.server.missing == "go-on":
            self._give_up(there)
        again = [sent for sent in self._waiting if sent.host in there]
        self._waiting = [sent for sent in self._waiting if sent.host not in there]
        for key, sent in list(self._sent.items()):
            if sent.host in there and sent.activated and self._activated[sent.host] != sent.activated:
                del self._sent[key]
                again.append(sent)
            elif not sent.activated:
                sent.activated = self._activated.get(sent.host, "")
        for sent in again:
            self.tell(f"node {sent.host} has come back; asking it again")
            self._push(sent)

    def _give_up(self, there: set[str]) -> None:
        """Report the nodes that have gone."""
        gone = {key: sent for key, sent in self._sent.items() if sent.host not in there}
        for sent in [*gone.values(), *self._waiting]:
            self._lose(sent, "was lost: its node is away")
        self._sent = {key: sent for key, sent in self._sent.items() if key not in gone}
        self._waiting = []

    def _online(self) -> set[str]:
        """The names of the nodes that are there."""
        nodes = [node for node in self._grid.get_nodes() if node.status == "online"]
        if self.insecure:
            self._ask_names([node.node_id for node in nodes])
        there = {self._names[node.node_id]: node.last_activated_at for node in nodes if node.node_id in self._names}
        self._activated |= there
        return set(there)

    def _ask_names(self, numbers: Sequence[int]) -> None:
        """Ask nodes without keys who they are."""
        strangers = [number for number in numbers if number not in self._names]
        if not strangers:
            return
        asked = [Message(pack({}, b""), dst_node_id=number, message_type=QUERY) for number in strangers]
        left = {key: number for key, number in zip(self._grid.push_messages(asked), strangers, strict=True) if key}
        ends = time.monotonic() + 30
        while left and time.monotonic() < ends:
            for key, answer in pull(self._grid, dict.fromkeys(left, 0)):
                number = left.pop(key, None)
                name = answer[0].get("node") if isinstance(answer, tuple) else None
                if number is not None and isinstance(name, str) and name in self.clients:
                    for before in [k for k, other in self._names.items() if other == name]:
                        del self._names[before]
                    self._names[number] = name
            time.sleep(self.server.poll)

    def _live(self) -> None:
        """Tell the SuperLink that the run goes on."""
        while not self._end.wait(HEARTBEAT):
            try:
                self._grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except (httpx.HTTPError, RuntimeError):
                continue  # whoever waits for answers notices, too
