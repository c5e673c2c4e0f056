"""One table: built from run records, laid beside printed numbers, written in every format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from hetfl.errors import HetflError
from hetfl.files import write_text
from hetfl.papers.spec import TableSpec
from hetfl.report.comparison import compare_tables, render_comparison
from hetfl.report.formats import render_csv, render_latex, render_markdown, render_text
from hetfl.report.records import Record, read_record

__all__ = [
    "build_table",
    "compare_tables",
    "render_comparison",
    "render_text",
    "verdict",
    "write_table",
]


def verdict(value: float, std: float | None, printed: float | None) -> str:
    """How a value compares with the printed one, all in percent.

    Within two standard deviations over seeds, and never closer than half a point, is a ``match``.
    """
    if printed is None:
        return "ours"
    if abs(value - printed) <= max(2 * (std or 0.0), 0.5):
        return "match"
    return "better" if value > printed else "worse"


def build_table(
    spec: TableSpec,
    runs: Path,
    evaluations: Path,
) -> dict[str, Any]:
    """Collect a table's cells from the records; the result is what ``<name>.json`` holds.

    Accuracies are percent. ``value``, ``lowest`` and ``highest`` are means over seeds of the final
    evaluation's client average, lowest and highest client; ``std`` is the sample standard deviation of
    ``value`` over seeds (None with one seed); ``best`` and ``last`` are means over seeds of the best and the
    last round's client average. ``parameters`` counts trainable elements per client. ``up`` and ``down``
    hold elements and bytes per client and round, averaged over all participations in rounds >= 1 and over
    seeds, the first and the last round's elements per client, whether they vary between rounds, and the
    registration's totals (round 0, all clients).

    ``status`` is ``match``, ``better`` or ``worse`` against a printed value, ``ours`` where nothing is
    printed, ``not run`` where no seed is finished; ``arithmetic`` is for tables that are computed and never
    trained, and is never given here.
    ``seeds`` names the seeds a cell was built from.

    Args:
        spec: what to print.
        runs: the folder of run records.
        evaluations: the folder of evaluations.

    Raises:
        HetflError: an evaluation belongs to another run, or cells were made from different inputs.
    """
    records: list[Record] = []
    cells = []
    for row in spec.rows:
        for name, column in spec.columns.items():
            found = [
                read_record(runs, evaluations, column.experiment, row, column.split, seed) for seed in spec.seeds
            ]
            done = [record for record in found if record is not None]
            records += done
            cells.append({"row": row, "column": name} | _cell(done, spec.printed.get(row, {}).get(name)))
    return {
        "table": spec.name,
        "title": spec.title,
        "note": spec.note,
        "seeds": spec.seeds,
        "columns": {name: column.title for name, column in spec.columns.items()},
        "rows": dict(spec.rows),
        "cells": cells,
        "provenance": _shared(records),
    }


def write_table(table: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``<name>.json``, ``.md``, ``.csv`` and ``.tex`` into a folder, each atomically."""
    contents = {
        "json": json.dumps(table, indent=1, ensure_ascii=False) + "\n",
        "md": render_markdown(table),
        "csv": render_csv(table),
        "tex": render_latex(table),
    }
    for suffix, content in contents.items():
        write_text(folder / f"{table['table']}.{suffix}", content)
    return [folder / f"{table['table']}.{suffix}" for suffix in contents]


def _cell(records: list[Record], printed: float | None) -> dict[str, Any]:
    if not records:
        empty = ["value", "std", "lowest", "highest", "best", "last", "rounds", "parameters", "up", "down"]
        return (
            {"printed": printed, "printed_std": None, "seeds": [], "status": "not run"}
            | dict.fromkeys(empty)
            | {"provenance": []}
        )
    averages = [100 * record.metrics["average"] for record in records]
    curves = [[100 * mean(line["accuracy"]) for line in record.training] for record in records]
    value = mean(averages)
    std = stdev(averages) if len(averages) > 1 else None
    per_client = [mean(counts) for counts in zip(*(r.run["parameters"]["trainable"] for r in records), strict=True)]
    return {
        "printed": printed,
        "printed_std": None,
        "value": _tidy(value),
        "std": None if std is None else _tidy(std),
        "seeds": [record.run["seed"] for record in records],
        "lowest": _tidy(mean(100 * record.metrics["lowest"] for record in records)),
        "highest": _tidy(mean(100 * record.metrics["highest"] for record in records)),
        "best": _tidy(mean(max(curve) for curve in curves)),
        "last": _tidy(mean(curve[-1] for curve in curves)),
        "rounds": max(record.run["rounds"] for record in records),
        "parameters": {"per_client": [_tidy(count) for count in per_client], "mean": _tidy(mean(per_client))},
        "up": _traffic(records, "up"),
        "down": _traffic(records, "down"),
        "status": verdict(value, std, printed),
        "provenance": [
            {
                "run": record.path,
                "seed": record.run["seed"],
                "fingerprint": record.run["fingerprint"],
                "value": _tidy(average),
            }
            for record, average in zip(records, averages, strict=True)
        ],
    }


def _traffic(records: list[Record], way: str) -> dict[str, Any]:
    """Sizes of one client's message: mean, first and last over the rounds that send one; and the run's total."""

    def mean_size(record: Record, unit: str, lines: slice = slice(None)) -> float:
        sizes = [line[way][unit] / len(line["participants"]) for line in _sending(record, way)[lines]]
        return mean(sizes) if sizes else 0

    def total(lines: Iterable[dict[str, Any]], unit: str) -> float:
        return sum(line[way][unit] for line in lines)

    units = ("elements", "bytes")
    return {unit: _tidy(mean(mean_size(r, unit) for r in records)) for unit in units} | {
        "first": _tidy(mean(mean_size(r, "elements", slice(1)) for r in records)),
        "last": _tidy(mean(mean_size(r, "elements", slice(-1, None)) for r in records)),
        "varies": any(_varies(record, way) for record in records),
        "registration": {
            unit: _tidy(mean(total((line for line in r.rounds if line["round"] == 0), unit) for r in records))
            for unit in units
        },
        "total": {unit: _tidy(mean(total(r.rounds, unit) for r in records)) for unit in units},
    }


def _sending(record: Record, way: str) -> list[dict[str, Any]]:
    # Many servers have nothing to say in round 1; an empty message would blur the size of the others.
    return [line for line in record.training if line[way]["elements"]]


def _varies(record: Record, way: str) -> bool:
    """Whether a client's messages change in size from round to round."""
    sizes = {line[way]["elements"] / len(line["participants"]) for line in _sending(record, way)}
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
        run, inputs = record.run, record.run["inputs"]
        _agree(datasets, run["dataset"], inputs["dataset"], "data set", record.path)
        _agree(partitions, f"{run['split']}-s{run['seed']}", inputs["partition"], "partition", record.path)
        for model, checksum in inputs["weights"].items():
            _agree(weights, model, checksum, "weights of", record.path)
        for package, version in run["versions"].items():
            if version not in versions.setdefault(package, []):
                versions[package].append(version)
    return {
        "datasets": datasets,
        "partitions": dict(sorted(partitions.items())),
        "models": _distinct(model for record in records for model in record.run["models"]),
        "weights": weights,
        "rounds": _distinct(record.run["rounds"] for record in records),
        "clients": _distinct(record.run["clients"] for record in records),
        "engines": _distinct(record.run["engine"] for record in records),
        "devices": _distinct(record.run["device"] for record in records),
        "versions": versions,
        "commits": _distinct(record.run["commit"] for record in records),
    }


def _agree(known: dict[str, str], name: str, checksum: str, kind: str, path: str) -> None:
    if known.setdefault(name, checksum) != checksum:
        raise HetflError(
            f"{path}: {kind} {name} has checksum {checksum[:12]}, other cells of the table have "
            f"{known[name][:12]}; train the older cells again with dvc repro"
        )


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
