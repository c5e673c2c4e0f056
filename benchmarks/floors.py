"""Lower bounds of a round: operations, memory traffic and kernel launches, counted from shapes without a device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from work import Work

from hetfl.data.batches import Batch
from hetfl.data.partitions import Partition, make_partition
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.message import Message
from hetfl.methods import Method
from hetfl.methods.base import Uplinks
from hetfl.metrics.flops import flops, step_flops
from hetfl.models import Model, build
from hetfl.training.engine import same_for_all
from hetfl.training.sampling import participants


class Operations(TorchDispatchMode):
    """Counts operations that make a tensor, and the size of attention scores, which fused attention never stores."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.scores: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = function(*given, **(named or {}))
        name = function.overloadpacket.__name__
        self.count += not function.is_view and name != "_unsafe_view"
        if "softmax" in name and isinstance(result, Tensor) and result.dim() == 4:
            self.scores.add(place(result))
        return result


def place(tensor: Tensor) -> int:
    """Identifies a tensor's memory, also on the meta device."""
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class Step:
    """One optimiser step on a full batch, the optimiser's own part left out.

    Attributes:
        forward, backward, passed: floating-point operations; the last of the pass after training.
        operations: that make a tensor.
        kept: elements that lie in memory from the forward to the backward pass, parameters apart.
        trained, frozen: elements of parameters.
    """

    forward: int
    backward: int
    passed: int
    operations: int
    kept: int
    trained: int
    frozen: int


def step(method: Method, model: Model) -> Step:
    """Count a step of a method on a model on the meta device."""
    size, spec = method.settings.batch_size, model.spec
    images = torch.empty(size, spec.channels, spec.size, spec.size, device="meta")
    labels = torch.zeros(size, dtype=torch.int64, device="meta")
    batch = Batch(images, labels, queries=torch.empty(size, model.width, device="meta"))
    params, phase = model.init(Draws(0), 0), method.phase()
    counted = step_flops(method, model, params, batch, {})
    leaves = {name: params[name].clone().requires_grad_() for name in model.names(phase.trains)}
    weights = {place(tensor) for tensor in (*params.values(), *leaves.values(), *model.tensors())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[place(tensor)] = tensor
        return tensor

    with Operations() as operations, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        training = model.train(model.masks(0, size))
        method.objective(training, {**params, **leaves}, batch, {}, phase).backward()
    sizes = {key: tensor.untyped_storage().nbytes() // tensor.element_size() for key, tensor in kept.items()}
    trained = sum(leaf.numel() for leaf in leaves.values())
    passes = method.statistics_source(1) == "own"
    return Step(
        *counted,
        passed=flops(lambda: method.statistics(model, params, batch, {})) if passes else 0,
        operations=operations.count,
        kept=sum(size for key, size in sizes.items() if key not in weights | operations.scores),
        trained=trained,
        frozen=model.total_elements - trained,
    )


def used(samples: int, settings: Any) -> int:
    """Number of a client's samples that an epoch trains on."""
    return samples - samples % settings.batch_size if settings.drop_last else samples


def server_steps(settings: Any, owned: Sequence[int]) -> int:
    """Steps of the server's own training, from the number of classes of each participant; 1 without such training."""
    if "server_epochs" not in type(settings).model_fields:
        return 1
    return int(settings.server_epochs * math.ceil(sum(owned) / (settings.server_batch or settings.batch_size)))


def floor(work: Work, precision: str) -> dict[str, float]:
    """Count a round.

    Returns:
        Operations to ``train``, to ``pass`` once more through the participants' samples, to ``evaluate`` and of the
        ``server``; ``bytes`` through memory if frozen weights are read once for all clients; samples ``trained`` on
        and ``steps`` taken; ``operations`` of a step of each architecture, and ``launches``, one for each operation
        if clients of one architecture take their steps together.
    """
    method, data = work.create(), work.dataset()
    settings: Any = method.settings
    parts = make_partition(work.partition, data, Draws(0))
    meta = torch.device("meta")
    with meta:
        models = {name: build(name, work.classes, method.model_options(), inputs=work.input) for name in work.models}
    steps = {name: step(method, model.to(meta)) for name, model in models.items()}
    size, width = settings.batch_size, 2 if precision == "bfloat16" else 4
    found = dict.fromkeys(("trained", "steps", "train", "pass", "server", "bytes"), 0.0)
    longest = dict.fromkeys(steps, 0)
    chosen = participants(parts.clients, settings.participation, Draws(0).at(1))
    for client in chosen:
        name, samples = work.models[client % len(work.models)], len(parts.train[client])
        one, trained = steps[name], settings.local_epochs * used(samples, settings)
        taken = settings.local_epochs * math.ceil(used(samples, settings) / size)
        longest[name] = max(longest[name], taken)
        found["trained"] += trained
        found["steps"] += taken
        found["train"] += trained / size * (one.forward + one.backward)
        found["pass"] += samples / size * one.passed
        # Activations are written and read; weights are read twice and written, their gradients written and read.
        found["bytes"] += 2 * width * one.kept * trained / size + 5 * 4 * one.trained * taken
    found["bytes"] += sum(2 * width * one.frozen * longest[name] for name, one in steps.items())
    found["evaluate"] = sum(n / size * steps[name].forward for name, n in tests(work, method, models, data, parts))
    found["operations"] = sum(one.operations for one in steps.values())
    found["launches"] = sum(one.operations * longest[name] for name, one in steps.items())
    labels = data.labels(parts.train_from)
    owned = {client: np.unique(labels[parts.train[client]]) for client in chosen}
    if server_steps(settings, [len(own) for own in owned.values()]) > 1:
        first = next(iter(models.values()))
        sent = {
            client: Message({"means": torch.randn(len(own), first.width), "labels": torch.from_numpy(own).int()})
            for client, own in owned.items()
        }
        one, two = (server_epochs(work, epochs, first, sent) for epochs in (1, 2))
        more = settings.server_epochs - 1
        found["server"], launches = (a + more * (b - a) for a, b in zip(one, two, strict=True))
        found["launches"] += launches
    return found


def server_epochs(work: Work, epochs: int, model: Model, sent: Mapping[int, Message]) -> tuple[int, int]:
    """Floating-point operations, and operations that make a tensor, of a server that trains for some epochs."""
    method = replace(work, settings={**work.settings, "server_epochs": epochs}).create()
    server = method.initial_server([model], {}, Draws(0))
    with Operations() as operations:
        counted = flops(lambda: method.aggregate(server, Uplinks.of(sent), Draws(0).at(1)))
    return counted, operations.count


def tests(
    work: Work, method: Method, models: Mapping[str, Model], data: Dataset, parts: Partition
) -> Iterator[tuple[str, int]]:
    """The model of each test after a round, and the number of images that it looks at."""
    held = parts.test or (np.arange(len(data.labels(parts.test_from))),) * parts.clients
    dealt = [work.models[client % len(work.models)] for client in range(parts.clients)]
    if same_for_all(method, [models[name] for name in dealt]):
        yield dealt[0], len(np.unique(np.concatenate(held)))
    else:
        yield from zip(dealt, map(len, held), strict=True)
