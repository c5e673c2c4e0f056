"""Plays what the authors' code computed through hetfl's engines.

A vector gives data, start values, participants, orders of samples and the server's draws; everything else is hetfl's
own: the loop over rounds, the engine's loop over batches, optimisers, the method's objective, messages, aggregation
and prediction. What is given enters where hetfl would draw it, and recorders listen without changing anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from playing import play_fine_tuning, play_round, predictions, start
from readings import READINGS, Log, Reading, Seen
from torch import Tensor, nn
from vector import FOLDER, Vector, parameter

from hetfl.data.batches import Batch, InputSpec
from hetfl.data.partitions import Partition
from hetfl.data.store import Dataset, Subset
from hetfl.draws import Draws
from hetfl.message import Message, ServerState, Tensors
from hetfl.methods import Method, create
from hetfl.methods.base import Work
from hetfl.models import Model, ModelOptions
from hetfl.models.fitting import Backbone, Fitted, fit
from hetfl.models.grouped import GroupedViT
from hetfl.models.parts import part
from hetfl.models.vit import PromptedViT
from hetfl.training import rounds
from hetfl.training.client_run import ClientRun
from hetfl.training.engines import make_engine
from hetfl.training.federation import Federation, build_federation
from hetfl.training.local import LocalEngine
from hetfl.training.program import Program
from hetfl.training.sequential import Sequential
from hetfl.training.state import State

HALF = (0.5,) * 3
"""Mean and standard deviation that make images / 127.5 - 1."""


class Perceptron(nn.Sequential):
    """Linear layers with ReLU on an image's values, row by row, column by column, channel by channel."""

    def __init__(self, sizes: list[tuple[int, int]]) -> None:
        super().__init__()
        for number, (inputs, outputs) in enumerate(sizes, start=1):
            self.add_module(str(number), nn.Linear(inputs, outputs))
        self.num_features = sizes[-1][1]

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, d] of images [B, 3, H, W]."""
        values = images.permute(0, 2, 3, 1).flatten(1)
        for layer in self:
            values = layer(values).relu()
        return values


class Networks:
    """Stands in for the registry: the vector's networks, which start from the values that it gives."""

    def __init__(self, vector: Vector, reading: Reading) -> None:
        self.vector, self.reading = vector, reading

    def build(self, name: str, num_classes: int, options: ModelOptions, *given: Any) -> Model:
        """As :func:`hetfl.models.build`, by names of :meth:`names`."""
        vector = self.vector
        client = int(name.partition(".")[0].removeprefix("client"))
        side = vector.given(0)["images"].shape[1]
        spec = InputSpec(side, "bilinear", HALF, HALF)
        if shape := vector.entry["model"].get("vit"):
            family = GroupedViT if options.prompts == "inserted" else PromptedViT
            create = partial(_transformer, shape)
            model = fit(Backbone(name, family, create), num_classes, options, spec, vector.under("given/vit/"))
        else:
            own = {**vector.given(-1), **vector.given(client)}
            common = None
            if options.auxiliary is not None:
                common = Backbone("common", Fitted, partial(Perceptron, _sizes(vector.given(-1))))
                own = vector.given(client)
            create = partial(Perceptron, _sizes(own))
            model = fit(Backbone(name, Fitted, create), num_classes, options, spec, None, common)
        fresh = model.init

        def init(draws: Draws, client: int) -> dict[str, Tensor]:
            params = fresh(draws, client)
            server, own = self.reading.first(vector, -1), self.reading.first(vector, max(client, 0))
            start = own | server if client < 0 else server | own
            for key, value in start.items():
                if key in params and params[key].numel() == value.numel():
                    params[key] = value.to(params[key].dtype).view_as(params[key]).clone()
            return params

        model.init = init
        return model

    def names(self) -> list[str]:
        """One for each client; ``random`` weights are those of no file."""
        return [f"client{k if self.vector.several else 0}.random" for k in range(self.vector.clients)]


def _sizes(given: Tensors) -> list[tuple[int, int]]:
    layers = [given[f"W{number}"] for number in (1, 2) if f"W{number}" in given]
    return [(layer.shape[1], layer.shape[0]) for layer in layers]


def _transformer(shape: Mapping[str, int]) -> nn.Module:
    timm = part("timm.models.vision_transformer")
    return timm.VisionTransformer(
        img_size=shape["size"],
        patch_size=shape["patch"],
        embed_dim=shape["width"],
        depth=shape["depth"],
        num_heads=shape["heads"],
        mlp_ratio=shape["mlp"] / shape["width"],
        num_classes=0,
    )


def federation_of(vector: Vector, method: Method, networks: Networks) -> Federation:
    """The vector's clients, models and data, put together by hetfl's own function."""

    def subset(images: str, labels: str) -> tuple[Subset, tuple[np.ndarray, ...]]:
        parts = [(given[images], given[labels]) for given in map(vector.given, range(vector.clients))]
        ends = np.cumsum([0] + [len(labels) for _, labels in parts])
        index = tuple(np.arange(a, b) for a, b in zip(ends, ends[1:], strict=False))
        pixels, classes = (np.concatenate([one[side].numpy() for one in parts]) for side in (0, 1))
        return Subset(pixels, classes), index

    test = ("test_images", "test_labels") if "clients" in vector.entry else ("images", "labels")
    (trained, train), (tested, test_index) = subset("images", "labels"), subset(*test)
    names = tuple(str(number) for number in range(vector.entry["classes"]))
    dataset = Dataset(vector.name, vector.name, names, {"train": trained, "test": tested}, vector.name)
    partition = Partition(train, test_index)
    with patch("hetfl.training.federation.build", networks.build):
        return build_federation(
            method, networks.names(), dataset, partition, FOLDER, torch.device("cpu"), torch.float64
        )


@dataclass(frozen=True)
class GivenDraws(Draws):
    """Draws that remember what each key was for, so that it can be answered from a vector."""

    made: dict[int, tuple[int, str, int, tuple[int, ...]]] = field(default_factory=dict, compare=False)

    def key(self, purpose: str, client: int = -1, *more: int) -> int:
        key = super().key(purpose, client, *more)
        self.made[key] = self.round, purpose, client, more
        return key

    def asked(self, seed: int) -> tuple[int, str, int, tuple[int, ...], int] | None:
        """Round, purpose, client, further integers and step that a seed belongs to: steps count up from a key."""
        return next(((*self.made[seed - step], step) for step in range(100) if seed - step in self.made), None)


@contextmanager
def answering(vector: Vector, method: Method, draws: GivenDraws) -> Iterator[None]:
    """Participants, orders of samples, generated labels and noise are the vector's while this lasts."""
    last = len(vector.participants)
    real = {name: getattr(torch, name) for name in ("randperm", "randint", "rand")}

    def row(client: int, round: int, number: int, epoch: int) -> int:
        phases = method.phases(round) if round <= last else method.fine_tuning()
        return sum(phase.epochs for phase in phases[:number]) + epoch

    def answer(name: str, *given: Any, generator: torch.Generator | None = None, **more: Any) -> Tensor:
        asked = None if generator is None else draws.asked(generator.initial_seed())
        if asked is not None:
            round, purpose, client, which, step = asked
            tensors = vector.under(f"given/round{round}/{'server' if client < 0 else f'client{client}'}/")
            if name == "randperm" and purpose == "batches":
                return tensors["order"][row(client, round, *which)]
            if name == "randperm" and purpose == "server batches":
                return tensors["order"][which[0]]
            if purpose == "objective" and "noise" in tensors:
                place = row(client, round, *which) * (len(tensors["noise"]) // method.settings.local_epochs) + step
                if name == "rand":
                    return tensors["noise"][place]
                # hetfl draws a sample among all clients' ones and takes its class: here the last of that class.
                counts = sum(
                    torch.bincount(vector.given(k)["labels"], minlength=vector.entry["classes"])
                    for k in range(vector.clients)
                )
                return counts.cumsum(0)[tensors["labels"][place]] - 1
        return real[name](*given, generator=generator, **more)

    def chosen(clients: int, share: float, draws: Draws) -> list[int]:
        return vector.participants[draws.round - 1]

    with ExitStack() as stack:
        for name in real:
            stack.enter_context(patch.object(torch, name, partial(answer, name)))
        stack.enter_context(patch.object(rounds, "participants", chosen))
        yield


@contextmanager
def recording(log: Log, method: Method, reading: Reading, at: list[int]) -> Iterator[None]:
    """Listen to losses, work and messages; ``at[0]`` is the round."""
    going: dict[str, list[int]] = {}
    train, load, unload, uplink = Sequential.train_phase, Program.load, Program.unload, method.uplink
    owner = reading.loss_of or type(method)
    objective = owner.objective

    def heard_train(self: Sequential, run: ClientRun, *given: Any) -> None:
        going[run.client.model.name] = [run.client.index]
        train(self, run, *given)
        del going[run.client.model.name]

    def heard_load(self: Program, runs: list[ClientRun]) -> None:
        going[self.model.name] = [run.client.index for run in runs]
        load(self, runs)

    def heard_unload(self: Program, *given: Any) -> None:
        unload(self, *given)
        del going[self.model.name]

    def heard_objective(self: Method, model: Any, params: Tensors, batch: Batch, *given: Any) -> Tensor:
        loss = objective(self, model, params, batch, *given)
        # Under vmap there is one value for each client of the program, in the order in which they were loaded.
        values = torch.func.debug_unwrap(loss).detach().flatten()
        for client, value in zip(going.get(model.name, ()), values, strict=False):
            log[at[0], client].losses.append(value.clone())
        return loss

    def heard_uplink(work: Work) -> Message:
        seen = log[work.round, work.client.index]
        seen.work, seen.message, seen.params = work, uplink(work), work.params
        return seen.message

    method.uplink = heard_uplink
    with ExitStack() as stack:
        stack.enter_context(patch.object(Sequential, "train_phase", heard_train))
        stack.enter_context(patch.object(Program, "load", heard_load))
        stack.enter_context(patch.object(Program, "unload", heard_unload))
        stack.enter_context(patch.object(owner, "objective", heard_objective))
        for place, listen in reading.also_heard(log, at):
            stack.enter_context(patch(place, listen))
        yield


def played(vector: Vector, engine_name: str, changes: Mapping[str, Any]) -> Log:
    """What hetfl makes of a vector, by one of its engines.

    Args:
        vector: what is given.
        engine_name: ``sequential`` or ``batched``.
        changes: settings that depart from those that match.
    """
    reading = READINGS[vector.name]
    settings = {**reading.settings(vector), "rounds": len(vector.participants), **changes}
    method = create(reading.method(vector), settings, vector.entry["classes"])
    federation = federation_of(vector, method, Networks(vector, reading))
    engine = make_engine(method, federation, engine_name)
    assert engine.name == engine_name and (method.vmappable or engine_name == "sequential")
    draws, log, at = GivenDraws(0), defaultdict(Seen), [0]
    with answering(vector, method, draws), recording(log, method, reading, at):
        state, _ = start(engine, draws)
        state.server = ServerState(reading.started(vector, state.server))
        if reading.expected(vector, 0, 0):
            look(log, engine, state, draws, 0)
        for at[0] in range(1, len(vector.participants) + 1):
            state, _ = play_round(engine, state, draws.at(at[0]))
            look(log, engine, state, draws, at[0])
        if method.fine_tuning():
            at[0] += 1
            state, _ = play_fine_tuning(engine, state, draws.at(at[0]))
            look(log, engine, state, draws, at[0])
    return log


def look(log: Log, engine: LocalEngine, state: State, draws: Draws, round: int) -> None:
    """Keep the state after a round, and what is predicted with it."""
    log[round, -1].server = dict(state.server)
    for client, own in state.clients.items():
        log[round, client].memory = own.memory
        log[round, client].params = log[round, client].params or own.params
    scores, features, predict = [], [], engine.method.predict

    def heard(model: Model, params: Tensors, batch: Batch, received: Tensors) -> Tensor:
        scores.append(predict(model, params, batch, received))
        features.append(model(params, batch.images).features)
        return scores[-1]

    engine.method.predict = heard
    try:
        found = [predicted for predicted, _ in predictions(engine, state, draws)]
    finally:
        engine.method.predict = predict
    # Every client's test images come once, client by client, however they are divided into batches.
    sizes = [len(predicted) for predicted in found]
    for client, (predicted, score) in enumerate(zip(found, torch.cat(scores).split(sizes), strict=True)):
        log[round, client].predictions, log[round, client].scores = predicted, score
    for client, feature in enumerate(torch.cat(features).split(sizes)):
        log[round, client].features = feature


@dataclass(frozen=True)
class Comparison:
    """One expected tensor and what hetfl has in its place.

    Attributes:
        kind: what it is, e.g. ``parameters``.
        whole: whether it has whole numbers, as classes and counts.
        numbers: its elements.
        difference: the largest between two of them; infinite where shapes or infinities differ.
    """

    round: int
    client: int
    name: str
    kind: str
    whole: bool
    numbers: int
    difference: float


def compared(name: str, engine: str, changes: Mapping[str, Any] | None = None) -> list[Comparison]:
    """Play a vector and compare everything that it expects.

    Args:
        name: of the vector.
        engine: ``sequential`` or ``batched``.
        changes: see :func:`played`.
    """
    vector, reading = Vector(name), READINGS[name]
    log = played(vector, engine, changes or {})
    found = []
    for round in range(len(vector.participants) + 2):
        for client in range(-1, vector.clients):
            seen = log[round, client]
            for key, expected in reading.expected(vector, round, client).items():
                ours = (reading.server if client < 0 else reading.client)(seen, key)
                found.append(_comparison(round, client, key, reading.kind(client, key), expected, ours))
                if client >= 0 and parameter(key) in (sent := reading.sent(seen)):
                    found.append(_comparison(round, client, key, "messages", expected, sent[parameter(key)]))
    return found


def _comparison(round: int, client: int, name: str, kind: str, expected: Tensor, ours: Tensor) -> Comparison:
    difference, whole = float("inf"), not expected.is_floating_point()
    if ours.numel() == expected.numel():
        ours, expected = ours.reshape(expected.shape).double(), expected.double()
        # Equal infinities differ by nothing.
        apart = torch.where(ours == expected, 0.0, (ours - expected).abs())
        difference = float(apart.nan_to_num(nan=float("inf")).max())
    return Comparison(round, client, name, kind, whole, expected.numel(), difference)
