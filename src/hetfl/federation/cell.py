"""One cell from start to end: check, build, train, record."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from filelock import FileLock

from hetfl.data.partitions import read_partition
from hetfl.data.store import Dataset, read_card, read_dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.federation.engines import make_engine
from hetfl.federation.federation import ClientData, Federation, build_federation
from hetfl.federation.identity import fingerprint, inputs
from hetfl.federation.plan import Cell, ComputeSettings, Workspace
from hetfl.federation.record import Record, commit, device_name, now, reset_peak_memory, source_digest, versions
from hetfl.federation.rounds import run_rounds
from hetfl.federation.sequential import Sequential
from hetfl.federation.state import ResumePoints
from hetfl.federation.superseded import Superseded
from hetfl.federation.versions import used
from hetfl.methods import Method, create
from hetfl.models import Model
from hetfl.schema import FORMAT, ClassCounts, Inputs, Parameters, Run


@dataclass(frozen=True)
class Setup:
    """A cell's parts, ready to run."""

    method: Method
    federation: Federation
    engine: Sequential
    draws: Draws
    dataset: Dataset


def set_up(cell: Cell, workspace: Workspace, device: torch.device, compute: ComputeSettings) -> Setup:
    """Load what a cell needs and put it together; ``compute`` names engine and precision.

    Raises:
        HetflError: an input is missing or broken.
    """
    dataset = read_dataset(workspace.dataset(cell.dataset))
    partition, card = read_partition(workspace.partition(cell.dataset, cell.split, cell.seed))
    if card["dataset_checksum"] != dataset.checksum:
        raise HetflError(
            f"{workspace.partition(cell.dataset, cell.split, cell.seed)}: was made from other data; "
            f"run dvc repro partition@{cell.dataset}"
        )
    shared = None if cell.public is None else read_dataset(workspace.dataset(cell.public.dataset))
    public_classes = shared.num_classes if shared else 0
    method = create(cell.method, cell.settings, dataset.num_classes, public_classes, seed=cell.seed)
    public = shared.split(cell.public.split) if shared and cell.public else None
    federation = build_federation(
        method,
        cell.models,
        dataset,
        partition,
        workspace.weights,
        device,
        inputs=cell.input,
        public=public,
        features=workspace.scratch / "features",
        precision=compute.precision,
    )
    return Setup(method, federation, make_engine(method, federation, compute.engine), Draws(cell.seed), dataset)


def run_cell(
    cell: Cell,
    workspace: Workspace,
    device: torch.device,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008, it is frozen
) -> None:
    """Train a cell unless its record is already complete, here or among those that were superseded.

    A finished record of other settings, inputs or numerics moves aside first. A second process that wants the same
    cell waits for the first and then finds it done.

    Raises:
        HetflError: an input is missing or broken.
    """
    torch.set_num_threads(compute.threads)
    reads = inputs(cell, workspace)
    identity = fingerprint(cell, reads)
    record, earlier = Record(workspace.runs / cell.path), Superseded(workspace.runs, cell.path)
    lock = workspace.lock(cell.path)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        if record.is_complete(identity) or earlier.restore(identity):
            return
        reset_peak_memory(device)
        setup = set_up(cell, workspace, device, compute)
        earlier.make_way(identity)
        points = workspace.resume_points(cell)
        for other in points.glob("*"):
            if other.name != identity:
                ResumePoints(other).clear()
        run = description(cell, workspace, setup, reads, identity)
        with ResumePoints(points / identity) as resume:
            run_rounds(setup.engine, setup.draws, record, resume, run)
        points.rmdir()
        earlier.trim()


def description(cell: Cell, workspace: Workspace, setup: Setup, reads: Inputs, identity: str) -> Run:
    """A run as its record describes it when it begins."""
    models = setup.federation.models
    trained = {model: _trained(setup, model) for model in dict.fromkeys(models)}
    return Run(
        format=FORMAT,
        fingerprint=identity,
        experiment=cell.experiment,
        row=cell.row,
        title=cell.title,
        paper=cell.paper,
        table=cell.experiment,
        method=cell.method,
        dataset=cell.dataset,
        split=cell.split,
        seed=cell.seed,
        models=[model.name for model in models],
        settings=cell.settings,
        partition=cell.partition,
        input=cell.input.model_dump(),
        public=None if cell.public is None else cell.public.model_dump(),
        rounds=cell.settings["rounds"],
        clients=len(models),
        class_counts=_class_counts(setup),
        inputs=reads,
        numerics=used(cell),
        data_source=read_card(workspace.dataset(cell.dataset)).source,
        parameters=Parameters(
            trainable=[trained[model] for model in models], total=[model.total_elements for model in models]
        ),
        versions=versions(),
        device=device_name(setup.federation.device),
        engine=setup.engine.name,
        precision=setup.federation.precision,
        threads=torch.get_num_threads(),
        source=source_digest(),
        commit=commit(workspace.root),
        status="running",
        started=now(),
    )


def _trained(setup: Setup, model: Model) -> int:
    """Elements that a client's first round changes."""
    wanted = {name for phase in setup.method.phases(1) for name in model.names(phase.trains)}
    return sum(tensor.numel() for name, tensor in model.init(setup.draws, 0).items() if name in wanted)


def _class_counts(setup: Setup) -> ClassCounts:
    """Samples per client and class that each client trains on and is tested on."""
    federation, classes = setup.federation, setup.federation.num_classes

    def tested(data: ClientData) -> torch.Tensor:
        return torch.bincount(data.test_images.labels[data.test], minlength=classes)

    return ClassCounts(
        train=[client.class_counts.tolist() for client in federation.clients],
        test=[tested(data).tolist() for data in federation.data],
    )
