"""The contract of a federated method.

A method says what a client optimises, what it sums over its data, what is sent and how the server combines it. It
never loops over batches, owns an optimiser or moves tensors between devices: engines do.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor

from hetfl.config import Settings
from hetfl.data.batches import Batch
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.mistakes import checked
from hetfl.models.base import Model, ModelOptions
from hetfl.schema import Figure, Number

MOST = 1_000_000
"""The largest integer that a method's setting may have; only seeds may be larger."""

MOST_PASSES = 10_000_000
"""The most passes of a client over its samples that a run may ask for; they would take years."""


class MethodSettings(Settings):
    """What every method has: the rounds and the clients' local training."""

    rounds: int = Field(default=10, ge=1, description="global rounds")
    participation: float = Field(
        default=1.0, gt=0, le=1, description="share of the clients that take part in a round"
    )
    local_epochs: int = Field(default=1, ge=1, description="passes over a client's samples in a round")
    batch_size: int = Field(default=16, ge=1, description="samples of a step")
    optimiser: Literal["sgd", "adam"] = Field(default="sgd", description="of the clients")
    lr: float = Field(default=0.01, gt=0, description="learning rate of the clients")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of SGD")
    weight_decay: float = Field(default=1e-4, ge=0, description="of the optimiser")
    keep_optimiser: bool = Field(
        default=False, description="clients keep their optimisers' state from round to round; else it starts anew"
    )
    drop_last: bool = Field(default=False, description="leave out an epoch's last batch if it is smaller")
    shuffle: bool = Field(default=True, description="draw a new order of the samples for every epoch")
    patience: int | None = Field(
        default=None,
        ge=1,
        description="stop after this many rounds without a better accuracy over all test samples, "
        "or once all clients took part and none had a finite loss",
    )
    evaluate_every: int = Field(
        default=1, ge=1, description="test after every this many rounds, and always after the last one"
    )
    train_accuracy: bool = Field(default=False, description="whenever there is a test, test on training samples too")
    held_out: int = Field(
        default=0, ge=0, description="this many clients, the last ones, never take part; they are tested all the same"
    )

    @field_validator("*")
    @classmethod
    def _within_reason(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, int) or (name := str(info.field_name)).endswith("seed"):
            return value
        if value > MOST:
            raise ValueError(f"should be at most {MOST}")
        if name == "local_epochs" and value * info.data.get("rounds", 1) > MOST_PASSES:
            rounds = info.data["rounds"]
            raise ValueError(f"in each of {rounds} rounds would take years; {MOST_PASSES} passes are allowed")
        return value


@checked_dataclass(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))
class Phase:
    """One part of a round's local training. A value of another type or out of range is a ``ValidationError``.

    Attributes:
        trains: the parameter groups that train; the others stay as they are.
        epochs: passes over the data.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        optimiser: ``sgd`` or ``adam``, with ``lr``, ``momentum`` and ``weight_decay``.
        keep_optimiser: whether the optimiser's state is kept for the next round.
        drop_last: whether an epoch's last batch is left out if it is smaller.
        shuffle: whether every epoch has a new order; else it is the partition's.
        clip: largest norm of the gradient, for each of the ``clipped`` sets of parameter groups; None: no limit.
        gathers: whether statistics with the source ``training`` are taken in this phase.
        data: what it trains on: the client's ``own`` samples, all ``public`` ones, or the round's ``alignment`` set,
            which the server draws from the public ones.
        name: of the optimiser. Phases with the same name share its state: a later phase of the round continues with
            it, and so does the next round if ``keep_optimiser``, even where the server changed the parameters.
    """

    trains: tuple[str, ...]
    epochs: NonNegativeInt
    batch_size: PositiveInt
    optimiser: Literal["sgd", "adam"]
    lr: NonNegativeFloat
    momentum: NonNegativeFloat
    weight_decay: NonNegativeFloat
    keep_optimiser: bool
    drop_last: bool = False
    shuffle: bool = True
    clip: PositiveFloat | None = None
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
    """Which features of images a method sorts samples by.

    Attributes:
        model: the frozen backbone that computes them; None: the clients' own.
        block: of a transformer: the block after which the class token is taken; None: the last.
        least: how many features there must be; as many orthogonal keys as there are.
    """

    model: str | None = None
    block: int | None = None
    least: int = 1


@dataclass(frozen=True)
class Statistics:
    """What a client computes in one pass over its data.

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
        received: what the client knew in the round, from :meth:`Method.receive`.
        before: its parameters before local training.
        params: its parameters after it.
        statistics: of its data.
        steps: optimiser steps it took.
        memory: what it keeps for its next round, from :meth:`Method.remember`, which itself sees none.
    """

    client: Client
    draws: Draws
    received: Tensors
    before: Tensors
    params: Tensors
    statistics: Statistics
    steps: int
    memory: Tensors = field(default_factory=dict)

    @property
    def round(self) -> int:
        """The round's number; 0 stands for what comes before the first round."""
        return self.draws.round

    @property
    def dtype(self) -> torch.dtype:
        """The type of the client's parameters."""
        return next(iter(self.params.values())).dtype

    def trained(self, groups: Sequence[str]) -> dict[str, Tensor]:
        """Some groups of the client's parameters after local training, by name."""
        return {name: self.params[name] for name in self.client.model.names(groups)}


class Uplinks(Iterable[Message]):
    """The messages of a round's participants, in ascending order of the clients.

    Messages may arrive one by one, as the clients finish, and can then be iterated over only once. A method whose
    rule is a sum reads them like that, so that the server's memory does not grow with their number; others make a
    list.

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
            RuntimeError: they arrive one by one and were iterated over before.
        """
        if isinstance(self._messages, Iterator) and self._handed_out:
            raise RuntimeError("the messages of this round were already iterated over: make a list of them first")
        self._handed_out = True
        return iter(self._messages)


StatisticsSource = Literal["none", "own", "stored", "before", "training", "alignment"]
"""Where a client's statistics come from.

``own``: one pass over the client's own data after training. ``stored``: the same with images in the size in which
they are stored. ``before``: as ``own``, with the parameters from before training. ``training``: the training
batches, each before its step (sums only); a client that takes no step has statistics of no samples. ``alignment``:
one pass over the next round's alignment set.
"""


class Method(ABC):
    """One federated method. Stateless: settings in, mappings of tensors through.

    Class attributes declare what the support matrix and the tests need to know.

    Attributes:
        numerics: version of the formulas in the class's own body; it is raised by one when they give other numbers.
            Each method declares its own. See ``experiments/versions.py``.
        title: the method's usual name.
        source: authors, venue, equations.
        heterogeneous: whether clients may have different architectures.
        travels: what crosses between clients and server.
        evaluates: what clients are tested with: ``client``, their own parameters after local training; or ``global``,
            those and what the server would send next.
        compared: names of the tensors of uplinks that :meth:`compare` reads; without any it is not called.
        public: whether clients and server share a public data set.
        personal: whether the server sends each client parameters or logits of its own.
        linear_heads: whether all clients must have a linear head.
        equal_features: whether the features of all clients must have one size.
        resets_momentum: whether a kept optimiser drops its state for a parameter that the server replaces; else it
            continues with it, as torch's optimisers do.
        vmappable: whether ``torch.vmap`` can map the objective over clients.
        rows: names of tensors in messages whose number of rows depends on the client's samples where a few samples do
            not show it; see :mod:`hetfl.training.contract`, which finds the others.
        Settings: the method's settings, with the paper's defaults. A method with settings of its own also declares
            ``settings: Settings``, so that its functions read them typed.
        seed: the run's, for what all clients can draw alike without sending it.
    """

    numerics: ClassVar[int]
    title: ClassVar[str]
    source: ClassVar[str]
    heterogeneous: ClassVar[bool] = True
    travels: ClassVar[str]
    evaluates: Literal["client", "global"] = "client"
    compared: ClassVar[tuple[str, ...]] = ()
    public: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    linear_heads: ClassVar[bool] = False
    equal_features: ClassVar[bool] = False
    resets_momentum: ClassVar[bool] = False
    vmappable: ClassVar[bool] = True
    rows: ClassVar[tuple[str, ...]] = ()
    Settings: ClassVar[type[MethodSettings]] = MethodSettings
    settings: MethodSettings

    def __init_subclass__(cls) -> None:
        """Have the contract's functions in the class checked; see :func:`hetfl.methods.mistakes.checked`."""
        super().__init_subclass__()
        for name, function in [*vars(cls).items()]:
            if not name.startswith("_") and name in vars(Method) and inspect.isfunction(function):
                setattr(cls, name, checked(function, vars(Method)[name]))

    def __init__(self, settings: MethodSettings, num_classes: int, public_classes: int = 0, seed: int = 0) -> None:
        self.settings = settings
        self.num_classes, self.public_classes, self.seed = num_classes, public_classes, seed

    @abstractmethod
    def model_options(self) -> ModelOptions:
        """How the method wants a backbone fitted out."""

    @abstractmethod
    def trains(self) -> tuple[str, ...]:
        """The parameter groups that local training changes."""

    def keeps(self) -> tuple[str, ...]:
        """The parameter groups that a client keeps from round to round; the others come with the downlink."""
        return self.trains()

    def phases(self, round: int) -> Sequence[Phase]:
        """The phases of local training in a round; those of round 0 are every client's, before the first round."""
        return [self.phase()] if round else []

    def trained_elements(self, model: Model) -> int:
        """How many elements a client's first round changes: its trainable parameters, as the papers count them."""
        groups = dict.fromkeys(group for phase in self.phases(1) for group in phase.trains)
        return model.elements([*groups])

    def fine_tuning(self) -> Sequence[Phase]:
        """Local training after the last round; its result is tested and never sent."""
        return []

    def phase(self, **changes: Any) -> Phase:
        """The phase of local training that the settings describe, with some changes."""
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
        """The public samples that the server draws for a round: indices [n] int64; none where none are used.

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

        ``work`` has parameters only where round 0 has phases or statistics.
        """
        return Message()

    def initial_server(
        self, models: Sequence[Model], registrations: Mapping[int, Message], draws: Draws
    ) -> ServerState:
        """The server's state before the first round.

        Args:
            models: the architecture of every client.
            registrations: what each client sent with :meth:`register`.
            draws: keyed randomness of round 0.
        """
        return ServerState()

    def downlink(self, server: ServerState, client: int) -> Message:
        """What the server sends to one participant at the start of a round."""
        return Message()

    def in_turn(self) -> bool:
        """Whether a round's participants train one after another, in ascending order, instead of all at once."""
        return False

    def after_turn(self, server: ServerState, uplink: Message) -> ServerState:
        """The server's state from which the next participant's downlink is made, where they train in turn."""
        return server

    def receive(self, message: Message, memory: Tensors) -> Tensors:
        """What a client knows in a round, as the other functions read it.

        Args:
            message: the downlink.
            memory: what the client kept with :meth:`remember`; empty in its first round and for prediction.
        """
        return message

    def adopt(self, params: Tensors, received: Tensors) -> dict[str, Tensor]:
        """A client's parameters after it took over what it received; other tensors stay the same objects."""
        return dict(params)

    def drawn(self, received: Tensors, size: int, seed: int) -> Tensors:
        """What the objective reads as ``batch.drawn``: drawn anew for every batch, independent of the parameters.

        Args:
            received: see :meth:`receive`.
            size: B, the batch's number of samples. Tensors with a value per sample have it as their first dimension.
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

    def contents(self, message: Message) -> Tensors:
        """What a registration or uplink stands for, whose names, types and shapes the server checks.

        A method that sends something in a form whose sizes depend on its values gives what it is made from.
        """
        return message

    def remember(self, work: Work) -> Tensors:
        """What a client keeps for its next round besides its parameters; asked in round 0 too if it trains then."""
        return {}

    def observe(self, work: Work) -> Mapping[str, Number | list[Number]]:
        """Figures and lists of figures about a client for the record; they are not sent."""
        return {}

    def aggregate(self, server: ServerState, uplinks: Uplinks, draws: Draws) -> ServerState:
        """The server's next state from the participants' messages."""
        return server

    def queries(self) -> Query | None:
        """The features by which the method sorts samples into groups; None where it sorts none.

        They are computed once and come with the batches as :attr:`Batch.queries` [B, d].
        """
        return None

    def points(self, batch: Batch) -> Tensor:
        """The queries [B, d] of a batch as the method compares them; for methods with :meth:`queries`."""
        raise NotImplementedError(f"{self.title} sorts no samples into groups")

    def choose(self, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """The group of each sample by the inference rule, [B] int64; for methods with :meth:`queries`."""
        raise NotImplementedError(f"{self.title} sorts no samples into groups")

    def predict(self, model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        """The method's own inference rule: a score per class [B, C]; it must not read the labels.

        :func:`predicted_classes` reads the scores: the largest wins, minus infinity rules a class out.
        """
        return model(params, batch.images).logits

    def extra_predictors(self, round: int) -> Mapping[str, Method]:
        """Methods with other inference rules that the state after a round is tested with as well, by name."""
        return {}

    def server_parameters(self, server: ServerState) -> Tensors:
        """Parameters of a network of the server's own, which the papers count among the trainable ones."""
        return {}

    def diagnostics(self, server: ServerState) -> Mapping[str, Figure]:
        """Figures about the server's new state for the record."""
        return {}

    def compare(self, uplinks: Sequence[Message]) -> Mapping[str, Figure]:
        """Figures about a round's messages for the record.

        Args:
            uplinks: what messages have of :attr:`compared`. The server holds that of all of a round's participants.
        """
        return {}


NONE = -1
"""The predicted class where no score is finite."""


def predicted_classes(scores: Tensor) -> Tensor:
    """The class [B] int64 with the largest of the scores [B, C]; :data:`NONE` where that score is not finite.

    ``argmax`` alone would give class 0 to every sample whose scores a diverged model has turned into NaN.
    """
    best, predicted = scores.max(dim=1)
    return predicted.where(best.isfinite(), NONE)
