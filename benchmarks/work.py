"""Workloads of the benchmarks: federations over random images, with a timer for each part of a round."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from hetfl.data.batches import DeviceImages
from hetfl.data.inputs import InputSettings
from hetfl.data.partitions import Scheme, make_partition
from hetfl.data.store import Dataset, Subset
from hetfl.draws import Draws
from hetfl.methods import Method, create
from hetfl.models import Model
from hetfl.training.engine import Task, Update
from hetfl.training.federation import Federation, Precision, build_federation
from hetfl.training.local import LocalEngine
from hetfl.training.rounds import play_round, start


@dataclass(frozen=True)
class Work:
    """What a federation computes.

    Attributes:
        method, settings: as :func:`hetfl.methods.create` takes them.
        models: dealt to the clients in turn.
        partition: the scheme.
        classes: of the data set.
        samples: of its training and of its test subset.
        input: what is done to images.
        shape: of an image.
    """

    method: str
    settings: Mapping[str, Any]
    models: tuple[str, ...]
    partition: Scheme
    classes: int = 10
    samples: tuple[int, int] = (50_000, 10_000)
    input: InputSettings = field(default_factory=InputSettings)
    shape: tuple[int, int, int] = (32, 32, 3)

    def create(self) -> Method:
        """The method."""
        return create(self.method, self.settings, self.classes)

    def dataset(self) -> Dataset:
        """Random images, the same number of each class."""
        drawn = Draws(0).numpy_generator("benchmark")

        def subset(samples: int) -> Subset:
            images = drawn.integers(0, 256, (samples, *self.shape), dtype=np.uint8)
            return Subset(images, np.arange(samples) % self.classes)

        subsets = dict(zip(("train", "test"), map(subset, self.samples), strict=True))
        return Dataset("random", "random bytes", tuple(map(str, range(self.classes))), subsets, "random")

    def federation(self, method: Method, device: torch.device, precision: Precision = "float32") -> Federation:
        """The clients. Features by which some methods assign samples to groups are random; no round computes them."""
        dataset = self.dataset()
        parts = make_partition(self.partition, dataset, Draws(0))
        where = Path("weights")  # all weights are random or start from scratch
        with patch("hetfl.training.federation.queries_of", random_queries):
            return build_federation(
                method, self.models, dataset, parts, where, device, inputs=self.input, precision=precision
            )


def random_queries(images: DeviceImages, encoder: Model, *_: Any) -> Tensor:
    """Random features instead of an encoder's."""
    drawn = torch.randn(len(images), encoder.width, generator=Draws(0).generator("benchmark"))
    return drawn.to(images.device, images.dtype)


def thinned(federation: Federation, share: float, least: int) -> Federation:
    """The same clients with the first part of their samples: a share of them, but ``least`` if there are as many."""
    if share >= 1:
        return federation

    def part(index: Tensor) -> Tensor:
        return index[: max(int(share * len(index)), least)]

    # Clients that share one tensor of test samples keep sharing it.
    parts = {id(index): part(index) for data in federation.data for index in (data.train, data.test)}
    data = [replace(data, train=parts[id(data.train)], test=parts[id(data.test)]) for data in federation.data]
    return replace(federation, data=tuple(data))


def now(device: torch.device) -> float:
    """The time in seconds, after waiting for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Rounds:
    """Runs an engine's rounds one by one and times them.

    Attributes:
        opening: seconds of what comes before the first round.
    """

    def __init__(self, engine: LocalEngine, draws: Draws) -> None:
        self.engine, self.draws = engine, draws
        self.device = engine.device
        self.round = 0
        began = now(self.device)
        self.server, _ = start(engine, draws)
        self.opening = now(self.device) - began
        self._train, self._aggregate = engine.train, engine.method.aggregate
        engine.train = self._timed_train  # type: ignore[method-assign]
        engine.method.aggregate = self._timed_aggregate  # type: ignore[method-assign]

    def play(self) -> dict[str, float]:
        """Run the next round: seconds of ``clients``, ``server``, ``evaluate``, and of the whole ``round``."""
        self.round += 1
        self._tasks: list[Task] = []
        self._spent = {"clients": 0.0, "server": 0.0}
        began = now(self.device)
        self.server, self.line = play_round(self.engine, self.server, self.draws.at(self.round))
        seconds = now(self.device) - began
        return {**self._spent, "evaluate": seconds - sum(self._spent.values()), "round": seconds}

    def passes(self) -> float:
        """Seconds that the last round's participants spend on anything but training."""
        states = self.engine.client_states()
        with patch.object(self.engine.method, "phases", return_value=[]):
            began = now(self.device)
            list(self._train(self._tasks, self.draws.at(self.round)))
            seconds = now(self.device) - began
        self.engine.restore(states)
        return seconds

    def _timed_train(self, tasks: Iterable[Task], draws: Draws) -> Iterator[Update]:
        tasks = list(tasks)
        self._tasks += tasks
        began = now(self.device)
        # All of them here, so that the clock stops when the device has done its work.
        updates = list(self._train(tasks, draws))
        self._spent["clients"] += now(self.device) - began
        return iter(updates)

    def _timed_aggregate(self, *given: Any) -> Any:
        """Clients train while the server takes their messages in."""
        began = now(self.device)
        result = self._aggregate(*given)
        self._spent["server"] = now(self.device) - began - self._spent["clients"]
        return result
