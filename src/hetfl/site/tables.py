"""What the page of a table says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

from hetfl.compact import WAYS
from hetfl.errors import HetflError
from hetfl.experiments.plan import Cell, weights_read
from hetfl.figures.style import MARKERS, PALETTE, looks
from hetfl.ledger.lines import TRAINED
from hetfl.methods import METHODS
from hetfl.report.formats import footnotes
from hetfl.report.shown import (
    MISSING,
    Block,
    best_cells,
    blocks,
    costs,
    has_cost,
    show,
    show_bytes,
    show_count,
    show_differences,
    show_digits,
    show_measure,
)
from hetfl.site.drawing import Provenance
from hetfl.site.runs import PRETRAINED, SCRATCH, Runs, kind_of, lines_of
from hetfl.tables.catalogue import table_spec
from hetfl.tables.records import Records
from hetfl.tables.spec import compares, several_seeds
from hetfl.tables.verdict import interval

Table = Mapping[str, Any]
Place = tuple[str, str]
"""Row and column."""


class Rows:
    """The method of each row of a table, its look, and whether it starts from pre-trained weights.

    Args:
        table: as its JSON file holds it, filled.
        runs: the records that it names.
        records: of the checkout, with its settings; rows without runs that they do not have are told by their names.
    """

    def __init__(self, table: Table, runs: Runs, records: Records) -> None:
        planned = _planned(table["table"], records)
        self.methods: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        for row in table["rows"]:
            sources = [source for cell in table["cells"] if cell["row"] == row for source in cell["provenance"]]
            record = next(filter(None, map(runs.get, sources)), None)
            cell, named = planned.get(row), sources[0]["run"].split("/")[2] if sources else row.lower()
            self.methods[row] = cell.method if cell else named if named in METHODS else ""
            if record:
                self.kinds[row] = kind_of(record)
            elif cell:
                read = [name for name in weights_read(cell) if not name.endswith(".random")]
                self.kinds[row] = PRETRAINED if read else SCRATCH
        named = {row: method or row for row, method in self.methods.items()}
        self.looks = {row: look_of(index, self.kinds.get(row)) for row, index in looks(named).items()}


def look_of(index: int, kind: str | None) -> dict[str, Any]:
    """A look as templates and the pages' script take it; what trains from scratch is drawn hollow."""
    return {"series": index % len(PALETTE), "marker": index % len(MARKERS), "hollow": kind == SCRATCH}


def _planned(name: str, records: Records) -> dict[str, Cell]:
    """A cell of each row, by the settings; none where the table is no table of runs."""
    try:
        spec = table_spec(name, records.params)
    except HetflError:
        return {}
    first = {row: next(iter(some.values())) for row, some in spec.entries.items() if some}
    cells = {row: records.cell(entry.path(entry.seeds[0])) for row, entry in first.items()}
    return {row: cell for row, cell in cells.items() if cell}


def table_view(table: Table, runs: Runs, rows: Rows) -> dict[str, Any]:
    """What the page of a table shows."""
    name, best = table["table"], best_cells(table)
    lows = [cell["lowest"] for cell in table["cells"] if cell["lowest"] is not None]
    scale = min(90, floor(min(lows) / 10) * 10) if lows else 0
    draw = _Cells(table, runs, best, tied(table, best), scale)
    parts = [_block_view(table, block, draw, rows) for block in blocks(table)]
    behind = {source["run"]: source for cell in table["cells"] for source in cell["provenance"]}
    statuses = Counter(cell["status"] for cell in table["cells"])
    missing = sum(statuses[status] for status in MISSING)
    accuracies = any(cell["unit"] == "%" for cell in table["cells"])
    return {
        "name": name,
        "cd": runs.cd,
        "ui": runs.ui,
        "title": table["title"],
        "note": table["note"],
        "head": table["head"],
        "heading": "Accuracy, %" if accuracies else "Counts",
        "blocks": parts,
        "rows": [row for part in parts for row in part["rows"]],
        "scale": scale,
        "has_accuracies": accuracies,
        "measure": show_measure(table),
        "several": several_seeds(table),
        "has_bars": bool(lows),
        "has_cost": has_cost(table),
        "has_runs": bool(behind),
        "behind": len(behind),
        "lost": sum(runs.get(source) is None for source in behind.values()),
        "kinds": sorted(set(rows.kinds.values())),
        "varies": any("†" in lines[0] for part in parts for row in part["rows"] for lines, _ in row["costs"]),
        "footnotes": footnotes(table, page=True),
        "done": len(table["cells"]) - missing,
        "total": len(table["cells"]),
        "made": "trained" if accuracies or missing else "computed",
        "verdicts": [(one, statuses[one]) for one in TRAINED if statuses[one]],
        "compares": compares(table),
        # Rows that differ in one choice are many, and their curves lie one over the other.
        "curves": [] if compares(table) else _curves(table, runs, rows),
        "comparisons": runs.comparisons(table),
        "provenance": _provenance(table),
    }


def tied(table: Table, best: set[Place]) -> set[Place]:
    """The places that are not told from the best of their column: their intervals have a point in common with its.

    Intervals are those of :mod:`hetfl.tables.verdict`: two standard deviations over seeds, and with one seed the
    noise that stands for it.
    """
    found = set()
    for block in blocks(table):
        for column in zip(*block.rows.values(), strict=True):
            cells = [cell for cell in column if cell and cell["value"] is not None and cell["unit"] == "%"]
            tops = [cell for cell in cells if (cell["row"], cell["column"]) in best]
            for cell in cells:
                apart = [
                    abs(top["value"] - cell["value"]) - interval(top["std"]) - interval(cell["std"]) for top in tops
                ]
                if min(apart, default=1.0) <= 1e-9:
                    found.add((cell["row"], cell["column"]))
    return found - best


def _block_view(table: Table, block: Block, draw: _Cells, rows: Rows) -> dict[str, Any]:
    found = []
    for row, cells in block.rows.items():
        known = [cell for cell in cells if cell is not None]
        counts: list[float] = next((cell["parameters"]["per_client"] for cell in known if cell["parameters"]), [])
        sizes = [next((cell[way]["bytes"] for cell in known if cell[way]), None) for way in WAYS]
        keys = [sum(counts) / len(counts) if counts else None, *sizes]
        found.append(
            {
                "title": table["rows"][row],
                "method": rows.methods[row],
                "kind": rows.kinds.get(row, ""),
                "look": rows.looks[row],
                "cells": [cell and draw.view(cell) for cell in cells],
                "costs": [*zip(costs(table, cells), keys, strict=False)],
                "per_client": ", ".join(map(show_count, counts)),
                "registration": _registration(known),
            }
        )
    return {"title": block.title, "columns": list(block.columns.values()), "rows": found}


class _Cells:
    """Views of a table's cells."""

    def __init__(self, table: Table, runs: Runs, best: set[Place], ties: set[Place], scale: float) -> None:
        self.table, self.runs, self.best, self.ties, self.scale = table, runs, best, ties, scale

    def view(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """What a place of the table says."""
        table = self.table
        shown, exact = show(table, cell, self.best), max(2, show_digits(table, cell))
        view = {
            **shown._asdict(),
            "id": re.sub(r"[^A-Za-z0-9_-]", "-", f"{cell['row']}--{cell['column']}"),
            "column": table["columns"][cell["column"]],
            "status": cell["status"],
            "value": cell["value"],
            "told": cell["printed"],
            "exact": cell["value_text"] or ("" if cell["value"] is None else f"{cell['value']:.{exact}f}"),
            "tie": (cell["row"], cell["column"]) in self.ties,
            "single": cell["unit"] == "%" and len(cell["seeds"]) == 1 < len(table["seeds"]),
            "of_clients": cell["lowest"] is not None,
            "best_round": "" if cell["best"] is None else f"{cell['best']:.2f}",
            "last_round": "" if cell["last"] is None else f"{cell['last']:.2f}",
            "runs": [self.runs.view(source, exact) for source in cell["provenance"]],
        }
        if cell["lowest"] is not None:
            ends = (cell[key] for key in ("lowest", "value", "highest"))
            left, middle, right = (100 * (end - self.scale) / (100 - self.scale) for end in ends)
            view["bar"] = {"left": f"{left:.2f}", "width": f"{right - left:.2f}", "middle": f"{middle:.2f}"}
        return view


def _registration(cells: Sequence[Mapping[str, Any]]) -> str:
    """The largest registration of a row over its columns, both ways, all clients."""
    totals = {
        way: max((cell[way]["registration"]["bytes"] for cell in cells if cell[way]), default=0) for way in WAYS
    }
    return ", ".join(f"{show_bytes(total)} {way}" for way, total in totals.items() if total)


def _curves(table: Table, runs: Runs, rows: Rows) -> list[dict[str, Any]]:
    """A panel for each column that has curves."""
    cells = {(cell["row"], cell["column"]): cell for cell in table["cells"]}
    panels = []
    for column, title in table["columns"].items():
        lines = [
            {"row": name, **rows.looks[row], **line}
            for row, name in table["rows"].items()
            if (row, column) in cells
            for line in lines_of(cells[row, column], runs)
        ]
        panels += [{"title": title, "lines": lines}] if lines else []
    return panels


def _provenance(table: Table) -> Provenance:
    """What stands behind a table."""
    shared = table["provenance"]
    if not shared.get("datasets"):
        return []
    checked = {key: list(shared[key].items()) for key in ("datasets", "weights", "partitions")}
    plain = {key: [(", ".join(map(str, shared[key])), "")] for key in ("models", "clients", "rounds", "engines")}
    versions = [f"{package} {' and '.join(found)}" for package, found in shared["versions"].items()]
    pairs = {
        "Data set, SHA-256": checked["datasets"],
        "Models": plain["models"],
        "Weights, SHA-256": checked["weights"],
        "Partitions, SHA-256": checked["partitions"],
        "Clients": plain["clients"],
        "Rounds": plain["rounds"],
        "Seeds": [(", ".join(map(str, table["seeds"])), "")],
        "Engine": plain["engines"],
        "Device": [(device, "") for device in shared["devices"]],
        "Versions": [(", ".join(versions), "")],
        "First made at commit": [(commit, "") for commit in shared["commits"]],
        "Remarks": [(line, "") for line in show_differences(table)],
    }
    return [(name, values) for name, values in pairs.items() if values]
