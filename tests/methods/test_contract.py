"""What every registered method owes: runs where it says it does, and no number depends on how it was run."""

from __future__ import annotations

import pytest
import torch
from playing import Trained, assert_close, play_round, start, train
from pydantic import create_model
from toy import PLAYED, mixed_group
from wire import payload, received

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.methods import METHODS, create, method_class
from hetfl.methods.base import register_method
from hetfl.training.contract import contracts
from hetfl.training.engines import make_engine
from hetfl.training.state import ResumePoints


def test_a_file_does_not_take_the_name_of_another_ones_method() -> None:
    mine = type("Mine", (METHODS["fedavg"],), {"__module__": "hetfl.methods.mine"})
    with pytest.raises(HetflError, match=r"methods/mine.py: register_method\('fedavg'\): .*fedavg.py has"):
        register_method("fedavg")(mine)
    assert METHODS["fedavg"] is not mine


def test_a_method_declares_the_version_of_its_formulas() -> None:
    unversioned = type("Mine", (METHODS["fedavg"],), {"__module__": "hetfl.methods.mine"})
    with pytest.raises(HetflError, match=r"^src/hetfl/methods/mine.py: Mine: has no version.*write numerics = 1"):
        register_method("mine")(unversioned)
    assert "mine" not in METHODS


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            create_model("Settings", __base__=METHODS["fedavg"].Settings, kept=(set, {1})),
            "Settings.kept: is a set, which no YAML has; use text or a tuple",
        ),
        (type("Settings", (), {"step": 1.0}), "Settings: is not derived from the settings of the class's parent"),
        (
            create_model("Settings", __base__=METHODS["fedavg"].Settings, step=(float, ...)),
            "Settings.step: has no def",
        ),
    ],
)
def test_settings_are_those_of_a_method_with_defaults(wrong: type, told: str) -> None:
    mine = type("Mine", (METHODS["fedavg"],), {"__module__": "hetfl.methods.mine", "numerics": 1, "Settings": wrong})
    with pytest.raises(HetflError, match=f"^src/hetfl/methods/mine.py: Mine.{told}"):
        register_method("mine")(mine)
    assert "mine" not in METHODS


@pytest.fixture(params=PLAYED)
def played(two_rounds, request):
    """A variant's first two rounds in a mixed group."""
    method, settings = PLAYED[request.param]
    return two_rounds(method, mixed_group(method, settings), dtype=torch.float64, **settings)


def test_clients_in_another_order_that_get_bytes_send_the_same(played):
    """A client that was sent the bytes does what one that was handed the tensors does, whoever went before it."""
    sent = received(dict(reversed(played.downlinks.items())))
    again = train(played.engine, sent, Draws(0).at(2), played.first.clients)
    assert {update.client for update in again} == {0, 1, 2}
    for update in again:
        contracts(played.engine.method, played.engine.models[update.client])[1].check_values(update.uplink)
    for update in again:
        assert same_update(update, played.updates[update.client])
        for message in (played.downlinks[update.client], update.uplink):
            assert message.size.bytes == payload(message)


def test_state_survives_a_resume_point(played, tmp_path):
    with ResumePoints(tmp_path) as points:
        points.save(played.first)
    again = points.load(torch.device("cpu"))
    # A sum over names depends on their order.
    assert [*again.server] == [*played.first.server]
    assert [*again.clients] == [*played.first.clients]
    second, line = play_round(played.engine, again, Draws(0).at(2))
    found, expected = second.tensors(), played.second.tensors()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    assert line.accuracy == played.line.accuracy


def test_clients_trained_together_become_what_they_become_one_by_one(played):
    """They have 15, 19 and 26 samples in batches of 8, so that last batches differ, and clients end one after
    another."""
    together = make_engine(played.engine.method, played.engine.federation, "batched")
    for found in train(together, played.downlinks, Draws(0).at(2), played.first.clients):
        expected = played.updates[found.client]
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


def same_update(first: Trained, second: Trained) -> bool:
    """Whether a client sent and became the same."""
    states = first.state, second.state
    return same(first.uplink, second.uplink) and all(
        same(*(getattr(state, part) for state in states)) for part in ("params", "optimiser", "memory")
    )


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
