"""What a table says, as texts that all its faces share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hetfl.compact import WAYS
from hetfl.errors import HetflError
from hetfl.files import read_json
from hetfl.tables.spec import as_printed, compares, has_statistic, pooled

Table = Mapping[str, Any]
Cell = Mapping[str, Any]

RANDOM = "‡"
"""Marks a number of random backbone weights."""
DIVERGED = "§"
"""Marks a number of runs of which some diverged."""
FAILED = "¶"
"""Marks a number of runs of which some had rounds without a client that failed."""
MISSING = ("broken", "not evaluated", "in progress", "stale", "not run")
"""Statuses of a cell without a value; of several seeds' the first one is the cell's."""


class Block(NamedTuple):
    """A part of a table: its title, its columns' titles, and each row's cells in the order of the columns."""

    title: str
    columns: dict[str, str]
    rows: dict[str, list[Cell | None]]


class Shown(NamedTuple):
    """What every face says of a cell: texts, empty where there is nothing to say.

    Attributes:
        has_run: whether there is a number to show; otherwise ``number`` says why not.
        best: whether it is emphasised, see :func:`best_cells`.
        number, std: ``91.2`` and ``0.4``; no deviation with one seed.
        marks: of its footnotes, such as `` ‡ [1]``.
        range: lowest to highest client, ``88.0–93.1``, the variance between rounds, ``var 0.40``, or the interval of
            a difference, ``-0.40 to +1.20``.
        seeds: ``2/3 seeds`` where some are missing, ``1 seed`` where the table has more.
        print: what the paper prints, ``92.1``, ``92.1±0.3`` or ``92.1 var 0.4``.
        difference: ours less the paper's, ``-0.9``.
        verdict: the status; of what is computed, whether it agrees with the print.
    """

    has_run: bool
    best: bool
    number: str
    std: str
    marks: str
    range: str
    seeds: str
    print: str
    difference: str
    verdict: str

    @property
    def value(self) -> str:
        """``91.2 ± 0.4 ‡ [1]``."""
        return f"{self.number}{self.std and f' ± {self.std}'}{self.marks}"

    @property
    def printed(self) -> str:
        """``printed 92.1 (-0.9), worse``, ``printed 92.1`` where nothing is run, or empty."""
        if not self.print or not self.has_run:
            return self.print and f"printed {self.print}"
        return f"printed {self.print}{self.difference and f' ({self.difference})'}, {self.verdict}"

    @property
    def lines(self) -> list[str]:
        """All of it, one below the other, for faces where width is scarce."""
        printed = self.printed.rsplit(", ", 1) if self.has_run else [self.printed]
        return [line for line in (self.value, self.range, self.seeds, *printed) if line]


EMPTY: dict[str, Any] = {
    **dict.fromkeys(("printed_std", "printed_variance", "variance", "window", "std", "difference")),
    **dict.fromkeys(("lowest", "highest", "best", "last", "interval", "rounds", "parameters", *WAYS)),
    **dict.fromkeys(("value_text", "printed_text", "footnote", "reading", "against"), ""),
    "agrees": None,
    "seeds": [],
    "digits": 0,
    "random": False,
    "unit": "%",
    "statistic": "average",
    "comparable": True,
    "provenance": [],
}


_NEEDED = ("table", "title", "columns", "rows", "cells")


def read_table(path: Path) -> Table:
    """A table as its JSON holds it.

    Raises:
        HetflError: the file is missing, is not JSON, or is no table.
    """
    table = read_json(path)
    if not isinstance(table, dict) or not isinstance(table.get("cells"), list) or not table.keys() >= {*_NEEDED}:
        told = f"is not a table, which has {', '.join(_NEEDED)}"
        raise HetflError(f"{path}: {told}; make it again or move it away")
    return table


def filled(table: Table) -> dict[str, Any]:
    """A table with everything that the renderers ask for: rows and columns named, what may be missing left empty."""
    axes = {axis: table[axis] for axis in ("rows", "columns")}
    axes = {axis: {name: name for name in told} if isinstance(told, list) else told for axis, told in axes.items()}
    whole = {"title": "", **{axis: list(names) for axis, names in axes.items()}}
    empty = {"head": "Method", "note": "", "seeds": [], "blocks": [whole], "decimals": 1, "footnotes": []}
    return {**empty, "provenance": {}, **table, **axes, "cells": [{**EMPTY, **cell} for cell in table["cells"]]}


def blocks(table: Table) -> list[Block]:
    """The parts of a table that stand one below the other."""
    found = {(cell["row"], cell["column"]): cell for cell in table["cells"]}
    return [
        Block(
            block["title"],
            {column: table["columns"][column] for column in block["columns"]},
            {row: [found.get((row, column)) for column in block["columns"]] for row in block["rows"]},
        )
        for block in table["blocks"]
    ]


def has_cost(table: Table) -> bool:
    """Whether any run told its parameters and messages."""
    return any(cell["parameters"] for cell in table["cells"])


def best_cells(table: Table) -> set[tuple[str, str]]:
    """The (row, column) to emphasise: the highest accuracy of each column of a block; equal as displayed is equal.

    In a table of differences, these are the ones whose interval does not contain zero.
    """
    if compares(table):
        ends = {(cell["row"], cell["column"]): cell["interval"] for cell in table["cells"] if cell["interval"]}
        return {place for place, (low, high) in ends.items() if low > 0 or high < 0}
    best = set()
    for block in blocks(table):
        for column in zip(*block.rows.values(), strict=True):
            shown = [
                (round(cell["value"], table["decimals"]), (cell["row"], cell["column"]))
                for cell in column
                if cell and cell["value"] is not None and cell["unit"] == "%"
            ]
            best |= {place for value, place in shown if value == max(shown)[0]}
    return best


def show(table: Table, cell: Cell, best: set[tuple[str, str]]) -> Shown:
    """A cell as texts; ``best`` as :func:`best_cells` has it."""
    digits, decimals = show_digits(table, cell), table["decimals"]
    diverged = show_first("diverged", cell) or differs_from_diverged(cell)
    marks = (
        RANDOM if cell["random"] else "",
        DIVERGED if diverged else "",
        FAILED if show_first("failed", cell) else "",
    )
    note = f"[{numbered(table)[cell['footnote']]}]" if cell["footnote"] else ""
    missing = "not run" if cell["status"] not in MISSING or cell["status"] == "stale" else cell["status"]
    form = f"{'+' if _signed(cell, digits) else ''}z.{digits}f"  # z: no minus before a rounded zero
    number = cell["value_text"] or _number(cell["value"], form) or missing
    ends = "–".join(_number(cell[end], f".{decimals}f") for end in ("lowest", "highest"))
    variance = _number(cell["variance"], f".{decimals}f")
    wanted, done = len(cell.get("wanted", cell["seeds"])), len(cell["seeds"])
    agrees = {None: cell["status"], True: "agrees", False: "differs"}
    return Shown(
        has_run=cell["value"] is not None or bool(cell["value_text"]),
        best=(cell["row"], cell["column"]) in best,
        number=number,
        std="" if cell["value_text"] or cell["against"] else _number(cell["std"], f".{digits}f"),
        marks="".join(f" {mark}" for mark in (*marks, note) if mark),
        range=" to ".join(f"{end:+.{digits}f}" for end in cell["interval"] or ())
        or (f"var {variance}" if variance else ends.strip("–")),
        seeds=_seeds(done, wanted, len(table["seeds"])),
        print=cell["printed_text"] or as_printed(cell, cell["unit"], decimals, varied=" var {}"),
        difference=_number(cell["difference"], f"+z.{digits}f"),
        verdict=agrees[cell["agrees"]],
    )


def _seeds(done: int, wanted: int, most: int) -> str:
    if 0 < done < wanted:
        return f"{done}/{wanted} seeds"
    return f"{done} seed{'s' * (done > 1)}" if 0 < done < most else ""


def _signed(cell: Cell, digits: int) -> bool:
    """Whether a cell is a difference that is not zero as displayed."""
    return bool(cell["against"] and cell["value"] is not None and round(cell["value"], digits))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def show_digits(table: Table, cell: Cell) -> int:
    """Decimals of a cell: the table's of accuracies, more of cosines and of millions."""
    return table["decimals"] if cell["unit"] in ("%", "points") else 3 if cell["unit"] else 4


def show_first(trouble: str, cell: Cell) -> str:
    """When which of a cell's runs first ``diverged`` or ``failed``, ``seed 0 in round 3``; empty where none did."""
    runs = [run for run in cell["provenance"] if trouble in run]
    return ", ".join(f"seed {run['seed']} in round {run[trouble]}" for run in runs)


def differs_from_diverged(cell: Cell) -> bool:
    """Whether a run that a cell is compared with diverged."""
    return any("base_diverged" in run for run in cell["provenance"])


def numbered(table: Table) -> dict[str, int]:
    """The footnotes of single cells with their numbers."""
    texts = dict.fromkeys(cell["footnote"] for cell in table["cells"] if cell["footnote"])
    return {text: number for number, text in enumerate(texts, 1)}


def show_setting(value: Any) -> str:
    """A setting as params.yaml has it."""
    return value if isinstance(value, str) else json.dumps(value)


def show_count(number: float) -> str:
    """A count with thousands separators, rounded to a whole one."""
    return f"{number:,.0f}"


def show_bytes(number: float) -> str:
    """A size with three significant digits in B, kB, MB, ... (powers of 1000)."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    digits = 0 if unit == "B" or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{size:.{digits}f} {unit}"


def show_span(values: Sequence[float], show: Callable[[float], str]) -> str:
    """One value, or lowest–highest where they differ as displayed; a common unit is said once."""
    if not values:
        return "–"
    low, high = show(min(values)), show(max(values))
    if low == high:
        return high
    number, _, unit = low.partition(" ")
    return f"{number}–{high}" if unit and high.endswith(f" {unit}") else f"{low}–{high}"


def show_traffic(cells: Sequence[Cell], way: str) -> tuple[str, str]:
    """Elements and bytes per client and round over a row's cells; a dagger where training changes them."""
    sent = [cell[way] for cell in cells if cell[way]]
    dagger = "†" if any(traffic["varies"] for traffic in sent) else ""
    elements = show_span([traffic["elements"] for traffic in sent], show_count)
    size = show_span([traffic["bytes"] for traffic in sent], show_bytes)
    return elements + dagger, "" if not sent or elements == "0" else size


def costs(table: Table, cells: Sequence[Cell | None]) -> list[tuple[str, str]]:
    """A row's parameters, upload and download, each as two lines; nothing where no run told any."""
    if not has_cost(table):
        return []
    known = [cell for cell in cells if cell is not None]
    counts = [count for cell in known if cell["parameters"] for count in cell["parameters"]["per_client"]]
    return [(show_span(counts, show_count), ""), *(show_traffic(known, way) for way in WAYS)]


def show_measure(table: Table) -> str:
    """What the accuracies of a table are."""
    if compares(table):
        return "correct predictions of all clients over all their test samples"
    if not pooled(table):
        return "mean of the clients' test accuracies with the final model"
    sizes = [cell["window"] for cell in table["cells"] if cell["window"]]
    window = f" {show_span(sizes, show_count)}" if sizes else ""
    rounds = "in the best round" if has_statistic(table, "best_pooled") else f"mean over the last{window} rounds"
    return f"correct predictions of all clients over all their test samples, {rounds} of each run"


def show_differences(table: Table) -> list[str]:
    """In what the runs of a table differ that is no part of their identity, in one line; none if in nothing."""
    parts = [
        f"{what} " + ", ".join(f"{value} ({many} run{'' if many == 1 else 's'})" for value, many in kinds.items())
        for what, kinds in table["provenance"].get("differences", {}).items()
    ]
    return [f"Runs differ in: {'; '.join(parts)}."] if parts else []
