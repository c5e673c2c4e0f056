"""The cost of clients that do not take part in a round: 10,000 clients against 100, five per round.

    python benchmarks/clients.py [--rounds 2] [--repeats 3]

It needs papers/data/cifar100 (dvc --cd papers repro download-cifar100) and writes a table beside this file. Each
client has five training samples, taken in order of labels. The 10,000 test images are divided among the clients, so
both sizes test the same images. Every case is a separate process with set-up, rounds, record and resume points. The
features by which FGPT assigns samples to groups are cached after the first case.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from tabulate import tabulate

from hetfl.data.partitions import Partition
from hetfl.data.store import Dataset, read_dataset
from hetfl.draws import Draws
from hetfl.experiments.cell import run_rounds
from hetfl.experiments.record import Record, device_name
from hetfl.files import write_text
from hetfl.methods import create
from hetfl.schema import Parameters, Run
from hetfl.training.engines import make_engine
from hetfl.training.federation import build_federation
from hetfl.training.memory import peak_memory
from hetfl.training.state import ResumePoints

PAPERS = Path(__file__).parents[1] / "papers"
METHODS = ("pt-fedavg", "fgpt")
CLIENTS = (100, 10_000)
SAMPLES, PARTICIPANTS = 5, 5
MODEL = "mini_vit.random"
DESCRIPTION = Run.model_construct(parameters=Parameters(trainable=[], total=[]))
"""Of a run that only this benchmark reads."""


def partition(dataset: Dataset, clients: int) -> Partition:
    """Equal shares of the indices sorted by label; fewer clients get shares at regular intervals."""

    def cut(split: str, size: int, shares: int) -> list[np.ndarray]:
        order = np.argsort(dataset.labels((split,)), kind="stable")[: size * shares]
        return np.split(order, shares)

    training = cut("train", SAMPLES, max(CLIENTS))[:: max(CLIENTS) // clients]
    tests = len(dataset.subset("test")) // clients
    return Partition(tuple(training), tuple(cut("test", tests, clients)))


def case(method: str, clients: int, rounds: int, features: Path) -> dict[str, float]:
    """Run one case in this process: seconds of set-up and of a round, peak memory in MiB."""
    torch.set_num_threads(1)
    dataset = read_dataset(PAPERS / "data" / "cifar100")
    started = time.perf_counter()
    made = create(method, {"rounds": rounds, "participation": PARTICIPANTS / clients}, dataset.num_classes)
    parts = partition(dataset, clients)
    cpu = torch.device("cpu")
    federation = build_federation(made, [MODEL], dataset, parts, PAPERS / "weights", cpu, features=features)
    engine = make_engine(made, federation, "sequential")
    with tempfile.TemporaryDirectory() as folder:
        record = Record(Path(folder) / "run")
        built = time.perf_counter()
        run_rounds(engine, Draws(0), record, ResumePoints(Path(folder) / "resume"), DESCRIPTION)
        ended = time.perf_counter()
        assert all(len(line.participants) == PARTICIPANTS for line in record.lines()[1:])
    peak = peak_memory(federation.device)
    return {
        "set-up": built - started,
        "round": (ended - built) / rounds,
        "memory": (peak or 0) / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", nargs=3, metavar=("METHOD", "CLIENTS", "FEATURES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        method, clients, folder = arguments.case
        print(json.dumps(case(method, int(clients), arguments.rounds, Path(folder))))
        return
    with tempfile.TemporaryDirectory() as features:
        for method in METHODS:  # features are computed once, and are part of no run
            run(method, min(CLIENTS), 1, features)
        compare(arguments.rounds, arguments.repeats, features)


def run(method: str, clients: int, rounds: int, features: str) -> dict[str, float]:
    """Run one case in a separate process."""
    command = [sys.executable, __file__, "--rounds", str(rounds), "--case", method, str(clients), features]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def compare(rounds: int, repeats: int, features: str) -> None:
    """Run all cases in turn, print their table and write it."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(repeats):
        for method in METHODS:
            for clients in CLIENTS:
                found.setdefault((method, clients), []).append(run(method, clients, rounds, features))
    rows = []
    for method in METHODS:
        few, many = (found[method, clients] for clients in CLIENTS)
        for name, unit in (("set-up", "s"), ("round", "s"), ("memory", "MiB")):
            ratio = median(b[name] / a[name] for a, b in zip(few, many, strict=True))
            rows.append(
                [method, f"{name} ({unit})", *(median(one[name] for one in runs) for runs in (few, many)), ratio]
            )
    text = "\n\n".join(
        [
            f"# Time of a round with {max(CLIENTS):,} clients and with {min(CLIENTS)}",
            f"{device_name(torch.device('cpu'))}, 1 thread, torch {torch.__version__}. CIFAR-100 at 32x32, mini_vit "
            f"with random weights. Each of {rounds} rounds has {PARTICIPANTS} clients with {SAMPLES} samples each, "
            "and a test on all 10,000 test images. The time of a round includes writing its record and its resume "
            "point. Memory is the peak of the whole process. The table shows medians over "
            f"{repeats} interleaved runs; a ratio is the median of the runs' ratios.",
            tabulate(
                rows,
                headers=["method", "", *(f"{clients:,} clients" for clients in CLIENTS), "ratio"],
                tablefmt="github",
                floatfmt=("", "", ".2f", ".2f", ".2f"),
            ),
        ]
    )
    print(text)
    write_text(Path(__file__).with_name("clients-cpu.md"), text + "\n")


if __name__ == "__main__":
    main()
