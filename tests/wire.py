"""Messages as bytes."""

from __future__ import annotations

from safetensors.torch import save

from hetfl.message import Message
from hetfl.training.engine import Task
from hetfl.training.host import Question, Request


def payload(message: Message) -> int:
    """The bytes of safetensors behind their header, which a message's size has to count."""
    content = save({name: tensor.contiguous() for name, tensor in message.items()})
    return len(content) - 8 - int.from_bytes(content[:8], "little")


def received(downlinks: dict[int, Message]) -> dict[int, Message]:
    """What a host's clients get of the messages that are sent to them in one request."""
    tasks = [Task(client, downlink) for client, downlink in downlinks.items()]
    again = Request.from_bytes(Request(Question(kind="train", round=1), tasks).to_bytes())
    return {task.client: task.downlink for task in again.tasks}
