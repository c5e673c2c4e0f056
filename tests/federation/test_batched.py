"""The batched engine trains clients together and gives what one after another gives."""

from __future__ import annotations

import pytest
import torch

from hetfl.draws import Draws
from hetfl.federation.batched import Batched
from hetfl.federation.rounds import play_round, start
from hetfl.federation.sequential import Visit
from hetfl.federation.state import ClientState
from hetfl.methods import METHODS, create
from hetfl.methods.fedkd import restore

VARIANTS = {
    **{name: (name, {}) for name in METHODS},
    "fedavg with adam": ("fedavg", {"optimiser": "adam"}),
    "fedproto with adam that is kept": ("fedproto", {"optimiser": "adam", "keep_optimiser": True}),
    "fedproto in the stored order, whole batches": ("fedproto", {"shuffle": False, "drop_last": True}),
    "fedprox without momentum": ("fedprox", {"momentum": 0.0}),
    "fedhe by sweep": ("fedhe", {"collect": "sweep"}),
    "fedhpl with frames": ("fedhpl", {"prompts": "frame", "prompt_length": 2}),
    "sgpt by vote": ("sgpt", {"vote": True}),
}


def groups(variant: str) -> list[str]:
    """Groups in which an architecture has more than one client."""
    method, settings = VARIANTS[variant]
    if settings.get("prompts") == "frame":
        return ["two resnets"]
    one = not METHODS[method].heterogeneous
    trained = create(method, settings, 3).model_options().body == "trained"
    return ["homogeneous"] if one else ["homogeneous", "two vits", *(["two resnets"] if trained else [])]


CASES = [(variant, group) for variant in VARIANTS for group in groups(variant)]


def both(toy_engine, variant: str, group: str, dtype: torch.dtype):
    """What clients send and become in the second round, together and one by one.

    They have 15, 19 and 26 samples in batches of 8, so that last batches differ, and clients end one after another.
    """
    method, settings = VARIANTS[variant]
    one_by_one = toy_engine(method, group, dtype, **settings)
    together = Batched(one_by_one.method, one_by_one.federation)
    draws = Draws(0)
    state, _ = start(one_by_one, draws)
    state, _ = play_round(one_by_one, state, draws.at(1))
    visits = [
        Visit(k, state.clients.get(k, ClientState()), one_by_one.method.downlink(state.server, k)) for k in range(3)
    ]
    expected, found = (
        {update.client: update for update in engine.train(visits, draws.at(2))} for engine in (one_by_one, together)
    )
    return [(found[k], expected[k]) for k in range(3)]


@pytest.mark.parametrize(("variant", "group"), CASES)
def test_clients_trained_together_become_what_they_become_one_by_one(toy_engine, variant, group):
    for found, expected in both(toy_engine, variant, group, torch.float64):
        assert_close(found.uplink, expected.uplink)
        for part in ("params", "optimiser", "memory"):
            assert_close(getattr(found.state, part), getattr(expected.state, part))
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=1e-6, check_dtype=False)
        assert found.observed.keys() == expected.observed.keys()
        for name, values in expected.observed.items():
            for got, value in zip(
                *(v if isinstance(v, list) else [v] for v in (found.observed[name], values)), strict=True
            ):
                assert got == (value if value is None else pytest.approx(value, rel=1e-5))


def assert_close(found, expected) -> None:
    """Equal names; values equal but for 1e-7 of a tensor's largest one, and what Adam makes of gradients that are all
    rounding."""
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        largest = float(tensor.abs().max()) if tensor.numel() else 0.0
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-7 * largest + 2e-8)


@pytest.mark.parametrize("method", METHODS)
def test_uplinks_in_float32_differ_by_rounding(toy_engine, method):
    """By less than 1e-5 of a message's length."""
    for found, expected in both(toy_engine, method, "homogeneous", torch.float32):
        # Factors of a matrix are free to change their signs.
        sent, wanted = (restore(u) if method == "fedkd" else u for u in (found.uplink, expected.uplink))
        assert list(sent) == list(wanted)
        difference, whole = 0.0, 0.0
        for name, tensor in wanted.items():
            difference += float((sent[name].double() - tensor.double()).square().sum())
            whole += float(tensor.double().square().sum())
        assert difference <= 1e-10 * whole
