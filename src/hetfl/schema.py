"""What a run leaves on disk: the types of ``run.json``, ``rounds.jsonl`` and ``metrics.json``, and who reads them.

Whoever writes or reads a record goes through these types, so that each field is named once. A field that a run does
not have, such as the accuracy of a round without a test, is not in the file and None (or empty) in the object.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hetfl.errors import HetflError, unknown

FORMAT = 1
"""Of the records that are written; raised when a field changes its meaning or a needed one is added. A record without
one is of format 0: from before threads, source and versions of the numerics were recorded, and read without them."""

RUN, ROUNDS, MODEL = "run.json", "rounds.jsonl", "model.safetensors"
"""The files of a run record."""

METRICS, PER_CLASS = "metrics.json", "per_class.csv"
"""The files of every evaluation."""

Share = float | None
"""An accuracy as a fraction; None of a client without test samples."""

Number = int | float | None
Figure = Number | list[Number | list[Number]]
"""What a method observes: one number, one of each client, or several of each; None where there is none."""


class Part(BaseModel):
    """Base of all that is recorded: unknown fields and other types are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def as_json(self) -> dict[str, Any]:
        """What stands in the file: the fields that were given, in order."""
        return self.model_dump(exclude_unset=True)


P = TypeVar("P", bound=Part)


class Traffic(Part):
    """The size of messages."""

    elements: int
    bytes: int


class Accuracies(Part):
    """Test accuracies after a round, by one inference rule.

    Attributes:
        accuracy: of each client.
        pooled: of all test samples together.
        unscored: the clients with scores that are not finite; in the round's ``diverged`` instead of on disk.
    """

    accuracy: list[Share]
    pooled: float
    unscored: list[int] = Field(default=[], exclude=True)


class Round(Part):
    """A line of ``rounds.jsonl``.

    Attributes:
        round: 0 of the registration, from 1 on of training, one more than the method's rounds of the closing.
        closing: whether this is what clients do after the last round.
        participants: the clients that took part; ``loss`` and ``clients`` are in their order.
        accuracy, pooled: as in :class:`Accuracies`; None after a round without a test.
        also: tests by other inference rules, by name.
        train_accuracy: of each client on its training samples, where a run asks for it.
        loss: mean training loss; None where it is not finite.
        up, down: all messages of the round together.
        seconds: by phase.
        peak_memory: bytes; None where it is unknown.
        diagnostics: figures of the server, by name.
        clients: figures of each participant, by name.
        diverged: clients whose loss or scores are not finite.
    """

    round: int
    closing: bool = False
    participants: list[int]
    accuracy: list[Share] | None = None
    pooled: float | None = None
    also: dict[str, Accuracies] = {}
    train_accuracy: list[Share] | None = None
    loss: list[float | None] = []
    up: Traffic
    down: Traffic
    seconds: dict[str, float]
    peak_memory: int | None = None
    diagnostics: dict[str, Figure] = {}
    clients: dict[str, list[Number | list[Number]]] = {}
    diverged: list[int] = []

    def test(self, reading: str = "") -> Accuracies | None:
        """The test after this round by an inference rule, ``""`` for the method's own; None without one."""
        if reading:
            return self.also.get(reading)
        if self.accuracy is None or self.pooled is None:
            return None
        return Accuracies.model_construct(accuracy=self.accuracy, pooled=self.pooled)


class Inputs(Part):
    """Checksums of what a run reads: data set, partition, weights by model, public data set if there is one."""

    dataset: str
    partition: str
    weights: dict[str, str]
    public: str | None = None


class ClassCounts(Part):
    """Samples of each client and class, [K][C]."""

    train: list[list[int]]
    test: list[list[int]]


class Parameters(Part):
    """Elements: of each client's network the trainable ones and all, and those that the server learns."""

    trainable: list[int]
    total: list[int]
    server: int = 0


class Run(Part):
    """``run.json``: what ran, on what, with what, and when.

    Attributes:
        format: of the record, see :data:`FORMAT`.
        fingerprint: the checksum of the run's identity.
        rounds: those that the settings ask for; a run that stops early plays fewer.
        clients: how many.
        models: of each client.
        numerics: the versions that the numbers rest on, see :mod:`hetfl.experiments.versions`.
        threads, source: None in records of format 0.
        finished: None until the run is complete.
        diverged: the first round in which a client's loss or scores were not finite.
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
    commit: str
    status: Literal["running", "complete"]
    started: str
    finished: str | None = None
    diverged: int | None = None

    @field_validator("public", mode="before")
    @classmethod
    def _names_the_subset(cls, public: Any) -> Any:
        # Records of format 1 have the public subset as ``subset`` or, the older ones, as ``split``.
        if isinstance(public, dict) and "split" in public:
            return {"subset" if key == "split" else key: value for key, value in public.items()}
        return public

    @property
    def complete(self) -> bool:
        """Whether the run has finished."""
        return self.status == "complete"


class Windowed(Part):
    """Accuracies over the last rounds, see :func:`hetfl.metrics.accuracy.window`; None where none are reported."""

    window_pooled: float | None = None
    window_variance: float | None = None
    window_variance_sample: float | None = None
    window_lowest: float | None = None
    window_average: float | None = None
    window_rounds: int | None = None


class Metrics(Windowed):
    """``metrics.json``: what an evaluation measures, as fractions; None where it did not.

    Attributes:
        fingerprint: of the run.
        accuracy, average, lowest, highest, std, pooled, balanced_accuracy, macro_f1: of the final state, see
            :func:`hetfl.metrics.accuracy.summary`.
        best_pooled, best_round, best_average, rounds: see :func:`hetfl.metrics.accuracy.best_round`.
        also: of other inference rules, by name.
        group_entropy, congruence: of methods that sort samples, see :func:`hetfl.experiments.evaluation.of_groups`.
    """

    fingerprint: str
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
    also: dict[str, Windowed] = {}
    group_entropy: float | None = None
    congruence: float | None = None

    def figure(self, name: str, reading: str = "") -> float | None:
        """A figure by its name in the file, of an inference rule; None where the evaluation has none."""
        found = self.also.get(reading) if reading else self
        value: float | None = getattr(found, name, None)
        return value


def read_run(folder: Path) -> Run | None:
    """A cell's ``run.json``; None where there is none.

    Raises:
        HetflError: the file is damaged, or of a format that cannot be read.
    """
    path = folder / RUN
    content = _content(path)
    if content is None:
        return None
    try:
        run = Run.model_validate_json(content)
    except ValidationError as error:
        _check_format(path, content, error)
        raise HetflError(f"{path}: {_problem(Run, error)}; delete it and run dvc repro again") from error
    _check_format(path, content)
    return run


def needed_run(folder: Path) -> Run:
    """:func:`read_run` where there must be one.

    Raises:
        HetflError: there is none, or it cannot be read.
    """
    run = read_run(folder)
    if run is None:
        raise HetflError(f"{folder / RUN}: does not exist; run the stage that makes it with dvc repro")
    return run


def read_rounds(folder: Path, finished: bool = False) -> list[Round]:
    """The lines of a cell's ``rounds.jsonl``.

    Args:
        folder: the cell's.
        finished: whether the run is: then the file must be there, and its last line whole. Otherwise a last line that
            a process did not end is passed over.

    Raises:
        HetflError: a line is damaged; the error names it.
    """
    path = folder / ROUNDS
    content = _content(path)
    if content is None:
        if finished:
            raise HetflError(f"{path}: the record of a finished run lacks it; train the cell again")
        return []
    *lines, rest = content.split(b"\n")
    if finished and rest:
        lines.append(rest)
    return [read_round(line, path, number) for number, line in enumerate(lines, start=1)]


def read_round(line: bytes, path: Path, number: int | None = None) -> Round:
    """One line of ``rounds.jsonl``.

    Args:
        line: without its end.
        path: of the file.
        number: of the line, from 1; None where nobody counts.

    Raises:
        HetflError: it is damaged.
    """
    try:
        return Round.model_validate_json(line)
    except ValidationError as error:
        which = "a line" if number is None else f"line {number}"
        raise HetflError(f"{path}: {which} {_problem(Round, error)}; train the cell again") from error


def read_metrics(folder: Path) -> Metrics | None:
    """The ``metrics.json`` of a cell's evaluation; None where there is none.

    Raises:
        HetflError: the file is damaged.
    """
    path = folder / METRICS
    content = _content(path)
    if content is None:
        return None
    try:
        return Metrics.model_validate_json(content)
    except ValidationError as error:
        raise HetflError(f"{path}: {_problem(Metrics, error)}; evaluate the cell again") from error


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check_format(path: Path, content: bytes, error: ValidationError | None = None) -> None:
    """Say of which format a record is, if that is why it cannot be read.

    Raises:
        HetflError: it is newer than this hetfl, or older and ``error`` says what it lacks.
    """
    try:
        found = json.loads(content).get("format", 0)
    except (ValueError, AttributeError):
        return
    if isinstance(found, int) and found > FORMAT:
        raise HetflError(f"{path}: is of format {found}, and this hetfl reads up to {FORMAT}; use a newer hetfl")
    if isinstance(found, int) and found < FORMAT and error is not None:
        raise HetflError(
            f"{path}: is of format {found}, older than {FORMAT}, and {_problem(Run, error)}; "
            f"delete {path.parent} and train the cell again"
        ) from error


def _problem(kind: type[Part], error: ValidationError) -> str:
    """The first thing that is wrong with a file, in words that follow its name."""
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
