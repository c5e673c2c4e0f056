"""The server of a deployment: plays cells with clients that are on nodes, and writes records as a local run does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from hetfl.data.store import read_card
from hetfl.deploy.agreement import agreement, public_checksum
from hetfl.deploy.cards import class_counts, client_checksums
from hetfl.deploy.settings import Server
from hetfl.deploy.transport import FlowerTransport
from hetfl.draws import Draws
from hetfl.errors import FailedCellsError, HetflError
from hetfl.experiments.cell import Elsewhere, check_samples, run_cell
from hetfl.experiments.events import Callback
from hetfl.experiments.identity import fingerprint, inputs
from hetfl.experiments.plan import Cell, ComputeSettings, Params, Workspace, check_fit, load_params
from hetfl.experiments.record import Record
from hetfl.experiments.schedule import attempt
from hetfl.experiments.stop import terminable
from hetfl.methods import create
from hetfl.methods.base import Client
from hetfl.models import build
from hetfl.schema import Round
from hetfl.targets import cells_of
from hetfl.training.federation import Federation
from hetfl.training.registry import FLOWER
from hetfl.training.remote import RemoteEngine
from hetfl.training.state import newest_round

SETTLE = 15.0
"""Seconds after the last cell in which nodes are told that it is finished."""


def serve(server: Server, insecure: bool, tell: Callable[[str], None] = print) -> None:
    """Train the cells of a deployment, one after another; finished ones are kept.

    Raises:
        HetflError: a setting or an input is wrong, or the SuperLink cannot be started.
        FailedCellsError: some cells failed; the others are complete.
    """
    from hetfl.tracking import MlflowMirror, Progress, following

    workspace = Workspace(server.project)
    params = load_params(workspace.params)
    chosen = cells_of(server.run, params)
    check(chosen, params, workspace, server)
    failures: dict[Path, str] = {}
    progress = Progress({cell.path: cell.settings["rounds"] for cell in chosen})
    folders = [workspace.runs / cell.path for cell in chosen]
    transport = FlowerTransport(server, insecure, tell)
    try:
        if any(map(_finished, folders)):  # which nodes that were away can be told now
            transport.wait_for_nodes(patience(server))
        with terminable(), following([progress, MlflowMirror(server.project, folders)]) as callback:
            for cell, folder in zip(chosen, folders, strict=True):
                work = partial(play, transport=transport, callback=callback)
                if reason := attempt(work, cell, workspace, torch.device("cpu"), params.compute):
                    failures[folder] = reason
                transport.forget()
        transport.settle(SETTLE)
    finally:
        transport.close()
    if failures:
        raise FailedCellsError(failures)


def patience(server: Server) -> float | None:
    """Seconds that a server waits for nodes that are away; None: for as long as it takes."""
    return server.deadline if server.missing == "go-on" else None


def _finished(folder: Path) -> bool:
    """Whether a record is finished. One that is damaged is told of when its cell's turn comes."""
    with suppress(HetflError):
        return Record(folder).finished
    return False


def check(chosen: Sequence[Cell], params: Params, workspace: Workspace, server: Server) -> None:
    """Check cells before anything is started.

    Raises:
        HetflError: a cell cannot be played with these nodes.
    """
    check_fit(params, chosen)
    clients = sum(len(member.clients) for member in server.nodes.values())
    for cell in chosen:
        wanted = cell.partition["clients"]
        if wanted != clients:
            raise HetflError(f"server.nodes: have {clients} clients, {cell.path} has {wanted}")


def play(
    cell: Cell,
    workspace: Workspace,
    device: torch.device,
    compute: ComputeSettings,
    transport: FlowerTransport,
    callback: Callback | None = None,
) -> None:
    """Train a cell unless its record is complete, and tell the nodes once it is; see :func:`run_cell`.

    Raises:
        HetflError: an input is missing, or a round has too few valid uplinks.
    """

    def elsewhere(identity: str) -> Elsewhere:
        card = read_card(workspace.dataset(cell.dataset))
        classes = len(card.class_names)
        shared = None if cell.public is None else read_card(workspace.dataset(cell.public.dataset))
        public = 0 if shared is None else len(shared.class_names)
        common = max([*card.image_shape, *([] if shared is None else shared.subset_sizes.values())])
        method = create(cell.method, cell.settings, classes, public, seed=cell.seed)
        options = method.model_options()
        built = {
            name: build(name, classes, options, workspace.weights, cell.input, shapes_only=True)
            for name in dict.fromkeys(cell.models)
        }
        counts = class_counts(cell, workspace)
        models = [built[name] for name in cell.dealt(len(counts.train))]
        rows = [torch.tensor(row) for row in counts.train]
        clients = tuple(Client(k, model, rows[k]) for k, model in enumerate(models))
        samples, checksum = None, ""
        if shared and cell.public:
            samples = shared.subset_sizes[cell.public.subset]
            checksum = public_checksum(shared, cell.public.subset)
        check_samples(cell, method, clients, public=samples)
        data = client_checksums(cell, workspace)
        agreed = agreement(cell, workspace, [*built], identity, card.class_names, data, checksum)
        transport.headers = {
            name: agreed.of(clients).model_dump(mode="json") for name, clients in transport.clients.items()
        }
        deadline = patience(transport.server)
        engine = RemoteEngine(FLOWER, method, models, device, transport, identity, deadline, counts, common)
        # A run begins once all clients have registered; after that it may go on without some.
        fresh = newest_round(workspace.resume_points(cell.path) / identity) is None
        transport.wait_for_nodes(None if fresh else deadline)
        federation = Federation(clients, (), classes, device)
        return Elsewhere(method, federation, engine, Draws(cell.seed), counts, noted)

    def noted(line: Round) -> Round:
        carried = transport.take_carried()
        return line.model_copy(update={"nodes": {name: asdict(one) for name, one in carried.items()}})

    alone = 1 if transport.server.missing == "go-on" else None
    compute = compute.model_copy(update={"threads": 1, "uplinks_needed": compute.uplinks_needed or alone})
    if run_cell(cell, workspace, device, compute, callback, elsewhere=elsewhere):
        transport.finish(fingerprint(cell, inputs(cell, workspace)))
