"""Hosts as actors of a Ray cluster, each with a device and a group of clients; a transport of the remote engine."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from pydantic import Field

from hetfl.config import Settings
from hetfl.errors import HetflError, one_line
from hetfl.training.host import LIMIT, Host, Reply
from hetfl.training.memory import free_memory
from hetfl.training.remote import Lost

START = 600.0
"""Seconds in which an actor must be there and have loaded its clients."""
END = 5.0
"""Seconds after which an actor that is still busy when its federation ends is killed."""
GAIN = 0.02
"""Clients change actors only if that shortens a round by this share of it, since their states go with them."""
CALLS = 2
"""Parts of an answer that an actor makes before the first of them is taken; then it waits."""


class RaySettings(Settings):
    """The actors of the engine ``ray``.

    Attributes:
        actors: how many train a run's clients; 0: one for each GPU, or for each ``threads`` CPU cores.
        address: of an existing cluster whose nodes share this checkout's file system, e.g. ``auto`` or
            ``ray://head:10001``; without one, a cluster on this machine is started.
    """

    actors: int = Field(default=0, ge=0, le=10_000)
    address: str | None = Field(default=None, min_length=1)

    def processes(self, clients: int, threads: int, cpus: int, gpus: int) -> int:
        """How many actors train some clients where there are so many CPU cores and GPUs."""
        return min(self.actors or gpus or max(1, cpus // threads), clients)


class Worker:
    """What runs in an actor: a host, which is asked for its answers part by part."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._host: Host | None = None
        self._answers: deque[Iterator[Reply]] = deque()

    def load(self, make: Callable[[], Host] | None) -> str | None:
        """Put a host, or none, in the place of the present one; what is wrong with its input in one line, or None."""
        self._host = None
        self._answers.clear()
        # The command may evaluate on the same GPU.
        free_memory(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"))
        try:
            self._host = make() if make else None
        except HetflError as error:
            return str(error)
        return None

    def ask(self, request: bytes) -> None:
        """Take a request."""
        assert self._host is not None
        self._answers.append(self._host.parts(request))

    def part(self) -> bytes | None:
        """The next part of the answers, once it is there; None if all requests are answered."""
        while self._answers:
            if (reply := next(self._answers[0], None)) is not None:
                return reply.to_bytes()
            self._answers.popleft()
        return None


class Actors:
    """The actors that train one federation; a :class:`hetfl.training.remote.Transport`.

    They belong to the process that started them, which keeps them for its next federation of the same size, since a
    new one spends seconds on imports. Ray ends them with it.

    Args:
        make: makes a host with all clients, in the actor.
        loads: how much work each client is, in any unit; see :func:`dealt`.
        threads: torch threads of each actor, and CPUs that Ray reserves for it.
        gpu: whether actors share the cluster's GPUs, if it has some.
        settings: how many actors, and of which cluster; without an address, the cluster that the process is in, or
            else one on this machine.

    Raises:
        HetflError: Ray is not installed, the cluster cannot be reached or is too small, or an input is missing.
    """

    trusted = True

    def __init__(
        self,
        make: Callable[[], Host],
        loads: Sequence[float],
        threads: int = 1,
        gpu: bool = True,
        settings: RaySettings = RaySettings(),  # noqa: B008, it is frozen
    ) -> None:
        self._ray, self._make = cluster(settings.address, settings.actors * threads), make
        resources = self._ray.cluster_resources()
        cpus, gpus = int(resources.get("CPU", 0)), resources.get("GPU", 0) if gpu else 0
        many = settings.processes(len(loads), threads, cpus, int(gpus))
        if many * threads > cpus:
            asked = f"{many} actors with {threads} threads each"
            raise HetflError(f"compute.ray.actors: {asked}, and the cluster has {cpus} CPUs; use fewer")
        self._options = {"num_cpus": threads, "num_gpus": min(1.0, int(1000 * gpus / many) / 1000)}
        self.clients: Mapping[str, Sequence[int]] = {f"actor {k}": own for k, own in enumerate(dealt(loads, many))}
        self._idle = self._pool()
        self._parts: dict[str, deque[Any]] = {host: deque() for host in self.clients}
        self._actors: dict[str, Any] = {}
        self._loading: dict[str, Any] = {}
        for host in self.clients:
            self._load(host, self._idle.pop() if self._idle else self._start())

    def send(self, host: str, request: bytes, most: int = LIMIT) -> None:
        """See :meth:`hetfl.training.remote.Transport.send`."""
        self._loaded(host)
        self._actors[host].ask.remote(request)

    def receive(self, hosts: Sequence[str], timeout: float | None) -> tuple[str, bytes | Lost] | None:
        """See :meth:`hetfl.training.remote.Transport.receive`."""
        while True:
            for host in hosts:
                while len(self._parts[host]) < CALLS:
                    self._parts[host].append(self._actors[host].part.remote())
            first = {self._parts[host][0]: host for host in hosts}
            ready, _ = self._ray.wait(list(first), num_returns=1, timeout=timeout)
            if not ready:
                return None
            host = first[ready[0]]
            try:
                part = self._ray.get(self._parts[host].popleft())
            except self._ray.exceptions.RayError as error:
                return host, Lost(f"was lost: {_reason(error)}")
            if part is not None:
                return host, part

    def replace(self, host: str) -> bool:
        """See :meth:`hetfl.training.remote.Transport.replace`."""
        self._ray.kill(self._actors[host])
        self._parts[host].clear()
        self._load(host, self._start())
        return True

    def deal(self, loads: Sequence[float]) -> bool:
        """See :meth:`hetfl.training.remote.Transport.deal`.

        Not on GPUs, where clients train together and no one's own seconds are known.
        """
        if self._options["num_gpus"]:
            return False

        def longest(groups: Iterable[Sequence[int]]) -> float:
            """What the busiest of some actors takes."""
            return max(sum(loads[client] for client in clients) for clients in groups)

        found = dealt(loads, len(self.clients))
        if longest(found) > (1 - GAIN) * longest(self.clients.values()):
            return False
        self.clients = dict(zip(self.clients, found, strict=True))
        return True

    def close(self) -> None:
        """Keep the actors that are done for the next federation, and end the others."""
        freed = {actor.load.remote(None): actor for actor in self._actors.values()}
        self._actors.clear()
        self._ray.wait(list(freed), num_returns=len(freed), timeout=END)
        for free, actor in freed.items():
            try:
                self._ray.get(free, timeout=0)
                self._idle.append(actor)
            except self._ray.exceptions.RayError:
                self._ray.kill(actor)

    def _start(self) -> Any:
        return self._ray.remote(Worker).options(**self._options).remote(self._options["num_cpus"])

    def _load(self, host: str, actor: Any) -> None:
        self._actors[host], self._loading[host] = actor, actor.load.remote(self._make)

    def _pool(self) -> list[Any]:
        """This process's idle actors of this kind; those of other kinds end, since they hold CPUs and GPUs."""
        kind = tuple(self._options.values())
        for other in [*_IDLE]:
            if other != kind:
                for actor in _IDLE.pop(other):
                    self._ray.kill(actor)
        return _IDLE.setdefault(kind, [])

    def _loaded(self, host: str) -> None:
        """Wait for an actor's clients.

        Raises:
            HetflError: they cannot be loaded.
        """
        if host not in self._loading:
            return
        try:
            wrong = self._ray.get(self._loading[host], timeout=START)
        except self._ray.exceptions.GetTimeoutError as error:
            raise HetflError(f"compute.engine ray: {host} is not there after {START:g} s; see ray status") from error
        except self._ray.exceptions.RayError as error:
            wrong = f"compute.engine ray: {host} does not start ({_reason(error)})"
        if wrong:
            raise HetflError(wrong)
        del self._loading[host]


def dealt(loads: Sequence[float], hosts: int) -> list[list[int]]:
    """The clients of each host, in order, so that all hosts have about the same work.

    The heaviest client is dealt first, and each to the host that has the least so far; equal ones go in turn.
    """
    sums: list[float] = [0] * hosts
    found: list[list[int]] = [[] for _ in sums]
    for client in sorted(range(len(loads)), key=lambda client: -loads[client]):
        host = min(range(hosts), key=sums.__getitem__)
        sums[host] += loads[client]
        found[host].append(client)
    return [sorted(clients) for clients in found]


_IDLE: dict[tuple[float, ...], list[Any]] = {}
"""Actors of this process that no federation has, by the CPUs and GPUs that they hold."""


def _reason(error: BaseException) -> str:
    """What went wrong in an actor in one line; of an error in its code, that error."""
    cause = getattr(error, "cause", None)
    return one_line(cause if isinstance(cause, Exception) else error)


def installed() -> Any:
    """The module ``ray``, which then tells nobody that it is used.

    Raises:
        HetflError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise HetflError("ray: is not installed; pip install 'hetfl[ray]'") from error
    return ray


def cluster(address: str | None, cpus: int = 1, setting: str = "compute.ray.address") -> Any:
    """The module ``ray``, connected: this process has one cluster, until it ends.

    Args:
        address: see :class:`RaySettings`.
        cpus: that a cluster on this machine has at least.
        setting: the address's name in an error.

    Raises:
        HetflError: Ray is not installed, or there is no cluster at the address.
    """
    ray = installed()
    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        from joblib import cpu_count  # every command that reads settings imports this module

        quiet |= {"include_dashboard": False, "num_cpus": max(cpus, cpu_count())}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address or "local", **quiet)
    except Exception as error:
        where = address or "a cluster on this machine"
        raise HetflError(f"{setting}: Ray does not reach {where} ({one_line(error)})") from error
    finally:
        # Ray would end the process at once, without what is to be written when a run is stopped.
        if handler and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    return ray
