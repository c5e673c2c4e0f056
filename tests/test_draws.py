"""Keyed randomness."""

import numpy as np
import torch

from hetfl.draws import Draws, seeded_library_code


def test_a_key_always_gives_the_same_numbers():
    first, second = (Draws(3).at(2).generator("batches", 4, 0, 1) for _ in range(2))
    assert torch.equal(torch.randperm(100, generator=first), torch.randperm(100, generator=second))


def test_keys_differ_in_every_part():
    keys = {
        Draws(seed).at(round).key(purpose, client, *more)
        for seed in (0, 1)
        for round in (0, 1)
        for purpose in ("a", "b")
        for client in (-1, 0, 1)
        for more in ((), (0,), (1,), (0, 1))
    }
    assert len(keys) == 2 * 2 * 2 * 3 * 4


def test_key_is_pinned():
    """A change here changes every number of every table."""
    assert Draws(0).key("batches", 1) == 6129129692407629656


def test_library_code_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    with seeded_library_code(7):
        first = torch.rand(3)
    with seeded_library_code(7):
        second = torch.rand(3)
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())


def test_numpy_and_torch_streams_are_reproducible():
    assert np.array_equal(Draws(1).numpy_generator("x").random(5), Draws(1).numpy_generator("x").random(5))
