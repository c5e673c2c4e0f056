"""Bytes from one process to another of the same user, over a Unix socket that only its owner may open.

A frame is its length (8 bytes, little endian) and its content. A question is two frames: a JSON header and a body.
The answer is a frame with ``ok`` or ``error`` and one with the content or the reason.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hetfl.errors import foreseen, one_line

log = logging.getLogger("hetfl.node")

LARGEST = 1 << 34
"""The most bytes of a frame; a length beyond it is a mistake."""
HEADER = 1 << 20
"""The most bytes of a question's header."""
BREAKS = 3
"""How often a worker may end while it answers a question: one that needs too much memory would end for ever."""

Header = Mapping[str, Any]


class HandoverError(Exception):
    """The other side did not answer, or answered with an error."""


def serve(path: Path, answer: Callable[[Header, bytearray], bytes], ready: Callable[[], None] = lambda: None) -> None:
    """Answer questions one after another, for good.

    Args:
        path: of the socket; its folder becomes the owner's alone.
        answer: gives the body for a header and a body; an exception becomes an answer with its reason.
        ready: is called once questions can be asked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(4)
        ready()
        while True:
            connection, _ = listener.accept()
            with connection:
                try:
                    _check_peer(connection)
                    header = json.loads(_receive(connection, HEADER))
                    body = _receive(connection, LARGEST)
                    try:
                        status, content = b"ok", answer(header, body)
                    except Exception as error:
                        log.error("%s", one_line(error), exc_info=foreseen(error) is None)
                        status, content = b"error", one_line(error).encode()
                    del body
                    _send(connection, status)
                    _send(connection, content)
                except (OSError, ValueError, HandoverError):
                    continue  # who asked has gone, or is nobody to answer


def listens(path: Path) -> bool:
    """Whether questions can be asked at a socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(path))
        return True
    except OSError:
        return False


def ask(path: Path, header: Header, body: bytes, patience: float = 60.0) -> bytes:
    """The answer to a question.

    Args:
        path: of the socket.
        header: JSON values.
        body: any bytes.
        patience: seconds to try again while nobody listens, as when the worker starts anew.

    Raises:
        HandoverError: nobody answered in time, the worker ended :data:`BREAKS` times while it answered, the header is
            too long, or the answer is an error.
    """
    if len(head := json.dumps(header).encode()) > HEADER:
        raise HandoverError(f"the question's header has {len(head)} bytes, at most {HEADER} are allowed")
    until, breaks = None, 0
    while True:
        connected = False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(str(path))
                _check_peer(connection)
                until, connected = None, True  # an answer may take as long as it wants
                _send(connection, head)
                _send(connection, body)
                status, content = _receive(connection, 16), _receive(connection, LARGEST)
            break
        except (OSError, HandoverError) as error:
            breaks += connected
            if breaks == BREAKS:
                raise HandoverError(f"the worker ended {BREAKS} times while it answered") from error
            until = until or time.monotonic() + patience
            if time.monotonic() > until:
                raise HandoverError(f"the worker does not answer ({one_line(error)})") from error
            time.sleep(0.1)
    if status != b"ok":
        raise HandoverError(content.decode(errors="replace"))
    return bytes(content)


def _check_peer(connection: socket.socket) -> None:
    if hasattr(socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        user = struct.unpack("3i", credentials)[1]
        if user != os.getuid():
            raise HandoverError(f"user {user} is on the other side, {os.getuid()} is needed")


def _send(connection: socket.socket, content: bytes) -> None:
    connection.sendall(len(content).to_bytes(8, "little"))
    if content:  # whoever has read the length of an empty frame may have answered and gone
        connection.sendall(content)


def _receive(connection: socket.socket, most: int) -> bytearray:
    size = int.from_bytes(_exactly(connection, 8), "little")
    if size > most:
        raise HandoverError(f"a frame of {size} bytes, at most {most} are allowed")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    view, got = memoryview(content), 0
    while got < size:
        count = connection.recv_into(view[got:], min(size - got, 1 << 20))
        if not count:
            raise HandoverError("the connection ended early")
        got += count
    return content
