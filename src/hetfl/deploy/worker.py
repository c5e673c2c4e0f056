"""A node's resident worker: one process that has backbone, data and clients' state loaded, and opens no connection.

It answers requests that come over its Unix socket, one after another, and notes what leaves it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hetfl.config import validate
from hetfl.data.partitions import Partition
from hetfl.data.store import Dataset, Subset, read_card, read_dataset, verified_dataset
from hetfl.deploy.agreement import FINISHED, Agreement, Finished, agreement, check_agreement, public_checksum
from hetfl.deploy.handover import serve
from hetfl.deploy.kept import KeptRuns
from hetfl.deploy.processes import end_with_parent, ends_in_one_line
from hetfl.deploy.sent import note, without_places
from hetfl.deploy.settings import Node, read_node
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments.plan import Cell, Params, Workspace, cells, load_params
from hetfl.experiments.schedule import pick_device
from hetfl.experiments.versions import kept_features
from hetfl.methods import create
from hetfl.training.engines import make_engine
from hetfl.training.federation import build_federation
from hetfl.training.host import Host, Reply
from hetfl.training.local import LocalEngine

log = logging.getLogger("hetfl.node")


class Worker:
    """Answers a server for the clients that live here.

    Args:
        node: what the node's operator allows: its project, its clients' data and where state is kept.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.workspace = Workspace(node.project)
        self.params: Params = load_params(self.workspace.params)
        self.device = pick_device(node.device, "node.device")
        self.kept = KeptRuns(node.state)
        for folder in [*node.clients.values(), *([node.public] if node.public else [])]:
            read_dataset(folder)  # so that a mistake ends the node before it connects
        self._agreed: Agreement | None = None
        self._host: Host | None = None

    def answer(self, header: Mapping[str, Any], body: bytearray) -> bytes:
        """The answer to a request; to a header that only says which run is finished, nothing.

        Raises:
            HetflError: the server wants to play a cell that this project does not have, or has with other settings.
            ValueError: the body is no request.
        """
        began = time.perf_counter()
        if FINISHED in header:
            self._finish(validate(Finished, dict(header), "the server's request").finished)
            return b""
        wanted = validate(Agreement, dict(header), "the server's request")
        if self._host is None or wanted != self._agreed:
            self._host, self._agreed = None, None  # so that never two backbones are in memory
            self._host, self._agreed = self._joined(wanted), wanted
        answer = self._host.answer(bytes(body))
        return self._noted(wanted, answer, time.perf_counter() - began) if answer else b""

    def _joined(self, wanted: Agreement) -> Host:
        """The host of this node's clients in a run."""
        # Read anew, since an operator who is told that settings differ changes this file.
        self.params = load_params(self.workspace.params)
        found = {
            cell.path.as_posix(): cell
            for name in self.params.experiments
            if wanted.cell.startswith(f"{name}/")
            for cell in cells(self.params, name)
        }
        cell = found.get(wanted.cell)
        if cell is None:
            raise HetflError(f"{self.workspace.params}: has no cell {wanted.cell!r}, which the server wants to run")
        public = ""
        if cell.public is not None:
            if self.node.public is None:
                raise HetflError(f"node.public: is missing, and {cell.method} has a public data set")
            public = public_checksum(read_card(self.node.public), cell.public.subset)
        own = agreement(cell, self.workspace, self._models(cell).values(), wanted.run, public=public)
        cards = {client: read_card(folder) for client, folder in self.node.clients.items()}
        check_agreement(wanted, own, self.node.name, cards)
        if (last := max(self.node.clients)) >= own.clients:
            raise HetflError(
                f"{self.node.name}: node.clients: {last}, {wanted.cell} has {own.clients} clients, numbered from 0"
            )
        log.info("%s: takes part with clients %s", wanted.cell, ", ".join(map(str, self.node.clients)))
        engine, folder = self._engine(cell, own.clients), self.kept.begin(wanted.run, wanted.cell)
        return Host(engine, Draws(cell.seed), wanted.run, folder, trusts=False, clients=[*self.node.clients])

    def _finish(self, run: str) -> None:
        """Forget what only a run that goes on needs."""
        if self._agreed and self._agreed.run == run:
            self._host, self._agreed = None, None
        self.kept.finish(run, self.node.keep)

    def _opened(self, folder: Path) -> Dataset:
        """A prepared data set whose contents are what its card says."""
        return verified_dataset(folder, self.node.folder / "verified")

    def _models(self, cell: Cell) -> dict[int, str]:
        """The architecture of each client that lives here."""
        return {client: cell.models[client % len(cell.models)] for client in self.node.clients}

    def _engine(self, cell: Cell, clients: int) -> LocalEngine:
        """An engine with the data of this node's clients; others of the federation are in it without any."""
        node, models = self.node, self._models(cell)
        dataset, partition = joined(
            {client: self._opened(folder) for client, folder in node.clients.items()}, clients
        )
        shared = self._opened(node.public) if cell.public and node.public else None
        method = create(
            cell.method, cell.settings, dataset.num_classes, shared.num_classes if shared else 0, seed=cell.seed
        )
        some = next(iter(models.values()))
        federation = build_federation(
            method,
            [models.get(client, some) for client in range(clients)],
            dataset,
            partition,
            self.workspace.weights,
            self.device,
            inputs=cell.input,
            public=shared.subset(cell.public.subset) if shared and cell.public else None,
            features=kept_features(node.folder),
            precision=node.precision,
        )
        return make_engine(method, federation, node.engine)

    def _noted(self, wanted: Agreement, answer: bytes, seconds: float) -> bytes:
        """The answer, without paths in its error; it is in ``sent.jsonl`` in full, and in the log in short."""
        reply = Reply.from_bytes(answer)
        if reply.error is not None:
            log.error("%s", reply.error)
            reply = replace(reply, error=without_places(self.node, reply.error))
            answer = reply.to_bytes()
        common: dict[str, Any] = {"cell": wanted.cell, "round": reply.question.round, "kind": reply.question.kind}
        lines: list[dict[str, Any]] = []
        for update in reply.updates:
            shapes = {name: list(tensor.shape) for name, tensor in update.uplink.items()}
            figures = ["loss", "seconds", *update.observed]
            lines.append(
                {"client": update.client, "tensors": shapes, "bytes": update.uplink.size.bytes, "figures": figures}
            )
        lines += [{"client": score.client, "figures": ["right", "not finite", "samples"]} for score in reply.scores]
        if reply.error:
            lines.append({"error": reply.error})
        note(self.node, [{**common, **line} for line in lines])
        for line in lines:
            names = [f"{name}{shape}" for name, shape in line.get("tensors", {}).items()]
            shown = ", ".join([*names[:4], *([f"and {len(names) - 4} more"] if len(names) > 4 else [])])
            what = f"{shown} ({line['bytes']} bytes)" if shown else line.get("error") or ", ".join(line["figures"])
            client = f"client {line['client']}: " if "client" in line else ""
            log.info("%s round %d, %s: %s%s", wanted.cell, common["round"], common["kind"], client, what)
        log.info("%s: worked %.2f s", wanted.cell, seconds)
        return answer


def joined(datasets: Mapping[int, Dataset], clients: int) -> tuple[Dataset, Partition]:
    """Some clients' data sets as one, and the partition that gives each client its own samples back in their order.

    Raises:
        HetflError: they have different classes, or one has no subset ``train`` or ``test``.
    """
    first, *others = datasets.values()
    for other in others:
        if other.class_names != first.class_names:
            raise HetflError(f"node.clients: the data sets {first.name} and {other.name} have different classes")
    subsets, places = {}, {}
    for name in ("train", "test"):
        parts = [dataset.subset(name) for dataset in datasets.values()]
        images = parts[0].images if len(parts) == 1 else np.concatenate([part.images for part in parts])
        subsets[name] = Subset(images, np.concatenate([part.labels for part in parts]))
        ends = np.cumsum([len(part) for part in parts])
        begins = dict(zip(datasets, np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1]), strict=True))
        nothing = np.empty(0, dtype=np.int64)
        places[name] = tuple(begins.get(client, nothing) for client in range(clients))
    checksum = "+".join(dataset.checksum for dataset in datasets.values())
    dataset = Dataset(first.name, first.title, first.class_names, subsets, checksum)
    return dataset, Partition(places["train"], places["test"])


def run(file: Path, insecure: bool) -> None:
    """Answer requests until a signal ends the process."""
    end_with_parent()
    node = read_node(file, insecure)
    torch.set_num_threads(node.threads)
    worker = Worker(node)
    serve(node.socket, worker.answer, lambda: log.info("%s: the worker is ready", node.name))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        ends_in_one_line(partial(run, Path(sys.argv[1]), "--insecure" in sys.argv))
    except KeyboardInterrupt:
        sys.exit(130)
