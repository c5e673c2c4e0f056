"""A node's worker that sends more than its method declares, to see that a server takes nothing of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from hetfl.deploy.handover import serve
from hetfl.deploy.processes import end_with_parent
from hetfl.deploy.settings import read_node
from hetfl.deploy.worker import Worker
from hetfl.message import Message
from hetfl.training.host import Reply


def tampered(answer: bytes) -> bytes:
    """A reply whose uplinks have a tensor that nobody asked for."""
    reply = Reply.from_bytes(answer)
    if reply.question.kind != "train":
        return answer
    more = {"samples of patients": torch.ones(3, 8, 8)}
    updates = [replace(update, uplink=Message({**update.uplink, **more})) for update in reply.updates]
    return replace(reply, updates=updates).to_bytes()


if __name__ == "__main__":
    end_with_parent()
    node = read_node(Path(sys.argv[1]))
    torch.set_num_threads(1)
    worker = Worker(node)
    serve(node.socket, lambda header, body: tampered(worker.answer(header, body)))
