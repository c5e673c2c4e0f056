"""What goes wrong between machines costs time, or a client its part in a round, and no record its truth.

Two deployments: one whose server waits for its nodes, and one that goes on without them. The table says what was done
to them, how often, what came of it, and what was lost.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import digits_project
import pytest
import yaml
from tabulate import tabulate

pytest.importorskip("flwr")
from bad_network import BadNetwork  # noqa: E402
from flower_deployment import Deployment  # noqa: E402
from lossy_link import LossyLink  # noqa: E402

from hetfl.deploy.certs import make_certificates  # noqa: E402
from hetfl.deploy.handover import listens  # noqa: E402
from hetfl.deploy.processes import MISTAKE  # noqa: E402
from hetfl.deploy.superlink import TAKEN  # noqa: E402
from hetfl.schema import read_rounds, read_run  # noqa: E402

pytestmark = pytest.mark.distributed
HOSTILE = Path(__file__).parent / "hostile_worker.py"
DEADLINE = 120
"""Seconds for the answers of a round. Registration is one, and on a busy machine workers take a minute to begin."""
ROWS: list[tuple[str, int, str, str]] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    print("\n" + tabulate(ROWS, headers=["fault", "tries", "outcome", "lost"]))


def same(deployment: Deployment, cell, lines) -> bool:
    """Whether a record is that of one process."""
    bare = {"seconds": {}, "peak_memory": None, "nodes": {}}
    folder = deployment.folder / "server" / "runs" / cell.path
    return [line.model_copy(update=bare).model_dump() for line in read_rounds(folder, finished=True)] == lines


def test_an_answer_that_takes_more_than_a_minute_is_waited_for(digits, sequential, tmp_path):
    """Flower gives up a message of whose answer it hears nothing for a minute."""
    cell = digits_project.cells_of(digits)["scaffold"]
    with Deployment(digits, [cell], tmp_path / "deployment", nodes=2, missing="wait", insecure=True) as deployment:
        deployment.begin()
        deployment.until(lambda: deployment.lines(cell) >= 1, 240, "the start")
        began = time.monotonic()
        deployment.signal("node-1", "worker", signal.SIGSTOP)
        time.sleep(75)
        deployment.signal("node-1", "worker", signal.SIGCONT)
        assert deployment.ended("server", 300) == 0, deployment.log("server")[-3000:]
        assert same(deployment, cell, sequential("scaffold")[0])
        took = time.monotonic() - began
        ROWS.append(("an answer takes 75 s (scaffold)", 1, f"record bit-identical, after {took:.0f} s", "nothing"))


def test_a_server_that_waits_loses_nothing(digits, sequential, tmp_path):
    every = digits_project.cells_of(digits)
    cells = [every[name] for name in ("scaffold", "fedhpl", "fedavg", "fedtgp", "sgpt", "fedmd")]
    folder = tmp_path / "deployment"
    with (
        LossyLink() as link,
        Deployment(digits, cells, folder, host=link.address, missing="wait", deadline=300) as deployment,
    ):
        network = BadNetwork(deployment.address)
        deployment.change("node-0", "node", server=f"127.0.0.1:{network.port}")
        deployment.enter["node-4"] = link.enter
        deployment.begin()

        def in_round(cell, number: int) -> None:
            deployment.until(lambda: deployment.lines(cell) >= number + 1, 240, f"round {number} of {cell.path}")

        def done(cell, fault: str, began: float, tries: int = 1) -> None:
            folder = deployment.folder / "server" / "runs" / cell.path
            # Flower gives up an upload that breaks off in the middle after 3 minutes, and each try may meet one.
            deployment.until(lambda: (run := read_run(folder)) is not None and run.complete, 60 + 180 * tries, fault)
            assert same(deployment, cell, sequential(cell.method)[0]), fault
            ROWS.append((fault, tries, f"record bit-identical, after {time.monotonic() - began:.0f} s", "nothing"))

        in_round(cells[0], 1)
        began = time.monotonic()
        deployment.kill("node-1")
        time.sleep(3)
        deployment.start("join", "node-1")
        done(cells[0], "node killed in a round, joins again (scaffold)", began)

        in_round(cells[1], 1)
        began = time.monotonic()
        deployment.signal("node-2", "worker", signal.SIGKILL)
        in_round(cells[1], 2)
        deployment.signal("node-3", "worker", signal.SIGKILL)
        done(cells[1], "worker killed in a round (fedhpl)", began, 2)

        in_round(cells[2], 1)
        began = time.monotonic()
        deployment.signal("server", "superlink", signal.SIGKILL)
        done(cells[2], "SuperLink killed in a round (fedavg)", began)

        in_round(cells[3], 1)
        began = time.monotonic()
        deployment.kill("server")
        deployment.start("serve", "server")
        done(cells[3], "server killed in a round, started again (fedtgp)", began)

        in_round(cells[4], 1)
        began, network.cuts = time.monotonic(), 2
        deployment.until(lambda: not network.cuts, 60, "cut connections")
        done(cells[4], "connection of a node cut (sgpt)", began, 2)

        in_round(cells[5], 0)
        began, before, lost = time.monotonic(), link.packets, link.lost
        link.loss, link.delay = 0.3, 0.2
        in_round(cells[5], 1)
        assert link.lost - lost > 0.2 * (link.packets - before) > 0
        link.loss, link.delay = 0.0, 0.0
        done(cells[5], "30 % of a node's packets lost, all 200 ms late, both ways (fedmd)", began)
        assert deployment.ended("server", 60) == 0


def test_a_server_that_goes_on_says_without_whom(digits, tmp_path):
    cell = digits_project.cells_of(digits)["fedavg"]
    with Deployment(digits, [cell], tmp_path / "deployment", missing="go-on", deadline=DEADLINE) as deployment:
        runs, superlink = deployment.folder / "server" / "runs", deployment.folder / "server/flower/superlink.log"
        deployment.run("node-3", str(HOSTILE), "node-3.yaml")
        deployment.begin()
        strange(deployment, "nokey", other=False)
        strange(deployment, "other", other=True)
        unknown, untrusted = "No SuperNode found with the given public key", "certificate verify failed"
        deployment.until(
            lambda: unknown in superlink.read_text() and untrusted in deployment.log("other"), 900, "two refusals"
        )
        # No round begins before all nodes are there.
        deployment.until(lambda: "waiting for nodes node-3\n" in deployment.log("server"), 900, "all nodes but one")
        node = yaml.safe_load((deployment.folder / "node-0.yaml").read_text())["node"]
        (deployment.folder / "twin.yaml").write_text(yaml.safe_dump({"node": node | {"folder": "twin"}}))
        deployment.run("twin", "-m", "hetfl.deploy.link", "twin.yaml")
        assert deployment.ended("twin", 900) == MISTAKE
        assert f"{TAKEN} to 127.0.0.1" in deployment.log("twin").splitlines()[-1]
        ROWS.append(("node with another one's key", 1, "ends with one line after 45 s", "nothing"))
        socket = deployment.folder / "node-3" / "flower" / "worker.sock"
        deployment.until(lambda: listens(socket), 900, "the hostile worker")
        deployment.run("link-3", "-m", "hetfl.deploy.link", "node-3.yaml")
        deployment.until(lambda: deployment.lines(cell) >= 1, 900, "round 0")
        # A worker that stands still is slower than any deadline. On a busy machine it may have answered in round 1.
        deployment.signal("node-4", "worker", signal.SIGSTOP)

        def slow() -> list[str]:
            return [line.failed["4"] for line in read_rounds(runs / cell.path) if "4" in line.failed]

        deployment.until(lambda: bool(slow()), 900, "a round without node-4")
        deployment.signal("node-4", "worker", signal.SIGCONT)
        assert deployment.ended("server", 900) == 0, deployment.log("server")[-3000:]
        assert f"did not answer within {DEADLINE} s" in slow()[0]
        ROWS.append(("node slower than the deadline", 1, f"round goes on: client 4 {slow()[0]}", "its part"))
        lines = read_rounds(runs / cell.path, finished=True)
        failed = [line.failed for line in lines]
        assert any("samples of patients" in one.get("3", "") for one in failed[1:]), failed
        why = next(one["3"] for one in failed[1:] if "3" in one)
        ROWS.append(("tampered message", 1, f"rejected: client 3 {why}"[:90], "its part"))
        assert all(node in deployment.names for line in lines for node in line.nodes)
        ROWS.append(("node without a registered key", 1, "refused by the server, in superlink.log", "nothing"))
        ROWS.append(("server's certificate of another authority", 1, "refused by the node, in its log", "nothing"))


def strange(deployment: Deployment, name: str, other: bool) -> None:
    """A node with a key that the server does not know, or one that trusts another authority; it tries again."""
    certs = deployment.folder / name
    make_certificates(certs, ["localhost", "127.0.0.1"], [name])
    node = yaml.safe_load((deployment.folder / "node-0.yaml").read_text())["node"]
    node |= {"name": name, "key": f"{name}/{name}.key", "folder": f"{name}/flower"}
    if other:
        node["authority"] = f"{name}/authority.crt"
    (deployment.folder / f"{name}.yaml").write_text(yaml.safe_dump({"node": node}))
    again = "while True: subprocess.run([sys.executable, '-m', 'hetfl.deploy.link', sys.argv[1]]); time.sleep(1)"
    deployment.run(name, "-c", f"import subprocess, sys, time\n{again}", f"{name}.yaml")
