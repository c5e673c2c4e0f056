"""The messages of a round: made, counted, checked, handed on in order, and forgotten."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from pydantic import TypeAdapter, ValidationError

from hetfl.draws import Draws
from hetfl.errors import HetflError, in_short
from hetfl.message import Message, ServerState, Size
from hetfl.methods.base import Uplinks
from hetfl.methods.mistakes import MistakeError
from hetfl.schema import Number
from hetfl.training.contract import Free, Kind, check_counts, check_form, contracts, registered_counts
from hetfl.training.engine import Engine, Failure, Task, Update, told

SECONDS = {"train", "statistics"}
"""What clients tell the seconds of."""
LOSSES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
"""Types of a loss; torch computes nothing with smaller ones."""


class Exchange:
    """What goes between server and clients in a round, and what the server notes of it.

    Neither downlinks nor uplinks are kept here: memory does not grow with the number of participants, but for
    uplinks that come before those of clients with smaller numbers. Only where clients are remote all valid uplinks
    of a round are held, since a mean needs to know whose they are before it begins.

    Attributes:
        down, up: the size of all messages so far.
        waited: seconds that the server waited for clients.
        made: seconds in which it made downlinks.
        failed: why there is no valid uplink, by client.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.down, self.up = Size(), Size()
        self.waited = self.made = 0.0
        self.failed: dict[int, str] = {}
        self._held: dict[int, Message] = {}
        self._noted: dict[int, Update] = {}
        self._sizes: dict[int, dict[Free, int]] = {}

    @property
    def updates(self) -> list[Update]:
        """What came back so far and is valid, by client, the messages left out."""
        return [self._noted[client] for client in sorted(self._noted)]

    @property
    def seconds(self) -> dict[str, float]:
        """What clients worked, by ``train`` and ``statistics``; nothing where they did neither."""
        parts = dict.fromkeys(part for update in self.updates for part in update.seconds)
        return {part: sum(update.seconds.get(part, 0.0) for update in self.updates) for part in parts}

    def tasks(self, server: ServerState, clients: Iterable[int]) -> Iterator[Task]:
        """The task of each client, made when it is asked for."""
        for client in clients:
            began = time.perf_counter()
            downlink = self.engine.method.downlink(server, client)
            took = time.perf_counter() - began
            self.made, self.waited = self.made + took, self.waited - took  # an engine asks while it is waited for
            self.down += downlink.size
            yield Task(client, downlink)

    def training(self, server: ServerState, clients: Sequence[int], draws: Draws) -> Iterator[Update]:
        """The valid updates of a round's participants.

        They train all at once or, if the method says so, one by one.
        """
        method = self.engine.method
        if not method.in_turn():
            yield from self.valid(self.engine.train(self.tasks(server, clients), draws), clients)
            return
        for client in clients:
            for update in self.valid(self.engine.train(self.tasks(server, [client]), draws), [client]):
                server = method.after_turn(server, update.uplink)
                yield update

    def valid(
        self, updates: Iterator[Update | Failure], clients: Sequence[int], kind: Kind = "uplink"
    ) -> Iterator[Update]:
        """The updates of some clients that are valid, as they come; :attr:`failed` has the reasons for the others.

        Raises:
            HetflError: a client of this process sends a message that breaks its method's contract.
        """
        missing = dict.fromkeys(clients)
        while missing and (update := self._next(updates)):
            if update.client not in missing:
                continue  # an answer that nobody asked for
            del missing[update.client]
            if isinstance(update, Failure):
                self._fail(update.client, update.reason)
                continue
            try:
                self._check(update, kind)
            except MistakeError:
                raise  # of the method, which is played to check the message; the client did nothing wrong
            except HetflError as error:
                self._fail(update.client, str(error))
                continue
            self._noted[update.client] = replace(update, uplink=Message())
            yield update
        for client in missing:
            self._fail(client, "did not answer")

    def uplinks(self, updates: Iterator[Update], clients: Sequence[int]) -> Iterator[Message]:
        """The messages in valid updates, in the order of ``clients``, each handed on as soon as its turn has come."""
        early: dict[int, Message] = {}
        for client in clients:
            while client not in early and client not in self.failed:
                if (update := next(updates, None)) is None:
                    break
                early[update.client] = update.uplink
                del update
            if client in early:
                yield early.pop(client)

    def received(self, updates: Iterator[Update], clients: Sequence[int], needed: int | None) -> Uplinks:
        """The valid uplinks of a round's participants, one by one; where clients are remote, all are there at once.

        Args:
            updates: from :meth:`training`.
            clients: the participants.
            needed: see :meth:`suffice`.

        Raises:
            HetflError: fewer are.
        """
        if not self.engine.remote:
            return Uplinks(clients, self.uplinks(updates, clients))
        held = {update.client: update.uplink for update in updates}
        self.agree()
        self._held = held = {client: held[client] for client in clients if client not in self.failed}
        self.suffice(len(held), len(clients), needed)
        return Uplinks(list(held), list(held.values()))

    def check_state(self, server: ServerState) -> None:
        """Check that a server's state is finite after it took in the messages of remote clients.

        Raises:
            HetflError: it is not; the line names the client that sent the largest values.
        """
        floats = {name: tensor for name, tensor in server.items() if tensor.is_floating_point() and tensor.numel()}
        broken = [name for name, tensor in floats.items() if not tensor.isfinite().all()] if self._held else []
        if broken:
            sizes = {client: _largest(message) for client, message in self._held.items()}
            client = max(sizes, key=sizes.__getitem__)
            raise HetflError(
                f"{broken[0]} of the server is no longer finite; the largest values, up to {sizes[client]:.1e}, were "
                f"those of {self.engine.called(client)}"
            )

    def suffice(self, valid: int, asked: int, needed: int | None) -> None:
        """Check that enough clients have answered.

        Args:
            valid: how many have.
            asked: how many could have.
            needed: how many must have, at most all who could; None: all.

        Raises:
            HetflError: fewer have.
        """
        needed = asked if needed is None else min(needed, asked)
        if valid < needed:
            raise HetflError(
                f"{valid} of {asked} clients answered as they should, and compute.uplinks_needed wants {needed}; "
                f"{self.told()}"
            )

    def agree(self) -> None:
        """Reject the valid messages whose sizes are not those of most others, where all have the same."""
        for size in {size: None for sizes in self._sizes.values() for size in sizes}:
            given = {client: sizes[size] for client, sizes in sorted(self._sizes.items()) if size in sizes}
            ((usual, many),) = Counter(given.values()).most_common(1)
            for client, own in given.items():
                if own != usual and client not in self.failed:
                    self._fail(client, f"sent {own} rows or columns where {many} clients sent {usual}")
                    self._noted.pop(client, None)

    def told(self) -> str:
        """The failures in words."""
        return told(self.engine, self.failed)

    def _check(self, update: Update, kind: Kind) -> None:
        """Check an update against the contract of its message; values only of remote clients, see :class:`Engine`.

        Raises:
            HetflError: it breaks it, in words that follow the client.
        """
        method, model = self.engine.method, self.engine.models[update.client]
        sizes = check_form(method, model, kind, update.uplink)
        if self.engine.remote:
            if kind != "nothing":
                contracts(method, model)[kind == "uplink"].check_values(update.uplink)
            if kind == "registration" and self.engine.counts is not None:
                check_counts(self._registered[update.client], update.uplink)
            _check_figures(update)
        self._sizes[update.client] = {size: given for size, given in sizes.items() if size.common}

    @cached_property
    def _registered(self) -> list[Message]:
        """The counts of registrations that the server knows."""
        assert self.engine.counts is not None
        return registered_counts(self.engine.method, self.engine.models, self.engine.counts.train)

    def _fail(self, client: int, reason: str) -> None:
        if not self.engine.remote:
            raise HetflError(f"client {client} {reason}")
        self.failed[client] = in_short(reason)  # it may name what the client sent

    def _next(self, updates: Iterator[Update | Failure]) -> Update | Failure | None:
        """What comes back next, once a client has finished; None if nothing more does."""
        began = time.perf_counter()
        # Whoever aggregates may have switched gradients off, but clients train meanwhile.
        with torch.inference_mode(False), torch.enable_grad():
            update = next(updates, None)
        self.waited += time.perf_counter() - began
        if isinstance(update, Update):
            self.up += update.uplink.size
        return update


_FIGURES: TypeAdapter[dict[str, Number | list[Number]]] = TypeAdapter(dict[str, Number | list[Number]])


def _largest(message: Message) -> float:
    """The largest value of a message."""
    floats = [tensor for tensor in message.values() if tensor.is_floating_point() and tensor.numel()]
    return max((float(tensor.abs().max()) for tensor in floats), default=0.0)


LONGEST = 1e9
"""Seconds that nothing takes: 30 years."""
MOST_FIGURES = 100
"""Names of figures of one client."""
MOST_NUMBERS = 10_000
"""Numbers of one of them."""
MARKS = "_./:-"
NAME = re.compile(rf"[\w{MARKS}]{{1,100}}", re.ASCII)
"""A figure's name, which is part of a record's and of MLflow's."""
LARGEST = 1e308
"""Whole numbers have no bound, and those beyond this one are no float, as whoever reads a record wants them."""


def _check_figures(update: Update) -> None:
    """Check what the record keeps of an update.

    Raises:
        HetflError: it has another form, in words that follow the client.
    """
    if update.loss.dim() or update.loss.dtype not in LOSSES:
        raise HetflError("sent a loss that is not a number")
    if not update.seconds.keys() <= SECONDS or not all(0 <= taken < LONGEST for taken in update.seconds.values()):
        raise HetflError("sent seconds that are not those of a clock")
    try:
        figures = _FIGURES.validate_python(update.observed, strict=True)
    except ValidationError as error:
        raise HetflError("sent figures that are not numbers") from error
    if len(figures) > MOST_FIGURES:
        raise HetflError(f"sent {len(figures)} figures, at most {MOST_FIGURES} are allowed")
    for name, figure in figures.items():
        if not NAME.fullmatch(name):
            raise HetflError(f"sent a figure named {in_short(name, 60)!r}; letters, digits and {MARKS} are allowed")
        numbers = figure if isinstance(figure, list) else [figure]
        if len(numbers) > MOST_NUMBERS:
            raise HetflError(f"sent {len(numbers)} numbers as one figure, at most {MOST_NUMBERS} are allowed")
        for number in numbers:
            if isinstance(number, int) and abs(number) > LARGEST:
                raise HetflError(f"sent a figure beyond {LARGEST:g}")
