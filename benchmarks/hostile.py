"""Accuracy of FedAvg on the digits against the share of hostile clients, by the server's rule.

    python benchmarks/hostile.py [--seeds 3] [--rounds 12]

It needs the embedded default's digits (dvc repro download-digits) and writes the table beside this file. Ten clients
with equal shares of the digits train a small CNN. Hostile ones train like the others and send something else, which
keeps to the contract of the messages, but for the last row.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from tabulate import tabulate

from hetfl.data.partitions import Iid, make_partition
from hetfl.data.store import Dataset, read_dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments.record import device_name
from hetfl.files import write_text
from hetfl.message import Message
from hetfl.methods import create
from hetfl.training.engine import Task, Update
from hetfl.training.engines import make_engine
from hetfl.training.federation import build_federation
from hetfl.training.local import LocalEngine
from hetfl.training.rounds import play_round, start

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
CLIENTS = 10
SHARES = (0, 1, 2, 3, 4)
"""Hostile clients of the ten."""

LIMIT = 0.5
"""Of the norm of a change; chosen for this very task."""
LIMITED = f"changes of norm {LIMIT} at most"
RULES: dict[str, dict[str, Any]] = {
    "mean": {},
    LIMITED: {"largest_change": LIMIT},
    "trimmed mean, 20 % at either end": {"combine": "trimmed", "trim": 0.2},
    "median": {"combine": "median"},
}


def flipped(message: Message, before: Message) -> Message:
    """The change, three times as large and in the other direction."""
    return Message({name: before[name] - 3 * (tensor - before[name]) for name, tensor in message.items()})


def noise(message: Message, before: Message) -> Message:
    """Normal values of standard deviation 1."""
    generator = torch.Generator().manual_seed(0)
    return Message({name: torch.randn(tensor.shape, generator=generator) for name, tensor in message.items()})


def not_finite(message: Message, before: Message) -> Message:
    """NaN."""
    return Message({name: torch.full_like(tensor, torch.nan) for name, tensor in message.items()})


ATTACKS = {"change x -3": flipped, "normal noise": noise, "NaN": not_finite}


class Attacked(LocalEngine):
    """Clients that belong to others; the first ``hostile`` ones send what an attack makes of their uplinks."""

    remote = True

    def __init__(self, engine: LocalEngine, hostile: int, attack: Any) -> None:
        super().__init__(engine.method, engine.federation, engine.trainer)
        self.hostile, self.attack = hostile, attack

    def train(self, tasks: Iterable[Task], draws: Draws) -> Iterator[Update]:
        """See :meth:`Engine.train`."""
        tasks = list(tasks)
        before = {task.client: task.downlink for task in tasks}
        for update in super().train(tasks, draws):
            if update.client < self.hostile:
                update = replace(update, uplink=self.attack(update.uplink, before[update.client]))
            yield update


def accuracy(dataset: Dataset, hostile: int, attack: Any, rule: dict[str, Any], seed: int, rounds: int) -> float:
    """Of the global model after the last round, in percent; NaN if honest clients diverged, so that the run ended."""
    settings = {"rounds": rounds, "participation": 1.0, "lr": 0.1, "evaluate_every": rounds, **rule}
    method = create("fedavg", settings, dataset.num_classes, seed=seed)
    partition = make_partition(Iid(clients=CLIENTS), dataset, Draws(seed))
    federation = build_federation(method, ["digits_cnn1"] * CLIENTS, dataset, partition, ROOT / "weights", CPU)
    engine = Attacked(make_engine(method, federation, "sequential"), hostile, attack)
    draws = Draws(seed)
    server, _ = start(engine, draws)
    for round in range(1, rounds + 1):
        try:
            server, line = play_round(engine, server, draws.at(round), needed=CLIENTS - hostile)
        except HetflError:
            return math.nan
    assert line.pooled is not None
    return 100 * line.pooled


def main() -> None:
    """Play all of it and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = read_dataset(ROOT / "data" / "digits")
    rows = []
    unharmed: dict[str, float] = {}
    for name, attack in ATTACKS.items():
        for told, rule in RULES.items() if attack is not not_finite else [("mean", RULES["mean"])]:
            found = [
                mean(
                    accuracy(dataset, hostile, attack, rule, seed, arguments.rounds)
                    for seed in range(arguments.seeds)
                )
                for hostile in SHARES
            ]
            unharmed[told] = round(found[0], 1)
            rows.append([name, told, *("ended" if math.isnan(value) else f"{value:.1f}" for value in found)])
            print(*rows[-1], sep="  ", flush=True)
    head = ["hostile clients send", "rule", *(f"{10 * hostile} %" for hostile in SHARES)]
    table = tabulate(rows, head, tablefmt="github", disable_numparse=True)
    text = f"""# Hostile clients

Accuracy of FedAvg in percent on the digits' test samples, by the share of hostile clients and the server's rule; mean
of {arguments.seeds} seeds, {arguments.rounds} rounds, {CLIENTS} clients, all of which take part.
`python benchmarks/hostile.py` writes this page.

{table}

"ended": honest clients diverged in a run, so that it had too few valid uplinks and ended with a line. A message with
NaN breaks the contract of the method's messages: it is rejected, and the round goes on without it. All others keep to
the contract, and only the rule can help.

The limit {LIMIT} was chosen for this very task, so its rows are better than what to expect elsewhere. Without
attackers it costs {unharmed["mean"] - unharmed[LIMITED]:.1f} points. Computed on {device_name(CPU)}.
"""
    write_text(Path(__file__).with_suffix(".md"), text)


if __name__ == "__main__":
    main()
