"""What changes with 10^3 and 10^6 participants a round, for every method; writes docs/scale.md.

    python benchmarks/scale.py

needs no files. Each method stands with the first cell of its paper's tables in papers/. Its messages and states are
those of a rehearsal (see hetfl.experiments.rehearsal) with some of the cell's clients, and with twice as many. The
server's rule is timed on tensors of their sizes.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.filesize import decimal
from tabulate import tabulate
from torch import Tensor

from hetfl.draws import Draws
from hetfl.experiments.forecast import Forecaster
from hetfl.experiments.plan import Cell, Workspace, cells, load_params
from hetfl.experiments.record import device_name
from hetfl.experiments.rehearsal import Played, Skipping
from hetfl.files import write_text
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods import METHODS, create
from hetfl.methods.base import Uplinks
from hetfl.models.outline import outline
from hetfl.training.blank import Holdings, blank_federation
from hetfl.training.local import LocalEngine

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scale.md"
MOST = 20
"""Clients of the smaller one of two rehearsals, if the cell has so many; the other has twice as many. More of them
would not fit into memory where a rule stacks uplinks of hundreds of MB."""
ALIKE = 11
"""Clients that are alike, to see what a rule does with their uplinks. Nothing else in a state has so many rows."""
SIZES = (10**3, 10**6)
LINK = 10e9 / 8
"""Bytes a second of the link that the table assumes: 10 Gbit/s."""
REPEATS, SECONDS = 2, 0.3
"""A rule is timed at least so often and so long."""


@dataclass(frozen=True)
class Costs:
    """What one method costs its server.

    Attributes:
        cell: whose settings and models these are.
        up, down: bytes of a client's messages in a round, mean over clients.
        shared: whether all clients get the same.
        fixed, each: bytes of the server's state: without clients, and for each client that it knows.
        private: bytes that a client keeps to itself, mean over clients.
        held: uplinks that the rule has at once, of :data:`ALIKE`.
        compared: bytes of an uplink that the server holds until the round's figures compare all of them.
        summed: whether the next state is the same whoever of equal clients sends which uplink, and in which order,
            and whether what the state has of each client stays as it is.
        turns: whether clients train one after another.
        once, more: seconds of the rule: of a round, and of each uplink.
    """

    cell: Cell
    up: float
    down: float
    shared: bool
    fixed: float
    each: float
    private: float
    held: int
    compared: float
    summed: bool
    turns: bool
    once: float
    more: float

    @property
    def streams(self) -> bool:
        """Whether the rule takes uplinks one by one."""
        return self.held <= 2

    @property
    def merges(self) -> bool:
        """Whether edge servers can send the sums of their clients' uplinks, with the same result but for rounding."""
        return self.streams and self.summed and not self.turns

    def memory(self, clients: int) -> float:
        """Bytes that the server needs: its state, and uplinks."""
        held = self.up + self.compared * clients if self.streams else self.up * clients
        return self.fixed + self.each * clients + held

    def seconds(self, clients: int) -> float:
        """Of the server's rule in a round."""
        return self.once + self.more * clients


@cache
def zeros(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """One tensor for all that have this shape, since whole networks of several clients would take gigabytes."""
    return torch.zeros(shape, dtype=dtype)


def real(tensors: Tensors, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """Zeros in place of shapes without values; with a generator, random floating-point numbers in place of all."""

    def value(tensor: Tensor) -> Tensor:
        if generator is not None and tensor.is_floating_point():
            return torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        return zeros(tensor.shape, tensor.dtype) if tensor.is_meta else tensor

    return {name: value(tensor) for name, tensor in tensors.items()}


class Watched:
    """Uplinks that are made when they are asked for, and a count of those that are still somewhere.

    Attributes:
        most: uplinks that were there at once.
    """

    def __init__(self, uplinks: Sequence[Message]) -> None:
        self._uplinks, self._alive = uplinks, list[list[weakref.ref[Tensor]]]()
        self.most = 0

    def __iter__(self) -> Iterator[Message]:
        for uplink in self._uplinks:
            message = Message({name: tensor.clone() for name, tensor in uplink.items()})
            self._alive.append([weakref.ref(tensor) for tensor in message.values()])
            yield message
            del message
            self.most = max(self.most, sum(any(part() is not None for part in one) for one in self._alive))


class Play:
    """Two rounds of a method with some clients, without training.

    Attributes:
        server: the state after them.
        up, down: the messages of the second round and those that would follow.
    """

    def __init__(self, cell: Cell, held: Holdings, clients: int, alike: bool = False) -> None:
        short = {"server_epochs": 1, "server_steps": 1, "theorem": False}
        settings = {**cell.settings, "participation": 1.0, "held_out": 0}
        settings |= {key: value for key, value in short.items() if key in settings}
        self.method = create(cell.method, settings, held.classes, held.public_classes)
        options = self.method.model_options()
        names = cell.models[:1] if alike else cell.models
        kinds = {name: outline(name, held.classes, options, cell.input) for name in dict.fromkeys(names)}
        whose = [0 if alike else k % len(held.train) for k in range(clients)]
        held = replace(held, train=[held.train[k] for k in whose], test=[held.test[k] for k in whose])
        models = [kinds[names[k % len(names)]] for k in whose]
        self.engine = LocalEngine(
            self.method, blank_federation(self.method, models, held, cell.input), Skipping(self.method)
        )
        played = Played(self.engine, range(clients))
        self.server = self.method.initial_server(models, played.registrations(range(clients)), Draws(0))
        for round in (1, 2):
            self.before, self.up = self.server, played.uplinks(self.server, round)
            self.server = self.method.aggregate(self.server, Uplinks(range(clients), self.up), Draws(0, round))
        self.down = played.downlinks(self.server)

    def aggregated(self, uplinks: Any, server: ServerState, clients: int) -> ServerState:
        """The rule on other values."""
        return self.method.aggregate(server, Uplinks(range(clients), iter(uplinks)), Draws(0, 2))

    def seconds(self, clients: int) -> float:
        """Of the rule with uplinks of the first clients, the best of some tries."""
        server, uplinks = ServerState(real(self.before)), [Message(real(uplink)) for uplink in self.up[:clients]]
        found: list[float] = []
        while len(found) < REPEATS or sum(found) < SECONDS:
            began = time.process_time()
            self.aggregated(uplinks, server, clients)
            found.append(time.process_time() - began)
        return min(found)

    def summed(self) -> bool:
        """See :attr:`Costs.summed`, with random uplinks of clients who are alike, and in the opposite order."""
        generator = torch.Generator().manual_seed(0)
        server = ServerState(real(self.before, generator))
        uplinks = [Message(real(uplink, generator)) for uplink in self.up]
        one, other = (self.aggregated(way, server, len(uplinks)) for way in (uplinks, uplinks[::-1]))
        # What has a row for each client, and what other methods keep of each by name.
        known = [name for name, tensor in one.items() if tensor.dim() and len(tensor) == len(uplinks)]
        pairs = [(tensor, other[name]) for name, tensor in one.items()]
        pairs += [(one[name], server[name]) for name in known if name in server]
        return all(a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, equal_nan=True) for a, b in pairs)


def place(tensor: Tensor) -> tuple[Any, ...]:
    """What tensors have in common that share all their memory, also where they are only shapes."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape


def size(tensors: Tensors) -> int:
    """Bytes of some tensors, of those that share their memory once."""
    distinct = {place(tensor): tensor for tensor in tensors.values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in distinct.values())


def costs(cell: Cell, held: Holdings, small: tuple[Cell, Holdings], timed: bool = True) -> Costs:
    """What a cell's method costs; ``small`` is a cell of the method in which many clients take little memory."""
    clients = min(MOST, len(held.train))
    one, two = Play(cell, held, clients), Play(cell, held, 2 * clients)
    alike = Play(*small, ALIKE, alike=True)
    watched = Watched([Message(real(uplink)) for uplink in alike.up])
    alike.aggregated(watched, ServerState(real(alike.before)), ALIKE)
    each = (size(two.server) - size(one.server)) / clients
    states = two.engine.client_states().values()
    private = [size({**state.params, **state.optimiser, **state.memory}) for state in states]
    learned: Any = create(cell.method, cell.settings, held.classes, held.public_classes).settings
    steps = getattr(learned, "server_epochs", None) or getattr(learned, "server_steps", 1)
    few, many = (one.seconds(clients), two.seconds(2 * clients)) if timed else (0.0, 0.0)
    more = max(0.0, many - few) / clients
    return Costs(
        cell,
        mean(message.size.bytes for message in two.up),
        mean(message.size.bytes for message in two.down),
        len({tuple(map(place, message.values())) for message in two.down}) == 1,
        size(one.server) - clients * each,
        each,
        sum(private) / (2 * clients),
        watched.most,
        mean(size({name: up[name] for name in one.method.compared if name in up}) for up in two.up),
        alike.summed(),
        one.method.in_turn(),
        steps * max(0.0, few - clients * more),
        steps * more,
    )


def all_costs(names: Iterable[str] = METHODS, timed: bool = True) -> dict[str, Costs]:
    """The costs of some methods, in the order of their names."""
    paper, own = first_cells(ROOT / "papers"), first_cells(ROOT)
    workspace, params = Workspace(ROOT / "papers"), load_params(ROOT / "papers" / "params.yaml")
    forecaster = Forecaster(params, workspace, torch.device("cpu"), exact=False)
    labels = torch.arange(60) % 10
    small = Holdings([labels], [labels], 10, 8, labels, 10, 8)
    found = {}
    for name in sorted(names):
        held = forecaster.holdings(paper[name])
        assert held is not None, f"the sizes of {paper[name].dataset} are not known without its files"
        found[name] = costs(paper[name], held, (own[name], small), timed)
    return found


def first_cells(root: Path) -> dict[str, Cell]:
    """The first cell of each method in a project."""
    params, found = load_params(root / "params.yaml"), dict[str, Cell]()
    for name in params.experiments:
        for cell in cells(params, name):
            # Other experiments of papers/ search settings, with small networks.
            of_paper = root == ROOT or name.startswith(f"{cell.paper}-")
            if cell.settings.get("communicate", True) and of_paper:
                found.setdefault(cell.method, cell)
    return found


def bytes_text(number: float) -> str:
    """Bytes for people."""
    return decimal(round(number))


def row(name: str, cost: Costs) -> list[str]:
    """A method's row of the page's first table."""
    return [
        METHODS[name].title,
        cost.cell.experiment,
        bytes_text(cost.up),
        bytes_text(cost.down) + (" *" if cost.shared else ""),
        "one" if cost.streams else "all",
        (f"one, and {bytes_text(cost.compared)} of each" if cost.compared else "one") if cost.streams else "all",
        bytes_text(cost.fixed),
        bytes_text(cost.each),
        bytes_text(cost.private),
        "yes" if cost.merges else "no",
    ]


def page(found: Mapping[str, Costs]) -> str:
    """The page: what was measured, and what it makes of many clients."""
    measured = [row(name, cost) for name, cost in found.items()]
    scaled = [
        [
            METHODS[name].title,
            *(bytes_text(cost.memory(many)) for many in SIZES),
            *(bytes_text(many * (cost.up + cost.down)) for many in SIZES),
            *(duration(many * max(cost.up, cost.down) / LINK) for many in SIZES),
            *(duration(cost.seconds(many)) for many in SIZES),
        ]
        for name, cost in found.items()
    ]
    return TEXT.format(
        machine=f"{device_name(torch.device('cpu'))}, 1 thread, torch {torch.__version__}",
        measured=tabulate(
            measured,
            headers=[
                "method",
                "experiment",
                "up",
                "down",
                "uplinks the rule holds",
                "uplinks the server holds",
                "server state",
                "and per client",
                "private state of a client",
                "edge servers can sum",
            ],
            tablefmt="github",
            disable_numparse=True,
        ),
        scaled=tabulate(
            scaled,
            headers=["method", *(f"{what}, {words}" for what in WHATS for words in ("10^3", "10^6"))],
            tablefmt="github",
            disable_numparse=True,
        ),
        exact=", ".join(METHODS[name].title for name, cost in found.items() if cost.merges),
        lists=", ".join(METHODS[name].title for name, cost in found.items() if not cost.streams),
        compared=", ".join(METHODS[name].title for name, cost in found.items() if cost.streams and cost.compared),
        grows=", ".join(METHODS[name].title for name, cost in found.items() if cost.each > 8),
        most=MOST,
    )


def duration(seconds: float) -> str:
    """Seconds with two digits, in the unit that suits them."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= unit:
            return f"{float(f'{seconds / unit:.2g}'):g} {name}"
    return f"{float(f'{1000 * seconds:.2g}'):g} ms"


WHATS = ("server memory", "bytes a round", "at 10 Gbit/s", "the rule takes")
TEXT = """# Many clients

What changes with 10^3 and with 10^6 participants in a round. `python benchmarks/scale.py` writes this page; no
number in it is written by hand.

Each method stands with the first experiment of its paper in `papers/`. Sizes are those of the messages that the
real loop makes, as in `hetfl plan`; where they depend on training, they are the largest possible. Whether a rule
takes uplinks one by one was found by counting the uplinks that are still in memory when it asks for the next one.

## What a client costs

{measured}

`*`: all clients get the same, so a host of several clients, or an edge server, needs it once. "Server state" is
what the server keeps from round to round, "and per client" by how much each further client makes it larger.
"Private state" is what a client keeps to itself, without moments of an optimiser. It stays on its node; with
the engine `ray` the server has a copy for resume points.

## What that means

{scaled}

"Server memory" is its state and the uplinks that it holds; a sum in float64 and the process itself come on top.
"At 10 Gbit/s" is the time of the larger one of both directions through one link. "The rule takes" is
aggregation on one core ({machine}), in processor time, with as many clients as the experiment has, {most} at
most, and with twice as many, and extended in proportion; where both took the same time, so does any number. A
round also waits for its slowest client, whatever their number.

## Hierarchical aggregation

An edge server can send one message with the sums of its clients' uplinks where the rule takes uplinks one by
one, changes nothing that it keeps of single clients, and does not depend on which of several equal clients sent
what. That was tried out with random uplinks in both orders. The result is then that of one server but for
rounding, and a root with k edge servers receives k messages, however many clients there are.

- Exact but for rounding: {exact}.
- The rule, as it is written, reads all uplinks of a round at once, so that an edge server can only pass them
  on: {lists}. Those of SCAFFOLD and FedMD are sums all the same. They add up a stack of uplinks, and torch adds the
  values of a stack in an order that depends on their place in the tensor and on the width of the processor's
  vectors. Taken in one by one, they would be rounded in another order, and finished runs would not be repeated to
  the last bit.
- The rule adds up, but the record has the mean cosine of the participants' prompts, and the server holds these, and
  nothing else of the uplinks, until it is computed: {compared}. Its squares are summed over all clients at once,
  in an order that one client after another does not give.
- The server's state grows with the clients by more than their numbers of samples: {grows}.

A host with several clients sends every client's uplink by itself, in every engine: hetfl has no edge servers.
"""


def main() -> None:
    torch.set_num_threads(1)
    text = page(all_costs())
    print(text)
    write_text(PAGE, text)


if __name__ == "__main__":
    main()
