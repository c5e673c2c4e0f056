"""What a message costs, and how a server's state is nested."""

import pytest
import torch
from wire import payload

from hetfl.message import Message, ServerState, Size, flatten, group, nest, ungrouped


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
    assert message.size == Size(21 + 7 + 3 + 4, 84 + 28 + 3 + 8)
    assert message.size.bytes == payload(message)


def test_order_is_kept(message: Message):
    assert list(message) == ["logits", "labels", "valid", "half"]


def test_empty_message_costs_nothing():
    assert Message().size == Size(0, 0)


def test_what_is_no_tensor_is_named():
    with pytest.raises(TypeError, match=r"Message: 'steps' is a list; it should be a tensor"):
        Message({"w": torch.ones(1), "steps": [1, 2]})


def test_messages_carry_no_graph():
    parameter = torch.ones(2, requires_grad=True)
    assert not Message({"w": parameter * 2})["w"].requires_grad


def test_a_servers_state_is_nested_and_flat_as_a_checkpoint_stores_it():
    samples, bias, moment = torch.tensor([3, 1]), torch.zeros(2), torch.ones(2)
    state = ServerState({"samples": samples, "model": {"head.bias": bias}, "adam": {"bias/exp_avg": moment}})
    assert state["samples"] is samples and state.group("model") == {"head.bias": bias}
    assert list(state) == ["samples", "model/head.bias", "adam/bias/exp_avg"]
    again = ServerState(dict(state))
    assert list(again) == list(state) and again.group("adam") == {"bias/exp_avg": moment}
    assert state["model/head.bias"] is group(state, "model")["head.bias"] is bias
    assert ungrouped(state) == {"samples": samples} and not state.group("net")
    with pytest.raises(TypeError, match="'samples' is a tensor"):
        state.group("samples")
    with pytest.raises(ValueError, match="'a' is a tensor and cannot be a group with 'b' in it"):
        ServerState({"a": samples, "a/b": bias})


def test_a_state_with_another_part_is_a_new_one():
    state = ServerState({"model": {"a": torch.zeros(1), "b": torch.zeros(1)}, "n": torch.zeros(1)})
    other = state | {"model": {"a": torch.ones(1)}, "m": torch.ones(1)}
    assert list(other) == ["model/a", "n", "m"] and list(state) == ["model/a", "model/b", "n"]
    assert state["model/a"] == 0 and other["model/a"] == 1


def test_flatten_and_nest_are_inverse():
    nested = {"a": torch.zeros(1), "g": {"x": torch.ones(1), "y/z": torch.ones(2)}, "b": torch.zeros(2)}
    flat = flatten(nested)
    assert list(flat) == ["a", "g/x", "g/y/z", "b"]
    assert nest(flat) == nested and nest(nested) == nested
