"""What MLflow costs a round: the same training on one processor core, with and without the mirror.

    python benchmarks/mirror.py [--repeats 5] [--rounds 100] [--project FOLDER] [--json FILE]

It needs the embedded default's digits (dvc repro partition@digits) in the project and writes a table beside this
file. Each run is a process of its own in a temporary folder, pinned to one core, that trains a cell of FedAvg.
MLflow's database is SQLite and exists before. Runs with and without the mirror alternate, so that changes of the
machine's speed affect both. A round's time is that between the ends of two rounds, without the first ten.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
from tabulate import tabulate

from hetfl.experiments.cell import run_cell
from hetfl.experiments.events import Event
from hetfl.experiments.plan import ComputeSettings, Workspace, cells, load_params, pick
from hetfl.experiments.record import device_name
from hetfl.files import write_text
from hetfl.tracking import Apart, MlflowMirror, following

ROOT = Path(__file__).parents[1]
TARGET = 0.05
SKIPPED = 10


def train(project: Path, rounds: int, mirrored: bool) -> None:
    """Train in this process and print the seconds from round to round."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    cell = pick(cells(load_params(project / "params.yaml"), "digits-homogeneous"), row="fedavg")[0]
    cell = cell.model_copy(update={"settings": {**cell.settings, "rounds": rounds}})
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("data", "partitions", "weights", "params.yaml"):
            (root / name).symlink_to(project.resolve() / name)
        if mirrored:
            MlflowMirror(root).open()
        ends: list[float] = []

        def ended(event: Event) -> None:
            if event.rounds:
                ends.append(time.perf_counter())
            if tell is not None:
                tell(event)

        with following([Apart(partial(MlflowMirror, root))] if mirrored else []) as tell:
            run_cell(cell, Workspace(root), torch.device("cpu"), ComputeSettings(), ended)
    print(json.dumps([later - earlier for earlier, later in zip(ends[SKIPPED:], ends[SKIPPED + 1 :], strict=False)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--project", type=Path, default=ROOT)
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    parser.add_argument("--train", choices=["alone", "mirrored"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.project, arguments.rounds, arguments.train == "mirrored")
        return
    found: dict[str, list[float]] = {"alone": [], "mirrored": []}
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    for _ in range(arguments.repeats):
        for way, means in found.items():
            rest = ["--rounds", str(arguments.rounds), "--project", str(arguments.project)]
            command = [sys.executable, __file__, "--train", way, *rest]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            seconds = json.loads(done.stdout.splitlines()[-1])
            means.append(sum(seconds) / len(seconds))
    costs = sorted(with_it / bare - 1 for bare, with_it in zip(found["alone"], found["mirrored"], strict=True))
    cost = median(costs)
    rows = [
        ["alone", 1000 * median(found["alone"]), None, None, None],
        [
            "mirrored",
            1000 * median(found["mirrored"]),
            f"{cost:.1%}",
            f"{costs[0]:.1%} to {costs[-1]:.1%}",
            "met" if cost <= TARGET else "missed",
        ],
    ]
    text = "\n\n".join(
        [
            "# What MLflow costs a round",
            f"{device_name(torch.device('cpu'))}, one core, torch {torch.__version__}. FedAvg on digits, "
            f"{arguments.rounds} rounds, {arguments.repeats} alternating runs; the cost is the median of the runs' "
            f"costs. The target is {TARGET:.0%} at most.",
            tabulate(rows, ["", "round, ms", "cost", "spread", ""], tablefmt="github", floatfmt=".1f"),
        ]
    )
    print(text)
    write_text(Path(__file__).with_name("mirror-cpu.md"), text + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
