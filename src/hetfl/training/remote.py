"""The engine whose clients are elsewhere: it asks their hosts in messages of bytes, whatever carries them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Protocol

import torch

from hetfl.draws import Draws
from hetfl.errors import HetflError, in_short
from hetfl.message import Message
from hetfl.methods.base import Method
from hetfl.models.base import Model
from hetfl.schema import ClassCounts
from hetfl.training.contract import contracts
from hetfl.training.engine import Failure, Samples, Score, Task, Update
from hetfl.training.host import LIMIT, SENDS, Kind, Question, Reply, Request, place
from hetfl.training.state import ClientState, ClientStates

log = logging.getLogger(__name__)

ROOM = 256 * 2**20
"""Bytes of downlinks that wait for answers, above which no further client is asked. One that several share counts
once, so that a method that sends all clients the same asks all of them at once."""
AHEAD = 4
"""Updates for each host that are taken before that of the oldest task. They wait for their turn in memory."""
FIGURES = 2**20
"""Bytes that a reply may have for each client besides its message: losses, figures and headers."""
TRIES = 3
"""How often in a row a host that is lost is replaced before its clients have failed."""


@dataclass(frozen=True)
class Lost:
    """What a transport gives instead of an answer: the host is gone, with all that it was asked and has not answered.

    Attributes:
        reason: in words that follow "client 3 ", such as ``was lost: its process ended``.
    """

    reason: str


class Transport(Protocol):
    """Carries requests to hosts, and replies back, as bytes that it does not look into."""

    @property
    def clients(self) -> Mapping[str, Sequence[int]]:
        """The clients of each host, by the host's name."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether hosts belong to whoever runs the server, so that clients' private states may leave them."""
        ...

    def send(self, host: str, request: bytes, most: int = LIMIT) -> None:
        """Hand a host a request, after those that it has; returns without waiting for the answer.

        Args:
            host: its name.
            request: the request.
            most: bytes of the answer, where hosts are not trusted; a longer one is not taken but is a :class:`Lost`.
        """
        ...

    def receive(self, hosts: Sequence[str], timeout: float | None) -> tuple[str, bytes | Lost] | None:
        """The next reply of one of some hosts, or, where they are trusted, a part of one; None if none is in time.

        Answers to requests that nobody waits for any more may be among them.

        Args:
            hosts: those from which a reply is wanted now; one of another host is not wrong, but takes memory.
            timeout: seconds; None: wait as long as it takes.
        """
        ...

    def replace(self, host: str) -> bool:
        """Put a host without requests and states in the place of one that is lost; False where that cannot be."""
        ...

    def deal(self, loads: Sequence[float]) -> bool:
        """Give hosts other clients, so that all of them have about the same work; False if each keeps its own.

        Hosts that get clients know nothing of their states yet.

        Args:
            loads: how much work each client is, by its number.
        """
        ...

    def close(self) -> None:
        """Give back what the transport holds."""
        ...


class RemoteEngine:
    """Asks the hosts of a transport; an :class:`hetfl.training.engine.Engine`.

    Where hosts are trusted, replies bring the clients' private states: resume points and the final record are those
    of a run in one process, a host that is lost can be replaced, and clients can change hosts between rounds.
    Elsewhere states stay with their clients, and a host that comes back goes on from what it kept itself.

    Args:
        name: of the engine, as settings and the record name it.
        method: that clients and server follow.
        models: the architecture of every client.
        device: where uplinks arrive and the server computes.
        transport: to the hosts.
        run: the run's fingerprint, which hosts compare with theirs.
        deadline: seconds from the begin of a round's work or test after which clients that have not answered have
            failed; None: wait.
        counts: samples of each client and class, where the server knows them. A client that registers with others, or
            is tested on another number, is refused, since it would choose its share of a mean. They also bound what
            is taken from a host.
        common: the largest size that clients share: of the public data, and the side of stored images.
    """

    def __init__(
        self,
        name: str,
        method: Method,
        models: Sequence[Model],
        device: torch.device,
        transport: Transport,
        run: str = "",
        deadline: float | None = None,
        counts: ClassCounts | None = None,
        common: int = 0,
    ) -> None:
        self.name, self.method, self.models, self.device = name, method, models, device
        self.transport, self.run, self.deadline, self.counts = transport, run, deadline, counts
        self.common = common
        self._note_hosts()
        self._states = ClientStates()
        # What each client's last training took, and how many rounds have begun.
        self._seconds: dict[int, float] = {}
        self._trained = 0
        self._losses: Counter[str] = Counter()
        # Requests that each host has not answered.
        self._owed: Counter[str] = Counter()

    @property
    def remote(self) -> bool:
        """See :attr:`Engine.remote`."""
        return not self.transport.trusted

    def called(self, client: int) -> str:
        """See :meth:`Engine.called`; hosts of the run itself have no names that anyone knows."""
        return f"client {client} of {self._host_of[client]}" if self.remote else f"client {client}"

    def introduce(self, clients: Sequence[int], draws: Draws) -> Iterator[Update | Failure]:
        """See :meth:`Engine.introduce`."""
        self._states = ClientStates()
        yield from self._work("introduce", (Task(client, None) for client in clients), draws.at(0))

    def train(self, tasks: Iterable[Task], draws: Draws) -> Iterator[Update | Failure]:
        """See :meth:`Engine.train`."""
        self._deal_again()
        self._trained += 1
        for answer in self._work("train", tasks, draws):
            if isinstance(answer, Update):
                self._seconds[answer.client] = sum(answer.seconds.values())
            yield answer

    def fine_tune(self, tasks: Iterable[Task], draws: Draws) -> Iterator[Update | Failure]:
        """See :meth:`Engine.fine_tune`."""
        yield from self._work("fine_tune", tasks, draws)

    def test(self, tasks: Iterable[Task], draws: Draws, rule: str = "", samples: Samples = "test") -> Iterator[Score]:
        """See :meth:`Engine.test`.

        The score of a client that fails, or is of other samples, is one of no samples, and a line says so.
        """
        tasks = list(tasks)
        question = Question(run=self.run, kind="test", round=draws.round, rule=rule, samples=samples)
        found = {answer.client: answer for answer in self._ask(question, tasks)}
        for task in tasks:
            score = found[task.client]
            if why := self._why_not(score, samples):
                log.warning("client %d %s; its score is left out", task.client, why)
                score = Score(task.client, torch.zeros(2, dtype=torch.int64, device=self.device), 0, why)
            assert isinstance(score, Score)
            yield score

    def client_states(self) -> dict[int, ClientState]:
        """See :meth:`Engine.client_states`; none where hosts keep them."""
        return self._states.all()

    def restore(self, states: Mapping[int, ClientState]) -> None:
        """See :meth:`Engine.restore`. Hosts that keep states themselves go back as soon as they are asked."""
        self._states = ClientStates(states)
        if self.transport.trusted:
            for host in self.transport.clients:
                self._restore(host)

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        self.transport.close()

    def _note_hosts(self) -> None:
        hosts = self.transport.clients
        self._host_of = {client: host for host, clients in hosts.items() for client in clients}
        if sorted(self._host_of) != list(range(len(self.models))):
            raise ValueError("the hosts do not have each client once")

    def _deal_again(self) -> None:
        """Have clients change hosts if some hosts wait for others, after 1, 2, 4, 8, ... rounds of training.

        The first round takes longer than others do, and late ones rarely tell anything new. Where one client trains
        after another, no host waits.
        """
        if not self.transport.trusted or self.method.in_turn() or self._trained.bit_count() != 1:
            return
        # A client that has not taken part yet counts as an average one.
        usual = mean(self._seconds.values())
        if self.transport.deal([self._seconds.get(client, usual) for client in range(len(self.models))]):
            self._note_hosts()
            self.restore(self.client_states())

    def _why_not(self, score: Update | Score | Failure, samples: Samples) -> str:
        """Why there is no score, or none over all samples that the server knows of; empty where it is right."""
        if not isinstance(score, Score):
            return score.reason if isinstance(score, Failure) else "did not answer"
        size = score.samples if self.counts is None else sum(getattr(self.counts, samples)[score.client])
        return "" if score.samples == size else f"was tested on {score.samples} samples, and has {size} ({samples})"

    def _work(self, kind: Any, tasks: Iterable[Task], draws: Draws) -> Iterator[Update | Failure]:
        question = Question(run=self.run, kind=kind, round=draws.round, states=self.transport.trusted)
        for answer in self._ask(question, tasks):
            assert not isinstance(answer, Score)
            yield answer

    def _ask(self, question: Question, tasks: Iterable[Task]) -> Iterator[Update | Score | Failure]:
        """What the hosts answer for each task, as it comes.

        Raises:
            HetflError: a trusted host cannot answer.
        """
        waiting = Waiting(tasks, self._host_of)
        ends = None if self.deadline is None else time.monotonic() + self.deadline
        while True:
            for host, wanted in waiting.take().items():
                self._send(host, question, wanted)
            if not waiting.tasks:
                return
            timeout = None if ends is None else max(0.0, ends - time.monotonic())
            received = self.transport.receive(waiting.hosts(), timeout)
            if received is None:
                yield from [Failure(k, f"did not answer within {self.deadline:g} s") for k in waiting.give_up()]
                return
            host, content = received
            self._owed[host] -= 1
            if isinstance(content, Lost):
                self._losses[host] += 1
                if self._losses[host] <= TRIES and self.transport.replace(host):
                    self._again(host, question, waiting.of(host))
                else:
                    yield from self._failed(host, waiting, content.reason)
                continue
            try:
                # What answers an earlier question comes too late.
                most = self._most(question.kind, host)
                late = Reply.question_of(content) != question
                reply = Reply(question) if late else Reply.from_bytes(content, self.device, most)
            except ValueError as error:
                yield from self._failed(host, waiting, f"sent what {error}")
                continue
            answers: Sequence[Update | Score] = reply.scores if question.kind == "test" else reply.updates
            for answer in answers:
                # Only for its own clients, each once.
                if self._host_of.get(answer.client) == host and waiting.done(answer.client):
                    self._losses[host] = 0
                    if question.states and answer.client in reply.states:
                        self._states.keep(answer.client, question.round, reply.states[answer.client])
                    yield answer
            if reply.error is not None:
                if self.transport.trusted:
                    raise HetflError(reply.error)
                yield from self._failed(host, waiting, f"cannot answer: {reply.error}")
            if not self.transport.trusted and self._owed[host] <= 0:
                # Whoever is trusted answers in parts, and others once.
                yield from self._failed(host, waiting, "is not in the answer of its node")

    def _failed(self, host: str, waiting: Waiting, reason: str) -> Iterator[Failure]:
        """Give up what a host was asked.

        Raises:
            HetflError: it is trusted, so that nothing else explains the loss than what will happen again.
        """
        clients = [task.client for task in waiting.of(host)]
        if self.transport.trusted and clients:
            raise HetflError(f"client {clients[0]} {reason}")
        for client in clients:
            waiting.done(client)
            yield Failure(client, in_short(reason))

    def _send(self, host: str, question: Question, tasks: Sequence[Task]) -> None:
        self._owed[host] += 1
        self.transport.send(host, Request(question, tasks).to_bytes(), self._most(question.kind, host))

    def _most(self, kind: Kind, host: str) -> int:
        """The most bytes of a host's answer: what its clients' contracts allow, and :data:`FIGURES` for each."""
        if self.transport.trusted or self.counts is None:
            return LIMIT
        total, sent = 0, SENDS.get(kind, "nothing")
        for client in self.transport.clients[host]:
            total += FIGURES
            if sent != "nothing":
                # Twice, since a method may send a row for each sample and one for each class.
                rows = 2 * max(sum(self.counts.train[client]), self.method.num_classes)
                contract = contracts(self.method, self.models[client])[sent == "uplink"]
                total += contract.most_bytes(rows, 2 * self.common)
        return min(total, LIMIT)

    def _again(self, host: str, question: Question, tasks: Sequence[Task]) -> None:
        """Ask a host that has replaced a lost one what that one has not answered."""
        if question.kind == "introduce":
            # All of its clients: what others had from round 0 is gone with the lost host.
            tasks = [Task(client, None) for client in self.transport.clients[host]]
        else:
            self._restore(host)
        if tasks:
            self._send(host, question, tasks)

    def _restore(self, host: str) -> None:
        """Give a host the states of its clients from before the current round, and from after their work in it."""
        clients = self.transport.clients[host]
        begun, after = self._states.halves()
        self._send_states(host, 0, {client: begun[client] for client in clients if client in begun})
        if done := {client: after[client] for client in clients if client in after}:
            self._send_states(host, self._states.round or 0, done)

    def _send_states(self, host: str, round: int, states: Mapping[int, ClientState]) -> None:
        question = Question(run=self.run, kind="restore", round=round)
        self.transport.send(host, Request(question, states=states).to_bytes())


class Waiting:
    """The tasks of one question that are not answered, in the order in which they were taken."""

    def __init__(self, tasks: Iterable[Task], host_of: Mapping[int, str]) -> None:
        self._left, self._host_of = iter(tasks), host_of
        self.tasks: dict[int, Task] = {}
        self._taken: dict[int, int] = {}
        self._answered = 0
        self._busy = Counter[str]()
        # Bytes of the tensors that wait, and how often each of them does.
        self._bytes, self._shared = 0, Counter[Any]()

    def take(self) -> dict[str, list[Task]]:
        """The next tasks by host, as many as there is room for."""
        found: dict[str, list[Task]] = {}
        # Once half the room is free, so that hosts get several clients at once.
        if self._bytes > ROOM // 2:
            return found
        while self._bytes < ROOM and (task := next(self._left, None)) is not None:
            self._taken[task.client] = len(self._taken) + self._answered
            self.tasks[task.client] = task
            self._count(task, 1)
            host = self._host_of[task.client]
            self._busy[host] += 1
            found.setdefault(host, []).append(task)
        return found

    def hosts(self) -> list[str]:
        """The hosts that have work, without those that are far ahead of the oldest task."""
        oldest = next(iter(self.tasks))
        hosts = [host for host, tasks in self._busy.items() if tasks]
        ahead = self._answered - self._taken[oldest]
        return [self._host_of[oldest]] if ahead >= AHEAD * len(hosts) else hosts

    def of(self, host: str) -> list[Task]:
        """What a host was asked and has not answered."""
        return [task for client, task in self.tasks.items() if self._host_of[client] == host]

    def done(self, client: int) -> bool:
        """Strike a client's task off; False if there is none."""
        task = self.tasks.pop(client, None)
        if task is None:
            return False
        del self._taken[client]
        self._busy[self._host_of[client]] -= 1
        self._answered += 1
        self._count(task, -1)
        return True

    def give_up(self) -> Iterator[int]:
        """Strike all tasks off, with those that were not even taken."""
        yield from list(self.tasks)
        self.tasks.clear()
        for task in self._left:
            yield task.client

    def _count(self, task: Task, sign: int) -> None:
        for tensor in (task.downlink or Message()).values():
            key = place(tensor)
            self._shared[key] += sign
            if self._shared[key] == max(sign, 0):
                self._bytes += sign * tensor.numel() * tensor.element_size()
                if sign < 0:
                    del self._shared[key]
