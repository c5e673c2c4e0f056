"""Rules that hold against hostile clients, and noise that hides honest ones."""

from __future__ import annotations

import math

import pytest
import torch

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message, ServerState
from hetfl.methods import METHODS, create
from hetfl.methods.base import Uplinks
from hetfl.methods.parts.robust import CombiningSettings, combined, epsilon, noised, shortened
from hetfl.training import rounds
from hetfl.training.engine import Task

BEFORE = {"w": torch.tensor([1.0, 1.0])}
SENT = [[1.0, 2.0], [2.0, 1.0], [3.0, 4.0], [4.0, 3.0], [1e9, -1e9]]


def after(sent=SENT, **settings) -> list[float]:
    messages = [{"w": torch.tensor(values)} for values in sent]
    weights = torch.arange(1, len(sent) + 1)
    return combined(messages, weights, BEFORE, CombiningSettings(**settings))["w"].tolist()


def test_median_and_trimmed_mean_leave_out_what_is_far_off():
    assert after(combine="median") == [3.0, 2.0]
    assert after(SENT[:4], combine="median") == [2.5, 2.5]
    assert after(combine="trimmed", trim=0.2) == [3.0, 2.0]
    assert after(combine="trimmed", trim=0.19) == pytest.approx([(10 + 1e9) / 5, (10 - 1e9) / 5])
    assert after(SENT[:1], combine="median") == after(SENT[:1], combine="trimmed", trim=0.49) == [1.0, 2.0]


def test_changes_are_shortened_to_the_largest_norm():
    short = shortened({"w": torch.tensor([4.0, 5.0])}, BEFORE, 0.5)
    torch.testing.assert_close(short["w"], torch.tensor([1.3, 1.4]))
    exact = {"w": torch.tensor([1.1, 1.3])}
    assert torch.equal(shortened(exact, BEFORE, 1.0)["w"], exact["w"])
    found = after(largest_change=1.0)
    assert math.dist(found, [1.0, 1.0]) < 1


def test_a_change_with_noise_is_not_shortened_again():
    """The client shortened it before it added the noise, which a second time would take away."""
    assert after(largest_change=1.0, noise=0.5) == after()


def test_a_change_is_shortened_before_noise_is_added():
    settings = CombiningSettings(largest_change=0.5, noise=1e-9)
    sent = noised({"w": torch.tensor([4.0, 5.0])}, BEFORE, settings, Draws(0), 0)
    torch.testing.assert_close(sent["w"], torch.tensor([1.3, 1.4]))


@pytest.mark.parametrize("method", ["fedavg", "fedbabu", "pfedpt", "pt-fedavg", "fedmix"])
def test_settings_that_ask_for_the_mean_change_nothing(toy_engine, method):
    ends = []
    for settings in ({}, {"combine": "trimmed", "trim": 0.0}, {"largest_change": 1e6}):
        engine = toy_engine(method, dtype=torch.float64, **settings)
        server, _ = rounds.start(engine, Draws(0))
        ends.append(rounds.play_round(engine, server, Draws(0).at(1))[0])
    plain, trimmed, long = ends
    assert all(torch.equal(long[name], tensor) for name, tensor in plain.items())
    assert plain.keys() == trimmed.keys()


SCALED = {"combine": "median"}, {"combine": "trimmed", "trim": 0.34}, {"largest_change": 1.0}


@pytest.mark.parametrize("settings", SCALED)
def test_a_client_that_sends_huge_parameters_does_not_decide(settings):
    method = create("fedavg", settings, 3)
    server = ServerState({"samples": torch.tensor([10, 10, 10], dtype=torch.int32), "model": BEFORE})
    sent = [Message({"w": torch.tensor(values)}) for values in ([1.5, 1.0], [1.0, 1.5], [1e8, 1e8])]
    found = method.aggregate(server, Uplinks([0, 1, 2], sent), Draws(0))["model/w"]
    assert found.sub(1).norm() < 1
    plain = create("fedavg", {}, 3).aggregate(server, Uplinks([0, 1, 2], sent), Draws(0))["model/w"]
    assert plain.norm() > 1e7


MEAN = {"fedavg", "fedprox", "fedbabu", "fedrep", "pfedpt", "pt-fedavg", "fedmoon", "fedmix", "fedpr"}


@pytest.mark.parametrize(
    "method", sorted(name for name, cls in METHODS.items() if "combine" in cls.Settings.model_fields)
)
def test_methods_with_another_rule_refuse_the_settings(method):
    if method in MEAN:
        create(method, {"combine": "median"}, 3)
        return
    for setting in ({"combine": "median"}, {"largest_change": 1.0}):
        with pytest.raises(HetflError, match="is for methods whose server only takes the mean"):
            create(method, setting, 3)


def test_noise_needs_a_norm():
    with pytest.raises(HetflError, match="noise: .* needs largest_change"):
        create("fedavg", {"noise": 1.0}, 3)
    with pytest.raises(HetflError, match="noise: .* is for methods whose server only"):
        create("fedmix", {"largest_change": 1.0, "noise": 1.0}, 3)


def test_noised_uplinks_are_repeatable_and_their_epsilon_is_in_the_record(toy_engine):
    pytest.importorskip("dp_accounting")
    settings = {"largest_change": 0.1, "noise": 2.0, "participation": 1.0}
    lines, ends = [], []
    for _ in range(2):
        engine = toy_engine("fedavg", dtype=torch.float64, **settings)
        server, _ = rounds.start(engine, Draws(0))
        for round in (1, 2):
            server, line = rounds.play_round(engine, server, Draws(0).at(round))
            lines.append(line)
        ends.append(server)
    assert all(torch.equal(ends[1][name], tensor) for name, tensor in ends[0].items())
    told = [line.diagnostics["epsilon"] for line in lines[:2]]
    assert told == [epsilon(2.0, 1e-5, 1), epsilon(2.0, 1e-5, 2)] and told[0] < told[1]


def changes(engine, clients, round: int) -> list[torch.Tensor]:
    """How far the uplinks of some clients are from the server's first model."""
    server, _ = rounds.start(engine, Draws(0))
    tasks = [Task(client, engine.method.downlink(server, client)) for client in clients]
    return [
        torch.cat([(t - server.group("model")[n]).flatten() for n, t in update.uplink.items()])
        for update in engine.train(tasks, Draws(0).at(round))
    ]


def test_a_noised_uplink_is_a_short_change_and_noise_of_the_norm(toy_engine):
    engine = toy_engine("fedavg", largest_change=0.1, noise=3.0)
    moved = changes(engine, (0, 1), 1)
    for change in moved:
        assert change.std().item() == pytest.approx(0.3, rel=0.02)
    assert abs(torch.corrcoef(torch.stack(moved))[0, 1]) < 0.05


def test_the_noise_of_each_round_is_drawn_anew(toy_engine):
    """Else the difference of two uplinks would be free of it."""
    engine = toy_engine("fedavg", largest_change=0.1, noise=3.0)
    moved = [*changes(engine, [0], 1), *changes(engine, [0], 2)]
    assert abs(torch.corrcoef(torch.stack(moved))[0, 1]) < 0.05


def test_epsilon_is_that_of_the_gaussian_mechanism():
    """delta(e) = Phi(1/2s - e s) - exp(e) Phi(-1/2s - e s) with s = noise / sqrt(uplinks), Balle and Wang 2018."""
    pytest.importorskip("dp_accounting")
    for noise, uplinks in ((1.0, 1), (5.0, 10), (20.0, 100)):
        found, s = epsilon(noise, 1e-5, uplinks), noise / math.sqrt(uplinks)

        def phi(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        delta = phi(0.5 / s - found * s) - math.exp(found) * phi(-0.5 / s - found * s)
        assert delta == pytest.approx(1e-5, rel=0.02)
    assert epsilon(1.0, 1e-5, 0) == 0


def test_the_epsilon_of_a_round_is_that_of_the_delta_that_is_set():
    pytest.importorskip("dp_accounting")
    method = create("fedavg", {"largest_change": 1.0, "noise": 2.0, "delta": 1e-3}, 3)
    told = method.diagnostics(ServerState({"noised": torch.tensor(2)}))
    assert told == {"epsilon": epsilon(2.0, 1e-3, 2)} and epsilon(2.0, 1e-3, 2) < epsilon(2.0, 1e-5, 2)
