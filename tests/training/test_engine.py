"""Clients' private state is behind the engine, and a round that failed is played again with the same numbers."""

from __future__ import annotations

import pytest
import torch
from toy import LOCAL_ENGINES

from hetfl.draws import Draws
from hetfl.training import rounds
from hetfl.training.engine import Engine
from hetfl.training.engines import make_engine
from hetfl.training.state import ClientState, ClientStates, State

METHODS = {
    "fedhpl": {"optimiser": "adam", "keep_optimiser": True},
    "scaffold": {},  # a memory
    "sgpt": {"shared_blocks": (1,), "group_blocks": (2,), "prompt_length": 2, "groups": 2, "balance": "client"},
}


@pytest.mark.parametrize("name", LOCAL_ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_a_round_that_failed_is_played_again_with_the_same_numbers(toy_engine, monkeypatch, name, method):
    """Some clients had already finished theirs."""
    reference = toy_engine(method, dtype=torch.float64, participation=1.0, **METHODS[method])
    ends = []
    for fails in (False, True):
        engine: Engine = make_engine(reference.method, reference.federation, name)
        server, _ = rounds.start(engine, Draws(0))
        server, _ = rounds.play_round(engine, server, Draws(0).at(1))
        if fails:
            uplink, calls = engine.method.uplink, []

            def failing(work, uplink=uplink, calls=calls):
                calls.append(work.client.index)
                if len(calls) == 3:
                    raise OSError("the network is gone")
                return uplink(work)

            with monkeypatch.context() as patch:
                patch.setattr(engine.method, "uplink", failing)
                with pytest.raises(OSError, match="network"):
                    rounds.play_round(engine, server, Draws(0).at(2))
        server, line = rounds.play_round(engine, server, Draws(0).at(2))
        ends.append((State(2, server, engine.client_states()).tensors(), line.loss, line.accuracy))
    (expected, *lines), (found, *others) = ends
    assert lines == others and list(found) == list(expected)
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())


def test_states_are_those_at_the_rounds_start_until_the_next_one_begins():
    first, second = ClientState({"w": torch.zeros(1)}), ClientState({"w": torch.ones(1)})
    states = ClientStates({3: first})
    assert states.before(3, 7) is first and states.before(5, 7).empty
    states.keep(3, 7, second)
    states.keep(5, 7, ClientState())
    assert states.before(3, 7) is first and states.after(3) is second
    assert states.all() == {3: second}
    assert states.before(3, 8) is second
    with pytest.raises(ValueError, match="restore the clients' states to play round 7 again"):
        states.before(3, 7)


def test_an_engine_goes_on_from_what_another_exported(toy_engine):
    engine, other = (toy_engine("scaffold", dtype=torch.float64) for _ in range(2))
    server, _ = rounds.start(engine, Draws(0))
    server, _ = rounds.play_round(engine, server, Draws(0).at(1))
    stored = State.from_tensors(1, State(1, server, engine.client_states()).tensors())
    other.restore(stored.clients)
    expected, _ = rounds.play_round(engine, server, Draws(0).at(2))
    found, _ = rounds.play_round(other, stored.server, Draws(0).at(2))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_the_stored_names_are_those_of_older_resume_points():
    """Runs that were begun by older code go on from them."""
    state = State(3, {"model/w": torch.zeros(1)}, {4: ClientState(*({"w": torch.ones(1)} for _ in range(3)))})
    names = ["server/model/w", "client/4/params/w", "client/4/optimiser/w", "client/4/memory/w"]
    assert list(state.tensors()) == names
    again = State.from_tensors(3, state.tensors())
    assert again == state
