"""What leaves a node: noted for its operator in ``sent.jsonl``, and errors without the paths of its files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from hetfl.deploy.handover import HandoverError
from hetfl.deploy.settings import Node
from hetfl.errors import one_line
from hetfl.files import append_text

_FOLDERS = re.compile(r"(?<![\w/:.])/(?:[^\n/:;,'\"()]+/)+")
"""The folders of an absolute path, without its last part; they may have spaces in their names."""


def note(node: Node, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append lines to a node's ``sent.jsonl``, with the time."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    path = node.folder / "sent.jsonl"
    path.touch()
    append_text(path, "".join(json.dumps({"time": at, **line}) + "\n" for line in lines))


def without_places(node: Node, text: str) -> str:
    """An error as the server is told of it: with names of settings in place of paths at the node."""
    places = {"project": node.project, "folder": node.folder, "public": node.public}
    places |= {f"clients.{client}": folder for client, folder in node.clients.items()}
    for name, path in sorted(places.items(), key=lambda place: -len(str(place[1]))):
        text = text if path is None else text.replace(str(path), f"node.{name}")
    return _FOLDERS.sub("", text)


def noted_error(node: Node, error: Exception) -> str:
    """What the server is told of an error that has no reply of its own; it is noted, unless the disk is full."""
    text = without_places(node, str(error) if isinstance(error, HandoverError) else one_line(error))
    with suppress(OSError):  # which may be the error; the server would wait for a reply
        note(node, [{"error": text}])
    return text
