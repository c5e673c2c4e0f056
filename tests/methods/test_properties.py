"""What must hold for any tensors: means, FedKD's truncation, and messages on the wire."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from wire import payload, received

from hetfl.message import Message
from hetfl.methods.base import by_class, mean_over_owners, weighted_mean
from hetfl.methods.fedkd import restore, truncate

quick = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 2**31)
weights = st.lists(st.floats(0.01, 100), min_size=1, max_size=5).map(lambda some: torch.tensor(some).double())
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-9, atol=1e-9)


def mean(values: Tensor, shares: Tensor) -> Tensor:
    """The weighted mean of values [n, 3]."""
    return weighted_mean([{"x": value} for value in values], shares)["x"]


@quick
@given(seeds, weights, st.floats(0.01, 100))
def test_weighted_mean_does_not_depend_on_the_scale_of_weights(seed: int, shares: Tensor, scale: float) -> None:
    values = drawn(seed, len(shares), 3)
    assert close(mean(values, shares * scale), mean(values, shares))


@quick
@given(seeds, weights)
def test_weighted_mean_does_not_depend_on_the_order_and_stays_within_bounds(seed: int, shares: Tensor) -> None:
    values = drawn(seed, len(shares), 3)
    order = torch.randperm(len(shares), generator=torch.Generator().manual_seed(seed))
    found = mean(values, shares)
    assert close(mean(values[order], shares[order]), found)
    assert (found >= values.amin(dim=0) - 1e-12).all()
    assert (found <= values.amax(dim=0) + 1e-12).all()


@quick
@given(seeds, st.floats(0.01, 100))
def test_weighted_mean_of_one_is_that_one(seed: int, share: float) -> None:
    values = drawn(seed, 1, 3).float()
    assert torch.equal(mean(values, torch.tensor([share])), values[0])


@st.composite
def owners(draw: st.DrawFn) -> list[dict[str, Tensor]]:
    """Class means of one to four clients, of four classes at most; a client may have none."""
    held = draw(st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=4))
    counted = draw(st.booleans())
    messages = []
    for classes in held:
        labels = torch.tensor(sorted(classes), dtype=torch.int32)
        message = {"means": drawn(draw(seeds), len(classes), 3), "labels": labels}
        counts = torch.tensor([draw(st.integers(1, 50)) for _ in classes], dtype=torch.int32)
        messages.append({**message, "counts": counts} if counted else message)
    return messages


@quick
@given(owners(), st.randoms(use_true_random=False))
def test_mean_over_owners_is_of_the_owners_alone(messages: list[dict[str, Tensor]], chance) -> None:
    found = mean_over_owners(messages, 4)
    held = {int(label) for message in messages for label in message["labels"]}
    assert found["labels"].tolist() == sorted(held)
    others = mean_over_owners(chance.sample(messages, len(messages)), 4)
    assert close(others["means"], found["means"])
    for label, value in zip(found["labels"], found["means"], strict=True):
        own = torch.cat([message["means"][message["labels"] == label] for message in messages])
        assert (value >= own.amin(dim=0) - 1e-12).all()
        assert (value <= own.amax(dim=0) + 1e-12).all()
        if len(own) == 1:
            assert close(value, own[0])


@quick
@given(owners())
def test_counts_of_owners_may_be_scaled(messages: list[dict[str, Tensor]]) -> None:
    more = [{**message, "counts": 3 * message["counts"]} if "counts" in message else message for message in messages]
    assert close(mean_over_owners(more, 4)["means"], mean_over_owners(messages, 4)["means"])


@quick
@given(owners())
def test_classes_without_an_owner_are_not_valid(messages: list[dict[str, Tensor]]) -> None:
    dense = by_class(mean_over_owners(messages, 4), 4)
    held = torch.isin(torch.arange(4), torch.cat([message["labels"] for message in messages]).long())
    assert torch.equal(dense["valid"], held)
    assert not dense["means"][~held].any()


matrices = st.tuples(st.integers(2, 6), st.integers(1, 6))
kernels = st.tuples(st.integers(2, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))


@quick
@given(seeds, matrices | kernels, st.floats(0.05, 0.99))
def test_truncation_keeps_the_energy_asked_for_and_no_rank_more(seed: int, shape: tuple, energy: float) -> None:
    tensor = drawn(seed, *shape)
    sent = truncate({"x": tensor}, energy)
    rank = sent["x/s"].shape[-1]
    squares = torch.linalg.svdvals(tensor).square().reshape(-1, min(shape[-2:])).sum(dim=0)
    assert squares[:rank].sum() >= (energy - 1e-9) * squares.sum()
    assert squares[: rank - 1].sum() <= (energy + 1e-9) * squares.sum()
    # What is lost is what was cut off.
    lost = (tensor - restore(sent)["x"]).square().sum()
    assert close(lost, squares[rank:].sum())


@quick
@given(seeds, matrices | kernels)
def test_at_full_energy_the_product_is_the_whole_tensor(seed: int, shape: tuple) -> None:
    tensors = {"x": drawn(seed, *shape), "bias": drawn(seed, shape[0]), "row": drawn(seed, 1, 5)}
    restored = restore(truncate(tensors, 1.0))
    assert list(restored) == list(tensors)
    assert all(close(restored[name], tensor) for name, tensor in tensors.items())


@quick
@given(seeds, st.lists(st.tuples(st.sampled_from(DTYPES), shapes), max_size=5))
def test_messages_come_back_as_they_were_sent(seed: int, kinds: list[tuple[torch.dtype, tuple[int, ...]]]) -> None:
    sent = Message({f"{place}/x": (9 * drawn(seed, *shape)).to(dtype) for place, (dtype, shape) in enumerate(kinds)})
    again = received({0: sent})[0]
    assert list(again) == list(sent)
    for name, tensor in sent.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name], tensor)
    assert payload(sent) == sent.size.bytes == again.size.bytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_transposed_tensors_travel_in_their_order(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype).T
    assert torch.equal(received({0: Message({"x": tensor})})[0]["x"], tensor)
