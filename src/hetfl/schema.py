"""The types of ``run.json``, ``rounds.jsonl`` and ``metrics.json``, and the functions that read these files.

All code that writes or reads a record uses these types, so that each field is named once. If a run has no value for a
field, such as the accuracy of a round without a test, the field is missing in the file and None or empty here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from hetfl.errors import HetflError, unknown

FORMAT = 2
"""Format of the records that this version writes. It increases when a field changes its name or meaning or a required
field is added. A record without a format has format 0; it may lack ``threads``, ``source`` and ``numerics``."""

RECORD = RUN, ROUNDS, MODEL = "run.json", "rounds.jsonl", "model.safetensors"
"""The files of a run record."""

METRICS, PER_CLASS = "metrics.json", "per_class.csv"
"""The files of every evaluation."""

Share = float | None
"""An accuracy as a fraction; None for a client without test samples."""

Number = int | float | None
Figure = Number | list[Number | list[Number]]
"""A diagnostic of a method: one number, one per client, or several per client; None for a missing value."""


def cell_path(experiment: str, method: str, row: str, split: str, seed: int) -> Path:
    """Where a cell's run lies below ``runs``, and its evaluation below ``evaluations``."""
    return Path(experiment, method, row, f"{split}-s{seed}")


def record_folders(runs: Path) -> list[Path]:
    """The folders of all cells' records below ``runs``, without hidden ones: superseded, or left by a killed copy."""
    return sorted(path.parent for path in runs.glob(f"{'[!.]*/' * 4}{RUN}"))


def flat(nested: Mapping[str, Any], joint: str = ".") -> dict[str, Any]:
    """Mappings within a mapping as one, whose keys are joined: ``{"up": {"bytes": 8}}`` is ``{"up.bytes": 8}``."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        inner = flat(value, joint) if isinstance(value, dict) else {"": value}
        found |= {f"{key}{joint}{name}" if name else key: part for name, part in inner.items()}
    return found


class Part(BaseModel):
    """Base class of the record's types. Unknown fields and wrong types are errors, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def as_json(self) -> dict[str, Any]:
        """The content of the file: the fields that were given, in order."""
        return self.model_dump(exclude_unset=True)


def _renamed(name: str, former: str, default: Any) -> Any:
    """A field that records up to format 1 have under another name."""
    return Field(default=default, validation_alias=AliasChoices(name, former))


P = TypeVar("P", bound=Part)


class Traffic(Part):
    """The size of messages: tensor elements and bytes."""

    elements: int
    bytes: int


class Accuracies(Part):
    """Test accuracies after a round, by one inference rule.

    Attributes:
        accuracy: of each client.
        pooled: over all clients' test samples together.
        unscored: clients whose logits are not finite. Not written to disk; see ``diverged`` of :class:`Round`.
    """

    accuracy: list[Share]
    pooled: float
    unscored: list[int] = Field(default=[], exclude=True)


class Round(Part):
    """A line of ``rounds.jsonl``.

    Attributes:
        round: 0 before training, then 1, 2, ...; the final fine-tuning comes one after the last round.
        fine_tuning: whether this is the clients' fine-tuning after the last round; ``closing`` up to format 1.
        participants: the clients that took part; ``loss`` and ``clients`` are in this order.
        failed: why a chosen client has no part in the round, by its number: it did not answer, or its message was
            rejected. Absent where nothing failed.
        accuracy, pooled: as in :class:`Accuracies`; None after a round without a test.
        extra: accuracies by further inference rules, by name; ``also`` up to format 1.
        train_accuracy: of each client on its training samples, if the run's settings ask for it.
        loss: mean training loss of each participant; None if it is not finite, 0 of one that took no step.
        up, down: size of all messages of the round together.
        seconds: by phase.
        nodes: of a run on machines that only share a network, by the node's name: the seconds that the server
            ``waited`` for it and that it ``worked``, and the bytes that went ``down`` and ``up``.
        peak_memory: in bytes; None if unknown.
        diagnostics: of the server, by name.
        clients: diagnostics of each participant, by name.
        diverged: clients whose loss or logits are not finite.
    """

    round: int
    fine_tuning: bool = _renamed("fine_tuning", "closing", False)
    participants: list[int]
    failed: dict[str, str] = {}
    accuracy: list[Share] | None = None
    pooled: float | None = None
    extra: dict[str, Accuracies] = _renamed("extra", "also", {})
    train_accuracy: list[Share] | None = None
    loss: list[float | None] = []
    up: Traffic
    down: Traffic
    seconds: dict[str, float]
    nodes: dict[str, dict[str, Number]] = {}
    peak_memory: int | None = None
    diagnostics: dict[str, Figure] = {}
    clients: dict[str, list[Number | list[Number]]] = {}
    diverged: list[int] = []

    @property
    def mean_loss(self) -> float | None:
        """Over the participants whose loss is finite and not 0, which is the loss of one that took no step."""
        known = [loss for loss in self.loss if loss]
        return sum(known) / len(known) if known else None

    def test(self, reading: str = "") -> Accuracies | None:
        """The accuracies after this round by an inference rule, ``""`` for the method's own; None without a test."""
        if reading:
            return self.extra.get(reading)
        if self.accuracy is None or self.pooled is None:
            return None
        return Accuracies.model_construct(accuracy=self.accuracy, pooled=self.pooled)


TROUBLES = {"diverged": "diverged", "failed": "went on without a client"}
"""What goes wrong in a run without ending it, by the field of its record, in words before a round."""


def troubles(rounds: Iterable[Round]) -> dict[str, int]:
    """The fields ``diverged`` and ``failed`` of a run with these rounds; without one that has nothing to tell."""
    found: dict[str, int] = {}
    for line in rounds:
        for name in TROUBLES:
            if getattr(line, name):
                found.setdefault(name, line.round)
    return found


def in_words(troubles: Mapping[str, int]) -> str:
    """What went wrong in a run, and since when, from :func:`troubles`: ``went on without a client in round 3``."""
    return ", ".join(f"{TROUBLES[name]} in round {round}" for name, round in troubles.items())


class Inputs(Part):
    """Checksums of a run's inputs: data set, partition, weights by model, and public data set if there is one."""

    dataset: str
    partition: str
    weights: dict[str, str]
    public: str | None = None


class ClassCounts(Part):
    """Samples of each client and class, [K][C]."""

    train: list[list[int]]
    test: list[list[int]]


class Parameters(Part):
    """Numbers of parameters: trainable and total ones of each client's network, and those that the server learns."""

    trainable: list[int]
    total: list[int]
    server: int = 0


class Conditions(Part):
    """What decides the last bits of a run's numbers and is not part of its identity; None: as before."""

    device: str | None = None
    engine: str | None = None
    precision: str | None = None
    threads: int | None = None
    versions: dict[str, str] | None = None
    source: str | None = None


COMPUTED_UNDER = ("device", "engine", "precision", "threads")
"""Those of :class:`Conditions` that also decide how long a round takes."""


class Change(Conditions):
    """Conditions under which a run went on that are other than those before.

    Attributes:
        round: the first that was played under them.
    """

    round: int


class Run(Part):
    """``run.json``: the settings of a run, its inputs, and when and where it ran.

    Attributes:
        format: of the record, see :data:`FORMAT`.
        fingerprint: the checksum of the run's identity, see :mod:`hetfl.experiments.identity`.
        rounds: number of rounds in the settings; a run that stops early has fewer.
        clients: number of clients.
        models: the name of each client's model.
        public: the public data set and its subset, if the method has one.
        numerics: the versions that decide the run's numbers, see :mod:`hetfl.experiments.versions`.
        device, engine, precision, threads, versions, source: the :class:`Conditions` that the run began under;
            threads and source are None in records of format 0.
        method_source: of the method's own file, see :func:`hetfl.experiments.record.method_source`; older records
            have none.
        changes: of these conditions, in the order of the rounds. Absent where there is none.
        started, finished: when the first round began, and when the run was completed; None before.
        class_names: of the data sets that are not in the catalogue, by data set.
        diverged: the first round in which a client's loss or logits were not finite.
        failed: the first round that went on without a client that had a part in it, see :class:`Round`.
        copy_of: the cell that was trained, if this one has its identity under another name.
    """

    format: int = 0
    fingerprint: str
    experiment: str
    row: str
    title: str
    paper: str
    table: str
    method: str
    dataset: str
    split: str
    seed: int
    models: list[str]
    settings: dict[str, Any]
    partition: dict[str, Any]
    input: dict[str, Any]
    public: dict[str, Any] | None
    rounds: int
    clients: int
    class_counts: ClassCounts
    inputs: Inputs
    numerics: dict[str, int | str] = {}
    data_source: list[dict[str, Any]]
    parameters: Parameters
    versions: dict[str, str]
    device: str
    engine: str
    precision: str
    threads: int | None = None
    source: str | None = None
    method_source: str | None = None
    changes: list[Change] = []
    commit: str
    status: Literal["running", "complete"]
    started: str
    finished: str | None = None
    class_names: dict[str, list[str]] = {}
    diverged: int | None = None
    failed: int | None = None
    copy_of: str | None = None

    @field_validator("public", mode="before")
    @classmethod
    def _names_the_subset(cls, public: Any) -> Any:
        # Records of format 1 have the public subset as ``subset`` or, the older ones, as ``split``.
        if isinstance(public, dict) and "split" in public:
            return {"subset" if key == "split" else key: value for key, value in public.items()}
        return public

    @field_validator("settings", mode="before")
    @classmethod
    def _names_the_weights(cls, settings: Any) -> Any:
        # FedAvg's ``weights`` were called ``init``, as FedTGP's way to draw weights still is: timm or torch.
        if isinstance(settings, dict) and settings.get("init") in ("scratch", "pretrained"):
            return {"weights" if key == "init" else key: value for key, value in settings.items()}
        return settings

    @property
    def path(self) -> Path:
        """See :func:`cell_path`."""
        return cell_path(self.experiment, self.method, self.row, self.split, self.seed)

    @property
    def complete(self) -> bool:
        """Whether the run has finished."""
        return self.status == "complete"

    def throughout(self, name: str) -> list[Any]:
        """The values of one of the conditions, in the order in which rounds were played under them."""
        later = [value for change in self.changes if (value := getattr(change, name, None)) is not None]
        return [getattr(self, name), *later]

    def in_turn(self, name: str) -> str:
        """What :meth:`throughout` gives, in words: ``ray, then sequential``."""
        return ", then ".join(map(str, self.throughout(name)))

    def going_on(self, now: Run, round: int) -> Run:
        """The description of this run when it goes on as ``now`` says, from a round on.

        It keeps when it began and under which conditions, and notes what is other than in the round before.
        """
        began = {name: getattr(self, name) for name in Conditions.model_fields}
        changes = [change for change in self.changes if change.round < round]
        before = began | {
            name: value for change in changes for name, value in change.as_json().items() if name != "round"
        }
        other = {name: getattr(now, name) for name, value in before.items() if getattr(now, name) != value}
        if other:
            changes.append(Change(round=round, **other))
        return now.model_copy(update={**began, "started": self.started, **({"changes": changes} if changes else {})})


class Windowed(Part):
    """Accuracies over the last rounds, see :func:`hetfl.metrics.accuracy.window`; None without a window."""

    window_pooled: float | None = None
    window_variance: float | None = None
    window_variance_sample: float | None = None
    window_lowest: float | None = None
    window_average: float | None = None
    window_rounds: int | None = None


class Basis(Part):
    """What decides the numbers of an evaluation, besides the run.

    Attributes:
        model: SHA-256 of the checkpoint.
        version: of the evaluation, see :mod:`hetfl.experiments.versions`.
        features: number of test samples whose features are stored.
    """

    model: str
    version: int
    features: int


class Metrics(Windowed):
    """``metrics.json``: the results of an evaluation, as fractions; None for what it did not measure.

    Attributes:
        fingerprint: of the run.
        basis: what was evaluated and how; None in older files.
        accuracy, average, lowest, highest, std, pooled, balanced_accuracy, macro_f1: of the final state, see
            :func:`hetfl.metrics.accuracy.summary`.
        best_pooled, best_round, best_average, rounds: see :func:`hetfl.metrics.accuracy.best_round`.
        extra: accuracies by further inference rules, by name; ``also`` up to format 1.
        group_entropy, congruence: for methods that sort samples into groups, see
            :func:`hetfl.experiments.evaluation.of_groups`.
    """

    fingerprint: str
    basis: Basis | None = None
    accuracy: list[Share]
    average: float
    lowest: float
    highest: float
    std: float | None = None
    pooled: float | None = None
    balanced_accuracy: float | None = None
    macro_f1: float | None = None
    best_pooled: float | None = None
    best_round: int | None = None
    best_average: float | None = None
    rounds: int | None = None
    extra: dict[str, Windowed] = _renamed("extra", "also", {})
    group_entropy: float | None = None
    congruence: float | None = None

    def figure(self, name: str, reading: str = "") -> float | None:
        """A metric by its field's name, for an inference rule (``""``: the method's own); None if not measured."""
        found = self.extra.get(reading) if reading else self
        value: float | None = getattr(found, name, None)
        return value


def read_run(folder: Path) -> Run | None:
    """Read a cell's ``run.json``; None if the file does not exist.

    Raises:
        HetflError: the file is damaged, or of a format that cannot be read.
    """
    path = folder / RUN
    content = content_of(path)
    if content is None:
        return None
    format = _format(content)
    if format > FORMAT:
        raise HetflError(f"{path}: is of format {format}, and this hetfl reads up to {FORMAT}; use a newer hetfl")
    if format < FORMAT:
        older = f"{path}: is of format {format}, older than {FORMAT}, and"
        return parse(Run, content, older, f"delete {folder} and train the cell again")
    return parse(Run, content, f"{path}:", "delete it and run dvc repro again")


def needed_run(folder: Path) -> Run:
    """Read a cell's ``run.json``, which must exist.

    Raises:
        HetflError: the file does not exist or cannot be read.
    """
    run = read_run(folder)
    if run is None:
        raise HetflError(f"{folder / RUN}: does not exist; run the stage that makes it with dvc repro")
    return run


def read_rounds(folder: Path, finished: bool = False) -> list[Round]:
    """Read the lines of a cell's ``rounds.jsonl``.

    Args:
        folder: the cell's folder.
        finished: whether the run is finished. If so, the file must exist and its last line must be complete. If not,
            an incomplete last line, which a process may be writing, is ignored.

    Raises:
        HetflError: a line is damaged; the error names it.
    """
    path = folder / ROUNDS
    content = content_of(path)
    if content is None:
        if finished:
            raise HetflError(f"{path}: the record of a finished run lacks it; train the cell again")
        return []
    *lines, rest = content.split(b"\n")
    if finished and rest:
        lines.append(rest)
    return [read_round(line, path, number) for number, line in enumerate(lines, start=1)]


def sound_rounds(folder: Path) -> list[Round]:
    """The lines of a cell's ``rounds.jsonl`` before the first one that is damaged, incomplete or out of sequence."""
    *lines, _ = (content_of(folder / ROUNDS) or b"").split(b"\n")
    found: list[Round] = []
    for text in lines:
        try:
            line = read_round(text, folder / ROUNDS)
        except HetflError:
            break
        if not _follows(line.round, line.fine_tuning, found[-1].round if found else -1):
            break
        found.append(line)
    return found


def last_round(folder: Path) -> int | None:
    """The number in the last line of a cell's ``rounds.jsonl``; None unless all lines are whole and in sequence.

    The fields of a line are not checked, since this is asked of every finished cell.
    """
    *lines, rest = (content_of(folder / ROUNDS) or b"").split(b"\n")
    last = None
    for text in lines:
        try:
            line = json.loads(text)
            number, tuned = line["round"], bool(line.get("fine_tuning", line.get("closing")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not isinstance(number, int) or not _follows(number, tuned, number - 1 if last is None else last):
            return None
        last = number
    return None if rest else last


def _follows(number: int, fine_tuning: bool, before: int) -> bool:
    """Whether a line comes after another; fine-tuning has a number of its own where a run stopped early."""
    return number == before + 1 or (fine_tuning and number > before)


def read_round(line: bytes, path: Path, number: int | None = None) -> Round:
    """Read one line of ``rounds.jsonl``.

    Args:
        line: the line without its end.
        path: the file, for an error.
        number: the line's number from 1, for an error; None if unknown.

    Raises:
        HetflError: the line is damaged.
    """
    which = "a line" if number is None else f"line {number}"
    return parse(Round, line, f"{path}: {which}", "train the cell again")


def read_metrics(folder: Path, run: Run) -> Metrics | None:
    """Read the ``metrics.json`` of a run's evaluation.

    Args:
        folder: of the evaluation.
        run: the run.

    Returns:
        None if the run is not finished, or its folder has no evaluation, or one of another run.

    Raises:
        HetflError: the file is damaged.
    """
    path = folder / METRICS
    content = content_of(path) if run.complete else None
    if content is None:
        return None
    found = parse(Metrics, content, f"{path}:", "evaluate the cell again")
    return found if found.fingerprint == run.fingerprint else None


def content_of(path: Path) -> bytes | None:
    """The bytes of a file; None if it does not exist."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def parse(kind: type[P], content: bytes, where: str, remedy: str) -> P:
    """Parse a file's JSON.

    Raises:
        HetflError: one line: ``where``, what is wrong, and the remedy.
    """
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise HetflError(f"{where} {_problem(kind, error)}; {remedy}") from error


def _format(content: bytes) -> int:
    """The format of a record; that of this version if the file is damaged."""
    try:
        found = json.loads(content).get("format", 0)
    except (ValueError, AttributeError):
        return FORMAT
    return found if isinstance(found, int) else FORMAT


def _problem(kind: type[Part], error: ValidationError) -> str:
    """The first mistake of a file, in words that follow the file's name."""
    problem = error.errors(include_url=False)[0]
    place = ".".join(map(str, problem["loc"]))
    if problem["type"] == "json_invalid":
        return f"is not JSON ({problem['ctx']['error']})"
    if problem["type"] == "extra_forbidden":
        return f"has an {unknown('field', place, kind.model_fields)}"
    if problem["type"] == "missing":
        return f"lacks {place}"
    shown = repr(problem["input"])
    shown = shown if len(shown) < 60 else type(problem["input"]).__name__
    return f"has {place or 'a value'} {shown}: {problem['msg'].replace('Input should', 'it should')}"
