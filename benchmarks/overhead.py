"""A client's local training against the same SGD steps in a plain PyTorch loop, on a CPU.

    python benchmarks/overhead.py [--repeats 7] [--quick] [--json FILE]

It needs the digits, Fashion-MNIST and CIFAR-10 (dvc repro download-digits, dvc --cd papers repro download-fashion-
mnist download-cifar10) and writes a table beside this file. Two plain loops train the same modules from the same
weights with torch.optim.SGD and end with the same parameters. One has its samples in memory, normalised and resized;
the other reads them through the usual Dataset and DataLoader. hetfl stores uint8 images in their original size. Its
time is that of a client's whole task: loading the server's parameters, training, and the uplink. Cases alternate
between implementations, so that changes of the machine's speed affect all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose, InterpolationMode, Normalize, Resize, ToTensor

from hetfl.data.partitions import Partition
from hetfl.data.store import Subset, read_dataset
from hetfl.draws import Draws
from hetfl.experiments.record import device_name
from hetfl.files import write_text
from hetfl.methods import create
from hetfl.training.engine import Task
from hetfl.training.engines import make_engine
from hetfl.training.federation import build_federation
from hetfl.training.rounds import start
from hetfl.training.state import ClientState

ROOT = Path(__file__).parents[1]
MOMENTUM, DECAY, RATE = 0.9, 1e-4, 0.01
TARGET = 1.05
CHECKED, SAME = 10, 1e-4
"""Steps after which both ways are compared, and how far apart they may be, as a share of the way. Later rounding, of
which ReLU and max-pools make more and more, would hide mistakes."""

Way = Callable[[], dict[str, Tensor]]


@dataclass(frozen=True)
class Case:
    """One row of the table: a method, a model, a data set, and the number of timed steps."""

    title: str
    method: str
    settings: dict[str, Any]
    model: str
    dataset: str
    batch: int
    steps: int


PROMPTED = {"communicate": False, "prompts": "deep", "prompt_length": 3}
CASES = (
    Case("4-layer CNN, Fashion-MNIST", "fedavg", {}, "htcnn2", "fashion-mnist", 10, 200),
    Case("tiny prompted ViT, digits", "fedhpl", PROMPTED, "digits_vit_base.random", "digits", 16, 50),
    Case("prompted ViT-Ti/16 at 224, CIFAR-10", "fedhpl", PROMPTED, "vit_tiny_patch16_224.random", "cifar10", 16, 6),
)


class Samples(Dataset):
    """The usual Dataset: one PIL image at a time."""

    def __init__(self, split: Subset, index: np.ndarray, transform: Callable, colour: bool) -> None:
        self.split, self.index, self.transform, self.colour = split, index, transform, colour

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        row = self.index[place]
        image = Image.fromarray(self.split.images[row].squeeze())
        return self.transform(image.convert("RGB") if self.colour else image), int(self.split.labels[row])


def plain(
    module: nn.Module, values: dict[str, Tensor], batches: Iterable[tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """A training loop without a framework; returns the trained ``values``."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)
    trained = [parameters[name] for name in values]
    optimiser = torch.optim.SGD(trained, RATE, MOMENTUM, weight_decay=DECAY)
    for images, labels in batches:
        optimiser.zero_grad()
        F.cross_entropy(module(images).logits, labels).backward()
        optimiser.step()
    return {name: parameters[name].detach().clone() for name in values}


def make_ways(case: Case, steps: int) -> tuple[dict[str, Way], dict[str, Tensor]]:
    """The implementations by name, and their initial parameters."""
    project = ROOT if case.dataset == "digits" else ROOT / "papers"
    dataset = read_dataset(project / "data" / case.dataset)
    split = dataset.subset("train")
    index = np.sort(np.random.default_rng(0).choice(len(split), steps * case.batch, replace=False))
    usual = {"batch_size": case.batch, "lr": RATE, "momentum": MOMENTUM, "weight_decay": DECAY, "local_epochs": 1}
    method = create(case.method, {**usual, **case.settings}, dataset.num_classes)
    cpu = torch.device("cpu")
    partition = Partition((index,), None)
    federation = build_federation(method, [case.model], dataset, partition, project / "weights", cpu)
    engine = make_engine(method, federation, "sequential")
    server, _ = start(engine, Draws(0))
    draws, client, data = Draws(0).at(1), engine.federation.clients[0], engine.federation.data[0]
    names = client.model.names(method.trains())
    downlink = method.downlink(server, 0)
    before = {name: value for name, value in method.initial(client.model, draws.at(0), 0).items() if name in names}
    before |= {name: value for name, value in downlink.items() if name in names}

    module = deepcopy(client.model._module)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in names)
    order = torch.randperm(len(index), generator=draws.generator("batches", 0, 0, 0))
    held = data.train_images.batch(data.train[order])
    images, labels = held.images.contiguous(), held.labels
    spec = client.model.spec
    resize = [] if split.images.shape[1] == spec.size else [Resize(spec.size, InterpolationMode(spec.interpolation))]
    transform = Compose([*resize, ToTensor(), Normalize(spec.mean, spec.std)])
    loader = DataLoader(Samples(split, index, transform, spec.channels == 3), case.batch, sampler=order.tolist())

    def ours() -> dict[str, Tensor]:
        (update,) = engine.train([Task(0, downlink)], draws)
        own = engine.client_states().get(0, ClientState())
        return {**own.params, **update.uplink}

    ways: dict[str, Way] = {
        "plain": lambda: plain(module, before, zip(images.split(case.batch), labels.split(case.batch), strict=True)),
        "hetfl": ours,
        "loader": lambda: plain(module, before, loader),
    }
    return ways, before


def compare(case: Case) -> None:
    """Check that hetfl and the plain loop compute the same parameters."""
    ways, before = make_ways(case, CHECKED)
    ours, theirs = ways["hetfl"](), ways["plain"]()
    for name, value in before.items():
        share = float((theirs[name] - ours[name]).norm() / (theirs[name] - value).norm())
        assert share <= SAME, f"{case.title}: {name} ends {share:.2g} of its way from where the plain loop has it"


def measure(case: Case, steps: int, repeats: int) -> dict[str, list[float]]:
    """Seconds per step of each implementation, one value per repeat."""
    ways, _ = make_ways(case, steps)
    for way in ways.values():  # not counted
        way()
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            found[name].append((time.perf_counter() - began) / steps)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a third of the steps, three times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 3 if arguments.quick else arguments.repeats
    for case in CASES:
        compare(case)
    found = {case.title: measure(case, case.steps // 3 if arguments.quick else case.steps, repeats) for case in CASES}
    rows = []
    for case in CASES:
        ways = found[case.title]
        ratios = sorted(ours / bare for ours, bare in zip(ways["hetfl"], ways["plain"], strict=True))
        ratio = median(ratios)
        rows.append(
            [
                case.title,
                case.batch,
                *(1000 * median(ways[way]) for way in ("plain", "loader", "hetfl")),
                ratio,
                f"{ratios[0]:.3f} to {ratios[-1]:.3f}",
                "met" if ratio <= TARGET else "missed",
            ]
        )
    headers = ["", "batch", "plain, ms a step", "DataLoader, ms", "hetfl, ms", "hetfl / plain", "spread", ""]
    text = "\n\n".join(
        [
            "# Local training in hetfl and in a plain PyTorch loop",
            f"{device_name(torch.device('cpu'))}, 1 thread, torch {torch.__version__}. The table shows medians over "
            f"{repeats} interleaved runs; a ratio is the median of the runs' ratios. The target is a ratio of "
            f"{TARGET} at most. The optimiser is SGD with momentum. After "
            f"{CHECKED} steps the parameters of hetfl and of the plain loop are compared, and agree. The plain loop "
            "has its samples in memory in the form that the model needs. DataLoader is the same loop over PIL "
            "images, without workers. hetfl's time includes loading the server's parameters, decoding images, and "
            "the uplink.",
            tabulate(rows, headers, tablefmt="github", floatfmt=("", "", ".3f", ".3f", ".3f", ".3f", "", "")),
        ]
    )
    print(text)
    write_text(Path(__file__).with_name("overhead-cpu.md"), text + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
