"""How bytes travel in Flower's messages: a JSON header as a config record, the body as an array of bytes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents, pull_objects

from hetfl.errors import one_line

TRAIN, QUERY = "train", "query"
"""Kinds of Flower's messages: a request to a client's host, and a node's question after its name."""

Answer = tuple[dict[str, Any], bytes] | Error | ValueError
"""A reply's header and body; what Flower or the node's app says instead; or why the reply cannot be read."""

ENVELOPE = 4096
"""The most bytes that :func:`pack` adds to a header and a body, besides their own."""


def pack(header: Mapping[str, Any], body: bytes) -> RecordDict:
    """A message's content. Flower cuts arrays into parts of 5 MB; nothing is pickled."""
    content = Array(dtype="uint8", shape=(len(body),), stype="bytes", data=body)
    return RecordDict({"header": ConfigRecord({"json": json.dumps(header)}), "body": ArrayRecord({"bytes": content})})


def unpack(content: RecordDict) -> tuple[dict[str, Any], bytes]:
    """What :func:`pack` packed.

    Raises:
        ValueError: it is something else.
    """
    try:
        header = json.loads(str(content.config_records["header"]["json"]))
        body = content.array_records["body"]["bytes"].data
    except KeyError as error:
        raise ValueError(f"the message has no {error}") from error
    except RecursionError as error:
        raise ValueError("the message's header is too deep") from error
    if not isinstance(header, dict):
        raise ValueError("the message's header is no mapping")
    return header, body


def pull(grid: Any, most: Mapping[str, int]) -> Iterator[tuple[str, Answer]]:
    """The replies that have come, each with the key of the message that it answers.

    One that cannot be read is a node's own. The ``pull_messages`` of Flower's grid raises there whatever the node
    chose, and all replies that came with it are lost.

    Args:
        grid: Flower's, over HTTP.
        most: the bytes that the body of a reply may have, by the key of the message that was pushed. Of a longer one
            Flower's parts, of 5 MB as :func:`pack` makes them, are pulled until they are too many.

    Raises:
        httpx.HTTPError: the SuperLink does not answer.
    """
    client, run = grid._runtime_client, grid.run.run_id
    pull_one = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)
    taken = client.PullMessages(PullAppMessagesRequest(message_ids=[*most]))
    for head, tree in zip(taken.messages_list, taken.message_object_trees, strict=True):
        # What the SuperLink has checked; the reply itself may say anything.
        key, number = head.metadata.reply_to_message_id, head.metadata.message_id
        try:
            taking = Taking(pull_one, most.get(key, 0))
            parts = pull_objects([part.object_id for part in iterate_object_tree(tree)], taking)
            taking.check_joined(parts)
            answer = _answer(number, parts)
        except ObjectPullError as error:
            yield key, Error(ErrorCode.MESSAGE_UNAVAILABLE, str(error))
            continue
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            answer = ValueError(one_line(error))
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=number)
        )
        yield key, answer


class Taking:
    """Pulls the parts of one reply, until they are too many.

    Args:
        pull_one: gives a part by Flower's number.
        most: see :func:`pull`.
    """

    def __init__(self, pull_one: Callable[[str], bytes], most: int) -> None:
        self._pull_one, self._most, self._lock = pull_one, most, threading.Lock()
        self._left = most + most // 1000 + 2 * ENVELOPE

    def __call__(self, number: str) -> bytes:
        """A part.

        Raises:
            ValueError: with it the reply is too long.
        """
        content = self._pull_one(number)
        with self._lock:
            self._left -= len(content)
            self._check(self._left)
        return content

    def check_joined(self, parts: Mapping[str, bytes]) -> None:
        """Check the size of what the parts are joined to: an array may name one part many times.

        Raises:
            ValueError: it is too long, or parts are not what Flower makes.
        """
        left = self._most + 2 * ENVELOPE
        for content in parts.values():
            kind, own, _ = get_object_head_values_from_object_content(content)
            if kind == Array.__qualname__:
                places = json.loads(get_object_body(content, Array))["arraychunk_ids"]
                for place in places:
                    left -= len(get_object_body(parts[own[place]], ArrayChunk))
                    self._check(left)
        self._check(left)

    def _check(self, left: int) -> None:
        if left < 0:
            raise ValueError(f"it has more than the {self._most} bytes that its clients' messages can have")


def _answer(number: str, parts: dict[str, bytes]) -> Answer:
    """The content of a reply from the parts that Flower keeps it in."""
    try:
        message = inflate_object_from_contents(number, parts)
        if not isinstance(message, Message):
            raise ValueError("it is no message")
        return message.error if message.has_error() else unpack(message.content)
    except Exception as error:
        return ValueError(one_line(error))
