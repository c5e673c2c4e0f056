"""One contract for every message, which nobody writes down; what breaks it changes nothing but that it is missing."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from toy import CLASSES, most_varied

from hetfl.data.partitions import Partition
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message
from hetfl.methods import METHODS, create
from hetfl.training import rounds
from hetfl.training.contract import contracts
from hetfl.training.engine import Failure, Update
from hetfl.training.local import LocalEngine

HOSTILE = 1


class Replaying(LocalEngine):
    """Remote clients that train once: asked again, they send what they sent, but for the hostile one."""

    remote = True

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine.method, engine.federation, engine.trainer)
        self.sent: list[Update] = []
        self.hostile = lambda update: update

    def train(self, tasks, draws):
        if not self.sent:
            self.sent = list(super().train(tasks, draws))
        for update in self.sent:
            yield self.hostile(update) if update.client == HOSTILE else update


def garbage(uplink: Message) -> dict[str, Message]:
    """Messages that no client sends, by what is wrong with them."""
    found = {"extra": {**uplink, "sudo": torch.zeros(1)}}
    if uplink:
        name, *others = uplink
        found["missing"] = {other: uplink[other] for other in others}
        found["renamed"] = {name + " ": uplink[name]} | {other: uplink[other] for other in others}
        found["shape"] = {**uplink, name: torch.zeros(7, 1, 2, dtype=uplink[name].dtype)}
        found["type"] = {**uplink, name: uplink[name].to(torch.complex64)}
    for name in {**dict.fromkeys([*uplink][:1]), **dict.fromkeys([*uplink][-1:])}:
        wrong = [torch.nan, torch.inf] if uplink[name].is_floating_point() else [-1]
        found |= {f"{value} in {name}": {**uplink, name: torch.full_like(uplink[name], value)} for value in wrong}
    if "labels" in uplink:
        found["labels"] = {**uplink, "labels": uplink["labels"] + 1000}
    return {what: Message(tensors) for what, tensors in found.items()}


@pytest.fixture(scope="module")
def five() -> Partition:
    """Five clients with 10 to 14 samples of the toy data."""
    return Partition(tuple(np.split(np.arange(60), [10, 21, 33, 46])), None)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_garbage_of_one_of_five_clients_is_its_absence(toy_engine, five, monkeypatch, method):
    """The server's next state is the same to the bit, so that nothing that others get or send can differ."""
    monkeypatch.setattr(rounds, "tests_after", lambda *given: rounds.Tests())
    engine = Replaying(toy_engine(method, partition=five, participation=1.0))
    server, _ = rounds.start(engine, Draws(0))
    engine.hostile = lambda update: Failure(update.client, "did not answer")
    expected, line = rounds.play_round(engine, server, Draws(0).at(1))
    assert line.participants == [0, 2, 3, 4] and line.failed == {"1": "did not answer"}
    (uplink,) = (update.uplink for update in engine.sent if update.client == HOSTILE)
    _, contract = contracts(engine.method, engine.models[HOSTILE])
    wrong = garbage(uplink)
    for what, message in wrong.items():
        with pytest.raises(HetflError, match="^(sent|did not send) "):
            contract.sizes(message)
            contract.check_values(message)
            raise AssertionError(what)
    for what in [*wrong][:: max(1, len(wrong) - 1)]:
        engine.hostile = lambda update, message=wrong[what]: Update(**{**vars(update), "uplink": message})
        found, line = rounds.play_round(engine, server, Draws(0).at(1))
        assert [*line.failed] == ["1"] and line.participants == [0, 2, 3, 4], what
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items()), what
    engine.hostile = lambda update: update
    assert rounds.play_round(engine, server, Draws(0).at(1))[1].failed == {}


REASONS = {
    "fedavg": ("head.bias", lambda t: t[:2], r"^sent head.bias of shape \[2\], and it has \[3\]$"),
    "fedprox": ("head.bias", lambda t: t.half(), r"^sent head.bias as float16, and it is float32$"),
    "fedtgp": ("labels", lambda t: torch.zeros_like(t), "^sent a label twice$"),
    "fedgh": ("labels", lambda t: t + 3 - t.max(), "^sent labels beyond the 3 classes$"),
    "fedproto": ("means", lambda t: t[:1], r"^sent labels of shape \[3\], and it has \[1\]$"),
    "fgpt": ("counts", lambda t: -t, "^sent negative counts$"),
    "fedkd": ("auxiliary.head.bias", lambda t: t / 0, "^sent values that are not finite in auxiliary.head.bias$"),
    "pt-fedavg": ("head.bias", lambda t: t + 3e38, r"^sent values beyond 1.8e\+19 in head.bias$"),
    "fedbabu": ("", lambda t: t, r"^sent sudo, which its method did not send in rehearsal$"),
}


@pytest.mark.parametrize("method", REASONS)
def test_the_reason_says_what_is_wrong(two_rounds, method):
    name, change, told = REASONS[method]
    played = two_rounds(method, most_varied(method))
    uplink = played.updates[2].uplink
    _, contract = contracts(played.engine.method, played.engine.models[2])
    wrong = {**uplink, **({name: change(uplink[name])} if name else {"sudo": torch.zeros(1)})}
    with pytest.raises(HetflError, match=told):
        contract.sizes(Message(wrong))
        contract.check_values(Message(wrong))


def test_a_server_that_is_no_longer_finite_names_the_client_with_the_largest_values(toy_engine, five, monkeypatch):
    engine = Replaying(toy_engine("fedavg", partition=five))
    server, _ = rounds.start(engine, Draws(0))
    large = {"head.bias": torch.full((CLASSES,), 1e9)}
    engine.hostile = lambda update: Update(**{**vars(update), "uplink": Message({**update.uplink, **large})})
    aggregate = engine.method.aggregate
    spoiled = {"head.bias": torch.full((CLASSES,), torch.nan)}
    monkeypatch.setattr(engine.method, "aggregate", lambda *given: aggregate(*given) | {"model": spoiled})
    told = r"^model/head.bias of the server is no longer finite; the largest values, up to 1.0e\+09, .* client 1$"
    with pytest.raises(HetflError, match=told):
        rounds.play_round(engine, server, Draws(0).at(1))


def test_clients_that_share_public_data_send_as_many_rows_as_most(toy_engine, five, monkeypatch):
    """No contract knows how many there are."""
    monkeypatch.setattr(rounds, "tests_after", lambda *given: rounds.Tests())
    engine = Replaying(toy_engine("fedmd", partition=five))
    server, _ = rounds.start(engine, Draws(0))
    engine.hostile = lambda update: Update(
        **{**vars(update), "uplink": Message({n: t[:5] for n, t in update.uplink.items()})}
    )
    _, line = rounds.play_round(engine, server, Draws(0).at(1))
    assert line.failed == {"1": "sent 5 rows or columns where 4 clients sent 12"}
    assert line.participants == [0, 2, 3, 4] and len(line.loss) == 4


def test_a_client_of_the_run_that_diverges_is_no_failure(toy_engine):
    engine = toy_engine("fedavg", lr=1e30)
    server, _ = rounds.start(engine, Draws(0))
    _, line = rounds.play_round(engine, server, Draws(0).at(1))
    assert line.diverged == [0, 1, 2] and not line.failed


def test_a_message_of_the_run_that_breaks_the_contract_ends_it(toy_engine, monkeypatch):
    engine = toy_engine("fedavg")
    server, _ = rounds.start(engine, Draws(0))
    monkeypatch.setattr(engine.method, "uplink", lambda work: Message({"w": torch.zeros(1)}))
    with pytest.raises(HetflError, match=r"^client 0 sent w, which its method did not send in rehearsal$"):
        rounds.play_round(engine, server, Draws(0).at(1))


@pytest.mark.parametrize(
    "change",
    [{"loss": torch.zeros(2)}, {"seconds": {"train": -1.0}}, {"seconds": {"x": 1.0}}, {"observed": {"x": "y"}}],
)
def test_what_the_record_keeps_of_a_client_is_checked_too(toy_engine, change):
    engine = Replaying(toy_engine("fedavg"))
    server, _ = rounds.start(engine, Draws(0))
    engine.hostile = lambda update: Update(**{**vars(update), **change})
    _, line = rounds.play_round(engine, server, Draws(0).at(1))
    assert [*line.failed] == ["1"] and line.participants == [0, 2]


def test_contracts_do_not_keep_a_method_and_its_models(toy_engine):
    """A process trains many cells."""
    method = create("fedavg", {}, CLASSES, 2)
    contracts(method, toy_engine("fedavg").models[0])
    kept = weakref.ref(method)
    del method
    gc.collect()
    assert kept() is None
