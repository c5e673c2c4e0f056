"""What clients on a network cost beyond their work: time, by nodes, bytes and backbone, and memory.

    python benchmarks/flower.py [--nodes 5 10 20 50] [--megabytes 0.001 1] [--repeats 5] [--backbone NAME] [--poll 1]

needs the extra flower and no files, and writes its page beside itself. All nodes are on this machine, over TLS. For
the series each is a link and, in the place of its worker, a process without torch that gives back the bytes that it
gets, so that fifty of them fit; one message is as large as a whole ViT-B. For the backbone two real nodes train it by
FedHPL with random weights and a handful of noise images. Every case is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
import yaml
from tabulate import tabulate

from hetfl.data.store import Subset, write_dataset
from hetfl.deploy.cards import client_card, write_cards
from hetfl.deploy.certs import make_certificates
from hetfl.deploy.play import play
from hetfl.deploy.processes import free_port
from hetfl.deploy.settings import read_server
from hetfl.deploy.superlink import environment
from hetfl.deploy.transport import FlowerTransport
from hetfl.experiments.events import Event
from hetfl.experiments.plan import Workspace, cells, load_params
from hetfl.experiments.record import device_name
from hetfl.files import write_json, write_text

ECHO = """
import sys
from pathlib import Path
from hetfl.deploy.handover import serve
from hetfl.deploy.processes import end_with_parent
end_with_parent()
serve(Path(sys.argv[1]), lambda header, body: bytes(body))
"""
WHOLE = 330.0
"""MB of a message as large as a whole ViT-B."""
SERIES = 50
"""The most nodes whose messages are fitted by a line; beyond them the machine has other limits."""
CLIENTS, ROUNDS, CLASSES, SIDE = 2, 3, 10, 32
TRAIN, TEST = 4, 2
"""Noise images of a client of the backbone."""


Row = dict[str, Any]


def params(backbone: str) -> dict[str, Any]:
    """A project with one cell: FedHPL with a backbone."""
    return {
        "compute": {"device": "cpu", "jobs": 1},
        "data": {"digits": {"public": 100, "test": 300}},
        "partitions": {"digits": {"seeds": 1, "splits": {"iid": {"scheme": "iid", "clients": CLIENTS}}}},
        "models": {"one": [backbone]},
        "experiments": {
            "large": {
                "title": "A backbone",
                "dataset": "digits",
                "models": "one",
                "splits": {"iid": "IID"},
                "seeds": 1,
                "rows": {"fedhpl": {}},
                "defaults": {"rounds": ROUNDS, "local_epochs": 1, "batch_size": TRAIN // 2},
            }
        },
    }


class Nodes:
    """Nodes on this machine, and a server's transport to them.

    Args:
        folder: for everything.
        count: how many; each has one client.
        poll: the longest time between two of a node's questions for work.
        project: what params.yaml says; without it, workers only give back what they get.
    """

    def __init__(self, folder: Path, count: int, poll: float, project: dict[str, Any] | None = None) -> None:
        names = [f"node-{number}" for number in range(count)]
        make_certificates(folder / "certs", ["127.0.0.1"], names)
        write_text(folder / "params.yaml", yaml.safe_dump(project or {}))
        for client in range(count):
            write_noise(folder / f"noise/client-{client}", client) if project else write_json(
                folder / f"noise/client-{client}/card.json", {}
            )
        address = f"127.0.0.1:{free_port()}"
        both = {"project": ".", "authority": "certs/authority.crt"}
        members = {name: {"key": f"certs/{name}.pub", "clients": [k]} for k, name in enumerate(names)}
        server = {**both, "address": address, "run": ["large"], "folder": "server", "nodes": members}
        server |= {"certificate": "certs/server.crt", "key": "certs/server.key"}
        write_text(folder / "server.yaml", yaml.safe_dump({"server": server}))
        began = time.perf_counter()
        self.processes: dict[str, psutil.Popen] = {}
        self.transport = FlowerTransport(read_server(folder / "server.yaml"))  # admits the nodes that come next
        for client, name in enumerate(names):
            node = {**both, "name": name, "server": address, "key": f"certs/{name}.key", "poll": poll}
            node |= {"folder": name, "clients": {client: f"noise/client-{client}"}, "device": "cpu"}
            path = folder / f"{name}.yaml"
            write_text(path, yaml.safe_dump({"node": node}))
            work = (
                ["-m", "hetfl.deploy.worker", str(path)]
                if project
                else ["-c", ECHO, str(folder / name / "worker.sock")]
            )
            self._start(f"worker of {name}", work, folder / name)
            self._start(f"link of {name}", ["-m", "hetfl.deploy.link", str(path)], folder / name)
        self.transport.wait_for_nodes(None)
        self.started = time.perf_counter() - began

    def _start(self, name: str, command: list[str], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        with (folder / "log").open("ab") as log:
            env = environment(folder) | {"OMP_NUM_THREADS": "1"}
            self.processes[name] = psutil.Popen([sys.executable, *command], env=env, stdout=log, stderr=log)

    def ask(self, body: bytes) -> float:
        """Seconds until all nodes have given back some bytes."""
        began = time.perf_counter()
        for name in self.transport.clients:
            self.transport.send(name, body)
        for _ in self.transport.clients:
            found = self.transport.receive([*self.transport.clients], None)
            assert found is not None and found[1] == body
        return time.perf_counter() - began

    def memory(self) -> str:
        """Peak resident memory in MB, of the largest process of a kind."""
        found: Counter[str] = Counter()
        (superlink,) = (child for child in psutil.Process().children() if "hetfl.deploy.superlink" in child.cmdline())
        processes = {**self.processes, "SuperLink": superlink, "server": psutil.Process()}
        # A link's connection is a process that it has started.
        every = [(name, one) for name, process in processes.items() for one in (process, *_own(name, process))]
        for name, process in every:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
            kind = name.partition(" ")[0]
            found[kind] = max(found[kind], round(peak * 1024 / 1e6))
        return ", ".join(f"{kind} {peak}" for kind, peak in found.items())

    def close(self) -> None:
        """End all processes."""
        self.transport.close()
        for process in self.processes.values():
            process.kill()
            process.wait()


def _own(name: str, process: psutil.Process) -> list[psutil.Process]:
    return process.children() if name.startswith("link") else []


def write_noise(folder: Path, client: int) -> None:
    """A client's prepared data set, of noise."""
    draw = np.random.default_rng(client)

    def subset(size: int) -> Subset:
        images = draw.integers(0, 256, (size, SIDE, SIDE, 3), dtype=np.uint8)
        return Subset(images, np.arange(size, dtype=np.int64) % CLASSES)

    about = {"name": "digits", "title": "Noise", "origin": "", "licence": "", "source": [], "settings": {}}
    subsets = {"train": subset(TRAIN), "test": subset(TEST)}
    write_dataset(folder, **about, class_names=tuple(map(str, range(CLASSES))), subsets=subsets)


def questions(count: int, megabytes: list[float], repeats: int, poll: float) -> list[Row]:
    """Questions of some sizes to all of some nodes."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        nodes = Nodes(Path(folder), count, poll)
        try:
            nodes.ask(b"first")
            for size in megabytes:
                body = os.urandom(round(size * 1e6))
                seconds = [nodes.ask(body) for _ in range(repeats)]
                found.append({"nodes": count, "MB": size, "seconds": seconds, "start": nodes.started})
                found[-1]["memory"] = nodes.memory()
        finally:
            nodes.close()
    return found


def trained(backbone: str, poll: float) -> list[Row]:
    """Rounds of FedHPL with a backbone on real nodes: the seconds of each, and those of its nodes' workers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nodes = Nodes(folder, CLIENTS, poll, params(backbone))
        rounds: list[Row] = []
        try:
            cards = [folder / f"{client}.json" for client in range(CLIENTS)]
            for client, path in enumerate(cards):
                noise = client_card(client, "digits", folder / f"noise/client-{client}")
                write_json(path, noise.model_dump(mode="json"))
            workspace, settings = Workspace(folder), load_params(folder / "params.yaml")
            write_cards(cards, "iid", workspace, settings)
            last = [time.perf_counter()]

            def note(event: Event) -> None:
                now = time.perf_counter()
                for line in event.rounds:
                    worked = max(node["worked"] for node in line.nodes.values())
                    carried = sum(node["up"] + node["down"] for node in line.nodes.values()) / 1e6
                    rounds.append({"round": line.round, "seconds": now - last[0], "worked": worked, "MB": carried})
                    last[0] = now

            (cell,) = cells(settings, "large")
            play(cell, workspace, torch.device("cpu"), settings.compute, nodes.transport, callback=note)
            memory = nodes.memory()
        finally:
            nodes.close()
    return [{**one, "memory": memory} for one in rounds]


def case(*arguments: Any) -> list[Row]:
    """One of the two functions above, in a process of its own."""
    command = [sys.executable, __file__, "--case", json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: list[Row] = json.loads(done.stdout.splitlines()[-1])
    for row in found:
        print(row, file=sys.stderr, flush=True)
    return found


def page(series: Sequence[Row], rounds: Sequence[Row], arguments: argparse.Namespace, load: float) -> str:
    """The page, with the lines that fit its numbers."""
    few = [row for row in series if row["MB"] != WHOLE and row["nodes"] <= SERIES]
    parts = np.array([[row["nodes"], row["nodes"] * row["MB"]] for row in few])
    (each, size), *_ = np.linalg.lstsq(parts, np.array([median(row["seconds"]) for row in few]), rcond=None)
    questioned = tabulate(
        [
            (row["nodes"], row["MB"], median(own := row["seconds"]), min(own), max(own), row["start"], row["memory"])
            for row in series
        ],
        headers=["nodes", "MB each way", "question (s)", "fastest", "slowest", "start (s)", "peak memory (MB)"],
        tablefmt="github",
        floatfmt=("", "g", ".2f", ".2f", ".2f", ".0f", ""),
    )
    played = tabulate(
        [(row["round"], row["seconds"], row["worked"], row["seconds"] - row["worked"], row["MB"]) for row in rounds],
        headers=["round", "seconds", "of the slowest worker", "of all else", "MB carried"],
        tablefmt="github",
        floatfmt=("", ".1f", ".1f", ".1f", ".3f"),
    )
    machine = f"{device_name(torch.device('cpu'))}, {len(os.sched_getaffinity(0))} cores at load {load:.1f}"
    return "\n\n".join(
        [
            "# Messages over Flower",
            f"{machine}; Flower 1.41.0, TLS and authenticated nodes, all on one machine; longest wait for work "
            f"{arguments.poll:g} s.",
            "## What a question costs",
            f"Median of {arguments.repeats} questions to all nodes; a single question where a message is as large as "
            "a whole ViT-B. The workers here have no torch and only give bytes back, and the start is that of all "
            "processes until the nodes are admitted; a worker of a real node also imports torch and loads its model.",
            questioned,
            f"By least squares over the rows up to {SERIES} nodes, without the whole ViT-B: {1000 * each:.0f} ms a "
            f"question and node, and {1000 * size:.0f} ms a MB that goes both ways between the server and one node. "
            "In one process a question costs none of that. A round asks twice, to train and to test: "
            f"{2000 * each:.0f} ms a node more than in one process, besides the MB.",
            f"## A round with {arguments.backbone}",
            f"{CLIENTS} nodes with one client each, random weights, FedHPL: prompts and the head train, logits "
            f"travel. {TRAIN} noise images to train and {TEST} to test, 1 thread a worker. Round 0 begins when all "
            "nodes are admitted and has the loading of the model at server and nodes; the slowest worker's seconds "
            "are those of its two answers in a round.",
            played,
            f"Peak memory in MB: {rounds[0]['memory']}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[5, 10, 20, 50])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.001, 1])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--backbone", default="vit_large_patch16_224.random")
    parser.add_argument("--poll", type=float, default=1.0)
    parser.add_argument("--show", action="store_true", help="only print")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        name, *given = arguments.case
        print(json.dumps({"questions": questions, "trained": trained}[name](*given)))
        return
    load = os.getloadavg()[0]
    sizes, repeats, poll = arguments.megabytes, arguments.repeats, arguments.poll
    series = [row for count in arguments.nodes for row in case("questions", count, sizes, repeats, poll)]
    series += case("questions", 1, [WHOLE], 1, poll)
    text = page(series, case("trained", arguments.backbone, poll), arguments, load)
    print(text)
    if not arguments.show:
        write_text(Path(__file__).with_name("flower.md"), text + "\n")


if __name__ == "__main__":
    main()
