"""What a message costs."""

import json

import pytest
import torch

from hetfl.message import Message, Size


@pytest.fixture
def message() -> Message:
    return Message(
        {
            "logits": torch.randn(7, 3),
            "labels": torch.arange(7, dtype=torch.int32),
            "valid": torch.tensor([True, False, True]),
            "half": torch.zeros(2, 2, dtype=torch.bfloat16),
        }
    )


def test_size_is_the_length_of_the_serialised_tensors(message: Message):
    content = message.to_bytes()
    header = int.from_bytes(content[:8], "little")
    assert message.size.bytes == len(content) - 8 - header
    assert message.size == Size(21 + 7 + 3 + 4, 84 + 28 + 3 + 8)
    entries = json.loads(content[8 : 8 + header])
    del entries["__metadata__"]
    offsets = {name: entry["data_offsets"] for name, entry in entries.items()}
    assert {name: end - start for name, (start, end) in offsets.items()} == {
        name: tensor.numel() * tensor.element_size() for name, tensor in message.items()
    }


def test_round_trip(message: Message):
    again = Message.from_bytes(message.to_bytes())
    assert list(again) == list(message)
    assert all(torch.equal(again[name], message[name]) for name in message)


def test_order_is_kept(message: Message):
    assert list(message) == ["logits", "labels", "valid", "half"]


def test_empty_message_costs_nothing():
    assert Message().size == Size(0, 0)


def test_messages_carry_no_graph():
    parameter = torch.ones(2, requires_grad=True)
    assert not Message({"w": parameter * 2})["w"].requires_grad
