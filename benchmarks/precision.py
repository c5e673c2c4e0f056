"""Frozen blocks in bfloat16 against float32, and images with channels last against channels first, on a CPU.

    python benchmarks/precision.py [--repeats 5] [--quick] [--json FILE]

It needs the embedded default's digits (dvc repro digits-homogeneous) and writes a table beside this file. Speed: a
training step of prompts and head, and a forward pass, for ViTs with random weights; a training step of a small CNN.
Accuracy: FedHPL's cells of digits-homogeneous, trained in both precisions with the same draws. Timings alternate.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor

from hetfl.draws import Draws
from hetfl.experiments.cell import set_up
from hetfl.experiments.plan import Cell, ComputeSettings, Workspace, cells, load_params
from hetfl.experiments.record import device_name
from hetfl.files import write_text
from hetfl.models import Model, ModelOptions, build
from hetfl.training.engines import make_engine
from hetfl.training.rounds import play_round, start

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
PROMPTED = ModelOptions(prompts="deep", prompt_length=3)
VITS = {"digits_vit_base.random": 16, "mini_vit.random": 16, "vit_tiny_patch16_224.random": 16}
"""Backbones, with samples per batch."""


@dataclass(frozen=True)
class Speed:
    """Seconds of a piece of work in two ways, the second one's share of the first, run by run."""

    work: str
    first: float
    second: float
    ratio: float


def seconds(function: Callable[[], Any]) -> float:
    """Of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def compare(work: str, first: Callable[[], Any], second: Callable[[], Any], repeats: int, calls: int) -> Speed:
    """Time two functions in turn, after one call each."""
    first(), second()
    times = [
        tuple(seconds(lambda way=way: [way() for _ in range(calls)]) / calls for way in (first, second))
        for _ in range(repeats)
    ]
    return Speed(work, *(median(one) for one in zip(*times, strict=True)), median(b / a for a, b in times))


def step(model: Model, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """A forward and backward pass for everything but the frozen body."""
    params = {name: value.requires_grad_() for name, value in model.init(Draws(0), 0).items()}

    def run() -> None:
        torch.autograd.grad(F.cross_entropy(model(params, images).logits, labels), list(params.values()))

    return run


def speeds(repeats: int) -> list[Speed]:
    """Time every workload in both variants."""
    found = []
    for name, size in VITS.items():
        usual, lowered = build(name, 10, PROMPTED), build(name, 10, PROMPTED)
        lowered.lower()
        side = usual.spec.size
        images, labels = torch.randn(size, 3, side, side), torch.arange(size) % 10
        calls = 1 if side > 32 else 10
        both = [step(model, images, labels) for model in (usual, lowered)]
        found.append(compare(f"{name}, training step", both[0], both[1], repeats, calls))
        params = usual.init(Draws(0), 0)

        def passes(model: Model, params: dict[str, Tensor] = params, images: Tensor = images) -> Callable[[], None]:
            @torch.inference_mode()
            def run() -> None:
                model(params, images)

            return run

        found.append(compare(f"{name}, forward pass", passes(usual), passes(lowered), repeats, calls))
    trained = build("pfl_cnn", 10, ModelOptions(body="trained", weights="scratch"))
    images, labels = torch.randn(10, 3, 32, 32), torch.arange(10)
    last = images.contiguous(memory_format=torch.channels_last)
    first_way, last_way = (step(trained, given, labels) for given in (images, last))
    found.append(compare("pfl_cnn, training step, channels last", first_way, last_way, repeats, 10))
    return found


def accuracy(cell: Cell, precision: str) -> float:
    """A cell's pooled accuracy after its last round."""
    compute = ComputeSettings.model_validate({"precision": precision})
    setup = set_up(cell, Workspace(ROOT), CPU, compute)
    engine = make_engine(setup.method, setup.federation, "sequential")
    assert setup.federation.precision == precision
    server, _ = start(engine, setup.draws)
    for round in range(1, setup.method.settings.rounds + 1):
        server, line = play_round(engine, server, setup.draws.at(round))
    return float(100 * line.pooled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one repeat, one cell")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = speeds(1 if arguments.quick else arguments.repeats)
    params = load_params(ROOT / "params.yaml")
    chosen = [cell for cell in cells(params, "digits-homogeneous") if cell.row == "fedhpl"]
    chosen = chosen[: 1 if arguments.quick else None]
    points = {
        f"{cell.split}, seed {cell.seed}": tuple(accuracy(cell, precision) for precision in ("float32", "bfloat16"))
        for cell in chosen
    }
    differences = [low - full for full, low in points.values()]
    spread = f", standard deviation {stdev(differences):.2f}" if len(differences) > 1 else ""
    text = "\n\n".join(
        [
            "# Speed and accuracy with bfloat16 in frozen blocks, and speed with channels last",
            f"{device_name(CPU)}, 1 thread, torch {torch.__version__}. The table shows "
            "medians over interleaved runs; a ratio is the median of the runs' ratios.",
            tabulate(
                [[one.work, 1000 * one.first, 1000 * one.second, one.ratio] for one in found],
                headers=["", "float32, channels first (ms)", "bfloat16, or channels last (ms)", "ratio"],
                tablefmt="github",
                floatfmt=".2f",
            ),
            "Accuracy of FedHPL on digits (digits-homogeneous) over all test samples together, with the same draws:",
            tabulate(
                [[name, full, low, low - full] for name, (full, low) in points.items()],
                headers=["", "float32 (%)", "bfloat16 (%)", "difference"],
                tablefmt="github",
                floatfmt=("", ".2f", ".2f", "+.2f"),
            ),
            f"Mean difference {mean(differences):+.2f} points{spread}.",
        ]
    )
    print(text)
    write_text(Path(__file__).with_name("precision-cpu.md"), text + "\n")
    if arguments.json:
        figures = {"speed": [asdict(one) for one in found], "accuracy": points}
        write_text(arguments.json, json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
