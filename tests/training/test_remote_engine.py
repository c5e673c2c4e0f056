"""Clients behind messages of bytes give what they give in the server's own process."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from toy import CLASSES, VARIANTS, groups_of, most_varied

from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.message import Message
from hetfl.methods import METHODS
from hetfl.models import build
from hetfl.training import rounds
from hetfl.training.engine import Failure, Score, Task, Update
from hetfl.training.host import Host, Question, Reply, Request
from hetfl.training.local import LocalEngine
from hetfl.training.remote import AHEAD, ROOM, TRIES, Lost, RemoteEngine, Waiting
from hetfl.training.sequential import Sequential
from hetfl.training.state import ClientState, State


class Here:
    """Hosts in this process, each asked when its answer is wanted; an implementation of ``Transport``.

    Attributes:
        dies: says whether a host is lost before it answers, given its name and how many parts were given.
        silent: the hosts that do not answer in time.
        changes: what comes of a host's bytes on their way.
    """

    def __init__(
        self, engine: LocalEngine, hosts: Mapping[str, Sequence[int]], trusted: bool = True, **options
    ) -> None:
        self.clients, self.trusted = hosts, trusted
        self.made = lambda: Host(
            LocalEngine(engine.method, engine.federation, Sequential(engine.method)), Draws(0), **options
        )
        self.hosts = {name: self.made() for name in hosts}
        self.waiting: dict[str, deque[bytes | Iterator[bytes]]] = defaultdict(deque)
        self.given = 0
        self.dies = lambda host, given: False
        self.silent: set[str] = set()
        self.changes = lambda host, content: content

    def send(self, host: str, request: bytes, most: int = 0) -> None:
        self.waiting[host].append(request)

    def receive(self, hosts, timeout):
        for host in reversed(
            [host for host in hosts if host not in self.silent]
        ):  # the last ones first, to show that order does not matter
            while self.waiting[host]:
                if self.dies(host, self.given):
                    self.waiting[host].clear()
                    return host, Lost("was lost")
                first = self.waiting[host][0]
                if isinstance(first, bytes):
                    first = self.waiting[host][0] = self.answers(self.hosts[host], first)
                part = next(first, None)
                if part is not None:
                    self.given += 1
                    return host, self.changes(host, part)
                self.waiting[host].popleft()
        return None

    def answers(self, host: Host, request: bytes) -> Iterator[bytes]:
        """Part by part, or whole where the host is somebody else's."""
        if self.trusted:
            yield from (reply.to_bytes() for reply in host.parts(request))
        else:
            yield host.answer(request)

    def replace(self, host: str) -> bool:
        if self.trusted:
            self.hosts[host] = self.made()
        return self.trusted

    def deal(self, loads: Sequence[float]) -> bool:
        return False

    def close(self) -> None:
        pass


HOSTS = {"one": [0, 2], "other": [1]}


def play(engine, many: int = 2):
    """The states after some rounds and fine-tuning, and what the record has of them besides seconds and memory."""
    draws, lines = Draws(0), []
    server, line = rounds.start(engine, draws)
    lines.append(line)
    for round in range(1, many + 1):
        server, line = rounds.play_round(engine, server, draws.at(round))
        lines.append(line)
    if engine.method.fine_tuning():
        lines.append(rounds.play_fine_tuning(engine, server, draws.at(many + 1)))
    state = State(many, server, engine.client_states()).tensors()
    return state, [bare(line) for line in lines]


def bare(line):
    """A round of the record without what depends on the machine."""
    return line.model_copy(update={"seconds": {}, "peak_memory": None})


def assert_same(found, expected):
    assert found[1] == expected[1]
    assert found[0].keys() == expected[0].keys()
    for name, tensor in expected[0].items():
        assert found[0][name].dtype == tensor.dtype and torch.equal(found[0][name], tensor), name


def remote(engine: LocalEngine, transport, deadline: float | None = None) -> RemoteEngine:
    return RemoteEngine("here", engine.method, engine.models, engine.device, transport, deadline=deadline)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_bits(two_rounds, weights, method):
    """The server's models are only shapes, but for what clients and server begin with."""
    played = two_rounds(method, most_varied(method))
    engine = remote(played.engine, Here(played.engine, HOSTS))
    options = engine.method.model_options()
    shapes = {}
    for model in dict.fromkeys(engine.models):
        shape = shapes[model] = build(model.name, CLASSES, options, weights, shapes_only=True)
        assert shape.groups == model.groups and shape.total_elements == model.total_elements
        assert all(tensor.is_meta for tensor in shape.tensors())
        for client in (-1, 1):
            fresh, known = shape.init(Draws(0), client), model.init(Draws(0), client)
            assert all(torch.equal(fresh.pop(name), known[name]) for name in known) and not fresh
    engine.models = [shapes[model] for model in engine.models]
    engine.restore(played.first.clients)
    server, line = rounds.play_round(engine, played.first.server, Draws(0).at(2))
    assert_same(
        (State(2, server, engine.client_states()).tensors(), [bare(line)]),
        (played.second.tensors(), [bare(played.line)]),
    )


@pytest.mark.parametrize("method", ["fedmd", "scaffold"])
def test_a_lost_host_is_replaced_and_asked_again(toy_engine, method):
    """At registration, in the middle of training, and before a test; often, but never again and again."""
    engine = toy_engine(method, rounds=2)
    transport = Here(engine, HOSTS)
    lost = []

    def dies(host: str, given: int) -> bool:
        dead = host == "one" and len(lost) < 4 and given >= (1, 4, 7, 10)[len(lost)]
        lost.extend([given] * dead)
        return dead

    transport.dies = dies
    assert_same(play(remote(engine, transport)), play(engine))
    assert len(lost) == 4 > TRIES


@pytest.mark.parametrize("method", ["fedmd", "fedrep", "scaffold"])
def test_clients_that_change_hosts_take_what_they_remember_along(toy_engine, method):
    engine = toy_engine(method, rounds=4)
    transport, told = Here(engine, HOSTS), []

    def deal(loads: Sequence[float]) -> bool:
        told.append(loads)
        transport.clients = {"one": [1], "other": [2, 0]} if len(told) == 1 else HOSTS
        return True

    transport.deal = deal
    assert_same(play(remote(engine, transport), 4), play(engine, 4))
    assert [len(loads) for loads in told] == [3, 3] and min(map(min, told)) > 0


def test_a_trusted_host_that_is_lost_again_and_again_ends_the_run_in_one_line(toy_engine):
    transport = Here(engine := toy_engine("fedavg"), HOSTS)
    transport.dies = lambda host, given: host == "other"
    with pytest.raises(HetflError, match="^client 1 was lost$"):
        rounds.start(remote(engine, transport), Draws(0))


def test_clients_of_other_owners_fail_for_a_round(toy_engine):
    """Their host is lost, does not answer in time, or sends something else."""
    transport = Here(engine := toy_engine("fedavg"), HOSTS, trusted=False)
    ours = remote(engine, transport, deadline=60.0)
    server, _ = rounds.start(ours, Draws(0))
    tasks = [Task(k, engine.method.downlink(server, k)) for k in range(3)]
    draws, cases = Draws(0).at(1), {}
    transport.dies = lambda host, given: host == "other"
    cases["lost"] = [*ours.train(tasks, draws)]
    transport.dies = lambda host, given: False
    transport.silent = {"other"}
    cases["silent"] = [*ours.train(tasks, draws)]
    transport.silent = set()
    transport.changes = lambda host, content: content[:-8] if host == "other" else content
    cases["tampered"] = [*ours.train(tasks, draws)]
    reasons = {
        name: [answer.reason for answer in answers if isinstance(answer, Failure)] for name, answers in cases.items()
    }
    assert all(len(answers) == 3 and answers.count(None) == 0 for answers in cases.values())
    assert reasons.pop("tampered")[0].startswith("sent what is no message of hetfl (SafetensorError")
    assert reasons == {"lost": ["was lost"], "silent": ["did not answer within 60 s"]}
    assert all(answer.client == 1 for answers in cases.values() for answer in answers if isinstance(answer, Failure))
    assert ours.client_states() == {}


def test_a_test_that_fails_elsewhere_is_told_and_left_out(toy_engine, caplog):
    transport = Here(engine := toy_engine("fedavg"), HOSTS, trusted=False)
    ours = remote(engine, transport, deadline=60.0)
    server, _ = rounds.start(ours, Draws(0))
    tasks = [Task(k, engine.method.downlink(server, k)) for k in range(3)]
    transport.dies = lambda host, given: host == "other"
    assert [bool(score.samples) for score in ours.test(tasks, Draws(0).at(1))] == [True, False, True]
    assert caplog.messages == ["client 1 was lost; its score is left out"]
    transport.dies = lambda host, given: True
    with pytest.raises(HetflError, match="^no client has been tested; client 0 of one was lost; client 1 of other"):
        rounds.tested(ours, server, Draws(0).at(1))


def test_a_host_holds_back_what_its_method_does_not_declare(toy_engine, monkeypatch):
    """Whatever went wrong in the client's own process: nothing of its message leaves it."""
    engine = toy_engine("fedavg")
    declared, uplink = Here(engine, {"all": [0, 1, 2]}, trusted=False, trusts=False), engine.method.uplink
    assert_same(play(remote(engine, declared), 1), play(engine, 1))
    monkeypatch.setattr(
        engine.method, "uplink", lambda work: Message({**uplink(work), "samples": torch.ones(3, 8, 8)})
    )
    ours = remote(engine, Here(engine, HOSTS, trusted=False, trusts=False))
    server, _ = rounds.start(ours, Draws(0))
    sent: list[bytes] = []
    ours.transport.changes = lambda host, content: sent.append(content) or content
    answers = [*ours.train([Task(k, engine.method.downlink(server, k)) for k in range(3)], Draws(0).at(1))]
    told = "it sent samples, which its method did not send in rehearsal"
    held_back = f"cannot answer: a message of client 1 was held back: {told}"
    assert {answer.client: answer.reason for answer in answers}[1] == held_back
    assert not any(Reply.from_bytes(content).updates for content in sent)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_host_takes_what_the_server_of_its_method_sends(toy_engine, variant):
    """Before and after the first aggregation, for training and for tests."""
    method, settings = VARIANTS[variant]
    engine = toy_engine(method, groups_of(method, settings)[-1], **{"rounds": 2, **settings})
    found = play(remote(engine, Here(engine, HOSTS, trusted=False, trusts=False)))
    assert not any(line.failed for line in found[1])
    assert found[1] == play(engine)[1]


REFUSED = {
    "a name": (lambda w: {**w, "sudo": torch.zeros(1)}, "sent sudo, which its method did not send in rehearsal"),
    "none": (lambda w: {}, "did not send .*"),
    "a type": (lambda w: {n: t.half() for n, t in w.items()}, "sent .* as float16, and it is float32"),
    "a shape": (lambda w: {n: t[None] for n, t in w.items()}, "sent .* of shape .*, and it has .*"),
    "a value": (lambda w: {n: t / 0 for n, t in w.items()}, "sent values that are not finite in .*"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_host_refuses_what_the_server_of_its_method_does_not_send(two_rounds, case):
    played = two_rounds("fedavg", "homogeneous")
    change, told = REFUSED[case]
    host = Here(played.engine, HOSTS, trusts=False).made()
    task = Task(0, Message(change(dict(played.downlinks[0]))))
    for kind in ("train", "test"):
        reply = Reply.from_bytes(host.answer(Request(Question(kind=kind, round=1), [task]).to_bytes()))
        assert re.fullmatch(f"the server {told}", reply.error) and not reply.updates and not reply.scores


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (Question(kind="train", round=1), "the server sent client 0 nothing to train with"),
        (Question(kind="train", round=0), "the server asks for train in round 0, of rounds up to 4"),
        (Question(kind="introduce", round=1), "the server asks for introduce in round 1, of rounds up to 4"),
        (Question(kind="test", round=9), "the server asks for test in round 9, of rounds up to 4"),
        (Question(kind="test", round=1, rule="x"), "the server asks for the rule 'x', which FedAvg does not have"),
    ],
)
def test_a_host_refuses_questions_that_its_method_does_not_ask(toy_engine, question, told):
    host = Here(toy_engine("fedavg"), HOSTS, trusts=False).made()
    assert Reply.from_bytes(host.answer(Request(question, [Task(0, None)]).to_bytes())).error == told


def test_a_server_of_others_neither_gets_nor_sets_private_states(toy_engine):
    engine = toy_engine("fedrep")
    transport = Here(engine, {"node": [0, 1, 2]}, trusted=False, trusts=False)
    play(remote(engine, transport), 1)
    host = transport.hosts["node"]
    before = host.engine.client_states()
    for asked, said in (
        (Request(Question(kind="introduce", round=0, states=True), [Task(0, None)]), "gives no private state"),
        (Request(Question(kind="restore", round=0), states={0: ClientState()}), "takes no private state"),
        (Request(Question(kind="restore", round=1), states={0: ClientState()}), "takes no private state"),
    ):
        reply = Reply.from_bytes(host.answer(asked.to_bytes()))
        assert reply.error == f"this node {said}" and not reply.updates and not reply.states
    assert before and host.engine.client_states() == before


def test_an_owner_cannot_put_states_or_other_clients_work_into_the_server(toy_engine):
    """Its reply has an answer to another question, of another's client, and a state."""
    transport = Here(engine := toy_engine("fedavg"), HOSTS, trusted=False)
    ours, draws = remote(engine, transport), Draws(0).at(1)
    server, _ = rounds.start(ours, Draws(0))

    def more(host: str, content: bytes) -> bytes:
        reply = Reply.from_bytes(content)
        (first, *_) = reply.updates
        others = [replace(first, client=client) for client in range(3)]
        score = Score(first.client, torch.zeros(2, dtype=torch.int64), 1)
        return Reply(
            reply.question, [*reply.updates, *others], [score], {0: ClientState({"w": first.loss})}
        ).to_bytes()

    transport.changes = more
    answers = [*ours.train([Task(k, engine.method.downlink(server, k)) for k in range(3)], draws)]
    assert sorted(answer.client for answer in answers) == [0, 1, 2]
    assert all(isinstance(answer, Update) for answer in answers) and ours.client_states() == {}
    (one,) = (answer for answer in answers if answer.client == 1)
    own = next(update for update in engine.train([Task(1, engine.method.downlink(server, 1))], draws))
    assert all(torch.equal(one.uplink[name], tensor) for name, tensor in own.uplink.items())


def test_a_host_with_a_folder_goes_on_after_a_restart(toy_engine, tmp_path):
    """Its process ends after every answer; and the server goes back by a round, as after its own restart."""
    engine = toy_engine("scaffold", rounds=3)
    transport = Here(engine, {"node": [0, 1, 2]}, trusted=False, folder=tmp_path)

    def restarts(host: str, given: int) -> bool:
        if given != restarted[-1] and isinstance(transport.waiting[host][0], bytes):
            restarted.append(given)
            transport.hosts[host] = transport.made()
        return False

    restarted, transport.dies = [0], restarts
    ours, draws = remote(engine, transport), Draws(0)
    server, _ = rounds.start(ours, draws)
    expected, _ = rounds.start(engine, draws)
    servers = {0: server}
    for round in (1, 2, 1, 2, 3):
        servers[round], line = rounds.play_round(ours, servers[round - 1], draws.at(round))
        if round == 3:
            for round in (1, 2, 3):
                expected, found = rounds.play_round(engine, expected, draws.at(round))
    assert bare(line) == bare(found)
    assert all(torch.equal(servers[3][name], tensor) for name, tensor in expected.items())
    assert len(restarted) > 10
    shutil.rmtree(tmp_path)
    transport.hosts["node"] = transport.made()
    with pytest.raises(HetflError, match="has no states of clients from before round 1; a host that lost them"):
        rounds.play_round(ours, servers[0], draws.at(1))


def test_a_host_that_is_asked_twice_gives_the_same_bytes(toy_engine, tmp_path):
    engine = toy_engine("fedavg")
    host = Here(engine, HOSTS, folder=tmp_path).made()
    introduce = Request(Question(kind="introduce", round=0), [Task(k, None) for k in range(3)]).to_bytes()
    server, _ = rounds.start(engine, Draws(0))
    downlink = engine.method.downlink(server, 0)
    ask = Request(Question(kind="train", round=1), [Task(k, downlink) for k in range(3)]).to_bytes()
    assert len(ask) < 1.2 * downlink.size.bytes  # once for all three
    host.answer(introduce)
    first = host.answer(ask)
    assert host.answer(ask) == first
    assert Here(engine, HOSTS, folder=tmp_path).made().answer(ask) == first
    assert [update.client for update in Reply.from_bytes(first).updates] == [0, 1, 2]
    one = Request(Question(kind="train", round=1), [Task(0, downlink)]).to_bytes()
    assert Reply.from_bytes(host.answer(one)).error is None and host.answer(ask) == first
    # Only the latest round can be asked again, so that a long run fills no disk.
    assert [path.name.split("-")[0] for path in tmp_path.glob("answers/*")] == ["000001"] * 2
    wrong = Request(Question(run="another", kind="train", round=1), [Task(0, downlink)]).to_bytes()
    assert "is of the run 'another', this host takes part in ''" in (Reply.from_bytes(host.answer(wrong)).error or "")


def test_an_answer_that_is_an_error_is_not_kept(toy_engine, tmp_path, monkeypatch):
    """What went wrong may be mended when the server asks again."""
    engine = toy_engine("fedavg")
    host = Here(engine, HOSTS, folder=tmp_path).made()
    ask = Request(Question(kind="introduce", round=0), [Task(k, None) for k in range(3)]).to_bytes()

    def broken(work):
        raise HetflError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(engine.method, "register", broken)
        assert Reply.from_bytes(host.answer(ask)).error == "the disk is full"
    reply = Reply.from_bytes(host.answer(ask))
    assert reply.error is None and len(reply.updates) == 3


def test_messages_keep_every_bit_and_refuse_what_is_none():
    values = torch.tensor([float("nan"), float("-inf"), -0.0])
    uplink = Message({"b": values, "a": values, "n": torch.tensor(3), "t": torch.arange(6.0).view(2, 3).t()})
    state = ClientState({"w": values}, {"sgd/w/momentum": values[:2]}, {})
    question = Question(kind="train", round=3, states=True)
    update = Update(7, uplink, torch.tensor(float("nan")), {"train": 0.1}, {"x": float("nan"), "y": [1, None, "z"]})
    content = Reply(question, [update], [Score(7, torch.tensor([3, 1]), 9)], {7: state}).to_bytes()
    reply = Reply.from_bytes(content)
    found = reply.updates[0]
    assert list(found.uplink) == ["b", "a", "n", "t"] and found.uplink.size == uplink.size
    for name, tensor in uplink.items():
        torch.testing.assert_close(found.uplink[name], tensor, rtol=0, atol=0, equal_nan=True)
    assert str(found.observed) == str(update.observed) and reply.scores[0].samples == 9
    assert torch.equal(reply.states[7].optimiser["sgd/w/momentum"].isnan(), torch.tensor([True, False]))
    assert reply.question == question
    for wrong in (b"", content[:50], content[:-1], content.replace(b"train", b"chain", 1), b"\xff" * 99):
        with pytest.raises(ValueError, match="is no message of hetfl"):
            Reply.from_bytes(wrong)
    with pytest.raises(ValueError, match="has .* bytes, and 10 are the most"):
        Reply.from_bytes(content, limit=10)
    impossible = Reply(question, scores=[Score(7, torch.tensor([9, 1]), 9)]).to_bytes()
    with pytest.raises(ValueError, match="10 of 9 samples are right or not finite"):
        Reply.from_bytes(impossible)
    number = content.replace(b'"b\\": 0', b'"b\\": 9', 1)
    assert number != content
    with pytest.raises(ValueError, match="is no message of hetfl"):
        Reply.from_bytes(number)


def test_what_waits_at_the_server_does_not_grow_with_the_clients():
    """Clients are asked as long as there is room for what they are sent, and none may be far ahead of the oldest."""

    def tasks(shared: bool) -> Iterator[Task]:
        one = Message({"w": torch.zeros(ROOM // 64)})
        for client in range(100):
            taken.append(client)
            yield Task(client, one if shared else Message({"w": torch.zeros(ROOM // 64)}))

    for shared, many in ((True, 100), (False, 16)):
        taken: list[int] = []
        waiting = Waiting(tasks(shared), {client: str(client % 2) for client in range(100)})
        asked = waiting.take()
        assert len(taken) == many and sum(map(len, asked.values())) == many
        assert sorted(waiting.hosts()) == ["0", "1"]
        for client in range(1, 2 * AHEAD * 2, 2):
            waiting.done(client) or pytest.fail()
        assert waiting.hosts() == ["0"]
        waiting.done(0)
        assert len(taken) == many if shared else len(taken) == 16
    assert waiting.take() and len(taken) == 25


def test_a_host_plays_only_the_clients_that_live_there(toy_engine):
    host = Here(toy_engine("fedavg"), HOSTS, trusts=False, clients=[1]).made()
    ask = Request(Question(kind="introduce", round=0), [Task(1, None), Task(2, None)]).to_bytes()
    reply = Reply.from_bytes(host.answer(ask))
    assert "node.clients: has no client 2" in reply.error and not reply.updates
