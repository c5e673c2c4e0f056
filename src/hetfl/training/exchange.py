"""The messages of a round: made, counted, handed on in order, and forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Size
from hetfl.training.engine import Engine, Task, Update


class Exchange:
    """What goes between server and clients in a round, and what the server notes of it.

    Neither downlinks nor uplinks are kept here: memory does not grow with the number of participants, but for
    uplinks that come before those of clients with smaller numbers.

    Attributes:
        down, up: the size of all messages so far.
        waited: seconds that the server waited for clients.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.down, self.up, self.waited = Size(), Size(), 0.0
        self._noted: dict[int, Update] = {}

    @property
    def updates(self) -> list[Update]:
        """What came back so far, by client, the messages left out."""
        return [self._noted[client] for client in sorted(self._noted)]

    @property
    def seconds(self) -> dict[str, float]:
        """What clients worked, by ``train`` and ``statistics``; nothing where they did neither."""
        parts = dict.fromkeys(part for update in self.updates for part in update.seconds)
        return {part: sum(update.seconds[part] for update in self.updates) for part in parts}

    def tasks(self, server: ServerState, clients: Iterable[int]) -> Iterator[Task]:
        """The task of each client, made when it is asked for."""
        for client in clients:
            downlink = self.engine.method.downlink(server, client)
            self.down += downlink.size
            yield Task(client, downlink)

    def training(self, server: ServerState, clients: Sequence[int], draws: Draws) -> Iterator[Update]:
        """The updates of a round's participants, who train all at once or, if the method says so, one by one."""
        method = self.engine.method
        if not method.in_turn():
            yield from self.engine.train(self.tasks(server, clients), draws)
            return
        for client in clients:
            (update,) = self.engine.train(self.tasks(server, [client]), draws)
            server = method.after_turn(server, update.uplink)
            yield update

    def uplinks(self, updates: Iterator[Update], clients: Sequence[int]) -> Iterator[Message]:
        """The messages in updates, in the order of ``clients``, each handed on as soon as its turn has come."""
        early: dict[int, Message] = {}
        for client in clients:
            while client not in early:
                update = self._next(updates)
                early[update.client] = update.uplink
                del update
            yield early.pop(client)

    def _next(self, updates: Iterator[Update]) -> Update:
        """The next update, once a client has finished; without its message it is noted."""
        began = time.perf_counter()
        # Whoever aggregates may have switched gradients off, but clients train meanwhile.
        with torch.inference_mode(False), torch.enable_grad():
            update = next(updates)
        self.waited += time.perf_counter() - began
        self.up += update.uplink.size
        self._noted[update.client] = replace(update, uplink=Message())
        return update
