"""Flower's ClientApp of a node: takes a message's bytes to the resident worker and brings back the answer.

It imports no torch, and runs only what is installed on the node, never code that came with a run.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from hetfl.deploy.handover import ask
from hetfl.deploy.messages import pack, unpack

log = logging.getLogger("hetfl.node")


PATIENCE = 600.0
"""Seconds that a node waits for a worker that starts anew."""


def client_app(name: str, socket: Path) -> ClientApp:
    """The app of a node.

    Args:
        name: the node's.
        socket: where its worker listens.
    """
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        """The node's name, which a server without authentication cannot know otherwise."""
        return Message(pack({"node": name}, b""), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """The answer of the worker."""
        header, body = unpack(message.content)
        began = time.perf_counter()
        answer = ask(socket, header, body, PATIENCE)
        seconds = time.perf_counter() - began
        what = header.get("cell") or "notice of a finished run"
        log.info("%s: took %d bytes, sent %d bytes after %.2f s", what, len(body), len(answer), seconds)
        return Message(pack({"node": name, "seconds": seconds}, answer), reply_to=message)

    return app
