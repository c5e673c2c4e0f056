"""Replies of nodes as Flower's SuperLink gives them: what one node sends is lost alone."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from deployment_files import SERVER, write

from hetfl.deploy.settings import read_server
from hetfl.training.remote import Lost

pytest.importorskip("flwr")
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, RecordDict  # noqa: E402
from flwr.app.message.arraychunk import ArrayChunk  # noqa: E402
from flwr.app.message.message import make_message  # noqa: E402
from flwr.proto.message_pb2 import PullObjectResponse  # noqa: E402
from flwr.proto.node_pb2 import Node, NodeInfo  # noqa: E402
from flwr.proto.runtime_pb2 import PullAppMessagesResponse  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import (  # noqa: E402
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from hetfl.deploy.messages import pack  # noqa: E402
from hetfl.deploy.transport import Carried, FlowerTransport  # noqa: E402

NODES = {"north": 1, "south": 2}


class Grid:
    """A grid to which nodes answer at once.

    Attributes:
        header, body: of the answers, the header besides the node's name.
        changes: gives other objects for a node's reply, given the reply and its objects by Flower's number.
    """

    def __init__(self) -> None:
        self.header, self.body, self.changes = {"seconds": 0.0}, b"answer", {}
        self.node, self.run, self._runtime_client = Node(), SimpleNamespace(run_id=1), self
        self.objects: dict[str, bytes] = {}
        self.pulled: list[str] = []
        self.replies: dict[str, Message] = {}

    def get_nodes(self):
        return [NodeInfo(node_id=number, status="online") for number in NODES.values()]

    def push_messages(self, messages):
        return [self.answer(message.metadata.dst_node_id) for message in messages]

    def answer(self, number: int) -> str:
        key = f"message to {number}"
        name = next(name for name in NODES if NODES[name] == number)
        about = Metadata(1, "", number, 0, key, "", 0.0, 60.0, "train")
        reply = make_message(about, pack({"node": name, **self.header}, self.body))
        objects = {one: part.deflate() for one, part in get_all_nested_objects(reply).items()}
        self.objects |= self.changes.get(name, lambda reply, objects: objects)(reply, objects)
        self.replies[key] = reply
        return key

    def PullMessages(self, request):  # noqa: N802
        found = PullAppMessagesResponse()
        for key in {*request.message_ids} & self.replies.keys():
            reply = self.replies.pop(key)
            about = found.messages_list.add().metadata
            about.message_id, about.reply_to_message_id = reply.object_id, key
            found.message_object_trees.append(get_object_tree(reply))
        return found

    def PullObject(self, request):  # noqa: N802
        self.pulled.append(request.object_id)
        content = self.objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):  # noqa: N802
        pass


class Transport(FlowerTransport):
    """Over a grid of this process."""

    def _connect(self) -> None:
        self._grid, self._names, self._activated = Grid(), {NODES[name]: name for name in NODES}, {}

    def _live(self) -> None:
        pass


@pytest.fixture
def transport(folder, monkeypatch) -> Transport:
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    return Transport(read_server(write(folder, "server", SERVER)))


def other(kind: type, content: bytes | None = None):
    """Another object in place of the reply's one of a kind."""

    def changed(reply, objects):
        number, part = next(each for each in get_all_nested_objects(reply).items() if isinstance(each[1], kind))
        return {**objects, number: add_header_to_object_body(b"\xff" * 9, part) if content is None else content}

    return changed


def header(text: str):
    """A reply whose header is another text."""

    def changed(reply, objects):
        (number,) = (one for one, part in get_all_nested_objects(reply).items() if isinstance(part, ConfigRecord))
        return {**objects, number: ConfigRecord({"json": text}).deflate()}

    return changed


CASES = {
    "a message of noise": other(Message),
    "a record of noise": other(ConfigRecord),
    "an array in place of a message": other(Message, ArrayChunk(b"x").deflate()),
    "arrays in place of records": other(RecordDict, ArrayRecord().deflate()),
    "no object": other(Message, b""),
    "a deep header": header("[" * 100_000),
    "a header that is a list": header("[]"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_reply_that_cannot_be_read_is_lost_alone(transport, case):
    transport._grid.changes["north"] = CASES[case]
    for name in NODES:
        transport.send(name, b"request")
    found = dict(transport.receive([*NODES], 5) for _ in NODES)
    assert found.pop("south") == b"answer"
    assert isinstance(found["north"], Lost) and found["north"].reason.startswith("sent what cannot be read: ")
    assert "\n" not in found["north"].reason


def test_an_answer_without_content_is_one(transport):
    """What is missing in it is the engine's to say, which would wait for ever."""
    transport._grid.body = b""
    transport.send("north", b"request")
    assert transport.receive(["north"], 5) == ("north", b"")


def test_of_an_answer_that_is_too_long_no_more_than_its_bound_is_taken(transport):
    told = "sent what cannot be read: ValueError: it has more than the 8000000 bytes that its clients' messages can"
    for long in (os.urandom(60_000_000), bytes(60_000_000)):  # of the latter Flower keeps one part
        transport._grid.body, transport._grid.pulled = long, []
        transport.send("north", b"request", 8_000_000)
        host, lost = transport.receive(["north"], 5)
        assert host == "north" and isinstance(lost, Lost) and lost.reason.startswith(told)
        assert len(transport._grid.pulled) < 12
    for right in (os.urandom(8_000_000), bytes(8_000_000)):
        transport._grid.body = right
        transport.send("north", b"request", 8_000_000)
        assert transport.receive(["north"], 5) == ("north", right)


def test_a_node_without_a_key_whose_name_cannot_be_read_is_not_there(transport):
    transport.insecure, transport._names = True, {}
    transport._grid.changes["north"] = header(json.dumps({"node": ["north"]}))
    assert transport._online() == {"south"}
    transport._grid.changes["north"] = CASES["a deep header"]
    assert transport._online() == {"south"}


def test_a_node_that_flower_knows_and_cannot_reach_is_not_there(transport):
    assert transport._online() == {"north", "south"}
    nodes = [NodeInfo(node_id=NODES["north"], status="offline"), NodeInfo(node_id=NODES["south"], status="online")]
    transport._grid.get_nodes = lambda: nodes
    assert transport._online() == {"south"}


def test_bytes_are_counted_once_and_each_way(transport):
    transport.send("north", b"request")
    assert transport.receive(["north"], 5) == ("north", b"answer")
    carried = transport.take_carried()
    assert (carried["north"].down, carried["north"].up) == (len(b"request"), len(b"answer"))
    assert (carried["south"].down, carried["south"].up) == (0, 0)
    again = transport.take_carried()["north"]
    assert (again.down, again.up) == (0, 0)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e300, "1", None])
def test_seconds_that_a_node_cannot_have_worked_are_none(transport, seconds):
    transport._grid.header["seconds"] = seconds
    transport.send("north", b"request")
    assert transport.receive(["north"], 5) == ("north", b"answer")
    assert transport.take_carried()["north"].worked == 0


def test_seconds_that_a_node_worked_are_counted(transport):
    transport._grid.header["seconds"] = 1e-9
    for _ in range(2):
        transport.send("north", b"request")
        assert transport.receive(["north"], 5) == ("north", b"answer")
    assert transport.take_carried()["north"].worked == 2e-9


def test_what_was_carried_for_a_run_that_failed_is_not_counted_in_the_next_one(transport):
    transport.send("north", b"request")
    assert transport.receive(["north"], 5) == ("north", b"answer")
    transport.forget()
    assert transport.take_carried()["north"] == Carried()


def test_a_server_that_is_ended_while_it_starts_leaves_no_superlink(folder, monkeypatch):
    started = []

    def connect(transport) -> None:
        transport._process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        started.append(transport._process)
        raise SystemExit(143)

    monkeypatch.setattr(FlowerTransport, "_connect", connect)
    with pytest.raises(SystemExit):
        FlowerTransport(read_server(write(folder, "server", SERVER)))
    assert started[0].poll() == -signal.SIGTERM
