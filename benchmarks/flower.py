"""What a question to clients on a network costs beyond their work: time, by nodes and bytes, and memory.

    python benchmarks/flower.py [--nodes 5 10] [--megabytes 0.001 1 10] [--repeats 10] [--poll 1.0]

needs the extra flower and no files, and writes its table beside itself. Each node is a link and, in the place of its
worker, a process that gives back the bytes that it gets; all are on this machine, over TLS. A round of training asks
twice: to train and to test. With --megabytes 330 a message is as large as a whole ViT-B.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import psutil
import yaml
from tabulate import tabulate

from hetfl.deploy.certs import make_certificates
from hetfl.deploy.handover import serve
from hetfl.deploy.processes import end_with_parent, free_port
from hetfl.deploy.settings import read_server
from hetfl.deploy.superlink import environment
from hetfl.deploy.transport import FlowerTransport
from hetfl.files import write_text


class Nodes:
    """Nodes on this machine, and a server's transport to them."""

    def __init__(self, folder: Path, count: int, poll: float) -> None:
        names = [f"node-{number}" for number in range(count)]
        make_certificates(folder / "certs", ["127.0.0.1"], names)
        for file in ("params.yaml", "data/card.json"):
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text("{}")
        address = f"127.0.0.1:{free_port()}"
        both = {"project": ".", "authority": "certs/authority.crt"}
        members = {name: {"key": f"certs/{name}.pub", "clients": [k]} for k, name in enumerate(names)}
        server = {**both, "address": address, "run": ["none"], "folder": "server", "nodes": members}
        server |= {"certificate": "certs/server.crt", "key": "certs/server.key"}
        (folder / "server.yaml").write_text(yaml.safe_dump({"server": server}))
        began = time.perf_counter()
        self.processes: dict[str, psutil.Popen] = {}
        self.transport = FlowerTransport(read_server(folder / "server.yaml"))  # admits the nodes that come next
        for client, name in enumerate(names):
            node = {**both, "name": name, "server": address, "key": f"certs/{name}.key", "poll": poll}
            node |= {"folder": name, "clients": {client: "data"}}
            path = folder / f"{name}.yaml"
            path.write_text(yaml.safe_dump({"node": node}))
            self._start(f"worker of {name}", [__file__, "--echo", str(folder / name / "worker.sock")], folder / name)
            self._start(f"link of {name}", ["-m", "hetfl.deploy.link", str(path)], folder / name)
        self.transport.wait_for_nodes(None)
        self.started = time.perf_counter() - began

    def _start(self, name: str, command: list[str], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        with (folder / "log").open("ab") as log:
            env = environment(folder)
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

    def memory(self) -> dict[str, float]:
        """Peak resident memory in MB, of the largest process of a kind."""
        found: Counter[str] = Counter()
        (superlink,) = (child for child in psutil.Process().children() if "hetfl.deploy.superlink" in child.cmdline())
        processes = {**self.processes, "SuperLink": superlink, "server": psutil.Process()}
        for name, process in processes.items():
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
            kind = name.partition(" ")[0]
            found[kind] = max(found[kind], round(peak * 1024 / 1e6))
        return dict(found)

    def close(self) -> None:
        """End all processes."""
        self.transport.close()
        for process in self.processes.values():
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.001, 1, 10])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--poll", type=float, default=1.0)
    parser.add_argument("--echo", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--show", action="store_true", help="only print")
    arguments = parser.parse_args()
    if arguments.echo:
        end_with_parent()
        serve(arguments.echo, lambda header, body: bytes(body))
    rows = []
    for count in arguments.nodes:
        with tempfile.TemporaryDirectory() as folder:
            nodes = Nodes(Path(folder), count, arguments.poll)
            try:
                nodes.ask(b"first")
                for size in arguments.megabytes:
                    body = os.urandom(round(size * 1e6))
                    seconds = [nodes.ask(body) for _ in range(arguments.repeats)]
                    memory = ", ".join(f"{kind} {peak:.0f}" for kind, peak in nodes.memory().items())
                    rows.append((count, size, median(seconds), min(seconds), max(seconds), nodes.started, memory))
                    print(rows[-1], file=sys.stderr, flush=True)
            finally:
                nodes.close()
    headers = ["nodes", "MB each way", "question (s)", "fastest", "slowest", "start (s)", "peak memory (MB)"]
    table = tabulate(rows, headers=headers, tablefmt="github", floatfmt=("", "g", ".2f", ".2f", ".2f", ".0f", ""))
    load = f"{len(os.sched_getaffinity(0))} cores at load {os.getloadavg()[1]:.0f}"
    text = (
        f"# Messages over Flower\n\nFlower 1.41.0, TLS and authenticated nodes on one machine, {load}; median of "
        f"{arguments.repeats} questions to all nodes, longest wait for work {arguments.poll:g} s.\n\n{table}\n"
    )
    print(text)
    if not arguments.show:
        write_text(Path(__file__).with_name("flower.md"), text)


if __name__ == "__main__":
    main()
