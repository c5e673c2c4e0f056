"""Clients that only share a network give the record that they give in one process."""

from __future__ import annotations

import json

import digits_project
import pytest
from tabulate import tabulate

pytest.importorskip("flwr")
from flower_deployment import Deployment  # noqa: E402

from hetfl.schema import MODEL, read_rounds, read_run  # noqa: E402
from hetfl.tensors import read_tensors  # noqa: E402

pytestmark = pytest.mark.distributed

HEADERS = 600, 200
"""The most bytes of a reply's headers: for itself, and for each tensor in it. Besides them Flower carries tensors."""


def test_six_methods_on_five_nodes_give_the_same_records(digits, sequential, tmp_path):
    cells = digits_project.cells_of(digits)
    rows = []
    with Deployment(digits, [*cells.values()], tmp_path / "deployment") as deployment:
        deployment.begin()
        assert deployment.ended("server", 840) == 0, deployment.log("server")[-3000:]
        runs = deployment.folder / "server" / "runs"
        sent = {}
        for name in deployment.names:
            for line in (deployment.folder / name / "flower" / "sent.jsonl").read_text().splitlines():
                noted = json.loads(line)
                sent.setdefault((noted["cell"], noted["round"]), []).append(noted)
        for method, cell in cells.items():
            lines, model = sequential(method)
            found = read_rounds(runs / cell.path, finished=True)
            bare = {"seconds": {}, "peak_memory": None, "nodes": {}}
            assert [line.model_copy(update=bare).model_dump() for line in found] == lines, method
            run = read_run(runs / cell.path)
            assert run and (run.engine, run.complete) == ("flower", True)
            (tmp_path / "local.safetensors").write_bytes(model)
            local, remote = (
                read_tensors(path, "cpu")[0] for path in (tmp_path / "local.safetensors", runs / cell.path / MODEL)
            )
            # What the clients keep is at their nodes, and only there.
            assert all(name.startswith("server/") for name in remote)
            kept = dict(remote)
            for number, name in enumerate(deployment.names):
                states = deployment.folder / name / "flower" / "state" / run.fingerprint / "states"
                own = read_tensors(sorted(states.glob("round-*"))[-1], "cpu")[0]
                assert all(tensor.startswith(f"client/{number}/") for tensor in own)
                kept |= {tensor: value for tensor, value in own.items() if "/params/" in tensor}
            assert kept.keys() == local.keys(), method
            assert all(kept[name].equal(tensor) for name, tensor in local.items()), method
            for name in deployment.names:
                left = deployment.folder / name / "flower" / "state" / run.fingerprint
                files = {path.name.partition("-")[0] for path in left.rglob("*") if path.is_file()}
                assert files == {"run.json", "round"}  # what only a run that goes on needs is gone
                assert len([*left.rglob("round-*")]) == 1
            carried = 0
            for line in found:
                replies = sent[cell.path.as_posix(), line.round]
                assert sum(noted.get("bytes", 0) for noted in replies) == line.up.bytes
                tensors = sum(len(noted.get("tensors", {})) + 1 for noted in replies)
                here = sum(node["up"] for node in line.nodes.values())
                assert 0 <= here - line.up.bytes <= HEADERS[0] * 2 * len(replies) + HEADERS[1] * tensors
                carried += here
            counted = sum(line.up.bytes for line in found)
            per_round = [sum(part for part in line.seconds.values()) for line in found[1:]]
            waited = max(max(node["waited"] for node in line.nodes.values()) for line in found[1:])
            rows.append((method, len(found) - 1, counted, carried, carried - counted, waited, sum(per_round)))
    headers = ["method", "rounds", "bytes counted", "carried", "headers", "longest round (s)", "work (s)"]
    print("\n" + tabulate(rows, headers=headers, floatfmt=".1f"))


def test_without_keys_the_record_is_the_same(digits, sequential, tmp_path):
    """Two nodes with several clients each, over plain HTTP, where both sides say so."""
    cell = digits_project.cells_of(digits)["scaffold"]
    with Deployment(digits, [cell], tmp_path / "deployment", nodes=2, insecure=True) as deployment:
        deployment.begin()
        assert deployment.ended("server", 300) == 0, deployment.log("server")[-3000:]
        found = read_rounds(deployment.folder / "server" / "runs" / cell.path, finished=True)
        bare = {"seconds": {}, "peak_memory": None, "nodes": {}}
        assert [line.model_copy(update=bare).model_dump() for line in found] == sequential("scaffold")[0]
        print("\nflower, --insecure, 2 nodes, scaffold: the record of one process", end="")
