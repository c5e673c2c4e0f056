"""What every registered method owes: runs where it says it does, and no number depends on how it was run."""

from __future__ import annotations

import pytest
import torch
from playing import downlinks, play_round, start, train

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message
from hetfl.methods import METHODS, create, method_class

VARIANTS = {
    **{name: (name, {}) for name in sorted(METHODS)},
    "fedgen-counts": ("fedgen", {"labels": "counts", "tests": "global"}),
    "fedproto-weighted": ("fedproto", {"average": "weighted", "collect": "before", "distance": "l2"}),
    "fedhpl-cnn": ("fedhpl", {"prompts": "frame", "prompt_length": 2}),
    "fedhpl-local": ("fedhpl", {"communicate": False}),
    "fedhpl-shallow": ("fedhpl", {"prompts": "shallow"}),
    "fedhpl-average-upload": ("fedhpl", {"upload": "average"}),
    "fedhpl-average-aggregation": ("fedhpl", {"aggregation": "average"}),
    "fedhpl-upload-all": ("fedhpl", {"selection": "all"}),
    "fedhpl-literal-counts": ("fedhpl", {"denominator": "samples"}),
    "fedhpl-plus-p": ("fedhpl", {"share": "prompts"}),
    "fedhpl-plus-h": ("fedhpl", {"share": "head"}),
}


def groups(variant: str) -> list[str]:
    """The model groups a variant runs on; ResNets for whatever trains any architecture from scratch."""
    method, settings = VARIANTS[variant]
    if settings.get("prompts") == "frame":
        return ["resnets"]
    if not METHODS[method].heterogeneous:
        return ["homogeneous"]
    trained = create(method, settings, 3).model_options().body == "trained"
    return ["homogeneous", "heterogeneous", *(["resnets"] if trained else [])]


CASES = [(variant, group) for variant in VARIANTS for group in groups(variant)]


def after_one_round(toy_engine, variant: str, group: str):
    """An engine for the variant and its state after the first round of seed 0."""
    method, settings = VARIANTS[variant]
    engine = toy_engine(method, group, **settings)
    state, _ = start(engine, Draws(0))
    state, _ = play_round(engine, state, Draws(0).at(1))
    return engine, state


@pytest.mark.parametrize(("variant", "group"), CASES)
def test_uplinks_do_not_depend_on_the_order_of_clients(toy_engine, variant, group):
    draws = Draws(0)
    engine, state = after_one_round(toy_engine, variant, group)
    sent = downlinks(engine, state)
    forward, backward = (
        {update.client: update for update in train(engine, given, draws.at(2), state.clients)}
        for given in (sent, dict(reversed(sent.items())))
    )
    for k in range(3):
        assert same(forward[k].uplink, backward[k].uplink)
        assert same(forward[k].state.params, backward[k].state.params)
        assert same(forward[k].state.optimiser, backward[k].state.optimiser)


@pytest.mark.parametrize(("variant", "group"), CASES)
def test_messages_cost_what_they_serialise_to_and_survive_it(toy_engine, variant, group):
    """A client that was sent the bytes does what a client that was handed the tensors does."""
    draws = Draws(0)
    engine, state = after_one_round(toy_engine, variant, group)
    for k in range(3):
        down = engine.method.downlink(state.server, k)
        sent = Message.from_bytes(down.to_bytes()) if down else down
        (handed,) = train(engine, {k: down}, draws.at(2), state.clients)
        (received,) = train(engine, {k: sent}, draws.at(2), state.clients)
        assert same(handed.uplink, received.uplink)
        for message in (down, handed.uplink):
            if message:
                content = message.to_bytes()
                assert message.size.bytes == len(content) - 8 - int.from_bytes(content[:8], "little")


@pytest.mark.parametrize(("variant", "group"), CASES)
def test_state_survives_flattening(toy_engine, variant, group):
    from hetfl.training.state import State

    engine, state = after_one_round(toy_engine, variant, group)
    again = State.from_tensors(1, state.tensors())
    assert same(again.server, state.server)
    assert set(again.clients) == set(state.clients)
    first, second = (play_round(engine, s, Draws(0).at(2)) for s in (state, again))
    assert same(first[0].tensors(), second[0].tensors())
    assert first[1].accuracy == second[1].accuracy


def same(first, second) -> bool:
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


def test_partial_participation_keeps_state_of_those_who_took_part_only(toy_engine):
    engine = toy_engine("fedhpl", participation=0.34)
    state, _ = start(engine, Draws(0))
    state, line = play_round(engine, state, Draws(0).at(1))
    assert len(line.participants) == 1
    assert set(state.clients) == set(line.participants)
    assert len(line.accuracy) == 3
    assert len(line.loss) == 1


def test_participants_are_a_function_of_seed_and_round_alone():
    from hetfl.training.sampling import participants

    drawn = [participants(100, 0.05, Draws(0).at(round)) for round in range(1, 50)]
    assert all(len(set(chosen)) == 5 for chosen in drawn)
    assert drawn == [participants(100, 0.05, Draws(0).at(round)) for round in range(1, 50)]
    assert len({tuple(chosen) for chosen in drawn}) > 40
    assert len(participants(100, 0.29, Draws(0))) == 29
    assert participants(3, 0.01, Draws(0)) in ([0], [1], [2])


def test_every_method_says_what_it_is():
    for name, cls in METHODS.items():
        assert cls.title and cls.source and cls.travels, name
        assert cls.__doc__, name


def test_unknown_methods_and_settings_are_one_line():
    with pytest.raises(HetflError, match="unknown method 'fedavgg'; did you mean 'fedavg'"):
        method_class("fedavgg")
    with pytest.raises(HetflError, match="fedprox: settings.mu: -1 should be greater than or equal to 0"):
        create("fedprox", {"mu": -1}, 3)
