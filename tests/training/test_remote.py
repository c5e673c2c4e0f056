"""Clients behind messages of bytes give what they give in the server's own process."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch

from hetfl.draws import Draws
from hetfl.methods import METHODS
from hetfl.training import rounds
from hetfl.training.host import Host
from hetfl.training.local import LocalEngine
from hetfl.training.remote import Lost, RemoteEngine
from hetfl.training.sequential import Sequential
from hetfl.training.state import State


class Here:
    """Hosts in this process, each asked when its answer is wanted; an implementation of ``Transport``.

    Attributes:
        dies: says whether a host is lost before it answers, given its name and how many parts it has given.
    """

    def __init__(self, engine: LocalEngine, hosts: Mapping[str, Sequence[int]], **options) -> None:
        self.clients, self.trusted = hosts, True
        self.made = lambda: Host(
            LocalEngine(engine.method, engine.federation, Sequential(engine.method)), Draws(0), **options
        )
        self.hosts = {name: self.made() for name in hosts}
        self.waiting: dict[str, deque[bytes | Iterator]] = defaultdict(deque)
        self.given = 0
        self.dies = lambda host, given: False
        self.bytes = 0

    def send(self, host: str, request: bytes) -> None:
        self.bytes += len(request)
        self.waiting[host].append(request)

    def receive(self, hosts, timeout):
        for host in reversed(hosts):  # the last ones first, to show that order does not matter
            while self.waiting[host]:
                if self.dies(host, self.given):
                    return host, Lost("was lost")
                first = self.waiting[host][0]
                if isinstance(first, bytes):
                    first = self.waiting[host][0] = self.hosts[host].parts(first)
                part = next(first, None)
                if part is not None:
                    self.given += 1
                    return host, part.to_bytes()
                self.waiting[host].popleft()
        return None

    def replace(self, host: str) -> bool:
        self.hosts[host] = self.made()
        self.waiting[host].clear()
        return True

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


def remote(engine: LocalEngine, transport) -> RemoteEngine:
    return RemoteEngine("here", engine.method, engine.models, engine.device, transport)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_bits(toy_engine, two_rounds, method):
    group = "heterogeneous" if METHODS[method].heterogeneous else "homogeneous"
    played = two_rounds(method, group)
    engine = remote(played.engine, Here(played.engine, HOSTS))
    engine.restore(played.first.clients)
    server, line = rounds.play_round(engine, played.first.server, Draws(0).at(2))
    assert_same(
        (State(2, server, engine.client_states()).tensors(), [bare(line)]),
        (played.second.tensors(), [bare(played.line)]),
    )
