"""One table: built from run records, laid beside printed numbers, written in every format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, get_args

from hetfl.errors import HetflError
from hetfl.files import write_text
from hetfl.report.comparison import compare_tables, render_comparison
from hetfl.report.formats import render_csv, render_latex, render_markdown, render_text
from hetfl.report.records import Record, accuracy_of, missing, read_record
from hetfl.schema import Round, Run
from hetfl.tables.spec import Cosine, Entry, Statistic, TableSpec

__all__ = [
    "build_table",
    "compare_tables",
    "render_comparison",
    "render_text",
    "verdict",
    "write_table",
]


M = 1024**2


def verdict(value: float, std: float | None, printed: float | None, statistic: Statistic = "average") -> str:
    """How a value compares with the printed one of the same setting, both in the unit of the statistic.

    Accuracies within two standard deviations over seeds, and never closer than half a point, are a ``match``.
    Uploads count correct predictions: within 1 % or the printed digit they match, more are better. Counts of
    parameters match to the printed digit; otherwise, being neither better nor worse, they are ``arithmetic``.
    Cosines are neither as well: within two standard deviations, or 0.005, they match; otherwise ``differs``.
    """
    if printed is None:
        return "ours"
    if statistic in ("parameters", "parameters_total"):
        digits = len(str(printed).partition(".")[2])
        return "match" if round(value, digits) == printed else "arithmetic"
    cosine = statistic in get_args(Cosine)
    least = max(0.01 * printed, 0.0005) if statistic in ("up_first", "up_last") else 0.005 if cosine else 0.5
    if abs(value - printed) <= max(2 * (std or 0.0), least):
        return "match"
    return "differs" if cosine else "better" if value > printed else "worse"


def build_table(
    spec: TableSpec,
    runs: Path,
    evaluations: Path,
) -> dict[str, Any]:
    """Collect a table's cells from the records; the result is what ``<name>.json`` holds.

    Accuracies are percent, cosines have no unit, other values are M elements (``unit``). ``value`` is the mean over
    seeds of what the cell reads from its runs, ``std`` its sample standard deviation (None with one seed),
    ``difference`` the value less the printed one. ``statistic`` says what is read where it is not the clients'
    average, ``reading`` by which inference rule where it is not the method's usual one. Of an average, ``lowest``
    and ``highest`` are means over seeds of the lowest and highest client. Of a pooled accuracy over the last rounds,
    ``window`` says how many these are and ``variance`` is that between them in squared points, mean over seeds; like
    the paper's ``printed_variance`` it judges nothing. Of any accuracy, ``best``
    and ``last`` are means over seeds of the best and the last round. ``parameters`` counts trainable elements per
    client. ``up`` and ``down`` hold elements and bytes per client and round, averaged over all participations in
    rounds >= 1 and over seeds, the first and the last round's elements per client, whether they vary between
    rounds, and the registration's totals (round 0, all clients). ``random`` says that a frozen backbone had
    random weights.

    ``status`` is ``match``, ``better`` or ``worse`` against a printed value, ``other setting`` (without a
    difference) where that is not comparable, ``ours`` where nothing is printed, ``not run`` where no seed is
    finished, ``not evaluated`` where none has an evaluation, ``broken`` where records are damaged and no other seed
    is there (in any case the footnote says what is wrong with a seed); ``arithmetic`` is for numbers that are
    computed and not learned. A run that stopped early has the ``rounds`` that it played in its provenance, one that
    ``diverged`` the first round in which it did. ``seeds`` names the seeds a cell was built from, ``wanted`` those
    it asks for.

    Args:
        spec: what to print.
        runs: the folder of run records; it need not exist.
        evaluations: the folder of evaluations.

    Raises:
        HetflError: cells were made from different inputs.
    """
    records: list[Record] = []
    cells = []
    for row, entries in spec.entries.items():
        for column, entry in entries.items():
            done, wrong = _read(runs, evaluations, entry)
            records += done
            cells.append({"row": row, "column": column} | _cell(entry, done) | _wrong(entry, done, wrong))
    blocks = {"blocks": [block.model_dump() for block in spec.blocks]} if spec.blocks else {}
    return {
        "table": spec.name,
        "title": spec.title,
        "note": spec.note,
        "head": spec.head,
        "seeds": spec.seeds,
        "columns": dict(spec.columns),
        "rows": dict(spec.rows),
        **blocks,
        "decimals": spec.decimals,
        "cells": cells,
        "footnotes": spec.footnotes,
        "provenance": _shared(records),
    }


def write_table(table: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``<name>.json``, ``.md``, ``.csv`` and ``.tex`` into a folder, each atomically.

    Where the file that is there differs in nothing but commit and source, the table keeps the ones it names: at that
    commit these very numbers were made, and a commit that makes them again is no news.
    """
    table = _settled(table, folder / f"{table['table']}.json")
    contents = {
        "json": json.dumps(table, indent=1, ensure_ascii=False) + "\n",
        "md": render_markdown(table),
        "csv": render_csv(table),
        "tex": render_latex(table),
    }
    for suffix, content in contents.items():
        write_text(folder / f"{table['table']}.{suffix}", content)
    return [folder / f"{table['table']}.{suffix}" for suffix in contents]


def _read(runs: Path, evaluations: Path, entry: Entry) -> tuple[list[Record], dict[str, str]]:
    """The records of a cell's seeds; and of seeds that are not evaluated or damaged, what to say and their status."""
    records, wrong = [], {}
    for seed in entry.seeds:
        try:
            record = read_record(runs, evaluations, entry, seed)
            if record is not None:
                records.append(record)
            elif (status := missing(runs, entry, seed)) != "not run":
                wrong[f"Seed {seed} is {status}: run the evaluate stage of {entry.experiment}."] = status
        except HetflError as error:
            # Tables are committed: no folder of this machine may enter.
            wrong[f"Seed {seed} is broken: {str(error).replace(f'{runs.parent}/', '')}."] = "broken"
    return records, wrong


def _wrong(entry: Entry, records: list[Record], wrong: Mapping[str, str]) -> dict[str, Any]:
    """A cell's status where no seed can be shown, and its footnote where one is damaged or not evaluated."""
    if not wrong:
        return {}
    note = {"footnote": " ".join([entry.footnote, *wrong]).strip()}
    return note if records else note | {"status": min(wrong.values())}  # "broken" comes first


def _settled(table: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    try:
        told = json.loads(path.read_text())
        same = _without_commits(told) == _without_commits(json.loads(json.dumps(table)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none there, or none of ours
        return table
    return {**table, "provenance": told["provenance"]} if same else table


def _without_commits(table: Mapping[str, Any]) -> dict[str, Any]:
    shared = {name: value for name, value in table["provenance"].items() if name != "commits"}
    differences = {name: counts for name, counts in shared.get("differences", {}).items() if name not in _WHICH_CODE}
    return {**table, "provenance": shared | {"differences": differences}}


def _cell(entry: Entry, records: list[Record]) -> dict[str, Any]:
    cell = _numbers(entry, records)
    usual = {"unit": "%", "footnote": "", "statistic": "average", "reading": "", "comparable": True}
    usual |= {"printed_variance": None}
    optional = {name: getattr(entry, name) for name in usual if getattr(entry, name) != usual[name]}
    return {"printed": entry.printed, "printed_std": entry.printed_std, "wanted": entry.seeds} | cell | optional


def _numbers(entry: Entry, records: list[Record]) -> dict[str, Any]:
    if not records:
        accuracies = ("value", "std", "difference", "lowest", "highest", "best", "last")
        nothing = dict.fromkeys((*accuracies, "rounds", "parameters", "up", "down"))
        return {"seeds": [], "random": False, "status": "not run", "provenance": []} | nothing
    values = [_value(entry, record) for record in records]
    curves = [_curve(entry, record) for record in records]
    value, std = mean(values), stdev(values) if len(values) > 1 else None
    printed = entry.printed if entry.comparable else None
    per_client = [mean(counts) for counts in zip(*(r.run.parameters.trainable for r in records), strict=True)]

    def over_clients(name: Literal["lowest", "highest"]) -> float | None:
        if entry.statistic != "average":
            return None
        return _tidy(mean(100 * getattr(record.metrics, name) for record in records))

    return {
        "value": _tidy(value),
        "std": None if std is None else _tidy(std),
        "difference": None if printed is None else _tidy(value - printed),
        "seeds": [record.run.seed for record in records],
        "lowest": over_clients("lowest"),
        "highest": over_clients("highest"),
        **_window(entry, records),
        "best": _tidy(mean(max(curve) for curve in curves)) if all(curves) else None,
        "last": _tidy(mean(curve[-1] for curve in curves)) if all(curves) else None,
        "rounds": max(record.run.rounds for record in records),
        "parameters": {"per_client": [_tidy(count) for count in per_client], "mean": _tidy(mean(per_client))},
        "up": _traffic(records, "up"),
        "down": _traffic(records, "down"),
        "random": any(model.endswith(".random") for record in records for model in record.run.models),
        "status": verdict(value, std, printed, entry.statistic) if entry.comparable else "other setting",
        "provenance": [
            {
                "run": record.path,
                "seed": record.run.seed,
                "fingerprint": record.run.fingerprint,
                "value": _tidy(number),
                **({"rounds": record.played} if record.played < record.run.rounds else {}),
                **({} if record.diverged is None else {"diverged": record.diverged}),
            }
            for record, number in zip(records, values, strict=True)
        ],
    }


def _window(entry: Entry, records: list[Record]) -> dict[str, Any]:
    """How a pooled accuracy over the last rounds varies between them; nothing of any other."""
    if entry.statistic != "window_pooled":
        return {}
    return {
        "variance": _tidy(mean(100**2 * record.measured("window_variance", entry.reading) for record in records)),
        "window": max(int(record.measured("window_rounds", entry.reading)) for record in records),
    }


def _value(entry: Entry, record: Record) -> float:
    """What a cell reads from one run."""
    parameters = record.run.parameters
    match entry.statistic:
        case "best_pooled":
            return max(_curve(entry, record))
        case "up_first":
            return record.training[0].up.elements / M
        case "up_last":
            return record.training[-1].up.elements / M
        case "parameters" | "parameters_total":
            clients = parameters.trainable if entry.statistic == "parameters_total" else parameters.trainable[:1]
            return (sum(clients) + (parameters.server if entry.server else 0)) / M
        case "cosine_shared" | "cosine_group_global" | "cosine_group_local":
            last = record.training[-record.run.settings["window"] :]
            found = [line.diagnostics.get(entry.statistic) for line in last]
            if not (known := [cosine for cosine in found if isinstance(cosine, int | float)]):
                remedy = "train with more clients" if record.diverged is None else "it diverged; lower lr"
                raise HetflError(f"{record.path}: no {entry.statistic} in its last rounds; {remedy}")
            return mean(known)
        case _:
            return 100 * record.measured(entry.statistic, entry.reading)


def _curve(entry: Entry, record: Record) -> list[float]:
    """An accuracy in percent after every round that has it; empty for what is no accuracy."""
    shares = [accuracy_of(entry.statistic, entry.reading, line) for line in record.tested]
    return [100 * share for share in shares if share is not None]


Way = Literal["up", "down"]


def _traffic(records: list[Record], way: Way) -> dict[str, Any]:
    """Sizes of one client's message: mean, first and last over the rounds that send one; and the run's total."""

    def size(line: Round, unit: str) -> int:
        found: int = getattr(getattr(line, way), unit)
        return found

    def mean_size(record: Record, unit: str, lines: slice = slice(None)) -> float:
        sizes = [size(line, unit) / len(line.participants) for line in _sending(record, way)[lines]]
        return mean(sizes) if sizes else 0

    def total(lines: Iterable[Round], unit: str) -> float:
        return sum(size(line, unit) for line in lines)

    units = ("elements", "bytes")
    return {unit: _tidy(mean(mean_size(r, unit) for r in records)) for unit in units} | {
        "first": _tidy(mean(mean_size(r, "elements", slice(1)) for r in records)),
        "last": _tidy(mean(mean_size(r, "elements", slice(-1, None)) for r in records)),
        "varies": any(_varies(record, way) for record in records),
        "registration": {
            unit: _tidy(mean(total((line for line in r.rounds if line.round == 0), unit) for r in records))
            for unit in units
        },
        "total": {unit: _tidy(mean(total(r.rounds, unit) for r in records)) for unit in units},
    }


def _sending(record: Record, way: Way) -> list[Round]:
    # Many servers have nothing to say in round 1; an empty message would blur the size of the others.
    return [line for line in record.training if _elements(line, way)]


def _elements(line: Round, way: Way) -> int:
    return (line.up if way == "up" else line.down).elements


def _varies(record: Record, way: Way) -> bool:
    """Whether a client's messages change in size from round to round."""
    sizes = {_elements(line, way) / len(line.participants) for line in _sending(record, way)}
    return len(sizes) > 1


def _tidy(number: float) -> float:
    """Whole numbers as int, others without floating-point dust."""
    number = round(number, 6)
    return int(number) if number == int(number) else number


def _shared(records: list[Record]) -> dict[str, Any]:
    """What stands behind the whole table; cells from different data must not stand side by side."""
    datasets: dict[str, str] = {}
    partitions: dict[str, str] = {}
    weights: dict[str, str] = {}
    versions: dict[str, list[str]] = {}
    for record in records:
        run, inputs = record.run, record.run.inputs
        _agree(datasets, run.dataset, inputs.dataset, "data set", record.path)
        _agree(partitions, f"{run.dataset}/{run.split}-s{run.seed}", inputs.partition, "partition", record.path)
        if run.public and inputs.public:
            _agree(datasets, run.public["dataset"], inputs.public, "data set", record.path)
        for model, checksum in inputs.weights.items():
            _agree(weights, model, checksum, "weights of", record.path)
        for package, version in run.versions.items():
            if version not in versions.setdefault(package, []):
                versions[package].append(version)
    return {
        "datasets": datasets,
        "partitions": dict(sorted(partitions.items())),
        "models": _distinct(model for record in records for model in record.run.models),
        "weights": weights,
        "rounds": _distinct(record.run.rounds for record in records),
        "clients": _distinct(record.run.clients for record in records),
        "engines": _distinct(_engine(record.run) for record in records),
        "devices": _distinct(record.run.device for record in records),
        "versions": versions,
        "commits": _distinct(record.run.commit for record in records),
        "differences": _differences(records),
    }


_WHICH_CODE = ("commit", "source")
"""What a record tells of the code that its run went through."""


def _differences(records: list[Record]) -> dict[str, dict[str, int]]:
    """Where runs differ in what might matter and is no part of their identity: how many there are of each kind."""
    found: dict[str, Counter[str]] = {}
    for run in {record.path: record.run for record in records}.values():
        beside = {name: getattr(run, name) for name in ("device", "engine", "precision", "threads", *_WHICH_CODE)}
        for name, value in (beside | run.versions).items():
            shown = "not recorded" if value is None else str(value)
            found.setdefault(name, Counter())[shown[:12] if name == "source" else shown] += 1
    return {name: dict(counts) for name, counts in found.items() if len(counts) > 1}


def _engine(run: Run) -> str:
    """An engine's name, and its precision where that is not the usual one."""
    return run.engine if run.precision == "float32" else f"{run.engine}, frozen blocks in {run.precision}"


def _agree(known: dict[str, str], name: str, checksum: str, kind: str, path: str) -> None:
    if known.setdefault(name, checksum) != checksum:
        raise HetflError(
            f"{path}: {kind} {name} has checksum {checksum[:12]}, other cells of the table have "
            f"{known[name][:12]}; train the older cells again with dvc repro"
        )


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
