"""What the training of cells will take: images, operations, bytes, seconds and memory, before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from joblib import cpu_count

from hetfl.compact import Compact, read_compact
from hetfl.data.batches import NORMALISED_CACHE_BYTES
from hetfl.data.catalogue import CATALOGUE
from hetfl.data.partitions import Partition, make_partition, read_partition
from hetfl.data.store import Dataset, Subset, read_dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError, foreseen
from hetfl.experiments import namesakes
from hetfl.experiments.calibration import REACHED, calibrate, cases, matmul_rate, momentary, rates
from hetfl.experiments.plan import SCHEME, Cell, ComputeSettings, Params, Workspace, cells, check_fit
from hetfl.experiments.record import device_name
from hetfl.experiments.rehearsal import Kind, Load, Rehearsal
from hetfl.experiments.standing import standing, waits
from hetfl.experiments.status import Status, status
from hetfl.methods.registry import mistake
from hetfl.schema import COMPUTED_UNDER, RUN, Round, Run, read_rounds, read_run, record_folders, sound_rounds
from hetfl.training.blank import Holdings
from hetfl.training.exchange import SECONDS
from hetfl.training.memory import process_memory
from hetfl.training.ray import RaySettings
from hetfl.training.registry import ENGINES, resolve, within

Source = Literal["records", "calibration", "operations"]
"""Where seconds come from: measured rounds of records, measured steps on this machine, or counted operations."""

RECORDS = 3
"""How many records of other cells the seconds of a round are averaged over, the newest first."""


@dataclass(frozen=True)
class Forecast:
    """Of one cell.

    Attributes:
        status: how far it is.
        rounds: left to train: as many as there are at most, or for a run that may stop early as many as finished runs
            of its experiment suggest.
        at_most: whether the run may stop earlier, and no finished run says when.
        load: what these rounds compute and send; None if the cell cannot be trained, or the data set is missing and
            its sizes are not published.
        seconds: left to train, on the device; None if unknown.
        source: of the seconds.
        basis: the source in words.
        memory: bytes that training takes; None if unknown, or if there is nothing to train.
        wrong: why the cell cannot be trained; empty if nothing is known of that.
    """

    cell: Cell
    status: Status
    rounds: int
    at_most: bool
    load: Load | None
    seconds: float | None
    source: Source
    basis: str
    memory: int | None
    wrong: str = ""

    @property
    def total(self) -> int:
        """Rounds of the whole run, those that it has included."""
        return self.status.round + self.rounds


def forecasts(cells: Sequence[Cell], params: Params, workspace: Workspace, device: torch.device) -> list[Forecast]:
    """What each cell still takes on a device, in the order of the cells.

    Seconds per round are those of records from the same kind of device, with the same engine, precision and threads:
    the cell's own; else other seeds and splits with its settings; else the same models and data with other settings
    or another method, in proportion to the operations. Without any, they come from a calibration of this machine, see
    :mod:`hetfl.experiments.calibration`, which is made here where it takes a moment; else from counted operations.

    An engine with processes of its own has them share the work; a cluster elsewhere is taken to be like this machine.
    On a CPU its records count for ``auto``, too, since each of its processes trains one client after another.
    """
    return Forecaster(params, workspace, device).all(cells)


class _Measured(NamedTuple):
    """A record's rounds: mean seconds that processes share, and of the rest; number; the peak of memory in bytes."""

    run: Run
    shared: float
    rest: float
    rounds: int
    memory: int


class Forecaster:
    """Forecasts for one device, which share all that is looked up or counted.

    Args:
        params: the settings, with engine, precision and threads.
        workspace: the checkout.
        device: where cells would be trained.
        exact: whether each partition counts for itself; else all that divide a data set among as many clients count
            like the first of them, which is faster.
    """

    def __init__(self, params: Params, workspace: Workspace, device: torch.device, exact: bool = True) -> None:
        self.exact = exact
        self.params, self.workspace, self.device = params, workspace, device
        self._rehearsals: dict[tuple[Any, ...], Rehearsal | HetflError] = {}
        self._wrong: dict[Path, str] = {}
        self._loads: dict[tuple[Any, ...], Load] = {}
        self._held: dict[tuple[Any, ...], Holdings | None] = {}
        runs, self._in_git = _runs(workspace), _in_git(workspace)
        runs = sorted([*runs, *(kept.run for kept in self._in_git.values())], key=lambda run: run.started)
        self._runs = [run for run in runs if self._alike(run, params.compute)]
        self._finished = self._rounds_of_finished(runs)
        self._known = namesakes.finished(workspace)
        # A process that trains has loaded about what this one has.
        self._base = process_memory() if device.type == "cpu" else 0
        self._memories: dict[tuple[int, bool], int] = {}
        self._measured: dict[Path, _Measured | None] = {}
        self._rates = rates(workspace, device, params.compute.threads)

    def all(self, cells: Sequence[Cell]) -> list[Forecast]:
        """See :func:`forecasts`."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.params.compute.threads)
        try:
            return [self.forecast(cell) for cell in cells]
        finally:
            torch.set_num_threads(before)

    def forecast(self, cell: Cell) -> Forecast:
        """What a cell still takes."""
        now = status(cell, self.workspace, self._known)
        if not now.left:
            return Forecast(cell, now, 0, False, Load(), 0.0, "records", "its own", None)
        rehearsal = self.rehearsal(cell)
        left, at_most = self._left(cell, now)
        load = self._load(cell, rehearsal, now.round, left) if rehearsal else None
        seconds, source, basis = self._seconds(cell, rehearsal, load, now.round, left)
        memory = self._memory(cell, rehearsal)
        wrong = self._wrong.get(cell.path, "")
        return Forecast(cell, now, left, at_most, load, seconds, source, basis, memory, wrong)

    def _left(self, cell: Cell, now: Status) -> tuple[int, bool]:
        """Rounds left, and whether fewer may do."""
        patience = cell.settings["patience"]
        if patience is None or not now.left:
            return now.left, False
        known = self._finished.get((cell.experiment, cell.method)) or self._finished.get((cell.experiment, ""))
        if not known:
            return now.left, True
        end = int(median(known))
        if now.record:
            # Its patience counts from its best round so far, or from the last one where no round was tested yet.
            lines = [line for line in sound_rounds(now.record) if line.round <= now.round]
            end = max(end, standing(lines, patience).end or now.round + int(patience))
        return min(now.left, max(end - now.round, 1)), False

    def _load(self, cell: Cell, rehearsal: Rehearsal, done: int, left: int) -> Load:
        """Of the rounds that are left, and of what comes before the first and after the last one."""
        load = self._load_of_rounds(cell, rehearsal, done, left)
        if not left:
            return load
        return (load if done else rehearsal.start().plus(load)).plus(rehearsal.end())

    def _load_of_rounds(self, cell: Cell, rehearsal: Rehearsal, done: int, left: int) -> Load:
        key = id(rehearsal), cell.seed if cell.settings["participation"] < 1 else 0, done, left
        if key not in self._loads:
            self._loads[key] = rehearsal.rounds(done + 1, done + left, cell.seed) if left else Load()
        return self._loads[key]

    def rehearsal(self, cell: Cell) -> Rehearsal | None:
        """The cell's rehearsal; cells that differ in nothing that matters to it share one.

        None where labels are not known, or the cell cannot be trained: plans of some cells are made of others, too.
        """
        found = self._rehearsed(cell)
        if isinstance(found, HetflError):
            self._wrong[cell.path] = str(found)
            return None
        return found

    def _rehearsed(self, cell: Cell) -> Rehearsal | HetflError | None:
        """As :meth:`rehearsal`; an error says why the cell cannot be trained with its settings."""
        held = self.holdings(cell)
        if held is None:
            return None
        key = cell.method, repr(cell.settings), tuple(cell.models), cell.input.model_dump_json(), id(held)
        if key not in self._rehearsals:
            try:
                check_fit(self.params, [cell])
                self._rehearsals[key] = Rehearsal(cell.method, cell.settings, cell.models, cell.input, held)
            except Exception as error:
                if not (known := foreseen(error) or mistake(error)):
                    raise
                self._rehearsals[key] = known
        return self._rehearsals[key]

    def holdings(self, cell: Cell) -> Holdings | None:
        """The labels that a cell's clients hold; without the prepared data, as if classes were equally large."""
        there = self.workspace.partition(cell.dataset, cell.split, cell.seed)
        made = (there / "card.json").exists() and (self.workspace.dataset(cell.dataset) / "card.json").exists()
        # Without the data, and where the scheme has a seed of its own, all seeds see the same partition.
        seed = cell.seed if made and cell.partition["seed"] is None else -1
        which = (cell.split, seed) if self.exact else (str(cell.partition["clients"]), -1)
        key = cell.dataset, *which, cell.public and cell.public.model_dump_json()
        if key not in self._held:
            dataset = self.outlined(cell.dataset)
            public = self.outlined(cell.public.dataset) if cell.public else None
            missing = dataset is None or (cell.public is not None and public is None)
            self._held[key] = None if missing or dataset is None else self._share(cell, dataset, public, made)
        return self._held[key]

    def outlined(self, name: str) -> Dataset | None:
        return outlined(self.workspace, name, self.params.data.sets.get(name) or {})

    def _share(self, cell: Cell, dataset: Dataset, public: Dataset | None, made: bool) -> Holdings | None:
        folder = self.workspace.partition(cell.dataset, cell.split, cell.seed)
        try:
            partition = read_partition(folder)[0] if made else _drawn(cell, dataset)
        except HetflError:
            return None  # the status says what is wrong with it
        labels = torch.from_numpy(dataset.labels(partition.train_from))
        tests = torch.from_numpy(dataset.labels(partition.test_from))
        own = None if public is None or cell.public is None else public.subset(cell.public.subset)
        return Holdings(
            [labels[part] for part in partition.train],
            [tests] * partition.clients if partition.test is None else [tests[part] for part in partition.test],
            dataset.num_classes,
            dataset.subset(partition.train_from[0]).images.shape[1],
            None if own is None else torch.from_numpy(np.asarray(own.labels)),
            public.num_classes if public else 0,
            own.images.shape[1] if own is not None else 0,
        )

    def _alike(self, run: Run, compute: ComputeSettings) -> bool:
        """Whether a record's last rounds took what they would on this device, as it would compute."""
        last = {name: run.throughout(name)[-1] for name in COMPUTED_UNDER}
        kind, engine = self.device.type, resolve(compute.engine, self.device.type)
        equal = last["engine"] == engine
        if kind == "cpu" and last["engine"] in ENGINES:
            equal = within(last["engine"], kind) == within(engine, kind)
        precise = compute.precision in ("auto", last["precision"])
        alike = last["device"] == device_name(self.device) and last["threads"] == compute.threads
        return equal and precise and alike

    def _processes(self, cell: Cell, rehearsal: Rehearsal | None) -> int:
        """How many processes share the clients' work in a round."""
        compute = self.params.compute
        if not compute.own_processes or (rehearsal and rehearsal.method.in_turn()):
            return 1
        own: RaySettings = getattr(compute, compute.engine)
        gpus = torch.cuda.device_count() if self.device.type == "cuda" else 0
        return own.processes(int(cell.partition["clients"]), compute.threads, cpu_count(), gpus)

    def _records(self, cell: Cell) -> tuple[list[_Measured], str, bool]:
        """The records whose rounds are most like the cell's, what they are, and whether they are scaled."""
        models = cell.dealt(int(cell.partition["clients"]))
        own, others, same, related = (list[Run]() for _ in range(4))
        for run in self._runs:
            equal = run.method == cell.method and run.settings == cell.settings
            if run.dataset != cell.dataset or set(run.models) != set(models):
                continue
            if (run.experiment, run.row, run.split, run.seed) == (cell.experiment, cell.row, cell.split, cell.seed):
                (own if equal else related).append(run)
            elif equal and run.models == models:
                (others if (run.experiment, run.row) == (cell.experiment, cell.row) else same).append(run)
            else:
                related.append(run)
        related.sort(key=lambda run: (run.method == cell.method, run.started))
        for found, words in ((own, "its own"), (others, "other seeds or splits"), (same, "the same settings")):
            if measured := self._read(found):
                return measured, words, False
        return self._read(related), "the same models and data", True

    def _read(self, runs: Sequence[Run]) -> list[_Measured]:
        """The newest of some records that have rounds."""
        found: list[_Measured] = []
        for run in reversed(runs):
            if len(found) < RECORDS and (measured := self._rounds_of(run)):
                found.append(measured)
        return found

    def _rounds_of(self, run: Run) -> _Measured | None:
        """The rounds that a record went through under its last conditions."""
        path = run.path
        if path not in self._measured:
            kept = self._in_git.get(path)
            since = max([0, *(change.round for change in run.changes if change.model_fields_set & {*COMPUTED_UNDER})])
            if kept is not None and kept.curves is None:  # it goes on elsewhere, and git has its sums alone
                told = _Measured(run, kept.seconds / kept.played, 0.0, kept.played, kept.peak_memory or 0)
                self._measured[path] = None if since else told
                return self._measured[path]
            try:
                every = read_rounds(self.workspace.runs / path) if kept is None else kept.rounds()
            except HetflError:
                every = []  # the status of that cell says so
            lines = [line for line in every if _is_round(line) and line.round >= since]
            # Tests of an engine with processes are on the clock, and what its clients work is summed up.
            engine = ENGINES.get(run.throughout("engine")[-1])
            parts = SECONDS if engine and engine.own_processes else {*SECONDS, "evaluate"}
            shared = [sum(line.seconds.get(part, 0.0) for part in parts) for line in lines]
            rest = [sum(line.seconds.values()) - some for line, some in zip(lines, shared, strict=True)]
            peak = max([kept.peak_memory or 0 if kept else 0, *(line.peak_memory or 0 for line in lines)])
            self._measured[path] = _Measured(run, mean(shared), mean(rest), len(lines), peak) if lines else None
        return self._measured[path]

    def _seconds(
        self, cell: Cell, rehearsal: Rehearsal | None, load: Load | None, done: int, left: int
    ) -> tuple[float | None, Source, str]:
        measured, words, scaled = self._records(cell)
        processes = self._processes(cell, rehearsal)
        if measured:
            taken = [
                (each.shared / processes + each.rest) * (self._share_of(each.run, rehearsal) if scaled else 1)
                for each in measured
            ]
            rounds = sum(each.rounds for each in measured)
            at = f"{rounds} round{'s' * (rounds != 1)} of {words}" + (", by operations" if scaled else "")
            beside = 1.0  # what comes before the first round and after the last one, as a factor
            if load and rehearsal:
                alone = sum(self._load_of_rounds(cell, rehearsal, done, left).operations.values())
                beside = sum(load.operations.values()) / alone if alone else 1.0
            return left * mean(taken) * beside, "records", at
        if load is None or rehearsal is None:
            if wrong := self._wrong.get(cell.path):
                return None, "operations", f"that cannot be trained: {wrong}"
            return None, "operations", "of unknown length until the data set is prepared"
        server = load.server if self.device.type == "cpu" else 0.0
        if found := self._speeds(rehearsal):
            seconds = sum(count / found[kind] for kind, count in load.operations.items())
            return seconds / processes + server, "calibration", "calibration of this machine"
        rate = REACHED * matmul_rate(self.device)
        basis = f"operations at {rate / 1e9:.0f} G/s, {REACHED:.0%} of a matrix product here"
        return sum(load.operations.values()) / rate / processes + server, "operations", basis

    def _speeds(self, rehearsal: Rehearsal) -> Mapping[Kind, float] | None:
        """The measured speeds of a run's networks; those of small ones are measured now."""
        wanted = cases(rehearsal)
        if (found := self._rates.of(wanted)) or not momentary(wanted, self.device):
            return found
        with suppress(OSError):  # where nothing may be written, a plan does without
            calibrate(wanted, self.workspace, self.device, self.params.compute)
        self._rates = rates(self.workspace, self.device, self.params.compute.threads)
        return self._rates.of(wanted)

    def _rounds_of_finished(self, runs: Iterable[Run]) -> Mapping[tuple[str, str], list[int]]:
        """Those of runs that may stop early, by experiment and method, and by experiment and "".

        A run that diverged says nothing of other methods.
        """
        found: dict[tuple[str, str], list[int]] = {}
        for run in runs:
            if not run.complete or not waits(run.settings):
                continue
            if run.path in self._in_git:
                last = self._in_git[run.path].played
            else:
                try:
                    lines = read_rounds(self.workspace.runs / run.path)
                except HetflError:
                    continue  # the status of that cell says so
                last = max((line.round for line in lines if _is_round(line)), default=0)
            for method in (run.method, *([""] if run.diverged is None else [])):
                found.setdefault((run.experiment, method), []).append(last)
        return found

    def _share_of(self, run: Run, rehearsal: Rehearsal | None) -> float:
        """Operations of a round of the cell by those of a record's round; 1 where they cannot be counted."""
        if rehearsal is None or run.experiment not in self.params.experiments:
            return 1.0
        known = {(one.row, one.split, one.seed, one.method): one for one in cells(self.params, run.experiment)}
        other = known.get((run.row, run.split, run.seed, run.method))
        theirs = self._rehearsed(other.model_copy(update={"settings": run.settings})) if other else None
        if not isinstance(theirs, Rehearsal):
            return 1.0
        mine, its = (sum(one.rounds(1, 1, 0).operations.values()) for one in (rehearsal, theirs))
        return mine / its if its else 1.0

    def _memory(self, cell: Cell, rehearsal: Rehearsal | None) -> int | None:
        measured, _, _ = self._records(cell)
        if peak := max([0, *(each.memory for each in measured)]):
            return peak
        if rehearsal is None:
            return None
        engine = ENGINES[resolve(self.params.compute.engine, self.device.type)]
        together = self.device.type == "cuda" and engine.together
        key = id(rehearsal), together
        if key not in self._memories:
            own = rehearsal.memory(len(rehearsal.models) if together else 1)
            self._memories[key] = self._base + own + _images(rehearsal, self.device)
        return self._memories[key]


def _is_round(line: Round) -> bool:
    return line.round > 0 and not line.fine_tuning


def _runs(workspace: Workspace) -> list[Run]:
    """All records that can be read."""
    found = []
    for folder in record_folders(workspace.runs):
        try:
            run = read_run(folder)
        except HetflError:
            continue  # the status of that cell says so
        if run is not None:
            found.append(run)
    return found


def _in_git(workspace: Workspace) -> dict[Path, Compact]:
    """The compact records of cells that have none here."""
    found = {}
    for file in workspace.results.glob("*/*/*/[!.]*.json"):
        path = file.relative_to(workspace.results).with_suffix("")
        if (workspace.runs / path / RUN).exists():
            continue
        try:
            kept = read_compact(file)
        except HetflError:
            continue  # whoever makes tables or the ledger says what is wrong with it
        if kept is not None and kept.played:
            found[path] = kept
    return found


SIDE = 32
"""Height and width of the images of a data set that is not prepared; matters only to methods that send images."""


def outlined(workspace: Workspace, name: str, settings: Mapping[str, Any]) -> Dataset | None:
    """A prepared data set, or one of the published sizes with equally large classes; None if they are not known."""
    if (workspace.dataset(name) / "card.json").exists():
        try:
            return read_dataset(workspace.dataset(name))
        except HetflError:
            return None
    return _published(name, int(settings.get("size", SIDE)))


@cache
def _published(name: str, side: int) -> Dataset | None:
    entry = CATALOGUE.get(name)
    if entry is None or not entry.sizes:
        return None
    classes = len(entry.class_names)

    def subset(size: int) -> Subset:
        labels = np.arange(size, dtype=np.int64) % classes
        images = np.broadcast_to(np.zeros((), np.uint8), (size, side, 1, 1))
        attributes = {key: labels * len(values) // classes for key, values in entry.attributes.items()}
        return Subset(images, labels, attributes)

    subsets = {key: subset(size) for key, size in entry.sizes.items()}
    return Dataset(name, entry.title, entry.class_names, subsets, "", entry.attributes)


def _drawn(cell: Cell, dataset: Dataset) -> Partition:
    return make_partition(SCHEME.validate_python(cell.partition), dataset, Draws(cell.seed))


def _images(rehearsal: Rehearsal, device: torch.device) -> int:
    """Bytes of normalised images that are kept, and on a GPU of the stored ones."""
    total, held = 0, rehearsal.held
    sizes = (
        sum(map(len, held.train)),
        sum(len(labels) for labels in {id(labels): labels for labels in held.test}.values()),
        0 if held.public is None else len(held.public),
    )
    for spec in dict.fromkeys(model.spec for model in rehearsal.models):
        each = 4 * spec.channels * spec.size**2
        total += sum(count * each for count in sizes if count * each <= NORMALISED_CACHE_BYTES)
        if device.type == "cuda":
            total += sum(sizes) * spec.channels * held.side**2
    return total
