"""What the server holds of a round's messages, taken in one by one or all at once, with up to 10,000 participants.

    python benchmarks/participants.py [--participants 100 1000 10000]

needs no files and writes its table beside itself. FedAvg trains a small network; every participant has two samples of
noise and takes one step. Every case is a process of its own, and plays one round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from tabulate import tabulate

from hetfl.data.partitions import Partition
from hetfl.data.store import Dataset, Subset
from hetfl.draws import Draws
from hetfl.experiments.record import device_name
from hetfl.files import write_text
from hetfl.methods import create
from hetfl.training import rounds
from hetfl.training.engine import Engine, Task
from hetfl.training.engines import make_engine
from hetfl.training.federation import build_federation
from hetfl.training.local import LocalEngine
from hetfl.training.memory import peak_memory, reset_peak_memory

MODEL, CLASSES, SIDE = "digits_cnn1.random", 10, 16
SAMPLES, TESTS = 2, 100
WAYS = ("one by one", "all held")
CPU = torch.device("cpu")


def clients(participants: int, model: str = MODEL, rounds: int = 1) -> LocalEngine:
    """FedAvg's clients with a few samples of noise each, who train one after another; a test after the last round."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)

    def subset(samples: int) -> Subset:
        images = rng.integers(0, 256, (samples, SIDE, SIDE, 1), dtype=np.uint8)
        return Subset(images, np.arange(samples, dtype=np.int64) % CLASSES)

    subsets = {"train": subset(SAMPLES * participants), "test": subset(TESTS)}
    dataset = Dataset("noise", "Noise", tuple(map(str, range(CLASSES))), subsets, "noise")
    partition = Partition(tuple(np.arange(SAMPLES * participants).reshape(participants, SAMPLES)), None)
    settings = {"batch_size": SAMPLES, "local_epochs": 1, "optimiser": "sgd"}
    method = create("fedavg", {**settings, "rounds": rounds, "evaluate_every": rounds}, CLASSES)
    return make_engine(method, build_federation(method, [model], dataset, partition, Path(), CPU), "sequential")


def case(participants: int, way: str) -> dict[str, float]:
    """One round in this process: MiB that it adds to the peak of resident memory, and the bytes of a message."""
    return added(clients(participants), participants, way)


def added(engine: Engine, participants: int, way: str) -> dict[str, float]:
    """See :func:`case`, of an engine whose clients may be in other processes."""
    method = engine.method
    server, _ = rounds.start(engine, Draws(0))
    # Whatever a first step leaves in memory.
    list(engine.train([Task(0, method.downlink(server, 0))], Draws(0).at(1)))
    if way == "all held":
        method.compared = tuple(method.downlink(server, 0))  # as if the record compared everything that is sent
    reset_peak_memory(CPU)
    before = peak_memory(CPU)
    _, line = rounds.play_round(engine, server, Draws(0).at(1))
    after = peak_memory(CPU)
    assert len(line.participants) == participants
    assert before is not None and after is not None, "this system tells no peak of memory"
    return {"MiB": (after - before) / 2**20, "bytes": line.up.bytes / participants}


def run(participants: int, way: str) -> dict[str, float]:
    """One case in a process of its own."""
    command = [sys.executable, __file__, "--case", str(participants), way]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--participants", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--case", nargs=2, metavar=("PARTICIPANTS", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        participants, way = arguments.case
        print(json.dumps(case(int(participants), way)))
        return
    found = {(many, way): run(many, way) for many in arguments.participants for way in WAYS}
    rows = [[f"{many:,}", *(found[many, way]["MiB"] for way in WAYS)] for many in arguments.participants]
    message = next(iter(found.values()))["bytes"] / 2**10
    text = "\n\n".join(
        [
            "# Memory of a round by number of participants",
            f"{device_name(CPU)}, 1 thread, torch {torch.__version__}, Python {sys.version.split()[0]}; engine: "
            f"sequential. FedAvg, {MODEL}, {message:.0f} KiB a message, {SAMPLES} samples a participant. The table "
            "shows by how many MiB one round raises the process's peak of resident memory: if the server adds each "
            "message to FedAvg's mean when it arrives, and if it keeps all messages until the last one.",
            tabulate(
                rows,
                headers=["participants", *(f"{way} (MiB)" for way in WAYS)],
                tablefmt="github",
                floatfmt=("", ".1f", ".1f"),
            ),
        ]
    )
    print(text)
    write_text(Path(__file__).with_suffix(".md"), text + "\n")


if __name__ == "__main__":
    main()
