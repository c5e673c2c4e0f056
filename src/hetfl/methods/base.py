"""The contract of a federated method.

A method says what a client optimises, what it sums over its data, what is sent and how the server combines it. It
never loops over batches, owns an optimiser or moves tensors between devices: engines do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from hetfl.config import Settings, validate
from hetfl.data.batches import Batch, class_counts, class_sums
from hetfl.draws import Draws
from hetfl.errors import unknown
from hetfl.message import Message, Tensors
from hetfl.models.base import Model, ModelOptions


class MethodSettings(Settings):
    """What every method has: the rounds and the clients' local training."""

    rounds: int = Field(default=10, ge=1, description="global rounds")
    participation: float = Field(default=1.0, gt=0, le=1, description="share of clients in a round")
    local_epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=16, ge=1)
    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=1e-4, ge=0)
    keep_optimiser: bool = Field(
        default=False, description="a client's optimisers live as long as the client; else each round has new ones"
    )
    drop_last: bool = Field(default=False, description="leave an epoch's last batch out where it is smaller")
    shuffle: bool = Field(default=True, description="draw a new order of the samples for every epoch")
    patience: int | None = Field(
        default=None, ge=1, description="stop once the best pooled accuracy is so many rounds old"
    )
    evaluate_every: int = Field(
        default=1, ge=1, description="rounds from one test to the next; the last round always has one"
    )
    train_accuracy: bool = Field(
        default=False, description="test on the training samples, too, whenever there is a test"
    )
    held_out: int = Field(
        default=0, ge=0, description="the last so many clients never take part; they are tested like the others"
    )


@dataclass(frozen=True)
class Phase:
    """One stretch of local training.

    Attributes:
        trains: the parameter groups that train; everything else stands still.
        epochs: passes over the client's data.
        batch_size: samples a step; the last batch of an epoch may be smaller.
        optimiser: ``sgd`` or ``adam`` and its settings.
        keep_optimiser: whether the optimiser outlives the round.
        drop_last: whether an epoch's last batch is left out where it is smaller.
        shuffle: whether every epoch has an order of its own; else it is that of the partition.
        clip: largest norm of a gradient, of each of the ``clipped`` sets of parameter groups by itself; None: any.
        gathers: whether statistics of the training passes are taken here.
        data: what it trains on: the client's ``own`` samples, all ``public`` ones, or this round's ``alignment`` set,
            which the server draws from the public ones.
        name: of the optimiser. Phases of one name share it: a later phase of the round goes on with its momentum, and
            one of a later round if it is kept, whatever the server made of the parameters in between.
    """

    trains: tuple[str, ...]
    epochs: int
    batch_size: int
    optimiser: str
    lr: float
    momentum: float
    weight_decay: float
    keep_optimiser: bool
    drop_last: bool = False
    shuffle: bool = True
    clip: float | None = None
    clipped: tuple[tuple[str, ...], ...] = ()
    gathers: bool = True
    data: Literal["own", "public", "alignment"] = "own"
    name: str = "local"


@dataclass(frozen=True)
class Client:
    """What a client knows about itself.

    Attributes:
        index: its number, from 0.
        model: its architecture and frozen weights.
        class_counts: [C] int64, its training samples per class.
    """

    index: int
    model: Model
    class_counts: Tensor

    @property
    def samples(self) -> int:
        """|D_k|, its number of training samples."""
        return int(self.class_counts.sum())


@dataclass(frozen=True)
class Query:
    """Features of images by which a method sorts them.

    Attributes:
        model: whose frozen backbone makes them; None: the clients' own.
        block: of a transformer, after which its class token is taken; None: the last.
    """

    model: str | None = None
    block: int | None = None


@dataclass(frozen=True)
class Statistics:
    """What a client gathers in one pass over its data after training.

    Attributes:
        sums: tensors that are added up over batches.
        rows: tensors with one row per sample, concatenated over batches in the order of the client's data.
    """

    sums: Tensors = field(default_factory=dict)
    rows: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """What a client did in a round.

    Attributes:
        draws: keyed randomness of the round.
        received: what the client knew, from :meth:`Method.receive`.
        before: its parameters when local training began.
        params: its parameters afterwards.
        statistics: what it gathered.
        steps: optimiser steps it took.
    """

    client: Client
    draws: Draws
    received: Tensors
    before: Tensors
    params: Tensors
    statistics: Statistics
    steps: int

    @property
    def round(self) -> int:
        """Its number; 0 stands for what comes before the first round."""
        return self.draws.round


class Uplinks(Iterable[Message]):
    """The messages of a round's participants, in ascending order of the clients.

    They may come one by one, as the clients finish, and can then be iterated over only once. A method whose rule is a
    sum takes them in like that, so that the server's memory does not grow with their number; another makes a list.

    Attributes:
        clients: the participants, ascending; known before the first message is there.
    """

    def __init__(self, clients: Sequence[int], messages: Iterable[Message]) -> None:
        self.clients, self._messages = list(clients), messages
        self._handed_out = False

    @classmethod
    def of(cls, messages: Mapping[int, Message]) -> Uplinks:
        """Messages by client that are all there."""
        clients = sorted(messages)
        return cls(clients, [messages[client] for client in clients])

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Message]:
        """The messages.

        Raises:
            RuntimeError: they came one by one and were handed out before.
        """
        if isinstance(self._messages, Iterator) and self._handed_out:
            raise RuntimeError("the messages of this round were already iterated over: make a list of them first")
        self._handed_out = True
        return iter(self._messages)


StatisticsSource = Literal["none", "own", "stored", "before", "training", "alignment"]
"""Where a client's statistics come from: one pass over its own data, after training, in the size in which they are
stored, or with the parameters from before training; the training passes themselves (sums only, before each step; of a
client that takes no step those of no samples); or one pass over the next round's alignment set."""


class Method(ABC):
    """One federated method. Stateless: settings in, mappings of tensors through.

    Class attributes declare what the support matrix and the tests need to know.

    Attributes:
        numerics: version of the formulas in the class's own body, raised by one when they give other numbers; each
            method declares its own. See ``experiments/versions.py``.
        title: the name the field uses.
        source: authors, venue, equations.
        heterogeneous: whether clients may have different architectures.
        travels: what crosses between clients and server.
        evaluates: ``client``, each client's own parameters; or ``global``, what the server would send out now.
        public: whether clients and server share a public data set.
        personal: whether the server sends clients different parameters.
        linear_heads: whether all clients must have a linear head on features of one size.
        resets_momentum: whether a parameter that a client takes over from the server leaves behind what a kept
            optimiser gathered for it; else the optimiser goes on as a persistent one of torch's.
        vmappable: whether ``torch.vmap`` can map the objective over clients.
        seed: the run's, for what all draw alike and nobody sends.
    """

    numerics: ClassVar[int]
    title: ClassVar[str]
    source: ClassVar[str]
    heterogeneous: ClassVar[bool] = True
    travels: ClassVar[str]
    evaluates: Literal["client", "global"] = "client"
    public: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    linear_heads: ClassVar[bool] = False
    resets_momentum: ClassVar[bool] = False
    vmappable: ClassVar[bool] = True
    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    def __init__(self, settings: MethodSettings, num_classes: int, public_classes: int = 0, seed: int = 0) -> None:
        self.settings: Any = settings
        self.num_classes, self.public_classes, self.seed = num_classes, public_classes, seed

    @abstractmethod
    def model_options(self) -> ModelOptions:
        """How the method wants a backbone fitted out."""

    @abstractmethod
    def trains(self) -> tuple[str, ...]:
        """The parameter groups that local training changes."""

    def keeps(self) -> tuple[str, ...]:
        """The parameter groups that a client remembers from round to round; the others come with the downlink."""
        return self.trains()

    def phases(self, round: int) -> Sequence[Phase]:
        """The stretches of local training in a round; round 0 is every client's, before it meets the server."""
        return [self.phase()] if round else []

    def fine_tuning(self) -> Sequence[Phase]:
        """Local training after the last round whose outcome is tested and never sent."""
        return []

    def phase(self, **changes: Any) -> Phase:
        """The stretch of local training that the settings describe, with some changes."""
        s = self.settings
        usual = Phase(
            self.trains(),
            s.local_epochs,
            s.batch_size,
            s.optimiser,
            s.lr,
            s.momentum,
            s.weight_decay,
            s.keep_optimiser,
            s.drop_last,
            s.shuffle,
        )
        return replace(usual, **changes)

    def alignment(self, labels: Tensor, draws: Draws) -> Tensor:
        """The public samples that the server draws for a round: places [n] int64; none where none are used.

        Args:
            labels: of all public samples [N], on the CPU.
            draws: keyed randomness of the round.
        """
        return labels.new_empty(0)

    def initial(self, model: Model, draws: Draws, client: int) -> dict[str, Tensor]:
        """A client's first parameters, of every group; ``draws`` are those of round 0."""
        return model.init(draws, client)

    def register(self, work: Work) -> Message:
        """What a client tells the server once, before the first round.

        ``work`` has parameters only if there are phases or a statistics pass in round 0.
        """
        return Message()

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> dict[str, Tensor]:
        """The server's state before the first round.

        Args:
            models: the architecture of every client.
            registrations: what each client sent with :meth:`register`.
            draws: keyed randomness of round 0.
        """
        return {}

    def downlink(self, server: Tensors, client: int) -> Message:
        """What the server sends to one participant at the start of a round."""
        return Message()

    def in_turn(self) -> bool:
        """Whether a round's participants work one after another, in ascending order, instead of all at once."""
        return False

    def after_turn(self, server: Tensors, uplink: Message) -> dict[str, Tensor]:
        """The server's state that the next participant's downlink is made of, where they work one after another."""
        return dict(server)

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        """What the other functions read in a round: a downlink, and what the client remembered of earlier rounds.

        Prediction does without the memory: there it is empty, as in a client's first round.
        """
        return message

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        """A client's parameters after it took over what it received; untouched tensors stay the same objects."""
        return dict(params)

    def drawn(self, received: Tensors, size: int, seed: int) -> Tensors:
        """What the objective reads as ``batch.drawn``: drawn anew for every batch, and no parameter decides it.

        Args:
            received: see :meth:`receive`.
            size: the batch's number of samples; what there is one of for each sample comes first in its shape.
            seed: of the draw.
        """
        return {}

    @abstractmethod
    def objective(self, model: Model, params: Tensors, batch: Batch, received: Tensors, phase: Phase) -> Tensor:
        """What a client minimises on a batch: a scalar, pure."""

    def statistics_source(self, round: int) -> StatisticsSource:
        """Where a client's statistics come from in a round; in round 0 after its phases."""
        return "none"

    def statistics(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Statistics:
        """What one batch adds to the statistics."""
        return Statistics()

    def uplink(self, work: Work) -> Message:
        """What a participant sends at the end of a round."""
        return Message()

    def remember(self, work: Work) -> Tensors:
        """What a client keeps for its next round besides its parameters; called in round 0 too if it works then."""
        return {}

    def observe(self, work: Work) -> dict[str, Any]:
        """Figures and lists of figures about a client for the record; they are not sent."""
        return {}

    def aggregate(self, server: Tensors, uplinks: Uplinks, draws: Draws) -> dict[str, Tensor]:
        """The server's next state from the participants' messages."""
        return dict(server)

    def queries(self) -> Query | None:
        """By which features of images the method sorts them, computed once; see :attr:`Batch.queries`.

        A method with queries has two functions more: ``choose(params, batch, received)``, the group of each sample
        [B], and ``points(batch)``, the queries [B, d] as it compares them.
        """
        return None

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """The method's own inference rule: a score per class [B, C]; labels are not looked at.

        :func:`predicted_classes` reads them: the largest wins, minus infinity rules a class out.
        """
        return model(params, batch.images).logits

    def extra_predictors(self, round: int) -> Mapping[str, Method]:
        """Other inference rules that the state after a round is tested with as well, by name."""
        return {}

    def server_parameters(self, server: Tensors) -> Tensors:
        """Parameters of a network of the server's own, which the papers count among the trainable ones."""
        return {}

    def diagnostics(self, server: Tensors) -> dict[str, Any]:
        """Figures about the server's new state, worth keeping with each round."""
        return {}

    def compare(self, uplinks: Sequence[Message]) -> dict[str, Any]:
        """Figures about a round's messages, worth keeping with it.

        A method that overrides this makes the server hold all messages of a round at once.
        """
        return {}


NONE = -1
"""Predicted where no class can be."""


def predicted_classes(scores: Tensor) -> Tensor:
    """The class [B] int64 with the largest of the scores [B, C]; :data:`NONE` where that score is not finite.

    So a sample whose scores a diverged model has turned into NaN is of no class, where ``argmax`` says 0.
    """
    best, predicted = scores.max(dim=1)
    return predicted.where(best.isfinite(), NONE)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """The mean cross-entropy of a batch."""
    if batch.weight is None:
        return F.cross_entropy(logits, batch.labels)
    return batch.mean(F.cross_entropy(logits, batch.labels, reduction="none"))


def class_means(statistics: Statistics, dtype: torch.dtype) -> Message:
    """The mean vector of each class that a client has samples of, from ``sums`` [C, D] and ``counts`` [C].

    Returns:
        ``means`` [c, D] and ``labels`` [c] int32, c being the number of those classes, which can be 0.
    """
    counts = statistics.sums["counts"]
    labels = counts.nonzero().squeeze(1)
    means = statistics.sums["sums"][labels] / counts[labels, None]
    return Message({"means": means.to(dtype), "labels": labels.to(torch.int32)})


def mean_over_owners(messages: Sequence[Tensors], num_classes: int) -> dict[str, Tensor]:
    """The mean of each class over the clients that sent one, in the form of :func:`class_means`.

    Each owner weighs the same, or as much as it has samples where messages hold the ``counts`` [c] of their classes.
    """
    labels = torch.cat([message["labels"] for message in messages]).long()
    means = torch.cat([message["means"] for message in messages])
    counts = torch.cat([message["counts"] for message in messages]).double() if "counts" in messages[0] else None
    weight = class_counts(labels, num_classes, counts)
    present = weight.nonzero().squeeze(1)
    mean = class_sums(means, labels, num_classes, counts)[present] / weight[present, None]
    return {"means": mean.to(means.dtype), "labels": present.to(torch.int32)}


def by_class(message: Tensors, num_classes: int) -> dict[str, Tensor]:
    """``means`` [C, D] with zeros where a class has none, and ``valid`` [C]; nothing from an empty message."""
    if not message:
        return {}
    labels, means = message["labels"].long(), message["means"]
    dense = means.new_zeros(num_classes, means.shape[1])
    valid = torch.zeros(num_classes, dtype=torch.bool, device=dense.device)
    return {"means": dense.index_copy(0, labels, means), "valid": valid.index_fill(0, labels, True)}


def weighted_mean(messages: Iterable[Tensors], weights: Tensor) -> dict[str, Tensor]:
    """The mean of n messages' equally named tensors, taken in one by one.

    Args:
        messages: at least one.
        weights: [n], normalised here; the sums run in float64.
    """
    share = (weights.to(torch.float64) / weights.sum()).tolist()
    totals: dict[str, Tensor] = {}
    parts: dict[str, Tensor] = {}
    types: dict[str, torch.dtype] = {}
    for weight, message in zip(share, messages, strict=True):
        if not totals:
            types = {name: tensor.dtype for name, tensor in message.items()}
            totals = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in message.items()}
            parts = {name: torch.empty_like(total) for name, total in totals.items()}
        for name, total in totals.items():
            total += parts[name].copy_(message[name]).mul_(weight)
    return {name: total.to(types[name]) for name, total in totals.items()}


METHODS: dict[str, type[Method]] = {}
"""Every method by name; filled by :func:`register_method`."""

M = TypeVar("M", bound=type[Method])


def register_method(name: str) -> Callable[[M], M]:
    """Class decorator: make a method known under ``name``."""

    def add(cls: M) -> M:
        METHODS[name] = cls
        return cls

    return add


def method_class(name: str, where: str = "") -> type[Method]:
    """Look a method up.

    Raises:
        HetflError: there is none of that name.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS, where)
    return METHODS[name]


def create(
    name: str,
    settings: Mapping[str, Any] | MethodSettings,
    num_classes: int,
    public_classes: int = 0,
    where: str = "",
    seed: int = 0,
) -> Method:
    """Make a method from its name and raw or resolved settings.

    Args:
        name: a registered method.
        settings: what differs from its defaults, or all of it.
        num_classes: C.
        public_classes: classes of the public data set, for methods that have one.
        where: names the settings' place in messages.
        seed: of the run.

    Raises:
        HetflError: unknown name, or a setting is unknown or out of range.
    """
    cls = method_class(name, where)
    if not isinstance(settings, MethodSettings):
        settings = validate(cls.Settings, dict(settings), where or f"{name}: settings")
    return cls(settings, num_classes, public_classes, seed)
