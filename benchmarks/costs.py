"""How a round's time is spent: the most expensive operations by torch's profiler.

    python benchmarks/costs.py [--engine auto] [--top 3] [--quick] [--json FILE]

It writes costs-<device>.md beside this file. Each workload runs rounds until caches are full and graphs are recorded;
then one round is timed, and the next one is profiled. The time of an operation excludes the operations that it calls;
on CUDA it is the device's time. The rest of the profiled round is Python, torch's dispatch, on CUDA idle time of the
device, and the profiler itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gpu import cases
from tabulate import tabulate
from torch.profiler import ProfilerActivity, profile
from work import Rounds, Work, now

from hetfl.data.inputs import InputSettings
from hetfl.data.partitions import Iid
from hetfl.draws import Draws
from hetfl.experiments.record import device_name, versions
from hetfl.files import write_text
from hetfl.training.engines import make_engine

WARM = 3
"""Rounds before the measured ones, in which caches fill and steps are recorded."""
SGD = {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 10}
PROMPTED = {"communicate": False, "prompts": "deep", "prompt_length": 3, "local_epochs": 1, "batch_size": 16}


def works(device: torch.device, quick: bool) -> dict[str, Work]:
    """The workloads: the papers' on a GPU, otherwise small ones that take seconds on a CPU."""
    if device.type == "cuda" and not quick:
        return {case.title: case.work for case in cases().values()}
    clients, images = (200, 64) if quick else (1000, 256)
    cohort = SGD | {"participation": 10 / clients if quick else 0.05}
    data = {"partition": Iid(clients=clients), "samples": (50 * clients, 1000)}
    tiny = "digits_vit_base.random" if quick else "vit_tiny_patch16_224.random"
    size = InputSettings() if quick else InputSettings(size=224)
    prompted = {"partition": Iid(clients=2), "samples": (images, 64), "input": size}
    return {
        "FedAvg, linear model": Work("fedavg", cohort, ("linear",), **data),
        "FedAvg, CNN of 1.63 M": Work("fedavg", cohort, ("pfl_cnn",), **data),
        "FedHPL, prompted " + ("tiny ViT" if quick else "ViT-Ti/16 at 224"): Work(
            "fedhpl", PROMPTED, (tiny,), **prompted
        ),
    }


def measure(work: Work, engine: str, device: torch.device) -> dict[str, Any]:
    """Seconds of a round and of a profiled round; seconds and number of calls of the latter's operations, by name."""
    method = work.create()
    made = make_engine(method, work.federation(method, device), engine)
    rounds = Rounds(made, Draws(0))
    for _ in range(WARM):
        rounds.play()
    plain = rounds.play()["round"]
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        began = now(device)
        rounds.play()
        profiled = now(device) - began
    spent = {}
    for event in profiler.key_averages():
        microseconds = event.self_device_time_total if cuda else event.self_cpu_time_total
        if microseconds > 0:
            spent[event.key] = {"seconds": microseconds / 1e6, "calls": event.count}
    return {"engine": made.name, "round": plain, "profiled": profiled, "operations": spent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small work; writes no Markdown")
    parser.add_argument("--engine", default="auto", help="auto, sequential or batched")
    parser.add_argument("--top", type=int, default=3, help="costs that are listed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    found = {title: measure(work, arguments.engine, device) for title, work in works(device, arguments.quick).items()}
    text = report(found, device, arguments.top)
    print(text)
    if arguments.json:
        write_text(arguments.json, json.dumps({"versions": versions(), "works": found}, indent=1) + "\n")
    if not arguments.quick:
        write_text(Path(__file__).with_name(f"costs-{device.type}.md"), text + "\n")


def report(found: dict[str, dict[str, Any]], device: torch.device, top: int) -> str:
    """The table."""
    rows = []
    for title, one in found.items():
        first: Sequence[Any] = (title, one["engine"], one["round"], one["profiled"])
        left = one["profiled"] - sum(spent["seconds"] for spent in one["operations"].values())
        costs = sorted(one["operations"].items(), key=lambda item: -item[1]["seconds"])[:top]
        for name, spent in costs:
            share = spent["seconds"] / one["profiled"]
            rows.append([*first, name, f"{spent['calls']:,}", spent["seconds"], f"{share:.1%}"])
            first = ("", "", None, None)
        rows.append([*first, "left: Python, dispatch, waiting", "", left, f"{left / one['profiled']:.1%}"])
    headers = ["", "engine", "round (s)", "profiled (s)", "operation", "calls", "own time (s)", "share"]
    threads = ", 1 thread" if device.type == "cpu" else ""
    numbers = versions()
    return "\n\n".join(
        [
            "# Time of a round by operation",
            f"{device_name(device)}{threads}, torch {numbers['torch']}. Measured with torch's profiler, which "
            "makes a round slower. Images and weights are random. Shares are of the profiled round with its "
            "evaluation.",
            tabulate(rows, headers, tablefmt="github", floatfmt=("", "", ".3f", ".3f", "", "", ".3f", "")),
        ]
    )


if __name__ == "__main__":
    main()
