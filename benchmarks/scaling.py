"""How a round's time and peak memory grow with participants, clients, prompts and size of the model.

    python benchmarks/scaling.py [--quick] [--engine sequential] [--json FILE]

It writes scaling-<device>.md and .svg beside this file. Every point is a separate process. Images and weights are
random. All clients are tested on 100 images with the parameters that the server sends them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import numpy as np
import timm  # noqa: F401 - so that its memory is that of a loaded library
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from tabulate import tabulate
from work import Rounds, Work

from hetfl.data.inputs import InputSettings
from hetfl.data.partitions import Iid
from hetfl.draws import Draws
from hetfl.experiments.record import device_name, versions
from hetfl.figures.style import MARKERS, PAPER, SERIES, STYLE, save
from hetfl.files import write_text
from hetfl.training.engines import make_engine
from hetfl.training.memory import peak_memory, reset_peak_memory

TRAINING = {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 10, "local_epochs": 1}
TESTS = 100
MODELS = (
    "digits_vit_small.random",
    "digits_vit_large.random",
    "vit_tiny_patch16_224.random",
    "vit_small_patch16_224.random",
    "vit_base_patch16_224.random",
)


def convnet(clients: int, total: int = 64, samples: int = 20, data: int = 1280) -> Work:
    """FedAvg of the 4-layer CNN, with so many samples of each client; ``data`` is the size of the training subset."""
    share = Iid(clients=total, quantity=samples * total / data)
    settings = TRAINING | {"participation": clients / total}
    return Work("fedavg", settings, ("cnn",), share, samples=(data, TESTS))


def prompted(clients: int = 4, length: int = 5, model: str = "mini_vit.random", pixels: int = 32) -> Work:
    """PT-FedAvg of a frozen transformer's prompts and head; of 64 clients with 20 samples each."""
    settings = TRAINING | {"participation": clients / 64, "prompt_length": length, "group_blocks": ()}
    images = InputSettings(size=pixels)
    return Work("pt-fedavg", settings, (model,), Iid(clients=64), samples=(1280, TESTS), input=images)


@dataclass(frozen=True)
class Curve:
    """What grows along a curve, and the work at each of its points.

    Attributes:
        axis, label: of the panel, and of the curve in it.
        values: what ``work`` is made from.
    """

    axis: str
    label: str
    values: Sequence[Any]
    work: Callable[[Any], Work]


CNN, VIT = "4-layer CNN, all weights trained", "ViT, prompts trained"
CURVES = {
    "clients": Curve("Clients per round", CNN, (1, 4, 16, 64), convnet),
    "prompted clients": Curve("Clients per round", VIT, (1, 4, 16, 64), prompted),
    "total": Curve("Clients in all", CNN, (100, 1_000, 10_000), lambda many: convnet(5, many, 5, 50_000)),
    "prompts": Curve("Prompts", VIT, (1, 5, 20, 50), lambda length: prompted(length=length)),
    # All of them have 16 patches.
    "model": Curve(
        "Parameters (M)", VIT, MODELS, lambda name: prompted(model=name, pixels=32 if "digits" in name else 64)
    ),
}


def measure(work: Work, engine: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """A point in this process: seconds of a round and of its participants, medians after the first round, and the
    most memory, in MiB, on top of what the loaded libraries take."""
    if device.type == "cpu":
        torch.set_num_threads(1)
    reset_peak_memory(device)
    before = peak_memory(device) or 0
    method = work.create()
    federation = work.federation(method, device)
    made = make_engine(method, federation, engine)
    played = Rounds(made, Draws(0))
    spent = [played.play() for _ in range(1 + rounds)][1:]
    return {
        "engine": made.name,
        "seconds": median(one["round"] for one in spent),
        "clients": median(one["clients"] for one in spent),
        # Linux counts a process's pages roughly, so an unchanged peak may read a few pages lower later.
        "memory": max(0, (peak_memory(device) or 0) - before) / 2**20,
        "parameters": federation.models[0].total_elements / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two points of each curve, one round; writes no files")
    parser.add_argument("--engine", default="auto", help="auto, sequential or batched")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    parser.add_argument(
        "--only", nargs="+", choices=CURVES, default=list(CURVES), help="some curves; writes no files"
    )
    arguments = parser.parse_args()
    device, rounds = torch.device(arguments.device), 1 if arguments.quick else 2
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["hetfl.training.engines", "hetfl.figures.style", "timm"])
    load, points = os.getloadavg()[0], []
    with ProcessPoolExecutor(1, processes, max_tasks_per_child=1) as pool:
        for name in arguments.only:
            curve = CURVES[name]
            for value in curve.values[: 2 if arguments.quick else None]:
                found = pool.submit(measure, curve.work(value), arguments.engine, rounds, device).result()
                points.append({"curve": name, "value": value, **found})
    text = report(points, rounds, device, load)
    print(text)
    if arguments.json:
        found = {"device": device_name(device), "versions": versions(), "points": points}
        write_text(arguments.json, json.dumps(found, indent=1) + "\n")
    if not arguments.quick and len(arguments.only) == len(CURVES):
        path = Path(__file__).with_name(f"scaling-{device.type}.svg")
        write_text(path.with_suffix(".md"), f"{text}\n\n![]({path.name})\n")
        draw(points, path)
        path.with_suffix(".png").unlink()


def place_of(point: dict[str, Any]) -> float:
    """The position of a point on its axis."""
    return point["parameters"] if point["curve"] == "model" else point["value"]


def report(points: list[dict[str, Any]], rounds: int, device: torch.device, load: float) -> str:
    """Table and ratios as Markdown."""
    rows, ratios = [], []
    for name, group in groupby(points, lambda point: point["curve"]):
        curve, along = CURVES[name], list(group)
        for point in along:
            shown = point["value"] if isinstance(point["value"], str) else f"{point['value']:,}"
            figures = [point[key] for key in ("seconds", "clients", "memory")]
            rows.append([curve.axis, curve.label, shown, *figures])
        first, last = along[0], along[-1]
        times = {key: f"{last[key] / first[key]:.3g}" for key in ("seconds", "memory")}
        ratios.append(
            f"- {curve.axis} ({curve.label}), times {place_of(last) / place_of(first):,.3g}: seconds times "
            f"{times['seconds']} (slope {slope(along):.2f}), memory times {times['memory']}."
        )
        if curve.axis == "Clients per round":
            each = [1000 * point["clients"] / point["value"] for point in along]
            ratios[-1] += f" A participant takes {min(each):.3g} to {max(each):.3g} ms."
    engines = ", ".join(dict.fromkeys(point["engine"] for point in points))
    threads = ", 1 thread" if device.type == "cpu" else ""
    return "\n\n".join(
        [
            "# Growth of a round's time and memory",
            f"{device_name(device)}{threads}, torch {torch.__version__}; engine: {engines}; load of the machine "
            f"before: {load:.1f}. Each row is measured in its own process. Seconds are medians over the {rounds} "
            f"rounds after the first one, of the whole round with a test on {TESTS} images, and of the participants' "
            "work in it. Memory is the peak, without the loaded libraries.",
            tabulate(
                rows,
                headers=["", "", "", "round (s)", "participants (s)", "memory (MiB)"],
                tablefmt="github",
                floatfmt=("", "", "", ".3f", ".3f", ".0f"),
            ),
            "\n".join(ratios),
            "A slope is the exponent with which time grows: 1 if twice as much takes twice as long, 0 if it takes as "
            "long.",
        ]
    )


def slope(points: list[dict[str, Any]]) -> float:
    """The exponent with which the time grows along the axis."""
    places, seconds = (np.log([place_of(point) for point in points]), np.log([point["seconds"] for point in points]))
    return float(np.polyfit(places, seconds, 1)[0])


def draw(points: list[dict[str, Any]], path: Path) -> None:
    """Plot one column per axis: seconds of a round at the top, memory below."""
    axes_of = list(dict.fromkeys(curve.axis for curve in CURVES.values()))
    looks = {label: (SERIES[n], MARKERS[n]) for n, label in enumerate((CNN, VIT))}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 5.2), layout="constrained")
        grid = figure.subplots(2, len(axes_of), sharex="col", sharey="row")
        handles: dict[str, Any] = {}
        for name, group in groupby(points, lambda point: point["curve"]):
            curve, along = CURVES[name], list(group)
            color, marker = looks[curve.label]
            column = grid[:, axes_of.index(curve.axis)]
            places = [place_of(point) for point in along]
            for axes, key in zip(column, ("seconds", "memory"), strict=True):
                (handles[curve.label],) = axes.plot(
                    places,
                    [point[key] for point in along],
                    color=color,
                    marker=marker,
                    markersize=5,
                    markeredgecolor=PAPER,
                    linewidth=1.6,
                )
                axes.set(xscale="log", yscale="log")
                axes.xaxis.set_major_locator(FixedLocator(places))
                axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.2g}" if x < 10 else f"{x:,.0f}"))
                axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if key == "memory" else (1.0,)))
                axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.6g}"))
                axes.xaxis.set_minor_locator(NullLocator())
                axes.yaxis.set_minor_formatter(NullFormatter())
            column[1].set_xlabel(curve.axis)
        grid[0, 0].set_ylabel("Seconds a round")
        grid[1, 0].set_ylabel("Peak memory (MiB)")
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=2)
        save(figure, path)


if __name__ == "__main__":
    main()
