"""One table: built from run records, laid beside printed numbers, written in every format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any, get_args

import pandas as pd

from hetfl.compact import WAYS
from hetfl.errors import HetflError
from hetfl.files import write_text
from hetfl.report.formats import render_csv, render_latex, render_markdown
from hetfl.report.shown import EMPTY, MISSING
from hetfl.schema import Conditions, Run
from hetfl.tables.records import Record, Records, so_far
from hetfl.tables.results import CELL, cell_of, results
from hetfl.tables.spec import Count, Entry, TableSpec
from hetfl.tables.verdict import mean_interval, verdict

OPTIONAL = ("unit", "footnote", "statistic", "reading", "comparable", "printed_variance", "digits", "against")
"""What a cell says of its entry unless it is as :data:`hetfl.report.shown.EMPTY` has it."""


def build_table(spec: TableSpec, records: Records) -> dict[str, Any]:
    """Collect a table's cells from the records; the result is what ``<name>.json`` holds.

    A cell pivots the columns of :func:`~hetfl.tables.results.results`, in which their units are told: ``value``,
    ``lowest``, ``highest``, ``best``, ``last``, ``variance``, ``parameters``, ``up`` and ``down`` are means over
    seeds, ``std`` is the values' sample standard deviation (None with one seed), ``difference`` the value less the
    printed one. ``statistic`` says what is read where it is not the clients' average, ``reading`` by which inference
    rule where it is not the method's usual one. Variances, ours and the paper's ``printed_variance``, judge nothing.
    ``random`` says that a frozen backbone had random weights.

    ``status`` is ``match``, ``better``, ``worse`` or ``differs`` against a printed value, ``other setting`` (and no
    difference) where that is not comparable, ``ours`` where nothing is printed, ``not run`` where no seed is
    finished, ``in progress`` where one has begun, ``not evaluated`` where none has an evaluation, ``stale`` where
    there are only compact records of other settings or versions, ``broken`` where records are damaged and no other
    seed is there (in any case the footnote says what is wrong with a seed). Numbers of parameters need no run:
    without one they have no ``seeds``. A cell ``against`` another row has the mean of the differences to it of the
    same seeds, with their ``std`` and the ``interval`` of their mean (see
    :func:`~hetfl.tables.verdict.mean_interval`), and no other accuracies. A run that stopped early has the ``rounds``
    that it played in its provenance, one that ``diverged`` or went on without a client that ``failed`` the first
    such round, and one whose other run diverged that round as ``base_diverged``. ``seeds`` names the seeds a cell was
    built from, ``wanted`` those it asks for.

    Args:
        spec: what to print.
        records: those of a checkout; none need be there.

    Raises:
        HetflError: cells were made from different inputs.
    """
    entries = {(row, column): entry for row, some in spec.entries.items() for column, entry in some.items()}
    frame = results(entries.values(), records)
    seeds = dict(iter(frame.groupby(CELL, sort=False)))
    cells = []
    for (row, column), entry in entries.items():
        lines = seeds[cell_of(entry)]
        if entry.against:
            other = entries[entry.against, column]
            lines = _paired(lines, seeds[cell_of(other)])
            lines = _going(lines, entry, other, spec.rows[entry.against], records)
        cells.append({"row": row, "column": column} | _cell(entry, lines))
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
        "provenance": _shared([*frame.record[frame.status == "done"]]),
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


def _paired(seeds: pd.DataFrame, base: pd.DataFrame) -> pd.DataFrame:
    """The lines of a cell's seeds less those of another cell; a seed is done where both are."""
    other = base.set_index("seed").reindex(seeds.seed).set_index(seeds.index)
    both = (seeds.status == "done") & (other.status == "done")
    alone = (seeds.status == "done") & ~both
    found = seeds.assign(value=seeds.get("value") - other.get("value")) if both.any() else seeds
    nothing = dict.fromkeys(("lowest", "highest", "best", "last"))
    return found.assign(**nothing, base=other.record).assign(status=seeds.status.mask(alone, "not run"))


def _going(seeds: pd.DataFrame, entry: Entry, other: Entry, title: str, records: Records) -> pd.DataFrame:
    """The lines of a cell's seeds; those in progress say how the run has compared with the other cell's so far."""
    problems = seeds.problem.copy()
    for at in seeds.index[seeds.status == "in progress"]:
        here, there = (records.rounds(each.path(seeds.seed[at])) for each in (entry, other))
        compared = so_far(here, there, title, (entry.reading, other.reading))
        problems[at] = "; ".join(filter(None, (problems[at], compared)))
    return seeds.assign(problem=problems)


def _cell(entry: Entry, seeds: pd.DataFrame) -> dict[str, Any]:
    """A cell's content, from the lines of its seeds."""
    optional = {name: own for name in OPTIONAL if (own := getattr(entry, name)) != EMPTY[name]}
    told: dict[str, Any] = {"printed": entry.printed, "printed_std": entry.printed_std, "wanted": entry.seeds}
    done = seeds.status == "done"
    told |= (_numbers(entry, seeds[done]) if done.any() else _nothing()) | optional
    if not done.any() and (seeds.status == "counted").all():
        value = float(seeds.value.iloc[0])
        told["value"] = _tidy(value)
        told["difference"], told["status"] = _beside(entry, value, None)
    if told["status"] == "not run":
        told["status"] = min(seeds.status[seeds.status != "counted"], key=MISSING.index)
    if entry.statistic in get_args(Count) and told["status"] in ("match", "differs"):
        told |= {"agrees": told["status"] == "match", "difference": None}
    lines = zip(seeds.seed, seeds.status, seeds.problem, strict=True)
    problems = [f"Seed {seed} is {status}: {problem}." for seed, status, problem in lines if problem]
    return told | ({"footnote": " ".join([entry.footnote, *problems]).strip()} if problems else {})


def _nothing() -> dict[str, Any]:
    """What a cell says where no seed is done."""
    accuracies = ("value", "std", "difference", "lowest", "highest", "best", "last")
    nothing = dict.fromkeys((*accuracies, "rounds", "parameters", *WAYS))
    return {"seeds": [], "random": False, "status": "not run", "provenance": []} | nothing


def _numbers(entry: Entry, done: pd.DataFrame) -> dict[str, Any]:
    """What a cell says of the seeds that are done."""

    def over_seeds(name: str) -> float | None:
        return None if done[name].isna().any() else _tidy(mean(done[name]))

    def traffic(way: str) -> dict[str, Any]:
        sizes = {name: over_seeds(f"{way}_{name}") for name in ("elements", "bytes", "first", "last")}
        totals = {
            part: {unit: over_seeds(f"{way}_{part}_{unit}") for unit in ("elements", "bytes")}
            for part in ("registration", "total")
        }
        return sizes | {"varies": bool(done[f"{way}_varies"].any())} | totals

    value, std = mean(done.value), stdev(done.value) if len(done) > 1 else None
    difference, status = _beside(entry, value, std)
    per_client = [mean(counts) for counts in zip(*done.parameters, strict=True)]
    windowed = entry.statistic == "window_pooled"
    models = [model for record in done.record for model in record.run.models]
    return {
        "value": _tidy(value),
        "std": None if std is None else _tidy(std),
        **({"interval": [*map(_tidy, mean_interval([*done.value]))]} if entry.against and std is not None else {}),
        "difference": difference,
        "seeds": [*done.seed],
        "lowest": over_seeds("lowest"),
        "highest": over_seeds("highest"),
        **({"variance": over_seeds("variance"), "window": int(done.window.max())} if windowed else {}),
        "best": over_seeds("best"),
        "last": over_seeds("last"),
        "rounds": int(done.rounds.max()),
        "parameters": {"per_client": [*map(_tidy, per_client)], "mean": _tidy(mean(per_client))},
        **{way: traffic(way) for way in WAYS},
        "random": any(model.endswith(".random") for model in models),
        "status": status,
        "provenance": [*map(_run, done.record, done.value, done.get("base", [None] * len(done)))],
    }


def _beside(entry: Entry, value: float, std: float | None) -> tuple[float | None, str]:
    """What a number is more than the printed one, None where there is none of this setting, and the status."""
    if not entry.comparable:
        return None, "other setting"
    status = verdict(value, std, entry.printed, entry.statistic, entry.printed_std, digits=entry.digits)
    return None if entry.printed is None else _tidy(value - entry.printed), status


def _run(record: Record, value: float, base: Record | None) -> dict[str, Any]:
    """One of the runs behind a cell, and of the other one that it is compared with, when that diverged."""
    return {
        "run": record.path,
        "seed": record.run.seed,
        "fingerprint": record.run.fingerprint,
        "value": _tidy(value),
        **({"rounds": record.played} if record.played < record.run.rounds else {}),
        **({} if record.diverged is None else {"diverged": record.diverged}),
        **({} if record.run.failed is None else {"failed": record.run.failed}),
        **({} if base is None or base.diverged is None else {"base_diverged": base.diverged}),
    }


def _tidy(number: float) -> float:
    """Whole numbers as int, others without floating-point dust."""
    number = round(number, 6)
    return int(number) if number == int(number) else number


def _shared(records: list[Record]) -> dict[str, Any]:
    """What stands behind the whole table; cells from different data must not stand side by side."""
    inputs: dict[str, dict[str, str]] = {"data set": {}, "partition": {}, "weights of": {}}
    versions: dict[str, list[str]] = {}
    for record in records:
        for kind, name, checksum in _inputs(record.run):
            if (known := inputs[kind].setdefault(name, checksum)) != checksum:
                raise HetflError(
                    f"{record.path}: {kind} {name} has checksum {checksum[:12]}, other cells of the table have "
                    f"{known[:12]}; train the older cells again with dvc repro"
                )
        for libraries in record.run.throughout("versions"):
            for package, version in libraries.items():
                versions[package] = _distinct([*versions.get(package, []), version])
    runs = [record.run for record in records]
    return {
        "datasets": inputs["data set"],
        "partitions": dict(sorted(inputs["partition"].items())),
        "models": _distinct(model for run in runs for model in run.models),
        "weights": inputs["weights of"],
        "rounds": _distinct(run.rounds for run in runs),
        "clients": _distinct(run.clients for run in runs),
        "engines": _distinct(engine for run in runs for engine in _engines(run)),
        "devices": _distinct(device for run in runs for device in run.throughout("device")),
        "versions": versions,
        "commits": _distinct(run.commit for run in runs),
        "differences": _differences(records),
    }


def _inputs(run: Run) -> Iterator[tuple[str, str, str]]:
    """Kind, name and checksum of all that a run reads."""
    yield "data set", run.dataset, run.inputs.dataset
    yield "partition", f"{run.dataset}/{run.split}-s{run.seed}", run.inputs.partition
    if run.public and run.inputs.public:
        yield "data set", run.public["dataset"], run.inputs.public
    yield from (("weights of", model, checksum) for model, checksum in run.inputs.weights.items())


_WHICH_CODE = ("commit", "source")
"""What a record tells of the code that its run went through."""


def _differences(records: list[Record]) -> dict[str, dict[str, int]]:
    """Where runs differ in what might matter and is no part of their identity: how many there are of each kind."""
    found: dict[str, Counter[str]] = {}
    for run in {record.path: record.run for record in records}.values():
        beside = {name: getattr(run, name) for name in ("device", "engine", "precision", "threads", *_WHICH_CODE)}
        beside |= {name: run.in_turn(name) for name in beside if run.changes}
        for name, value in (beside | run.versions).items():
            shown = "not recorded" if value is None else str(value)
            found.setdefault(name, Counter())[shown[:12] if name == "source" else shown] += 1
    return {name: dict(counts) for name, counts in found.items() if len(counts) > 1}


def _engines(run: Run) -> list[str]:
    """The engines of a run one after the other, each with its precision where that is not the usual one."""
    how = {"tf32": ", products in tf32", "bfloat16": ", frozen blocks in bfloat16"}
    known, found = {"engine": run.engine, "precision": run.precision}, []
    for change in (Conditions(), *run.changes):
        known |= {name: value for name in known if (value := getattr(change, name)) is not None}
        found.append(known["engine"] + how.get(known["precision"], ""))
    return found


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
