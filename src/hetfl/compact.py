"""Compact records: what git keeps of a trained cell, one text file of some kilobytes each.

``results/<experiment>/<method>/<row>/<split>-s<seed>.json`` has the layout of ``runs/``, since one cell may stand in
several tables. A file has the run's description, its evaluation, its curves by column, and the checksums of the files
that it was made from. It has neither weights nor losses of single clients, and of the diagnostics only those that
tables read. Everything else comes back exactly as it was: accuracies are kept as counts of correct samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from hetfl.errors import HetflError
from hetfl.schema import Accuracies, Metrics, Part, Round, Run, Share, Traffic, content_of, parse, troubles

FORMAT = 1
"""Format of the compact records that this version writes."""

WIDTH = 118
"""Longest list of lists or mapping that stands on one line."""

WAYS: tuple[Literal["up", "down"], ...] = ("up", "down")
UNITS = ("elements", "bytes")


class Repeated(Part):
    """A column of few different values in a row: each value with the number of rounds that have it."""

    values: list[Any]
    times: list[int]


Column = list[Any] | Repeated
"""A value for each round; None for a round that has none."""


class Tested(Part):
    """Accuracies by one inference rule.

    Attributes:
        accuracy: a column for each client. A whole number counts correct samples; other numbers are fractions.
        pooled: the same over all clients' samples together.
    """

    accuracy: list[Column]
    pooled: Column


class Curves(Part):
    """The rounds of a run by column, see :class:`hetfl.schema.Round`.

    Attributes:
        round: the rounds, registration (0) and fine-tuning included.
        fine_tuning: which of them are fine-tuning.
        test, extra, training: of the method's own inference rule, of others by name, and on training samples.
        loss: mean over the participants, four digits.
        sizes: elements and bytes of all messages, as ``up.elements``.
        seconds: by phase, in hundredths.
        diagnostics: of the server, by name.
        diverged: clients whose loss or logits were not finite.
    """

    round: list[int]
    fine_tuning: list[int] = []
    participants: Column
    test: Tested
    extra: dict[str, Tested] = {}
    training: list[Column] = []
    loss: Column
    sizes: dict[str, Column]
    seconds: dict[str, Column]
    diagnostics: dict[str, Column] = {}
    diverged: Column = []

    @field_validator("sizes", mode="after")
    @classmethod
    def _all_sizes(cls, sizes: dict[str, Column]) -> dict[str, Column]:
        for name in (f"{way}.{unit}" for way in WAYS for unit in UNITS):
            if name not in sizes:
                raise ValueError(f"it should have {name}")
        return sizes

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        tested = [self.test, *self.extra.values()]
        columns: list[Column] = [self.participants, self.loss, *self.sizes.values(), *self.seconds.values()]
        columns += [*self.diagnostics.values(), *self.training, *([self.diverged] if self.diverged else [])]
        columns += [column for some in tested for column in (*some.accuracy, some.pooled)]
        for column in columns:
            if len(_values(column)) != len(self.round):
                raise ValueError(f"a column has {len(_values(column))} values, there are {len(self.round)} rounds")
        return self


class Compact(Part):
    """A compact record.

    Attributes:
        format: see :data:`FORMAT`.
        run: the content of ``run.json``.
        played: rounds of training that are done.
        seconds: that all rounds took.
        peak_memory: the largest of all rounds, in bytes; None if unknown.
        files: SHA-256 of the files of a finished run.
        metrics: the content of ``metrics.json``; None before the evaluation.
        curves: of its rounds so far; None in records of unfinished runs that an earlier version wrote.
    """

    format: int
    run: Run
    played: int
    seconds: float
    peak_memory: int | None = None
    files: dict[str, str] = {}
    metrics: Metrics | None = Field(default=None)
    curves: Curves | None = None

    @field_validator("run", mode="before")
    @classmethod
    def _unpack(cls, run: Any) -> Any:
        return run if isinstance(run, Run) else _with_counts(run, _spread)

    @model_validator(mode="after")
    def _clients_agree(self) -> Self:
        for tested in [self.curves.test, *self.curves.extra.values()] if self.curves else []:
            columns = len(tested.accuracy)
            if columns != self.run.clients and any(value is not None for value in _values(tested.pooled)):
                raise ValueError(f"accuracy has {columns} columns, there are {self.run.clients} clients")
        return self

    @property
    def finished(self) -> bool:
        """Whether the run is complete and evaluated."""
        return self.run.complete and self.metrics is not None

    @property
    def progress(self) -> tuple[bool, bool, int]:
        """How far it is; the larger of two is further, and all finished ones are equal."""
        return self.finished, self.run.complete, 0 if self.run.complete else self.played

    def rounds(self) -> list[Round]:
        """The lines of ``rounds.jsonl``, without what a compact record leaves out."""
        if self.curves is None:
            return []
        curves, counts = self.curves, self.run.class_counts
        fine_tuning = {*curves.fine_tuning}
        tests = _decoded(curves.test, [sum(row) for row in counts.test])
        extra = {name: _decoded(tested, [sum(row) for row in counts.test]) for name, tested in curves.extra.items()}
        training = _shares(curves.training, [sum(row) for row in counts.train], len(curves.round))
        columns = {"participants": _values(curves.participants)}
        columns |= {"diverged": _values(curves.diverged)} if curves.diverged else {}
        sizes = {name: _values(column) for name, column in curves.sizes.items()}
        seconds = {name: _values(column) for name, column in curves.seconds.items()}
        diagnostics = {name: _values(column) for name, column in curves.diagnostics.items()}
        found = []
        for at, number in enumerate(curves.round):
            test = tests[at]
            told: dict[str, Any] = {"round": number, "fine_tuning": number in fine_tuning}
            told |= {name: values[at] for name, values in columns.items()}
            told |= {"accuracy": test.accuracy, "pooled": test.pooled} if test else {}
            if training and any(share is not None for share in training[at]):
                told["train_accuracy"] = training[at]
            told["extra"] = {name: some[at] for name, some in extra.items() if some[at] is not None}
            told |= {way: Traffic(**{unit: sizes[f"{way}.{unit}"][at] for unit in UNITS}) for way in WAYS}
            for group, named in (("seconds", seconds), ("diagnostics", diagnostics)):
                told[group] = {name: values[at] for name, values in named.items() if values[at] is not None}
            found.append(Round(**told))
        return found


def compact(
    run: Run,
    rounds: Sequence[Round],
    metrics: Metrics | None,
    files: Mapping[str, str],
    diagnostics: Sequence[str] = (),
) -> Compact:
    """Make a compact record.

    Args:
        run: the run; one that is not complete gets neither evaluation nor checksums, so that it has no result yet.
        rounds: its rounds so far.
        metrics: of its evaluation, if there is one.
        files: SHA-256 of its files by name.
        diagnostics: names of those to keep; one that is not a single number is left out.
    """
    memory = [line.peak_memory for line in rounds if line.peak_memory is not None]
    told: dict[str, Any] = {"files": dict(files)} if run.complete else {}
    told |= {"metrics": metrics} if run.complete and metrics is not None else {}
    return Compact(
        format=FORMAT,
        run=run.model_copy(update=troubles(rounds)),
        played=sum(line.round >= 1 and not line.fine_tuning for line in rounds),
        seconds=round(sum(sum(line.seconds.values()) for line in rounds), 1),
        peak_memory=max(memory, default=None),
        curves=_curves(run, rounds, diagnostics),
        **told,
    )


def read_compact(path: Path) -> Compact | None:
    """Read a compact record; None if the file does not exist.

    Raises:
        HetflError: the file is damaged, or of a format that cannot be read.
    """
    content = content_of(path)
    if content is None:
        return None
    try:
        format = json.loads(content)["format"]
    except (ValueError, TypeError, KeyError):
        format = FORMAT
    if isinstance(format, int) and format > FORMAT:
        raise HetflError(f"{path}: is of format {format}, and this hetfl reads up to {FORMAT}; use a newer hetfl")
    return parse(Compact, content, f"{path}:", "restore it with git checkout")


def render(record: Compact) -> str:
    """The content of a compact record's file, a line for each column."""
    told = record.as_json()
    told["run"] = _with_counts(told["run"], _packed)
    return "\n".join(_lines(told, 0)) + "\n"


def _curves(run: Run, rounds: Sequence[Round], diagnostics: Sequence[str]) -> Curves:
    test, train = ([sum(row) for row in counts] for counts in (run.class_counts.test, run.class_counts.train))
    names = dict.fromkeys(name for line in rounds for name in line.extra)
    phases = dict.fromkeys(phase for line in rounds for phase in line.seconds)
    kept = {name: [_number(line.diagnostics.get(name)) for line in rounds] for name in diagnostics}
    kept = {name: values for name, values in kept.items() if any(value is not None for value in values)}
    more: dict[str, Any] = {}
    if names:
        more["extra"] = {name: _encoded([line.test(name) for line in rounds], test) for name in names}
    if any(line.train_accuracy for line in rounds):
        more["training"] = _counts([line.train_accuracy for line in rounds], train)
    if kept:
        more["diagnostics"] = {name: _column(values) for name, values in kept.items()}
    if any(line.diverged for line in rounds):
        more["diverged"] = _column([line.diverged for line in rounds])
    if fine_tuning := [line.round for line in rounds if line.fine_tuning]:
        more["fine_tuning"] = fine_tuning
    return Curves(
        round=[line.round for line in rounds],
        participants=_column([line.participants for line in rounds]),
        test=_encoded([line.test() for line in rounds], test),
        loss=_column([_mean_loss(line) for line in rounds]),
        sizes={
            f"{way}.{unit}": _column([getattr(getattr(line, way), unit) for line in rounds])
            for way in WAYS
            for unit in UNITS
        },
        seconds={phase: _column([_hundredths(line.seconds.get(phase)) for line in rounds]) for phase in phases},
        **more,
    )


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) else None


def _mean_loss(line: Round) -> float | None:
    return None if line.mean_loss is None else float(f"{line.mean_loss:.4g}")


def _hundredths(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _encoded(tests: Sequence[Accuracies | None], totals: Sequence[int]) -> Tested:
    return Tested(
        accuracy=_counts([None if test is None else test.accuracy for test in tests], totals),
        pooled=_column([None if test is None else _count(test.pooled, sum(totals)) for test in tests]),
    )


def _decoded(tested: Tested, totals: Sequence[int]) -> list[Accuracies | None]:
    pooled = [_share(value, sum(totals)) for value in _values(tested.pooled)]
    shares = _shares(tested.accuracy, totals, len(pooled))
    return [
        None if whole is None else Accuracies(accuracy=shares[at], pooled=whole) for at, whole in enumerate(pooled)
    ]


def _counts(rounds: Sequence[Sequence[Share] | None], totals: Sequence[int]) -> list[Column]:
    """A column of correct samples for each client."""
    clients = max((len(shares) for shares in rounds if shares is not None), default=0)
    totals = totals if len(totals) == clients else [0] * clients
    return [
        _column([None if shares is None else _count(shares[client], totals[client]) for shares in rounds])
        for client in range(clients)
    ]


def _shares(columns: Sequence[Column], totals: Sequence[int], rounds: int) -> list[list[Share]]:
    """The accuracies of all clients, round by round."""
    totals = totals if len(totals) == len(columns) else [0] * len(columns)
    found = [
        [_share(value, total) for value in _values(column)] for column, total in zip(columns, totals, strict=True)
    ]
    return [[shares[at] for shares in found] for at in range(rounds)] if columns else []


def _count(share: Share, total: int) -> int | float | None:
    """The number of correct samples that a share is; the share itself if it is that of no whole number."""
    if share is None or not total:
        return share
    count = round(share * total)
    return count if count / total == share else float(share)


def _share(value: int | float | None, total: int) -> Share:
    return value / total if isinstance(value, int) else value


def _column(values: Sequence[Any]) -> Column:
    """Values as they are, or as repeated ones if that is shorter."""
    runs = [(value, len([*same])) for value, same in groupby(values)]
    if 2 * len(runs) < len(values):
        return Repeated(values=[value for value, _ in runs], times=[times for _, times in runs])
    return [*values]


def _values(column: Column) -> list[Any]:
    if isinstance(column, Repeated):
        return [value for value, times in zip(column.values, column.times, strict=True) for _ in range(times)]
    return column


def _with_counts(run: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """A run as JSON with its class counts changed row by row."""
    counts = run.get("class_counts")
    if not isinstance(counts, dict):
        return dict(run)
    changed = {kind: [change(row) for row in rows] for kind, rows in counts.items() if isinstance(rows, list)}
    return {**run, "class_counts": {**counts, **changed}}


def _packed(row: Sequence[int]) -> list[int]:
    """A row of class counts, in which a negative number stands for as many zeros."""
    found: list[int] = []
    for zero, some in groupby(row, key=lambda count: count == 0):
        values = [*some]
        found += [-len(values)] if zero else values
    return found


def _spread(row: Any) -> Any:
    if not isinstance(row, list) or not all(isinstance(count, int) for count in row):
        return row  # the type of the run says what is wrong
    return [each for count in row for each in ([0] * -count if count < 0 else [count])]


def _lines(value: Any, depth: int, key: str = "", end: str = "") -> Iterator[str]:
    """JSON in which a column, and whatever is short, stands on one line."""
    start = " " * depth + (f"{json.dumps(key)}: " if key else "")
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    flat = isinstance(value, list) and not any(isinstance(inner, list | dict) for inner in value)
    if depth and (len(text) <= WIDTH or flat or not isinstance(value, list | dict)):
        yield f"{start}{text}{end}"
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    inner = [*value.items()] if isinstance(value, dict) else [("", one) for one in value]
    yield start + opening
    for at, (name, one) in enumerate(inner):
        yield from _lines(one, depth + 1, name, "," if at < len(inner) - 1 else "")
    yield " " * depth + closing + end
