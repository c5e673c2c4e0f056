"""How fast this machine computes: operations per second of each model, measured in a few steps and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor

from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.experiments.plan import ComputeSettings, Workspace
from hetfl.experiments.record import device_name
from hetfl.experiments.rehearsal import Kind, Rehearsal, auxiliary_cost, gradients, own_cost
from hetfl.files import read_json, write_json
from hetfl.models.base import Model, ModelOptions, products
from hetfl.models.outline import Outline
from hetfl.models.registry import build
from hetfl.training.federation import set_precision

FILE = "calibration.json"

STEPS = 3
"""Steps that are measured, after one that is not."""

LOOKED = 32
"""Images of a batch that is only looked at."""

REACHED = 0.3
"""The share of a large matrix product's operations per second that training is assumed to reach."""

MOMENT = 0.2
"""A network is measured unasked if that takes at most so many seconds, as far as its operations tell."""


@dataclass(frozen=True)
class Case:
    """A network as a method trains it.

    Attributes:
        name: of the architecture.
        options: the method's, without the second network.
        classes: of the data set.
        batch: samples of a training step.
        trains: the groups of parameters that train.
        forward: operations of a forward pass of one image.
    """

    name: str
    options: ModelOptions
    inputs: InputSettings
    classes: int
    batch: int
    trains: tuple[str, ...]
    forward: int

    @property
    def key(self) -> str:
        """What the speed depends on; the number of classes hardly matters."""
        options, many = self.options, gradients(self.trains, "own")
        kind = ("head", options.prompts, "body")[many]
        return f"{self.name} {kind} {options.stem} {self.inputs.size or 'own'} pixels, batches of {self.batch}"

    @property
    def step(self) -> int:
        """Operations of a training step."""
        return self.batch * self.forward * (1 + gradients(self.trains, "own"))


@dataclass(frozen=True)
class Rates:
    """Measured speeds of this machine: operations per second by :attr:`Case.key` and ``train`` or ``look``."""

    known: Mapping[str, Mapping[str, float]]

    def of(self, wanted: Sequence[Case]) -> dict[Kind, float] | None:
        """The speeds of networks; None if one is not measured."""
        found: dict[Kind, float] = {}
        for case in wanted:
            if case.key not in self.known:
                return None
            found[case.name, "train"] = self.known[case.key]["train"]
            found[case.name, "look"] = self.known[case.key]["look"]
        return found


def cases(rehearsal: Rehearsal) -> list[Case]:
    """The networks of a run, as they are trained."""
    found: dict[str, Case] = {}
    for model in dict.fromkeys(rehearsal.models):
        for phase in rehearsal.method.phases(1):
            for case in _networks(model, rehearsal.inputs, phase.batch_size, phase.trains):
                found.setdefault(case.name, case)
    return list(found.values())


def _networks(model: Outline, inputs: InputSettings, batch: int, trains: Sequence[str]) -> list[Case]:
    options, classes = model.options, model.num_classes
    own = options.model_copy(update={"auxiliary": None, "transform": False, "weights": "scratch"})
    made = [Case(model.name, own, inputs, classes, batch, tuple(trains), own_cost(model).forward)]
    if options.auxiliary and options.auxiliary != model.name:
        plain = own.model_copy(update={"body": "trained", "prompts": "none"})
        forward = auxiliary_cost(model).forward
        made.append(Case(options.auxiliary, plain, inputs, classes, batch, ("body", "head", "projection"), forward))
    return made


def machine(device: torch.device, threads: int) -> str:
    """What measured speeds belong to."""
    return f"{device_name(device)}, torch {torch.__version__}, {threads} thread{'s' * (threads != 1)}"


def path(workspace: Workspace) -> Path:
    """The file with the speeds of the machines that this checkout was used on."""
    return workspace.scratch / FILE


def rates(workspace: Workspace, device: torch.device, threads: int) -> Rates:
    """The speeds that were measured on this machine."""
    file = path(workspace)
    known = read_json(file) if file.exists() else {}
    return Rates(known.get(machine(device, threads), {}))


def calibrate(
    wanted: Sequence[Case],
    workspace: Workspace,
    device: torch.device,
    compute: ComputeSettings,
    told: Callable[[Case], None] = lambda case: None,
) -> int:
    """Measure the networks that are not measured yet, and keep their speeds; returns how many there were.

    Args:
        wanted: the networks.
        workspace: the checkout.
        device: to measure on.
        compute: threads and precision.
        told: is called before each one.
    """
    torch.set_num_threads(compute.threads)
    known = rates(workspace, device, compute.threads).known
    new = list({case.key: case for case in wanted if case.key not in known}.values())
    for case in new:
        told(case)
        speeds = measure(case, device, compute)
        file = path(workspace)
        with FileLock(file.with_suffix(".lock")):
            every: dict[str, Any] = read_json(file) if file.exists() else {}
            every.setdefault(machine(device, compute.threads), {})[case.key] = speeds
            write_json(file, every)
    return len(new)


def momentary(wanted: Sequence[Case], device: torch.device) -> bool:
    """Whether networks are small enough for a CPU to be measured whenever somebody wants to know how long they take.

    Operations say least of these: most of their time goes into calls, and they take several times longer.
    """
    each = max((case.step + LOOKED * case.forward for case in wanted), default=0)
    return device.type == "cpu" and (1 + STEPS) * each <= MOMENT * REACHED * matmul_rate(device)


def measure(case: Case, device: torch.device, compute: ComputeSettings) -> dict[str, float]:
    """Operations per second of a few training steps, and of passes without gradients, on random images."""
    model = build(case.name, case.classes, case.options, inputs=case.inputs).to(device)
    set_precision([model], compute.precision, device)
    params = {name: tensor.to(device) for name, tensor in model.init(Draws(0), 0).items()}
    names = model.names(case.trains)
    leaves = {name: params[name].clone().requires_grad_() for name in names}
    size = max(2, case.batch)

    def images(many: int) -> Tensor:
        return torch.randn(many, model.spec.channels, model.spec.size, model.spec.size, device=device)

    batch, labels = images(size), torch.zeros(size, dtype=torch.int64, device=device)
    shown = images(LOOKED)

    def step() -> None:
        logits = _run(model.train(model.masks(0, size)), {**params, **leaves}, batch)
        with products(model.rounded):
            gradient = torch.autograd.grad(F.cross_entropy(logits, labels), list(leaves.values()), allow_unused=True)
        with torch.no_grad():
            for leaf, slope in zip(leaves.values(), gradient, strict=True):
                if slope is not None:
                    leaf.sub_(slope, alpha=1e-6)

    def look() -> None:
        with torch.inference_mode():
            _run(model, params, shown)

    return {
        "train": case.step * size / case.batch / seconds(step, device),
        "look": LOOKED * case.forward / seconds(look, device),
    }


def _run(model: Model, params: Mapping[str, Tensor], images: Tensor) -> Tensor:
    groups = images.new_zeros(len(images), dtype=torch.int64) if model.groups.get("group") else None
    return model(params, images, groups).logits


def seconds(work: Callable[[], None], device: torch.device, times: int = STEPS) -> float:
    """Mean seconds of some work, after once without a clock."""
    work()
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    _wait(device)
    return (time.perf_counter() - began) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@cache
def matmul_rate(device: torch.device) -> float:
    """Operations per second of a large matrix product in float32, measured in a fraction of a second."""
    size = 4096 if device.type == "cuda" else 512
    matrix = torch.ones(size, size, device=device)
    product = torch.empty_like(matrix)

    def multiply() -> None:
        torch.mm(matrix, matrix, out=product)

    # The fastest of several, since other work on the machine slows some of them down.
    return 2 * size**3 / min(seconds(multiply, device, times=1) for _ in range(20))
