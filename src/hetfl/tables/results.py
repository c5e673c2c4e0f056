"""All results as one tidy table: a line for each seed of each cell, read once from its record."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean
from typing import Any, Literal, get_args

import pandas as pd

from hetfl.compact import WAYS
from hetfl.data.sets import CATALOGUE
from hetfl.errors import HetflError
from hetfl.schema import Parameters, Round
from hetfl.tables.records import Record, Records, validated
from hetfl.tables.spec import Count, Entry

M = 1024**2
CELL = ["experiment", "method", "row", "split", "statistic", "reading", "round", "server"]
"""The columns that tell one cell from another."""


def cell_of(entry: Entry) -> tuple[Any, ...]:
    """What a cell has in the columns :data:`CELL`."""
    return tuple(getattr(entry, name) or 0 if name == "round" else getattr(entry, name) for name in CELL)


def results(entries: Iterable[Entry], records: Records) -> pd.DataFrame:
    """Read what some cells show.

    Args:
        entries: the cells; one that is there twice is read once.
        records: those of a checkout.

    Returns:
        A line for each seed of each cell, in order. Columns :data:`CELL` and ``seed`` say whose it is (``round`` is 0
        where the whole run is read), ``status`` is ``done``, ``counted`` (a number that needs no run), ``not run``,
        ``in progress``, ``not evaluated``, ``stale`` or ``broken``, and ``problem`` says why or what to do. ``value``
        is the statistic of what is done or counted, in percent, M elements, or without a unit. The others are empty
        unless it is done:

        - ``record``: the :class:`Record`; ``run``: its path.
        - ``lowest``, ``highest``: of an average, the lowest and the highest client, percent.
        - ``best``, ``last``: of an accuracy, the best and the last round, percent.
        - ``variance``, ``window``: of a pooled accuracy over the last rounds, the variance between them in squared
          points, and how many they are.
        - ``rounds``, ``played``: rounds that the settings ask for, and those that the run went through.
        - ``parameters``: trainable elements of each client.
        - ``up_elements``, ``up_bytes``: of one client's message, mean over the rounds that send one; ``up_first``,
          ``up_last``: elements of it in the first and the last of these rounds; ``up_varies``: whether they differ;
          ``up_registration_elements``, ``up_total_elements`` and the same of bytes: of all clients in round 0, and in
          the whole run. The same with ``down``.
    """
    lines = []
    cells = {cell_of(entry): entry for entry in entries}
    for cell, entry in cells.items():
        for seed in entry.seeds:
            line = dict(zip(CELL, cell, strict=True)) | {"seed": seed, "status": "done"}
            line |= {"problem": "", "record": None}
            try:
                if (record := records.get(entry, seed)) is None and (value := counted(entry, records)) is not None:
                    line |= {"status": "counted", "value": value}
                elif record is None:
                    line["status"], line["problem"] = records.missing(entry, seed)
                else:
                    line |= {"record": record, **_measured(entry, record)}
            except HetflError as error:
                # Tables are committed: no folder of this machine may enter.
                line |= {"status": "broken", "problem": str(error).replace(f"{records.workspace.root}/", "")}
            lines.append(line)
    return pd.DataFrame(lines)


def value_of(entry: Entry, record: Record) -> float:
    """What a cell reads from one run, in the entry's unit.

    Raises:
        HetflError: the evaluation lacks the statistic.
    """
    match entry.statistic:
        case "last_pooled":
            return _percents(entry, record)[-1]
        case "validated_pooled":
            return 100 * validated(record, entry.reading)
        case "best_pooled":
            return max(_percents(entry, record))
        case "up_first":
            return record.training[0].up.elements / M
        case "up_last":
            return record.training[-1].up.elements / M
        case "parameters" | "parameters_total":
            return _millions(entry, record.run.parameters)
        case "cosine_shared" | "cosine_group_global" | "cosine_group_local":
            last = record.training[-record.run.settings["window"] :]
            found = [line.diagnostics.get(entry.statistic) for line in last]
            if not (known := [cosine for cosine in found if isinstance(cosine, int | float)]):
                why = "no round has two participants" if record.diverged is None else "it diverged"
                raise HetflError(f"{record.path}: no {entry.statistic} in its last rounds; {why}")
            return mean(known)
        case _:
            return 100 * record.measured(entry.statistic, entry.reading)


def counted(entry: Entry, records: Records) -> float | None:
    """What a cell shows that needs no run, in the entry's unit; None of others, or where there is no such cell."""
    cell = records.cell(entry.path(entry.seeds[0])) if entry.statistic in get_args(Count) else None
    if cell is None or not {cell.dataset, *([cell.public.dataset] if cell.public else [])} <= CATALOGUE.keys():
        return None
    from hetfl.tables.counted.parameters import parameters  # imports much, and few tables need it

    return _millions(entry, parameters(cell))


def _millions(entry: Entry, parameters: Parameters) -> float:
    clients = parameters.trainable if entry.statistic == "parameters_total" else parameters.trainable[:1]
    return (sum(clients) + (parameters.server if entry.server else 0)) / M


def _measured(entry: Entry, record: Record) -> dict[str, Any]:
    """The columns of a line that is done."""
    curve = _percents(entry, record)
    windowed, averaged = entry.statistic == "window_pooled", entry.statistic == "average"
    return {
        "run": record.path,
        "value": value_of(entry, record),
        "lowest": 100 * record.metrics.lowest if averaged else None,
        "highest": 100 * record.metrics.highest if averaged else None,
        "best": max(curve, default=None),
        "last": curve[-1] if curve else None,
        "variance": 100**2 * record.measured("window_variance", entry.reading) if windowed else None,
        "window": record.measured("window_rounds", entry.reading) if windowed else None,
        "rounds": record.run.rounds,
        "played": record.played,
        "parameters": record.run.parameters.trainable,
        **{f"{way}_{name}": size for way in WAYS for name, size in _traffic(record, way).items()},
    }


def _percents(entry: Entry, record: Record) -> list[float]:
    """An accuracy after every round that has it; empty for what is no accuracy."""
    return [point.percent for point in record.curve(entry.statistic, entry.reading)]


def _traffic(record: Record, way: Literal["up", "down"]) -> dict[str, float]:
    """Sizes of one client's message over the rounds that send one, and the run's totals."""

    def sizes(unit: str, lines: Iterable[Round]) -> list[int]:
        return [getattr(getattr(line, way), unit) for line in lines]

    # Many servers have nothing to say in round 1; an empty message would blur the size of the others.
    sending = [line for line in record.training if getattr(line, way).elements]
    clients = [len(line.participants) for line in sending]
    own = {
        unit: [size / many for size, many in zip(sizes(unit, sending), clients, strict=True)] or [0]
        for unit in ("elements", "bytes")
    }
    registration = [line for line in record.rounds if line.round == 0]
    return {
        **{unit: mean(values) for unit, values in own.items()},
        "first": own["elements"][0],
        "last": own["elements"][-1],
        "varies": len(set(own["elements"])) > 1,
        **{f"registration_{unit}": sum(sizes(unit, registration)) for unit in own},
        **{f"total_{unit}": sum(sizes(unit, record.rounds)) for unit in own},
    }
