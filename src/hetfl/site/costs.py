"""What the page of times computes with: accuracies, bytes and operations by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from hetfl.errors import HetflError
from hetfl.experiments.forecast import Forecaster
from hetfl.experiments.identity import own_differences
from hetfl.experiments.plan import Workspace
from hetfl.report.shown import show_first
from hetfl.schema import TROUBLES
from hetfl.site.runs import Runs, records_of
from hetfl.site.tables import Rows, Table
from hetfl.tables.curves import curves
from hetfl.tables.records import Record, Records


class Operations:
    """Operations of the slowest client in a round, by fingerprint of the run; counted once.

    Without the prepared data they are those of a partition of as many samples, with equally large classes.
    """

    def __init__(self, workspace: Workspace, records: Records) -> None:
        self._workspace, self._records = workspace, records
        self._known: dict[str, float | None] = {}
        self._forecaster: Forecaster | None = None

    def of(self, record: Record) -> float | None:
        """Of a record's run; None where its settings are not those of the checkout any more."""
        key = record.run.fingerprint
        if key not in self._known:
            self._known[key] = self._count(record)
        return self._known[key]

    def _count(self, record: Record) -> float | None:
        cell = self._records.cell(Path(record.path.partition("/")[2]))
        if cell is None or own_differences(record.run, cell, self._workspace):
            return None
        if self._forecaster is None:
            self._forecaster = Forecaster(self._records.params, self._workspace, torch.device("cpu"))
        try:
            rehearsal = self._forecaster.rehearsal(cell)
        except HetflError:
            return None
        return None if rehearsal is None else max(rehearsal.of_clients(1))


def cost_data(tables: Mapping[str, tuple[Table, Rows]], runs: Runs, operations: Operations) -> list[dict[str, Any]]:
    """The tables that have runs with accuracies and messages in several rows of a column.

    Columns of a table that reads one curve in several ways have the same lines; the first one of them is told.

    Returns:
        By table: ``title`` and ``columns``; by column ``title`` and ``lines``; by line ``row``, its look, ``seed``,
        null for the mean over all, ``rounds`` of [accuracy in percent, bytes up, bytes down], of one participant,
        ``operations`` of the slowest client in a round, ``diverged``, the first round in which the run did, or null,
        and ``troubles`` in words. The first of the rounds is the registration, without an accuracy.
    """
    found = []
    for table, rows in tables.values():
        columns: list[dict[str, Any]] = []
        for column, title in table["columns"].items():
            cells = [cell for cell in table["cells"] if cell["column"] == column and not cell["reading"]]
            lines = [line for cell in cells for line in _lines(table, cell, rows, runs, operations)]
            if len({line["row"] for line in lines}) > 1 and lines not in [told["lines"] for told in columns]:
                columns.append({"title": title, "lines": lines})
        found += [{"name": table["table"], "title": table["title"], "columns": columns}] if columns else []
    return found


def _lines(
    table: Table, cell: Mapping[str, Any], rows: Rows, runs: Runs, operations: Operations
) -> Iterator[dict[str, Any]]:
    """A cell's mean over seeds, or a line for each seed where :func:`hetfl.tables.curves.curves` has one."""
    records = records_of(cell, runs)
    for curve in curves(records, cell["statistic"], cell["reading"]):
        own = [record for record in records if curve.seed in (None, record.run.seed)]
        if (count := operations.of(own[0])) is None:
            continue
        seeds = {record.run.seed for record in own}
        mine = {**cell, "provenance": [source for source in cell["provenance"] if source["seed"] in seeds]}
        points = {at.round: at.percent for at in curve.points}
        told: list[list[float | None]] = []
        for lines in zip(*(record.rounds for record in own), strict=False):
            if lines[0].fine_tuning:
                break
            each = [
                mean(getattr(line, way).bytes / max(1, len(line.participants)) for line in lines)
                for way in ("up", "down")
            ]
            accuracy = points.get(lines[0].round)
            told.append([None if accuracy is None else round(accuracy, 2), *(round(size) for size in each)])
        look = {"kind": rows.kinds.get(cell["row"], ""), **rows.looks[cell["row"]]}
        yield {"row": table["rows"][cell["row"]], "seed": curve.seed, **look} | {
            "operations": count,
            "rounds": told,
            "diverged": curve.diverged,
            "troubles": [
                f"{said}: {when}" for trouble, said in TROUBLES.items() if (when := show_first(trouble, mine))
            ],
        }
