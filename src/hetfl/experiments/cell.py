"""One cell from start to end: check, build, train, record."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from filelock import FileLock, Timeout

from hetfl.data.catalogue import CATALOGUE
from hetfl.data.partitions import read_partition
from hetfl.data.store import Dataset, read_card, verified_dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments import namesakes
from hetfl.experiments.events import Callback
from hetfl.experiments.identity import fingerprint, inputs
from hetfl.experiments.plan import Cell, ComputeSettings, Workspace
from hetfl.experiments.record import Record, commit, device_name, method_source, now, source_digest, versions
from hetfl.experiments.rehearsal import auxiliary_cost, own_cost
from hetfl.experiments.standing import standing
from hetfl.experiments.stop import Stop, never, terminable
from hetfl.experiments.superseded import Superseded
from hetfl.experiments.versions import kept_features, used
from hetfl.methods import Method, create
from hetfl.methods.base import Client
from hetfl.models.outline import outline
from hetfl.schema import FORMAT, ClassCounts, Inputs, Parameters, Round, Run
from hetfl.training import rounds
from hetfl.training.client_run import used_samples
from hetfl.training.engine import Engine
from hetfl.training.engines import make_engine
from hetfl.training.federation import ClientData, Federation, build_federation
from hetfl.training.host import Host
from hetfl.training.memory import reset_peak_memory
from hetfl.training.registry import ENGINES
from hetfl.training.remote import RemoteEngine
from hetfl.training.state import ResumePoints, State

LAST = 5
"""The rounds whose mean says how long the next one will take."""


def as_it_is(line: Round) -> Round:
    """The line."""
    return line


@dataclass(frozen=True)
class Setup:
    """A cell's parts, ready to run in this process."""

    method: Method
    federation: Federation
    draws: Draws
    dataset: Dataset


@dataclass(frozen=True)
class Elsewhere:
    """A cell whose clients and data are on other machines, ready to run.

    Attributes:
        federation: the clients and their models, without data.
        counts: samples of each client and class.
        noted: a round's line with what only the engine's transport knows of it.
    """

    method: Method
    federation: Federation
    engine: Engine
    draws: Draws
    counts: ClassCounts
    noted: Callable[[Round], Round]


def set_up(cell: Cell, workspace: Workspace, device: torch.device, compute: ComputeSettings) -> Setup:
    """Load what a cell needs and put it together; ``compute`` names the precision.

    Raises:
        HetflError: an input is missing or broken.
    """
    dataset = verified_dataset(workspace.dataset(cell.dataset), workspace.verified)
    partition, _ = read_partition(workspace.partition(cell.dataset, cell.split, cell.seed), dataset)
    public_folder = None if cell.public is None else workspace.dataset(cell.public.dataset)
    shared = None if public_folder is None else verified_dataset(public_folder, workspace.verified)
    public_classes = shared.num_classes if shared else 0
    method = create(cell.method, cell.settings, dataset.num_classes, public_classes, seed=cell.seed)
    public = shared.subset(cell.public.subset) if shared and cell.public else None
    federation = build_federation(
        method,
        cell.models,
        dataset,
        partition,
        workspace.weights,
        device,
        inputs=cell.input,
        public=public,
        features=kept_features(workspace.scratch),
        precision=compute.precision,
    )
    return Setup(method, federation, Draws(cell.seed), dataset)


def host(cell: Cell, root: Path, compute: ComputeSettings, identity: str = "") -> Host:
    """All of a cell's clients as a host, with the engine ``auto``, in whichever process it is called.

    Args:
        cell: the cell.
        root: the checkout's, as this process sees it.
        compute: device, precision and threads.
        identity: the run's fingerprint.

    Raises:
        HetflError: an input is missing or broken.
    """
    torch.set_num_threads(compute.threads)
    device = torch.device("cuda" if compute.device != "cpu" and torch.cuda.is_available() else "cpu")
    setup = set_up(cell, Workspace(root), device, compute)
    return Host(make_engine(setup.method, setup.federation), setup.draws, identity)


def loads(cell: Cell, setup: Setup) -> list[int]:
    """An estimate of each client's work in a round: training samples times operations of a pass through its networks.

    Args:
        cell: the cell.
        setup: its parts.
    """
    federation, options = setup.federation, setup.method.model_options()
    found = []
    for data, model in zip(federation.data, federation.models, strict=True):
        shape = outline(model.name, federation.num_classes, options, cell.input)
        found.append(len(data.train) * (own_cost(shape).forward + auxiliary_cost(shape).forward))
    return found


@contextmanager
def _engine(cell: Cell, root: Path, setup: Setup, compute: ComputeSettings, identity: str) -> Iterator[Engine]:
    """The engine that the settings name, for as long as a cell trains."""
    name, method, federation = compute.engine, setup.method, setup.federation
    if not compute.own_processes:
        yield make_engine(method, federation, name)
        return
    # Whether clients are on GPUs is decided here, as the record says it.
    decided = {"precision": federation.precision, "device": federation.device.type}
    theirs = compute.model_copy(update=decided)
    make, own = partial(host, cell, root.resolve(), theirs, identity), getattr(compute, name, None)
    transport = ENGINES[name].make(make, loads(cell, setup), compute.threads, federation.device.type != "cpu", own)
    with closing(RemoteEngine(name, method, federation.models, federation.device, transport, identity)) as engine:
        yield engine


def run_cell(
    cell: Cell,
    workspace: Workspace,
    device: torch.device,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008, it is frozen
    callback: Callback | None = None,
    stop: Stop = never,
    elsewhere: Callable[[str], Elsewhere] | None = None,
) -> bool:
    """Train a cell unless its record is already complete, here, among those that were superseded, or by another name.

    A finished record of other settings, inputs or numerics moves aside first. A second process that wants the same
    cell waits for the first and then finds it done. SIGTERM, SIGHUP and Ctrl-C give up the current round; what was
    completed is on disk before the call ends.

    Args:
        cell: the cell.
        workspace: the checkout.
        device: where to train.
        compute: engine, precision and threads.
        callback: is told when the run begins, after each round and when the run is complete.
        stop: is asked before each round whether to stop; the next call goes on from there.
        elsewhere: makes the cell's parts for its identity if its clients are on other machines; None: they are here.

    Returns:
        Whether the record is complete.

    Raises:
        HetflError: an input is missing or broken.
    """
    torch.set_num_threads(compute.threads)
    reads = inputs(cell, workspace)
    identity = fingerprint(cell, reads)
    record, earlier = Record(workspace.runs / cell.path, callback), Superseded(workspace, cell.path)
    lock = workspace.lock(cell.path)
    with terminable(), _locked(lock, stop, cell.path) as mine:
        if mine and (
            record.is_complete(identity)
            or earlier.restore(identity)
            or namesakes.take_over(cell, workspace, identity)
        ):
            record.tell(record.read())
            earlier.trim()  # the cell may have been interrupted before it was finished in another way
            return True
        if not mine or stop(None):
            return False
        reset_peak_memory(device)
        engines: AbstractContextManager[Engine]
        noted: Callable[[Round], Round]
        if elsewhere is None:
            setup: Setup | Elsewhere = (here := set_up(cell, workspace, device, compute))
            shared = here.federation.data[0].public_images
            check_samples(cell, here.method, here.federation.clients, None if shared is None else len(shared))
            engines, noted = _engine(cell, workspace.root, here, compute, identity), as_it_is
        else:
            setup = (there := elsewhere(identity))
            engines, noted = nullcontext(there.engine), there.noted
        earlier.make_way(identity)
        earlier.go_on(identity)
        points = workspace.resume_points(cell.path) / identity
        with engines as engine, ResumePoints(points, all=elsewhere is not None) as resume:
            run = description(cell, workspace, setup, engine.name, reads, identity)
            needed = compute.uplinks_needed
            if run_rounds(engine, setup.draws, record, resume, run, stop, needed, noted) is None:
                return False
        earlier.trim()
        return True


def check_samples(cell: Cell, method: Method, clients: Sequence[Client], public: int | None) -> None:
    """Check that the settings fit the samples that the partition gives the clients.

    Args:
        cell: the cell.
        method: that it follows.
        clients: all of them.
        public: how many public samples there are; None: the cell has no public data.

    Raises:
        HetflError: no client could take a step, batches are single samples, which batch normalisation cannot train
            on, or the alignment set is larger than the public one.
    """
    at, size = f"{cell.path}", int(cell.settings["batch_size"])
    if public is not None and (wanted := cell.settings.get("alignment_samples", 0)) > public:
        raise HetflError(
            f"{at}: alignment_samples is {wanted}, the public set has {public} samples; use at most as many"
        )
    phases = [phase for phase in method.phases(1) if phase.data == "own" and phase.epochs]
    norms = [bool(client.model.groups.get("buffers")) for client in clients]
    if size == 1 and any(norms):
        name = clients[norms.index(True)].model.name
        raise HetflError(f"{at}: batch_size is 1, and the batch normalisation of {name} needs at least 2 samples")
    samples = [client.samples for client in clients]
    if phases and not any(
        used_samples(many, phase, norm) for phase in phases for many, norm in zip(samples, norms, strict=True)
    ):
        most = f"the largest client has {max(samples)} samples"
        if cell.settings["drop_last"]:
            raise HetflError(f"{at}: drop_last leaves out every batch, since batch_size is {size} and {most}")
        raise HetflError(f"{at}: no client can train: {most}, which batch normalisation cannot use")


@contextmanager
def _locked(path: Path, stop: Stop, cell: Path) -> Iterator[bool]:
    """Hold a cell's lock once whoever has it gives it back; False if the time to stop comes first."""
    lock, told = FileLock(path), False
    while not lock.is_locked:
        try:
            lock.acquire(timeout=1)
        except Timeout:
            if stop(None):
                break
            if not told:
                print(f"hetfl: {cell}: waiting for another process that trains it", file=sys.stderr, flush=True)
                told = True
    try:
        yield lock.is_locked
    finally:
        lock.release()


def run_rounds(
    engine: Engine,
    draws: Draws,
    record: Record,
    resume: ResumePoints,
    run: Run,
    stop: Stop = never,
    needed: int | None = 1,
    noted: Callable[[Round], Round] = as_it_is,
) -> State | None:
    """Play the rounds, from the newest resume point if there is one, and complete the record.

    A round counts once its line is in the record and its state in a resume point; a kill in between repeats it
    with the same numbers.

    Args:
        engine: its clients are restored from the resume point.
        draws: keyed randomness of the run.
        record: gets a line for each round.
        resume: the run's resume points.
        run: the record's description.
        stop: is asked before each round, with the mean seconds of the last ones.
        needed: how many valid uplinks a round needs; None: those of all participants.
        noted: see :class:`Elsewhere`.

    Returns:
        The final state; None if it stopped, so that the record is not complete.

    Raises:
        HetflError: a method cannot go on; the line names the record's folder and the round.
    """
    done = {line.round for line in record.lines()}
    state = resume.load(engine.device, done)
    fresh = None
    if state is not None:
        played, server = state.round, state.server
        engine.restore(state.clients)
    else:
        with _named(record, 0):
            server, fresh = rounds.start(engine, draws)
        played = 0
    learned = sum(tensor.numel() for tensor in engine.method.server_parameters(server).values())
    parameters = run.parameters.model_copy(update={"server": learned})
    record.begin(run.model_copy(update={"parameters": parameters}), completed=played)
    if fresh:
        record.append(noted(fresh))
    settings = engine.method.settings
    lines = [line for line in record.lines() if 1 <= line.round <= settings.rounds]
    so_far = standing(lines, settings.patience)
    waited, took = 0.0, deque[float](maxlen=LAST)
    while played < settings.rounds and not so_far.over:
        if stop(mean(took) if took else None):
            return None
        started = time.perf_counter()
        with _named(record, played + 1):
            server, line = rounds.play_round(engine, server, draws.at(played + 1), needed)
        played = line.round
        so_far = so_far.after(line)
        # What the resume point before this round took from the loop; its own is known only after its line is written.
        record.append(noted(line.model_copy(update={"seconds": {**line.seconds, "resume": waited}})))
        began = time.perf_counter()
        resume.save(State(played, server, engine.client_states()))
        waited = time.perf_counter() - began
        took.append(time.perf_counter() - started)
    if engine.method.fine_tuning() and played <= settings.rounds:
        if stop(mean(took) if took else None):
            return None
        with _named(record, settings.rounds + 1):
            line = rounds.play_fine_tuning(engine, server, draws.at(settings.rounds + 1), needed)
        played = line.round
        record.append(noted(line))
        resume.save(State(played, server, engine.client_states()))
    state = State(played, server, engine.client_states())
    record.finish(state)
    resume.clear()
    return state


@contextmanager
def _named(record: Record, round: int) -> Iterator[None]:
    """Say in which cell and round something failed."""
    try:
        yield
    except HetflError as error:
        raise HetflError(f"{record.folder}: round {round}: {error}") from error


def description(
    cell: Cell, workspace: Workspace, setup: Setup | Elsewhere, engine: str, reads: Inputs, identity: str
) -> Run:
    """A run as its record describes it when it begins."""
    models = setup.federation.models
    trained = {model: setup.method.trained_elements(model) for model in dict.fromkeys(models)}
    run = Run(
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
        class_counts=setup.counts if isinstance(setup, Elsewhere) else _class_counts(setup),
        inputs=reads,
        numerics=used(cell),
        data_source=read_card(workspace.dataset(cell.dataset)).source,
        parameters=Parameters(
            trainable=[trained[model] for model in models], total=[model.total_elements for model in models]
        ),
        versions=versions(),
        device=device_name(setup.federation.device),
        engine=engine,
        precision=setup.federation.precision,
        threads=torch.get_num_threads(),
        source=source_digest(),
        method_source=method_source(type(setup.method)),
        commit=commit(workspace.root),
        status="running",
        started=now(),
    )
    names = _class_names(cell, workspace)
    return run.model_copy(update={"class_names": names}) if names else run


def _class_names(cell: Cell, workspace: Workspace) -> dict[str, list[str]]:
    """The classes of the data sets that are not in the catalogue."""
    used = {cell.dataset, *([cell.public.dataset] if cell.public else [])}
    return {name: [*read_card(workspace.dataset(name)).class_names] for name in sorted(used - CATALOGUE.keys())}


def _class_counts(setup: Setup) -> ClassCounts:
    """Samples per client and class that each client trains on and is tested on."""
    federation, classes = setup.federation, setup.federation.num_classes

    def tested(data: ClientData) -> torch.Tensor:
        return torch.bincount(data.test_images.labels[data.test], minlength=classes)

    return ClassCounts(
        train=[client.class_counts.tolist() for client in federation.clients],
        test=[tested(data).tolist() for data in federation.data],
    )
