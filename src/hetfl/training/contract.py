"""What a method's messages must be, found by playing a round with blank images.

Nobody writes a contract down: a client with the same model, but blank images and no training, registers and sends an
uplink, and those have the names, types and shapes that all its messages must have. It does so with three holdings.
A size that changes with the client's own samples is a number of rows, which every client chooses; one that changes
with the public data or the size of stored images is the same for all clients; all others are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from hetfl.draws import Draws
from hetfl.errors import HetflError, few
from hetfl.message import Message, Tensors
from hetfl.methods.base import Method, Phase, Uplinks
from hetfl.models.base import Model
from hetfl.models.outline import Outline, rehearsed
from hetfl.training.blank import Holdings, blank_federation
from hetfl.training.client_run import ClientRun
from hetfl.training.engine import Task
from hetfl.training.federation import Federation
from hetfl.training.local import LocalEngine

LABELS = "labels"
"""The name of integers that are classes; all other integers in messages are counts or indices."""

LARGEST = math.sqrt(torch.finfo(torch.float32).max)
"""The largest value in a message: of larger ones no norm, distance or variance is finite, so that one client's would
spoil what all others get."""

Kind = Literal["registration", "uplink", "nothing"]
"""What a client sends: when it registers, after its work in a round, and after fine-tuning."""


@dataclass(frozen=True)
class Free:
    """A size that is not fixed.

    Attributes:
        common: whether all clients have the same, as far as it depends on what they share; else each has its own.
        seen: the sizes for two holdings. Sizes that change alike are equal in every message.
    """

    common: bool
    seen: tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """A tensor of a message: its type and its sizes."""

    dtype: torch.dtype
    shape: tuple[int | Free, ...]


class Contract:
    """What one kind of message must be.

    Args:
        method: whose messages they are.
        messages: of the three holdings.
    """

    def __init__(self, method: Method, messages: Sequence[Message]) -> None:
        self._method = ref(method)  # which is the key that contracts are kept by
        # What stands for a matrix, such as its singular vectors, has at most three times its elements.
        self._forms = 1 if type(method).contents is Method.contents else 3
        self.classes = method.num_classes
        first, more, other = (method.contents(message) for message in messages)
        self.needed = [name for name in first if name in more]
        self.entries = {name: _entry(name, first, more, other, method.rows) for name in {**more, **first}}
        # The second holding has several samples of each of its classes.
        self.distinct = LABELS in more and len(more[LABELS].unique()) == more[LABELS].numel()

    def sizes(self, message: Message) -> dict[Free, int]:
        """The sizes of a message that are not fixed.

        Raises:
            HetflError: names, types or shapes are others, in words that follow the client.
        """
        found: dict[Free, int] = {}
        method = self._method()
        assert method is not None
        try:
            if (
                self._forms > 1
            ):  # its sizes first: factors of a few bytes can stand for a matrix that fills the memory
                self._check(method.contents(Message({name: t.to("meta") for name, t in message.items()})), {})
            tensors = method.contents(message)
        except (KeyError, RuntimeError, ValueError, IndexError) as error:
            raise HetflError(f"sent a message that cannot be read ({type(error).__name__})") from error
        self._check(tensors, found)
        return found

    def _check(self, tensors: Tensors, found: dict[Free, int]) -> None:
        """As :meth:`sizes`, of what a message says; fills in the sizes that are not fixed."""
        if extra := [name for name in tensors if name not in self.entries]:
            raise HetflError(f"sent {_names(extra)}, which its method did not send in rehearsal")
        if missing := [name for name in self.needed if name not in tensors]:
            raise HetflError(f"did not send {_names(missing)}")
        for name, tensor in tensors.items():
            entry = self.entries[name]
            sizes = [
                found.setdefault(size, given) if isinstance(size, Free) else size
                for size, given in zip(entry.shape, tensor.shape, strict=False)
            ]
            if tensor.dtype != entry.dtype:
                raise HetflError(f"sent {name} as {_dtype(tensor.dtype)}, and it is {_dtype(entry.dtype)}")
            if len(entry.shape) != tensor.dim() or sizes != list(tensor.shape):
                wanted = [size if isinstance(size, int) else found.get(size, "n") for size in entry.shape]
                raise HetflError(f"sent {name} of shape {list(tensor.shape)}, and it has {_shape(wanted)}")

    def most_bytes(self, own: int, common: int) -> int:
        """The most bytes of a message.

        Args:
            own: the largest size that is a client's own, such as its number of samples.
            common: the largest that all clients share, such as the number of public samples.
        """
        total = 0
        for entry in self.entries.values():
            sizes = [size if isinstance(size, int) else common if size.common else own for size in entry.shape]
            total += math.prod(max(1, size) for size in sizes) * entry.dtype.itemsize
        return self._forms * total

    def check_values(self, message: Message) -> None:
        """Check that floats are finite and not huge, counts not negative, labels classes, each once if they say so.

        The device is waited for once.

        Raises:
            HetflError: they are not, in words that follow the client.
        """
        floats = [tensor for tensor in message.values() if tensor.is_floating_point() and tensor.numel()]
        wrong: dict[str, Tensor] = {}
        if floats:
            largest = get_total_norm(floats, torch.inf)
            wrong["values that are not finite"] = ~largest.isfinite()
            wrong[f"values beyond {LARGEST:.1e}"] = largest > LARGEST
        for name, tensor in message.items():
            if tensor.is_floating_point() or not tensor.numel() or tensor.dtype == torch.bool:
                continue
            wrong[f"negative {name}"] = tensor.min() < 0
            if name == LABELS:
                wrong[f"{name} beyond the {self.classes} classes"] = tensor.max() >= self.classes
                if self.distinct:
                    wrong["a label twice"] = (tensor.sort().values.diff() == 0).any()
        if wrong:
            told = torch.stack([flag.to(torch.bool) for flag in wrong.values()]).tolist()
            if found := [name for name, flag in zip(wrong, told, strict=True) if flag]:
                raise HetflError(f"sent {found[0]}{_where(message) if found[0].startswith('values') else ''}")


def contracts(method: Method, model: Model) -> tuple[Contract, Contract]:
    """The contracts of what a client with a model registers with, and of its uplinks. They are found once."""
    known = _KNOWN.setdefault(method, {})
    if model not in known:
        sent = rehearsed(lambda valued: [_played(method, model, held, valued) for held in _holdings(method)])
        registrations, uplinks = zip(*sent, strict=True)
        known[model] = Contract(method, registrations), Contract(method, uplinks)
    return known[model]


def check_form(method: Method, model: Model, kind: Kind, message: Message) -> dict[Free, int]:
    """Check names, types and shapes of what a client with a model sends; returns the sizes that are not fixed.

    Raises:
        HetflError: they are not what the method declares, in words that follow the client.
    """
    if kind == "nothing":
        if message:
            raise HetflError(f"sent {', '.join(message)[:60]}, and nothing is sent in this round")
        return {}
    registration, uplink = contracts(method, model)
    return (registration if kind == "registration" else uplink).sizes(message)


def registered_counts(method: Method, models: Sequence[Model], samples: Sequence[Sequence[int]]) -> list[Message]:
    """The counts that clients register with and that follow from their models and samples alone, by client.

    Clients with blank images play the registration twice, the second time with images that show wrong classes and
    with other public data. Integers that are the same in both follow from neither.

    Args:
        method: that registers clients.
        models: every client's.
        samples: every client's training samples of each class.
    """
    classes = torch.arange(method.num_classes)
    held = [classes.repeat_interleave(torch.tensor(row)) for row in samples]
    played = []
    for times, shown in ((1, True), (2, False)):
        public = torch.arange(method.public_classes).repeat(times) if method.public else None
        holdings = Holdings(held, [classes] * len(held), len(classes), 8, public, method.public_classes, 8, shown)
        played.append(rehearsed(partial(_registered, method, models, holdings)))
    first, second = played
    return [
        Message(
            {
                name: tensor
                for name, tensor in first[client].items()
                if not tensor.is_floating_point() and name in second[client] and tensor.equal(second[client][name])
            }
        )
        for client in range(len(models))
    ]


def _registered(method: Method, models: Sequence[Model], held: Holdings, valued: bool) -> dict[int, Message]:
    """What clients register with."""
    engine = LocalEngine(method, _blank(method, models, held, valued), Untrained(method))
    return {update.client: update.uplink for update in engine.introduce(range(len(models)), Draws(0))}


def check_counts(known: Message, sent: Message) -> None:
    """Check what a client registers with against what the server knows of it, from :func:`registered_counts`.

    Raises:
        HetflError: it says something else, in words that follow the client.
    """
    for name, tensor in known.items():
        if name in sent and not tensor.equal(sent[name].to(tensor.device)):
            said, right = (str(each.tolist())[:60] for each in (sent[name], tensor))
            raise HetflError(f"registers with {name} {said}, and the card of its data and its model give {right}")


def check_downlink(method: Method, model: Model, message: Message) -> None:
    """Check what a server sends a client with a model: a message as before or as after the first aggregation.

    Raises:
        HetflError: it is nothing that the method sends, in words that follow the server.
    """
    known = _KNOWN_DOWNLINKS.setdefault(method, {})
    if model not in known:
        several = [*_holdings(method, several=True)]
        played = rehearsed(lambda valued: [_played_downlinks(method, model, held, valued) for held in several])
        first, later = (Contract(method, messages) for messages in zip(*played, strict=True))
        known[model] = first, later
    first, later = known[model]
    forms = (first, later) if message.keys() == first.entries.keys() else (later, first)
    errors = []
    for form in forms:
        try:
            form.sizes(message)
            form.check_values(message)
            return
        except HetflError as error:
            errors.append(error)
    raise errors[0]


_KNOWN: WeakKeyDictionary[Method, dict[Model, tuple[Contract, Contract]]] = WeakKeyDictionary()
_KNOWN_DOWNLINKS: WeakKeyDictionary[Method, dict[Model, tuple[Contract, Contract]]] = WeakKeyDictionary()


def _holdings(method: Method, several: bool = False) -> Iterator[Holdings]:
    """Each class once; all classes but one, three times; the first with other public data and stored images.

    Args:
        method: of the clients.
        several: whether there are two more clients with the last holding.
    """
    classes = torch.arange(method.num_classes)
    public = torch.arange(method.public_classes)
    for train, side, times in ((classes, 8, 1), (classes[:-1].repeat_interleave(3), 8, 1), (classes, 10, 2)):
        shared = public.repeat(times) if method.public else None
        clients = 3 if several and times > 1 else 1
        yield Holdings([train] * clients, [classes] * clients, len(classes), side, shared, len(public), side)


def _played(method: Method, model: Model, held: Holdings, valued: bool) -> tuple[Message, Message]:
    """What a client registers with and sends in round 1."""
    federation = _blank(method, [model], held, valued)
    shapes, engine = federation.models[0], LocalEngine(method, federation, Untrained(method))
    (registration,) = (update.uplink for update in engine.introduce([0], Draws(0)))
    server = method.initial_server([shapes], {0: registration}, Draws(0))
    (update,) = engine.train([Task(0, method.downlink(server, 0))], Draws(0, 1))
    return registration, update.uplink


def _played_downlinks(method: Method, model: Model, held: Holdings, valued: bool) -> tuple[Message, Message]:
    """What the server sends a client before and after the first aggregation."""
    # How long the server learns changes no form.
    short = {name: 1 for name in ("server_epochs", "server_steps") if hasattr(method.settings, name)}
    settings = method.settings.model_copy(update=short)
    method = type(method)(settings, method.num_classes, method.public_classes, method.seed)
    clients = range(len(held.train))
    federation = _blank(method, [model for _ in clients], held, valued)
    engine = LocalEngine(method, federation, Untrained(method))
    registrations = {update.client: update.uplink for update in engine.introduce(clients, Draws(0))}
    server = method.initial_server(federation.models, registrations, Draws(0))
    first = method.downlink(server, 0)
    updates = engine.train([Task(client, method.downlink(server, client)) for client in clients], Draws(0, 1))
    uplinks = Uplinks.of({update.client: update.uplink for update in updates})
    return first, method.downlink(method.aggregate(server, uplinks, Draws(0, 1)), 0)


def _blank(method: Method, models: Sequence[Model], held: Holdings, valued: bool) -> Federation:
    """Clients with blank images, whose models are outlines."""

    def outlined(model: Model) -> Outline:
        # Sizes of runs are also found with outlines alone, whose bodies are one vector.
        if isinstance(model, Outline) and not valued:
            return model
        return Outline(model, method.model_options(), whole=not isinstance(model, Outline), valued=valued)

    outlines = {model: outlined(model) for model in dict.fromkeys(models)}
    dtype = models[0].tensors()[0].dtype
    return blank_federation(method, [outlines[model] for model in models], held, dtype=dtype)


class Untrained:
    """A trainer that leaves parameters as they are."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def train(self, runs: Iterable[ClientRun], phases: Sequence[Phase], draws: Draws) -> Iterator[ClientRun]:
        """See :meth:`hetfl.training.client_run.Trainer.train`."""
        for run in runs:
            run.steps = 1
            if self.method.statistics_source(draws.round) == "training":
                batch = run.data.train_images.batch(run.data.train)
                with torch.no_grad():
                    run.gathered.append(self.method.statistics(run.client.model, run.params, batch, run.received))
            yield run


def _entry(name: str, first: Tensors, more: Tensors, other: Tensors, rows: Sequence[str]) -> Entry:
    given = [tensors.get(name) for tensors in (first, more, other)]
    reference = next(tensor for tensor in given if tensor is not None)
    shapes = [tuple(reference.shape if tensor is None else tensor.shape) for tensor in given]
    sizes: list[int | Free] = []
    for place, (here, own, shared) in enumerate(zip(*shapes, strict=True)):
        if here != own or (name in rows and not place):
            sizes.append(Free(False, (here, own)))
        else:
            sizes.append(here if here == shared else Free(True, (here, shared)))
    return Entry(reference.dtype, tuple(sizes))


def _names(names: Sequence[str]) -> str:
    return few([name[:60] for name in names], 3)


def _shape(sizes: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _where(message: Mapping[str, Tensor]) -> str:
    """The first tensor whose values are not all finite, or huge."""
    name = next((n for n, t in message.items() if t.is_floating_point() and not (t.abs() <= LARGEST).all()), "")
    return f" in {name}"
