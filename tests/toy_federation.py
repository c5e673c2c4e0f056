"""A toy federation: three classes of 8x8 images that a tiny ViT can learn in a few steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import record_factory
import torch
from playing import Trained, play_round, start, with_states
from toy import CLASSES, GROUPS, TOY

from hetfl.data.inputs import InputSettings
from hetfl.data.partitions import Partition
from hetfl.data.store import Dataset, Subset
from hetfl.draws import Draws, seeded_library_code
from hetfl.figures.style import FORMATS
from hetfl.message import Message
from hetfl.methods import create
from hetfl.models import Model, ModelOptions, registry
from hetfl.models.registry import DIGITS_RESNETS, DIGITS_VITS, creator, weights_path
from hetfl.schema import Round
from hetfl.tensors import write_tensors
from hetfl.training.engine import Task, Update
from hetfl.training.engines import make_engine
from hetfl.training.federation import build_federation
from hetfl.training.local import LocalEngine
from hetfl.training.state import State


@pytest.fixture(autouse=True)
def svg_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write figures in one format, which is faster, but in a test that asks for ``both_formats``."""
    if "both_formats" not in request.fixturenames:
        monkeypatch.delitem(FORMATS, ".png")


@pytest.fixture
def both_formats() -> None:
    """Write figures as PNG, too."""


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def nothing_left_behind() -> Iterator[None]:
    yield
    record_factory.made.close()


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Thousands of small files are written, and a power cut ends the tests, too."""
    with mock.patch.object(os, "fsync", lambda file: None):
        yield


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with random weights of every digits backbone."""
    return write_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def in_float64() -> Iterator[None]:
    """What is drawn and made is float64: torch's normal draws in float32 differ between processors."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def exact_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exact-weights")


@pytest.fixture
def exact_weights(exact_folder: Path, in_float64: None) -> Path:
    """As ``weights``, drawn in float64."""
    return exact_folder if any(exact_folder.iterdir()) else write_weights(exact_folder)


def write_weights(folder: Path) -> Path:
    """Random weights of every digits backbone."""
    for number, name in enumerate([*DIGITS_VITS, *DIGITS_RESNETS]):
        with seeded_library_code(number):
            write_tensors(weights_path(name, folder), creator(name)().state_dict())
    return folder


@pytest.fixture(scope="session")
def toy_data() -> Dataset:
    """60 training and 30 test images of three noisy patterns."""
    rng = Draws(0).numpy_generator("toy")
    patterns = rng.integers(0, 256, (CLASSES, 8, 8, 1))

    def subset(samples: int) -> Subset:
        labels = np.arange(samples) % CLASSES
        noisy = 0.5 * patterns[labels] + 0.5 * rng.integers(0, 256, (samples, 8, 8, 1))
        return Subset(noisy.astype(np.uint8), labels.astype(np.int64))

    return Dataset("toy", "Toy", ("a", "b", "c"), {"train": subset(60), "test": subset(30)}, "toy")


@pytest.fixture(scope="session")
def toy_public() -> Subset:
    """20 images of two other classes, for methods with a public data set."""
    images = Draws(1).numpy_generator("toy").integers(0, 256, (20, 8, 8, 1))
    return Subset(images.astype(np.uint8), np.arange(20) % 2)


@pytest.fixture(scope="session")
def toy_partition() -> Partition:
    """Three clients with 15, 19 and 26 samples; the first has none of class 2."""
    labels = np.arange(60) % CLASSES
    first = np.flatnonzero(labels < 2)[:15]
    rest = np.setdiff1d(np.arange(60), first)
    return Partition((first, rest[:19], rest[19:]), None)


CPU = torch.device("cpu")
Engine = Callable[..., LocalEngine]


@pytest.fixture(scope="session")
def toy_engine(weights: Path, toy_data: Dataset, toy_public: Subset, toy_partition: Partition) -> Engine:
    """Builds an engine for ``(method, group, **settings)`` on the toy federation."""
    return toy_engines(weights, toy_data, toy_public, toy_partition)


@pytest.fixture
def exact_engine(toy_data: Dataset, toy_public: Subset, toy_partition: Partition, exact_weights: Path) -> Engine:
    """As ``toy_engine``, everything drawn and computed in float64."""
    return partial(toy_engines(exact_weights, toy_data, toy_public, toy_partition), dtype=torch.float64)


def toy_engines(weights: Path, toy_data: Dataset, toy_public: Subset, toy_partition: Partition) -> Engine:
    """A function that builds engines. Those whose methods want the same models share them."""
    shared: dict[str, Model] = {}

    def share(dtype: torch.dtype, device: torch.device) -> Callable[..., Model]:
        def model(name: str, classes: int, options: ModelOptions, folder: Path, *inputs: InputSettings) -> Model:
            key = f"{name} {options.model_dump_json()} {inputs} {dtype} {device}"
            if key not in shared:
                shared[key] = registry.build(name, classes, options, folder, *inputs)
            return shared[key]

        return model

    def build(
        method: str,
        group: str = "homogeneous",
        dtype: torch.dtype = torch.float32,
        partition: Partition | None = None,
        device: torch.device = CPU,
        **settings: Any,
    ) -> LocalEngine:
        made = create(method, {"rounds": 3, "batch_size": 8, **TOY.get(method, {}), **settings}, CLASSES, 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hetfl.training.federation.build", share(dtype, device))
            federation = build_federation(
                made,
                GROUPS[group],
                toy_data,
                partition or toy_partition,
                weights,
                device,
                dtype,
                public=toy_public if made.public else None,
            )
        return make_engine(made, federation, "sequential")

    return build


class Rounds(NamedTuple):
    """The first two rounds of seed 0, one client after another.

    Attributes:
        registration: the record's line of what was before them.
        first, second: the states after them.
        downlinks: the second round's, by client.
        updates: what came of each client's work in it.
        line: the second round's line of the record.
    """

    engine: LocalEngine
    registration: Round
    first: State
    downlinks: dict[int, Message]
    updates: dict[int, Trained]
    second: State
    line: Round


@pytest.fixture(scope="session")
def two_rounds(toy_engine: Engine) -> Callable[..., Rounds]:
    """Plays two rounds of ``(method, group, **settings)``, once for all tests; not to be changed."""

    @cache
    def play(method: str, group: str, **settings: Any) -> Rounds:
        engine, sent, updates = toy_engine(method, group, **settings), {}, []
        state, registration = start(engine, Draws(0))
        first, _ = play_round(engine, state, Draws(0).at(1))
        train = engine.train

        def watched(tasks: Iterable[Task], draws: Draws) -> Iterator[Update]:
            tasks = list(tasks)
            sent.update({task.client: task.downlink for task in tasks})
            for update in train(tasks, draws):
                updates.append(update)
                yield update

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "train", watched)
            second, line = play_round(engine, first, Draws(0).at(2))
        done = {update.client: update for update in with_states(engine, updates)}
        return Rounds(engine, registration, first, sent, done, second, line)

    return play
