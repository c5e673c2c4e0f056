"""What methods send and compute, found by running them without data, weights or training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetfl.data.batches import Batch
from hetfl.data.inputs import InputSettings
from hetfl.data.partitions import Partition, make_partition
from hetfl.data.sets import CATALOGUE
from hetfl.data.store import Dataset, Subset
from hetfl.draws import Draws
from hetfl.experiments.plan import SCHEME, Cell, Params, cells, shared_settings
from hetfl.experiments.rehearsal import Played, Skipping
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods.base import Method, Uplinks, create
from hetfl.methods.fedmix import FedMix
from hetfl.metrics.flops import StepFlops, flops, step_flops
from hetfl.models import Model, ModelOptions, build
from hetfl.models.fitting import on_meta
from hetfl.models.outline import Outline, outline
from hetfl.training.blank import Holdings, blank_federation
from hetfl.training.local import LocalEngine
from hetfl.training.state import ClientState


@dataclass(frozen=True, eq=False)
class Setting:
    """An experiment, as far as messages and operations depend on it.

    Attributes:
        params: with the experiment.
        experiment: its name.
        samples: of each class in each split of the data set, which decides how many each client holds.
    """

    params: Params
    experiment: str
    samples: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def cell(self) -> Cell:
        """The first of the experiment."""
        return cells(self.params, self.experiment)[0]

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.cell.partition["clients"])

    @cached_property
    def classes(self) -> int:
        """Number of classes of the data set."""
        return len(CATALOGUE[self.cell.dataset].class_names)

    def method(self, name: str, **changes: Any) -> Method:
        """A method with the settings that it has in the experiment, and some changes."""
        settings = shared_settings(self.params, self.experiment, name)
        return create(name, {**settings, **changes}, self.classes)

    @cached_property
    def partition(self) -> Partition:
        """The data set's partition, drawn without images."""
        settings = self.cell.partition | ({"pool": [*self.samples]} if "pool" in self.cell.partition else {})
        return make_partition(SCHEME.validate_python(settings), self._dataset, Draws(self.cell.seed))

    @cached_property
    def labels(self) -> np.ndarray:
        """Classes of the samples that the partition's training indices count through, int64 [N]."""
        return self._dataset.labels(self.partition.train_from)

    @cached_property
    def _dataset(self) -> Dataset:
        labels = {name: np.repeat(np.arange(self.classes), many) for name, many in self.samples.items()}
        splits = {name: Subset(np.empty((len(some), 0), np.uint8), some) for name, some in labels.items()}
        names = tuple(map(str, range(self.classes)))
        return Dataset(self.cell.dataset, self.cell.dataset, names, splits, checksum="")


def fitted(method: Method, name: str, pixels: int | None = None, device: str = "meta") -> Model:
    """An architecture as a method wants it.

    Args:
        method: whose options it has; published weights are left out, they have the same shapes.
        name: of the architecture.
        pixels: side of the images; None: the architecture's own.
        device: ``meta`` for a model that can be run there, to count operations.
    """
    return _built(name, method.num_classes, _options(method), pixels, device)


@cache
def _built(name: str, classes: int, options: ModelOptions, pixels: int | None, device: str) -> Model:
    with on_meta() if device == "meta" else torch.device(device):
        return build(name, classes, options, inputs=InputSettings(size=pixels))


def shapes(method: Method, name: str, pixels: int | None = None) -> Outline:
    """The shapes of an architecture as a method wants it, with the arguments of :func:`fitted`."""
    return outline(name, method.num_classes, _options(method), InputSettings(size=pixels))


def _options(method: Method) -> ModelOptions:
    return method.model_options().model_copy(update={"weights": "scratch"})


def encoder(method: Method, model: Model) -> Model | None:
    """The network whose features a method sorts samples by; None where it does not sort any."""
    query = method.queries()
    if query is None:
        return None
    if query.model is None:
        return model
    return _built(query.model, method.num_classes, ModelOptions(weights="scratch"), None, "meta")


class Exchange:
    """The messages of a method's first round, without training; each is made when it is first asked for.

    Args:
        method: that is run.
        models: the clients' architectures, dealt to them in turn.
        held: classes of each client's training samples, int64 [n]; where the method shares a public set, the first
            client's are that set's, too.
        participants: the first so many clients take part in the round.
        stored: side of the images as the data set stores them, in pixels.
    """

    def __init__(
        self, method: Method, models: Sequence[Model], held: Sequence[Tensor], participants: int = 1, stored: int = 32
    ) -> None:
        self.method, self.models = method, [models[k % len(models)] for k in range(len(held))]
        public = held[0] if method.public else None
        none = [torch.empty(0, dtype=torch.int64)] * len(held)
        holdings = Holdings(held, none, method.num_classes, stored, public, method.public_classes, public_side=stored)
        federation = blank_federation(method, self.models, holdings)
        self._played = Played(LocalEngine(method, federation, Skipping(method)), range(participants))
        self._clients = range(len(held))

    @cached_property
    def registered(self) -> list[Message]:
        """What each client sends before the first round."""
        return [*self._played.registrations(self._clients).values()]

    @cached_property
    def server(self) -> ServerState:
        """The server's first state."""
        registered = dict(enumerate(self.registered))
        return self.method.initial_server(self.models, registered, Draws(0))

    @cached_property
    def first(self) -> list[Message]:
        """What the participants are sent in the first round."""
        return self.downlinks(self.server)

    @cached_property
    def up(self) -> list[Message]:
        """What the participants send in a round."""
        return self._played.uplinks(self.server, 1)

    @cached_property
    def after(self) -> ServerState:
        """The server's state after the first round."""
        return self.aggregate(self.server)

    @cached_property
    def down(self) -> list[Message]:
        """What the participants are sent in a later round."""
        return self.downlinks(self.after)

    @property
    def kept(self) -> Tensors:
        """What the first participant remembers."""
        assert self.up
        return self._played.engine.client_states().get(0, ClientState()).memory

    def aggregate(self, server: ServerState, round: int = 1) -> ServerState:
        """The server's state after a round in which it got the participants' messages."""
        return self.method.aggregate(server, Uplinks(self._played.members, self.up), Draws(0, round))

    def downlinks(self, server: ServerState) -> list[Message]:
        """What the server sends to the participants."""
        return self._played.downlinks(server)


class SampleCost:
    """Operations that one sample costs a client after the first round, by its method's own functions.

    Args:
        sent: the first round; the cost is that of its first client's architecture.
    """

    SAMPLES = 2
    """Of the batch that is counted: FedGen's generator makes no less at once."""

    def __init__(self, sent: Exchange) -> None:
        self.method, self.model = sent.method, sent.models[0]
        size = self.model.spec.size
        if isinstance(self.model, Outline):
            self.model = fitted(self.method, self.model.name, size)
        device = self.model.tensors()[0].device
        received = self.method.receive(sent.down[0], sent.kept)
        self._received = {name: tensor.to(device) for name, tensor in received.items()}
        with device:
            fresh = self.method.initial(self.model, Draws(0), 0)
        self._params = self.method.adopt(fresh, self._received)
        self._encoder = encoder(self.method, self.model)
        with device:
            images = torch.zeros(self.SAMPLES, self.model.spec.channels, size, size)
            labels = torch.zeros(self.SAMPLES, dtype=torch.int64)
            queries = torch.zeros(self.SAMPLES, self._encoder.width) if self._encoder else None
        # The counter cannot follow a gradient that is taken of the very tensor that enters a network.
        self._batch = Batch(images.requires_grad_(isinstance(self.method, FedMix)), labels, queries=queries)

    @property
    def embedding(self) -> int:
        """Of the feature that the sample is sorted by; 0 where it is not sorted."""
        query, by = self.method.queries(), self._encoder
        return flops(lambda: by.query(self._batch.images, query.block)) // self.SAMPLES if by and query else 0

    @property
    def prediction(self) -> int:
        """Of its prediction, without the embedding."""
        with torch.no_grad():
            count = flops(lambda: self.method.predict(self.model, self._params, self._batch, self._received))
        return count // self.SAMPLES

    @property
    def steps(self) -> list[StepFlops]:
        """Its share of an optimiser step, in each phase of local training."""
        counted = (
            step_flops(self.method, self.model, self._params, self._batch, self._received, phase)
            for phase in self.method.phases(1)
        )
        return [StepFlops(*(count // self.SAMPLES for count in step)) for step in counted]


def of_all_classes(samples: int, classes: int) -> Tensor:
    """Labels [samples] that go through the classes again and again."""
    return torch.arange(samples) % classes


def float_elements(sent: Iterable[Tensors]) -> int:
    """Elements of the floating-point tensors, which are what the papers count."""
    return sum(tensor.numel() for tensors in sent for tensor in tensors.values() if tensor.is_floating_point())


def float_bytes(sent: Iterable[Tensors]) -> int:
    """Bytes of the floating-point tensors."""
    return sum(tensor.nbytes for tensors in sent for tensor in tensors.values() if tensor.is_floating_point())


def integer_bytes(sent: Iterable[Tensors]) -> int:
    """Bytes of the other tensors."""
    return sum(tensor.nbytes for tensors in sent for tensor in tensors.values() if not tensor.is_floating_point())
