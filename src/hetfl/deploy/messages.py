"""How bytes travel in Flower's messages: a JSON header as a config record, the body as an array of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

TRAIN, QUERY = "train", "query"
"""Kinds of Flower's messages: a request to a client's host, and a node's question after its name."""

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
    if not isinstance(header, dict):
        raise ValueError("the message's header is no mapping")
    return header, body
