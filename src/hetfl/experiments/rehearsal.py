"""What the rounds of a run will send and compute, found by playing two of them without images, weights or training.

The messages are those of the real loop: methods, engine and exchange are the same. Models are outlines, images are
blank, and clients skip their training. So sizes are exact where they do not depend on what clients learn. Where they
do, they are the largest possible: FedKD's truncated matrices have full rank, and in FedHPL, which sends logits of
samples that are predicted right, all are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hetfl.data.batches import InputSpec
from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import Method, Phase, Uplinks, create
from hetfl.metrics.flops import flops
from hetfl.models.base import Model
from hetfl.models.outline import Outline, outline, rehearsed
from hetfl.training.blank import Holdings, blank_federation
from hetfl.training.client_run import ClientRun, linked, phase_data, used_samples
from hetfl.training.engine import same_for_all
from hetfl.training.exchange import Exchange
from hetfl.training.local import LocalEngine, predict
from hetfl.training.sampling import participants
from hetfl.training.scoring import scoring_tasks
from hetfl.training.sequential import LastOutput

Kind = tuple[str, Literal["train", "look"]]
"""An architecture, and whether images are trained on or only looked at."""


@dataclass(frozen=True)
class Load:
    """What some rounds take.

    Attributes:
        trained: images: one for every pass of a sample through a training step.
        seen: images in tests and statistics.
        operations: floating-point operations for both, by :data:`Kind`. The gradients of a layer's input and of its
            weights are counted like the layer itself; what the server computes is not counted.
        up, down: bytes of all messages.
        server: seconds that the server computes on this CPU: measured in the rehearsal for a few steps of its
            learning, times the number of its steps.
    """

    trained: float = 0
    seen: float = 0
    operations: Mapping[Kind, float] = field(default_factory=dict)
    up: int = 0
    down: int = 0
    server: float = 0.0

    def plus(self, other: Load, times: float = 1) -> Load:
        """The sum with another, taken so many times."""
        operations = dict(self.operations)
        for kind, count in other.operations.items():
            operations[kind] = operations.get(kind, 0) + times * count
        return Load(
            self.trained + times * other.trained,
            self.seen + times * other.seen,
            operations,
            round(self.up + times * other.up),
            round(self.down + times * other.down),
            self.server + times * other.server,
        )


class Passes(NamedTuple):
    """How often an image goes through each network in a training step: with a gradient, and without one."""

    graded: Mapping[str, float]
    looks: Mapping[str, float]


class Skipping:
    """A trainer that leaves parameters as they are.

    With outlines it looks at one batch of a phase, to see how often each image goes through the networks.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self.passes: dict[tuple[str, Phase], Passes] = {}
        self.statistics: dict[int, Mapping[str, int]] = {}
        self._looked: set[tuple[str, Phase, int]] = set()

    def train(self, runs: Iterable[ClientRun], phases: Sequence[Phase], draws: Draws) -> Iterator[ClientRun]:
        """See :meth:`hetfl.training.client_run.Trainer.train`."""
        for run in runs:
            model: Any = run.client.model
            trained = [self._look(run, model, phase, draws) for phase in phases]
            gathering = [used for used, phase in zip(trained, phases, strict=True) if phase.gathers]
            images = self._gather(run, model, gathering, draws)
            before = _seen(model)
            try:
                yield run
            finally:  # after the last client nobody asks for another one
                # Of what was gathered, the images of the whole pass; else those that the engine has looked at.
                self.statistics[run.client.index] = images or _seen(model) - before

    def _look(self, run: ClientRun, model: Outline, phase: Phase, draws: Draws) -> Tensor:
        """Count a phase's steps, and once for each architecture the passes of an image through the networks.

        Returns:
            The samples that the phase trains on, int64 [n]; none of a client that takes no step.
        """
        images, index = phase_data(self.method, run.data, phase, draws)
        used = used_samples(len(index), phase, bool(model.names(["buffers"])))
        if not used or not phase.epochs:
            return index[:0]
        run.steps += phase.epochs * -(-used // phase.batch_size)
        if (key := (model.name, phase, draws.round)) in self._looked or not isinstance(model, Outline):
            return index[:used]
        self._looked.add(key)
        rows = torch.arange(min(used, phase.batch_size))
        batch = images.batch(index[rows])
        batch = batch.of_step(0, self.method.drawn(_real(run.received), len(rows), 0), rows)
        seen, graded = Counter(model.seen), Counter(model.graded)
        view: Any = LastOutput(model.train())
        with torch.enable_grad():
            self.method.objective(view, _real(run.params), batch, _real(run.received), phase)
        graded = model.graded - graded
        looks = model.seen - seen - graded
        self.passes[model.name, phase] = Passes(*({k: n / len(rows) for k, n in c.items()} for c in (graded, looks)))
        return index[:used]

    def _gather(self, run: ClientRun, model: Outline, gathering: Sequence[Tensor], draws: Draws) -> dict[str, int]:
        """Take sums over a client's samples from one sample of each class: zeros are zeros, however many.

        Args:
            run: the client's.
            model: its networks.
            gathering: samples of each phase whose training passes gather.
            draws: the round's.

        Returns:
            The images that the whole pass would show each network; empty if the engine must go through all samples,
            since there is a row for each.
        """
        source, data = self.method.statistics_source(draws.round), run.data
        if source not in ("own", "before", "training"):
            return {}
        index = data.train if source != "training" else torch.cat([data.train[:0], *gathering])
        if not len(index):
            return {}
        labels = data.train_images.labels[index]
        first = [int((labels == label).nonzero()[0]) for label in labels.unique()]
        before = _seen(model)
        with torch.no_grad():
            found = self.method.statistics(model, run.params, data.train_images.batch(index[first]), run.received)
        shown = _seen(model) - before
        if found.rows:
            return {}
        run.gathered.append(found)
        # Statistics of the training passes need no passes of their own.
        return {k: n * len(index) // len(first) for k, n in shown.items()} if source != "training" else {"own": 0}


def _seen(model: Model) -> Counter[str]:
    return Counter(model.seen) if isinstance(model, Outline) else Counter()


def _real(tensors: Tensors) -> dict[str, Tensor]:
    """Tensors with a single zero for those of which only the shapes are there: terms of a loss are then quick."""
    return {name: _zero(tensor.dim(), tensor.dtype) if tensor.is_meta else tensor for name, tensor in tensors.items()}


@cache
def _zero(dimensions: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros((1,) * dimensions, dtype=dtype)


class Played:
    """The messages of a run whose clients skip their training.

    Args:
        engine: of the clients, with a trainer that is :class:`Skipping`.
        members: the clients that take part in every round.
    """

    def __init__(self, engine: LocalEngine, members: Sequence[int]) -> None:
        self.engine, self.members = engine, members

    def registrations(self, clients: Sequence[int]) -> dict[int, Message]:
        """What clients send before the first round."""
        return {update.client: update.uplink for update in self.engine.introduce(clients, Draws(0))}

    def downlinks(self, server: ServerState) -> list[Message]:
        """What the server sends to the members."""
        return [self.engine.method.downlink(server, k) for k in self.members]

    def uplinks(self, server: ServerState, round: int) -> list[Message]:
        """What the members send in a round."""
        updates = Exchange(self.engine).training(server, self.members, Draws(0, round))
        return [update.uplink for update in sorted(updates, key=lambda update: update.client)]


class Rehearsal:
    """A run's load, round by round.

    Args:
        name, settings: of the method.
        models: names of architectures, dealt to clients in turn.
        inputs: what the experiment does to images.
        held: the labels of the data.

    Raises:
        HetflError: a model does not support the method's options.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        models: Sequence[str],
        inputs: InputSettings,
        held: Holdings,
    ) -> None:
        self.method = create(name, settings, held.classes, held.public_classes)
        # Whole participation shows every client. How long the server learns, and what is observed, changes no shape.
        short = {"server_epochs": 1, "server_steps": 1, "theorem": False}
        shorter = {**settings, **{key: value for key, value in short.items() if key in settings}}
        playing = create(name, {**shorter, "participation": 1.0}, held.classes, held.public_classes)
        self.held, self.inputs = held, inputs
        options = playing.model_options()
        kinds = {name: outline(name, held.classes, options, inputs) for name in dict.fromkeys(models)}

        def play(valued: bool) -> None:
            dealt = {name: Outline(kind, options, valued=True) if valued else kind for name, kind in kinds.items()}
            self.models = [dealt[models[k % len(models)]] for k in range(len(held.train))]
            self.federation = blank_federation(playing, self.models, held, inputs)
            self._engine = LocalEngine(playing, self.federation, Skipping(playing))
            self._play()

        rehearsed(play)

    def _play(self) -> None:
        """Registration and two rounds, with all clients."""
        method, members = self._engine.method, range(len(self.models) - self._engine.method.settings.held_out)
        played = Played(self._engine, members)
        registrations = played.registrations(members)
        server = method.initial_server(self._engine.models, registrations, Draws(0))
        self._registered = sum(message.size.bytes for message in registrations.values())
        self._down: list[dict[int, int]] = []
        for round in (1, 2):
            self._down.append(_bytes(members, played.downlinks(server)))
            up = played.uplinks(server, round)
            self._up = _bytes(members, up)
            server = self._aggregated(server, members, up, round)
        self._after = _bytes(members, played.downlinks(server))
        self._test = self._tested(server, Draws(0, 2))
        self._known: dict[tuple[Any, ...], Load] = {}

    def _aggregated(self, server: ServerState, members: range, up: Sequence[Message], round: int) -> ServerState:
        method = self._engine.method
        # A server that learns from rows of messages learns from those of one client: more only take longer.
        heard = 1 if hasattr(method.settings, "server_epochs") else len(up)
        uplinks = Uplinks(members[:heard], up[:heard])
        began = time.perf_counter()
        server = method.aggregate(server, uplinks, Draws(0, round))
        self._server = (time.perf_counter() - began) * self._server_steps(up) / self._server_steps(up[:heard], 1)
        return server

    def _server_steps(self, up: Sequence[Message], epochs: int | None = None) -> int:
        """How many steps the server's learning takes in a round; 1 if it does not learn step by step."""
        settings: Any = self.method.settings
        if not hasattr(settings, "server_epochs"):
            return 1 if epochs else max(1, getattr(settings, "server_steps", 1))
        rows = sum(len(message["labels"]) for message in up if "labels" in message)
        batch = getattr(settings, "server_batch", None) or settings.batch_size
        return (epochs or settings.server_epochs) * max(1, -(-rows // batch))

    def _tested(self, server: ServerState, draws: Draws) -> Load:
        """One test of all clients by the method's own rule."""
        engine, held = self._engine, self.held
        passes: dict[Outline, dict[str, float]] = {}
        for task in scoring_tasks(engine, server, draws.round):
            if (model := self.models[task.client]) not in passes:
                before = Counter(model.seen)
                params, received = engine.tested_with(task, draws)
                # Of its training samples, since a client may have none to test with.
                images, index = self.federation.data[task.client].train_images, torch.zeros(1, dtype=torch.int64)
                predict(engine.method, model, params, received, images, index)
                passes[model] = dict(model.seen - before)
        tests = held.test
        if same_for_all(engine.method, self.models):
            # Every image is looked at once, whoever has it.
            tests = list({id(labels): labels for labels in tests}.values())
        load = Load()
        for model, labels in zip(self.models, tests, strict=False):
            each = Load(seen=1, operations=_operations(model, passes[model]))
            load = load.plus(each, len(labels))
        return load

    def memory(self, at_once: int = 1) -> int:
        """Bytes that training takes, besides the process itself and the images.

        The weights of all architectures, the clients' and the server's states, and the largest training step.

        Args:
            at_once: clients that train at the same time.
        """
        trainer = self._trainer
        step = 0
        for (name, phase), passes in trainer.passes.items():
            model = next(model for model in self.models if model.name == name)
            own, second = own_cost(model), auxiliary_cost(model)
            saved = passes.graded.get("own", 0) * own.saved + passes.graded.get("auxiliary", 0) * second.saved
            slots = 2 if phase.optimiser == "adam" else int(phase.momentum > 0)
            trained = 4 * model.elements([*phase.trains])
            step = max(step, int(phase.batch_size * saved) + (2 + slots) * trained + 4 * model.total_elements)
        weights = sum(4 * model.total_elements for model in dict.fromkeys(self.models))
        kept = self._engine.method.keeps()
        states = sum(4 * model.elements(kept) for model in self.models)
        return at_once * step + weights + states + max([0, *self._up.values()]) * 2

    @property
    def _trainer(self) -> Skipping:
        trainer = self._engine.trainer
        assert isinstance(trainer, Skipping)
        return trainer

    def start(self) -> Load:
        """What comes before the first round."""
        load, phases = Load(up=self._registered), tuple(self.method.phases(0))
        for k in self._up:
            load = load.plus(self._training(k, phases, statistics=False))
        return load

    def end(self) -> Load:
        """What comes after the last round: fine-tuning and its test."""
        phases = tuple(self.method.fine_tuning())
        if not phases:
            return Load()
        load = replace(self._test, down=sum(self._after.values()))
        for k in self._up:
            load = load.plus(self._in_phases(k, phases))
        return load

    def rounds(self, first: int, last: int, seed: int) -> Load:
        """What the rounds from ``first`` to ``last`` of a run with this seed take together, both included."""
        members, share = len(self._up), self.method.settings.participation
        trained: dict[tuple[Phase, ...], Counter[int]] = {}
        served, up, down = set[int](), 0, 0
        for round in range(1, last + 1):
            chosen = participants(members, share, Draws(seed, round))
            if round >= first:
                # Most rounds have the same phases, so what is counted is how often each client trains in them.
                trained.setdefault(tuple(self.method.phases(round)), Counter()).update(chosen)
                up += sum(self._up[k] for k in chosen)
                down += sum(self._received(k, round, k in served) for k in chosen)
            served.update(chosen)
        load = Load(up=up, down=down, server=self._server * max(0, last - first + 1))
        for phases, clients in trained.items():
            for k, times in clients.items():
                load = load.plus(self._training(k, phases), times)
        for many, times in Counter(self._tests(round) for round in range(first, last + 1)).items():
            load = load.plus(self._test, many * times)
        return load

    def of_clients(self, round: int) -> list[float]:
        """The operations of each client's training and statistics in a round, without tests."""
        phases = tuple(self.method.phases(round))
        return [sum(self._training(k, phases).operations.values()) for k in self._up]

    def _received(self, k: int, round: int, served: bool) -> int:
        """Bytes that a participant is sent in a round; what it gets once, it gets in its own first one."""
        early, later = self._down[0][k], self._down[1][k]
        # What there is only later comes from the second round on.
        return early if round == 1 or (not served and early > later) else later

    def _training(self, k: int, phases: tuple[Phase, ...], statistics: bool = True) -> Load:
        """A client's training in the phases of a round, and its statistics."""
        key = k, statistics, phases
        if key not in self._known:
            seen = self._trainer.statistics.get(k, {}) if statistics else {}
            load = Load(seen=max([0, *seen.values()]), operations=_operations(self.models[k], seen))
            self._known[key] = load.plus(self._in_phases(k, phases))
        return self._known[key]

    def _in_phases(self, k: int, phases: Sequence[Phase]) -> Load:
        model, load = self.models[k], Load()
        for phase in linked(phases):
            _, index = phase_data(self.method, self.federation.data[k], phase, Draws(0, 1))
            images = phase.epochs * used_samples(len(index), phase, bool(model.names(["buffers"])))
            graded, looks = self._trainer.passes.get((model.name, phase), Passes({"own": 1}, {}))
            each: dict[Kind, float] = {
                (network, "train"): graded.get(role, 0) * cost.forward * (1 + gradients(phase.trains, role))
                for role, network, cost in (
                    ("own", model.name, own_cost(model)),
                    ("auxiliary", model.options.auxiliary, auxiliary_cost(model)),
                )
                if network and graded.get(role)
            }
            load = load.plus(Load(trained=1, operations=each | _operations(model, looks)), images)
        return load

    def _tests(self, round: int) -> float:
        """How many tests of all test samples a round has; those on training samples in proportion."""
        settings = self.method.settings
        if round % settings.evaluate_every and round < settings.rounds:
            return 0
        tests = 1.0 + len(self.method.extra_predictors(round))
        if settings.train_accuracy:
            tests += sum(map(len, self.held.train)) / max(1, sum(map(len, self.held.test)))
        return tests


def _bytes(members: Iterable[int], messages: Iterable[Message]) -> dict[int, int]:
    return {k: message.size.bytes for k, message in zip(members, messages, strict=True)}


class Cost(NamedTuple):
    """Of one image: operations of a forward pass, and bytes that a training pass keeps for its gradient."""

    forward: int
    saved: int


_costs: dict[str, Cost] = {}


@cache
def own_cost(model: Outline) -> Cost:
    """Of the client's own network; counted once for each architecture, size of images and kind of prompts."""
    head = 2 * model.products(["head", "projection"])
    changes = {"auxiliary": None, "transform": False, "embedding": None, "extra_outputs": 0, "weights": "scratch"}
    key = f"{model.name} {model.spec} {model.options.model_copy(update=changes).model_dump_json()}"
    if key not in _costs:
        groups = torch.zeros(1, dtype=torch.int64, device="meta") if model.options.group_blocks else None
        counted = _counted(lambda images: model.run(images, groups), model.spec)
        _costs[key] = counted._replace(forward=counted.forward - head)
    return _costs[key]._replace(forward=_costs[key].forward + head)


@cache
def auxiliary_cost(model: Outline) -> Cost:
    """Of the second network, where there is one."""
    name = model.options.auxiliary
    if name is None:
        return Cost(0, 0)
    key = f"{name} {model.spec} {model.num_classes} {model.options.embedding} {model.options.stem}"
    if key not in _costs:
        _costs[key] = _counted(model.run_auxiliary, model.spec)
    return _costs[key]


def _counted(run: Callable[[Tensor], Any], spec: InputSpec) -> Cost:
    images = torch.zeros(1, spec.channels, spec.size, spec.size, device="meta")
    saved: dict[int, int] = {}
    kept: list[Any] = []  # so that no tensor takes the place of one that is gone

    def note(tensor: Tensor) -> Tensor:
        # On the meta device storages have no addresses, and views of one tensor rarely overlap.
        if not tensor.is_leaf:
            saved[id(tensor)] = tensor.nbytes
            kept.append(tensor)
        return tensor

    def forward() -> None:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            kept.append(run(images))

    return Cost(flops(forward), sum(saved.values()))


def _operations(model: Outline, seen: Mapping[str, float]) -> dict[Kind, float]:
    """Of forward passes of images, by network."""
    found: dict[Kind, float] = {}
    if seen.get("own"):
        found[model.name, "look"] = seen["own"] * own_cost(model).forward
    if seen.get("auxiliary") and model.options.auxiliary:
        found[model.options.auxiliary, "look"] = seen["auxiliary"] * auxiliary_cost(model).forward
    return found


def gradients(trains: Sequence[str], role: str) -> int:
    """How many gradients of a training step cost as much as the forward pass: of activations, and of weights.

    Args:
        trains: the groups of parameters that train.
        role: ``own`` for the client's own network, ``auxiliary`` for the second one.
    """
    if ("body" if role == "own" else role) in trains:
        return 2
    # Gradients of prompts go back through the whole frozen network; those of a head alone do not.
    return int(role == "own" and any(group in trains for group in ("prompts", "shared", "group")))
