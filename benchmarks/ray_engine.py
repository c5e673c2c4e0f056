"""What the engine "ray" adds to a round, and what its server holds of the clients' messages.

    python benchmarks/ray_engine.py [--participants 10 100 1000] [--repeats 10]

needs the extra ray and no files, and writes its tables beside itself. The clients are those of participants.py:
FedAvg, noise, one step each. One actor trains the same clients as the sequential engine in this process, so the
difference is what messages in bytes and calls of actors cost; rounds of both alternate. For memory there are two
actors, and every case is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch
from participants import CPU, MODEL, WAYS, added, clients
from tabulate import tabulate

from hetfl.draws import Draws
from hetfl.experiments.record import device_name
from hetfl.files import write_text
from hetfl.training import rounds
from hetfl.training.engine import Engine
from hetfl.training.host import Host
from hetfl.training.ray import Actors, RaySettings
from hetfl.training.remote import RemoteEngine

MODELS, CLIENTS = (MODEL, "digits_cnn8.random", "digits_vit_large.random", "cnn.random"), 10
COUNTS = (1, 10, 50)


def host(participants: int, model: str, rounds: int) -> Host:
    """All clients, in an actor."""
    return Host(clients(participants, model, rounds), Draws(0))


def on_ray(participants: int, actors: int, model: str = MODEL, rounds: int = 1) -> RemoteEngine:
    """The clients of participants.py in actors."""
    here = clients(participants, model, rounds)
    settings = RaySettings(actors=actors)
    transport = Actors(partial(host, participants, model, rounds), [1.0] * participants, gpu=False, settings=settings)
    return RemoteEngine("ray", here.method, here.models, CPU, transport)


def timed(participants: int, model: str, repeats: int) -> dict[str, float]:
    """Seconds of a round here and with one actor, and the MB that cross; an actor gets the downlink once."""
    seconds: dict[str, list[float]] = {"here": [], "ray": []}
    with closing(on_ray(participants, 1, model, repeats + 2)) as remote:
        engines: dict[str, Engine] = {"here": clients(participants, model, repeats + 2), "ray": remote}
        servers = {name: rounds.start(engine, Draws(0))[0] for name, engine in engines.items()}
        for round in range(1, repeats + 2):
            for name, engine in engines.items():
                began = time.perf_counter()
                servers[name], line = rounds.play_round(engine, servers[name], Draws(0, round))
                seconds[name].append(time.perf_counter() - began)
    found = {name: min(times[1:]) for name, times in seconds.items()}
    return {**found, "MB": (line.up.bytes + line.down.bytes / participants) / 1e6}


def memory(participants: int, way: str) -> dict[str, float]:
    """MiB that a round adds to the peak of the server's resident memory, with two actors, in a process of its own."""
    command = [sys.executable, __file__, "--case", str(participants), way]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--participants", type=int, nargs="+", default=[10, 100, 1_000])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--case", nargs=2, metavar=("PARTICIPANTS", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        many, way = arguments.case
        with closing(on_ray(int(many), 2)) as engine:
            print(json.dumps(added(engine, int(many), way)))
        return
    held = {(many, way): memory(many, way)["MiB"] for many in arguments.participants for way in WAYS}
    began = time.perf_counter()
    on_ray(CLIENTS, 1).close()
    start = time.perf_counter() - began
    cases = [(many, MODEL) for many in COUNTS] + [(CLIENTS, model) for model in MODELS[1:]]
    times = {case: timed(*case, arguments.repeats) for case in cases}
    # Milliseconds that a round, a client and a MB each add, by least squares.
    parts = np.array([[1.0, many, found["MB"]] for (many, _), found in times.items()])
    more = np.array([1000 * (found["ray"] - found["here"]) for found in times.values()])
    (of_round, of_client, of_size), *_ = np.linalg.lstsq(parts, more, rcond=None)
    rows = [
        [model, many, found["MB"], 1000 * found["here"], 1000 * found["ray"], 1000 * (found["ray"] - found["here"])]
        for (many, model), found in times.items()
    ]
    text = "\n\n".join(
        [
            '# The engine "ray": overhead and the server\'s memory',
            f"{device_name(CPU)}, 1 thread, torch {torch.__version__}, Python {sys.version.split()[0]}. FedAvg, one "
            f"step a client; the fastest of {arguments.repeats} rounds without a test. MB are those that cross "
            "between server and actor in a round: every uplink, and the downlink once. Starting Ray and the first "
            f"actor takes {start:.1f} s; later runs of the process use them again.",
            tabulate(
                rows,
                headers=["model", "clients", "MB", "sequential (ms)", "ray, 1 actor (ms)", "difference (ms)"],
                tablefmt="github",
                floatfmt=("", "", ".2f", ".1f", ".1f", ".1f"),
            ),
            f"By least squares over these rows: {of_round:.1f} ms a round, {of_client:.2f} ms a client and "
            f"{of_size:.1f} ms a MB.",
            "By how many MiB a round with two actors raises the peak of the server process's resident memory, if the "
            "server adds each message to FedAvg's mean when it arrives, and if it keeps all of them to compare them:",
            tabulate(
                [[f"{many:,}", *(held[many, way] for way in WAYS)] for many in arguments.participants],
                headers=["participants", *(f"{way} (MiB)" for way in WAYS)],
                tablefmt="github",
                floatfmt=("", ".1f", ".1f"),
            ),
        ]
    )
    print(text)
    write_text(Path(__file__).with_name("ray-cpu.md"), text + "\n")


if __name__ == "__main__":
    main()
