"""Hosts of others that answer in bytes which nobody should send: refused with a reason, and the round goes on."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace

import pytest
import torch
from test_remote_engine import Here
from toy import CLASSES, VARIANTS, groups_of

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message
from hetfl.methods.base import Statistics
from hetfl.schema import ClassCounts
from hetfl.training import rounds
from hetfl.training.contract import contracts, registered_counts
from hetfl.training.engine import Score, Update
from hetfl.training.host import Reply
from hetfl.training.remote import RemoteEngine

HOSTS = {"one": [0, 2], "other": [1]}


class Wire(Here):
    """Hosts that belong to others; what ``other`` answers to a kind of question is changed on the way."""

    def __init__(self, engine, change, kind: str = "train") -> None:
        super().__init__(engine, HOSTS)
        self.trusted, self.change, self.kind, self.earlier = False, change, kind, b""

    def receive(self, hosts, timeout):
        given = super().receive(hosts, timeout)
        if given is None or given[0] != "other" or Reply.from_bytes(given[1]).question.kind != self.kind:
            return given
        sent, self.earlier = self.change(given[1], self.earlier), given[1]
        return "other", sent


def another(content: bytes, **changes) -> bytes:
    """A reply with something else in its update."""
    reply = Reply.from_bytes(content)
    (update,) = reply.updates
    return Reply(reply.question, [Update(**{**vars(update), **changes})]).to_bytes()


def with_header(content: bytes, change) -> bytes:
    """The bytes with another safetensors header."""
    (size,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + size])
    change(head)
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def claim(head) -> None:
    name = next(name for name in head if name != "__metadata__")
    head[name]["shape"], head[name]["data_offsets"] = [2_500_000_000], [0, 10_000_000_000]


def impossible(head) -> None:
    head["zz"] = {"dtype": "F32", "shape": [0, 2**62, 16], "data_offsets": [0, 0]}


def many_dimensions(message: Message) -> Message:
    return Message({**message, "head.bias": torch.zeros([1] * 200)})


CASES = {
    "noise": (lambda content, _: b"\x80\x04garbage" * 9, "^sent what "),
    "nothing": (lambda content, _: b"", "^sent what "),
    "half of it": (lambda content, _: content[: len(content) // 2], "^sent what "),
    "a header of 10 GB": (lambda content, _: struct.pack("<Q", 10**10) + content[8:], "^sent what "),
    "a tensor of 10 GB": (lambda content, _: with_header(content, claim), "^sent what "),
    "strides beyond 64 bits": (lambda content, _: with_header(content, impossible), "^sent what .*RuntimeError"),
    "the round before": (lambda content, earlier: earlier or content, "^is not in the answer of its node$"),
    "half of the round before": (
        lambda content, earlier: earlier[:-8] or content,
        "^is not in the answer of its node$",
    ),
    "another's number": (lambda content, _: another(content, client=0), "^is not in the answer of its node$"),
    "nobody": (
        lambda content, _: Reply(Reply.from_bytes(content).question).to_bytes(),
        "^is not in the answer of its node$",
    ),
    "not finite": (
        lambda content, _: another(content, uplink={"head.bias": torch.full((3,), torch.nan)}),
        "^did not send ",
    ),
    "figures": (lambda content, _: another(content, observed={"x": "y"}), "^sent figures that are not numbers$"),
    "figures in figures": (
        lambda content, _: another(content, observed={"x": [1.0, [2.0]]}),
        "^sent figures that are not numbers$",
    ),
    "a figure that is no float": (
        lambda content, _: another(content, observed={"x": [1, -(10**400)]}),
        r"^sent a figure beyond 1e\+308$",
    ),
    "many figures": (
        lambda content, _: another(content, observed={f"x{number}": 1.0 for number in range(101)}),
        "^sent 101 figures, at most 100 are allowed$",
    ),
    "a name that is a text": (
        lambda content, _: another(content, observed={"<b>x</b>": 1.0}),
        "^sent a figure named '<b>x</b>'; letters, digits and _./:- are allowed$",
    ),
    "a long name": (lambda content, _: another(content, observed={"x" * 101: 1.0}), "^sent a figure named 'x{60}'; "),
    "a long figure": (
        lambda content, _: another(content, observed={"x": [0.0] * 10_001}),
        "^sent 10001 numbers as one figure, at most 10000 are allowed$",
    ),
    "a long reason": (
        lambda content, _: Reply(Reply.from_bytes(content).question, error="no\n\x1b[2J" + 999 * "o").to_bytes(),
        r"^cannot answer: no  \[2Jo{278}$",
    ),
    "many dimensions": (
        lambda content, _: another(content, uplink=many_dimensions(Reply.from_bytes(content).updates[0].uplink)),
        r"^sent head.bias of shape \[[1, ]{275}$",
    ),
    "a sum that is not finite": (
        lambda content, _: another(content, seconds={"train": 1e308}),
        "^sent seconds that are not",
    ),
    "a small loss": (
        lambda content, _: another(content, loss=torch.ones(()).to(torch.float8_e4m3fn)),
        "^sent a loss that is not a number$",
    ),
    "seconds": (lambda content, _: another(content, seconds={"train": -5.0}), "^sent seconds that are not"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_nobody_should_send_is_refused(toy_engine, case):
    change, told = CASES[case]
    engine = toy_engine("fedavg")
    remote = RemoteEngine("here", engine.method, engine.models, engine.device, Wire(engine, change))
    server, _ = rounds.start(remote, Draws(0))
    for round in (1, 2):
        server, line = rounds.play_round(remote, server, Draws(0).at(round))
    assert line.participants == [0, 2] and [*line.failed] == ["1"]
    assert re.match(told, line.failed["1"]), line.failed


def test_figures_of_the_fine_tuning_are_checked_like_those_of_rounds(toy_engine):
    engine = toy_engine("fedbabu")
    wire = Wire(engine, lambda content, _: another(content, loss=torch.zeros(2)), "fine_tune")
    remote = RemoteEngine("here", engine.method, engine.models, engine.device, wire)
    server, _ = rounds.start(remote, Draws(0))
    line = rounds.play_fine_tuning(remote, server, Draws(0).at(1))
    assert line.participants == [0, 2] and line.failed == {"1": "sent a loss that is not a number"}


def counts_of(engine) -> ClassCounts:
    """What a server knows of clients' samples."""
    tests = [data.test_images.labels[data.test].bincount(minlength=CLASSES) for data in engine.federation.data]
    trains = [client.class_counts.tolist() for client in engine.federation.clients]
    return ClassCounts(train=trains, test=[row.tolist() for row in tests])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_registration_with_what_the_card_says_is_taken(toy_engine, variant):
    method, settings = VARIANTS[variant]
    engine = toy_engine(method, groups_of(method, settings)[0], **settings)
    transport = Here(engine, HOSTS, trusted=False)
    remote = RemoteEngine("here", engine.method, engine.models, engine.device, transport, counts=counts_of(engine))
    assert rounds.start(remote, Draws(0))[0].keys() == rounds.start(engine, Draws(0))[0].keys()


def test_what_a_client_registers_of_its_images_is_its_own_to_say(toy_engine, monkeypatch):
    """Here how many of them its first model predicts rightly, which no card knows."""
    engine = toy_engine("fedavg")
    method, register = engine.method, engine.method.register

    def right(model, params, batch, received):
        return Statistics({"right": (model(params, batch.images).logits.argmax(1) == batch.labels).sum()})

    monkeypatch.setattr(method, "statistics_source", lambda round: "own")
    monkeypatch.setattr(method, "statistics", right)
    monkeypatch.setattr(
        method, "register", lambda work: Message({**register(work), "right": work.statistics.sums["right"]})
    )
    found = registered_counts(method, engine.models, counts_of(engine).train)
    assert [message["samples"].item() for message in found] == [15, 19, 26]
    assert all(list(message) == ["samples"] for message in found)


@pytest.mark.parametrize(
    ("variant", "name", "value"),
    [
        ("fedavg", "samples", 2**31 - 1),
        ("fedmix", "samples", 20),
        ("fedgen-counts", "counts", 7),
        ("fedhpl", "width", 10**6),
        ("fedhpl-literal-counts", "class_counts", 7),
    ],
)
def test_a_client_does_not_choose_how_much_it_counts(toy_engine, variant, name, value):
    method, settings = VARIANTS[variant]
    engine = toy_engine(method, **settings)

    def more(content: bytes, _: bytes) -> bytes:
        (update,) = Reply.from_bytes(content).updates
        changed = {name: torch.full_like(update.uplink[name], value)}
        return another(content, uplink=Message({**update.uplink, **changed}))

    wire = Wire(engine, more, "introduce")
    remote = RemoteEngine("here", engine.method, engine.models, engine.device, wire, counts=counts_of(engine))
    told = rf"client 1 of other registers with {name} \[{value}.*\], and the card of its data and its model give \["
    with pytest.raises(HetflError, match=told):
        rounds.start(remote, Draws(0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_message_is_longer_than_the_bound_of_its_contract(two_rounds, variant):
    method, settings = VARIANTS[variant]
    played = two_rounds(method, groups_of(method, settings)[-1], **settings)
    for client, update in played.updates.items():
        registration, uplink = contracts(played.engine.method, played.engine.models[client])
        rows = max(played.engine.federation.clients[client].samples, CLASSES)
        assert update.uplink.size.bytes <= uplink.most_bytes(rows, 20) < 40 * update.uplink.size.bytes + 10**5
        (own,) = played.engine.introduce([client], Draws(0))
        assert own.uplink.size.bytes <= registration.most_bytes(rows, 20)


def test_a_reply_longer_than_its_clients_messages_can_be_is_refused(toy_engine):
    engine = toy_engine("fedavg")
    wire = Wire(engine, lambda content, _: another(content, uplink={"w": torch.zeros(10**6)}))
    remote = RemoteEngine("here", engine.method, engine.models, engine.device, wire, counts=counts_of(engine))
    server, _ = rounds.start(remote, Draws(0))
    _, line = rounds.play_round(remote, server, Draws(0).at(1))
    assert re.match(r"sent what has \d+ bytes, and \d+ are the most that is read", line.failed["1"])


@pytest.mark.parametrize("samples", [0, 1, 10**9])
def test_a_client_does_not_choose_on_how_many_samples_it_is_tested(toy_engine, caplog, samples):
    engine = toy_engine("fedavg", train_accuracy=True)
    counts = counts_of(engine)

    def scored(content: bytes, _: bytes) -> bytes:
        reply = Reply.from_bytes(content)
        return replace(reply, scores=[Score(1, torch.tensor([samples, 0]), samples)]).to_bytes()

    wire = Wire(engine, scored, "test")
    remote = RemoteEngine("here", engine.method, engine.models, engine.device, wire, counts=counts)
    server, _ = rounds.start(remote, Draws(0))
    _, line = rounds.play_round(remote, server, Draws(0).at(1))
    _, right = rounds.play_round(engine, rounds.start(engine, Draws(0))[0], Draws(0).at(1))
    assert line.accuracy == [right.accuracy[0], None, right.accuracy[2]]
    assert line.train_accuracy == [right.train_accuracy[0], None, right.train_accuracy[2]]
    many = [sum(counts.test[k]) for k in (0, 2)]
    assert line.pooled == pytest.approx(
        (line.accuracy[0] * many[0] + line.accuracy[2] * many[1]) / sum(many), abs=1e-12
    )
    assert caplog.messages == [
        f"client 1 was tested on {samples} samples, and has {sum(has[1])} ({part}); its score is left out"
        for part, has in (("test", counts.test), ("train", counts.train))
    ]
