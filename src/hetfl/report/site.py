"""The static site: one HTML file that holds every table, figure and partition and needs nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hetfl.errors import HetflError
from hetfl.figures import style
from hetfl.figures.catalogue import names
from hetfl.files import read_json, write_text
from hetfl.report.formats import footnotes
from hetfl.report.shown import (
    DIVERGED,
    MISSING,
    RANDOM,
    WAYS,
    Block,
    best_cells,
    blocks,
    costs,
    filled,
    has_cost,
    show,
    show_bytes,
    show_count,
    show_differences,
    show_digits,
    show_measure,
)
from hetfl.tables.verdict import NOISE

_COLOURS = {
    style.INK: "ink",
    style.MUTED: "muted",
    style.GRID: "grid",
    style.PAPER: "paper",
    style.HEAT: "heat",
    **{colour: f"series-{index}" for index, colour in enumerate((*style.SERIES, *style.DARK))},
}
_CAPTIONS = {
    "": "",
    "-curves": "Accuracy after every round: mean over seeds, shaded from the lowest to the highest seed.",
    "-communication": "The same accuracy over the bytes that all clients together have sent and received so "
    "far, registration included. A row that sends nothing is a dotted line at its last accuracy.",
}


def build_site(tables_folder: Path, figures_folder: Path, partitions_folder: Path, out: Path) -> Path:
    """Write ``out/index.html`` from what the other stages left.

    Every ``<name>.json`` below the tables folder becomes a section, with ``<name>-curves.svg`` and
    ``<name>-communication.svg`` where they lie beside it, and the heat maps ``<dataset>/<split>-s<seed>/samples.svg``
    of the first seed from the partitions folder. The papers' figures of data distributions and of results,
    ``<name>/<name>.svg`` of the figures folder, follow.

    Returns:
        The page's path.

    Raises:
        HetflError: a JSON file in the tables folder is not a table.
    """
    paths = sorted(tables_folder.rglob("*.json"))
    tables = [_read_table(path) for path in paths]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("index.html.jinja").render(
        tables=[_table_view(table, path.parent) for table, path in zip(tables, paths, strict=True)],
        partitions=_partitions(tables, partitions_folder),
        distributions=_drawn(names(of_runs=False), figures_folder),
        results=_drawn(names(of_runs=True), figures_folder),
        noise=NOISE,
    )
    write_text(out / "index.html", page)
    return out / "index.html"


def _read_table(path: Path) -> dict[str, Any]:
    table = read_json(path)
    if not isinstance(table, dict) or not {"table", "title", "columns", "rows", "cells"} <= set(table):
        raise HetflError(f"{path}: is not a table (table, title, columns, rows and cells are needed); move it away")
    return filled(table)


def _table_view(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    name, best = table["table"], best_cells(table)
    lows = [cell["lowest"] for cell in table["cells"] if cell["lowest"] is not None]
    scale = min(90, floor(min(lows) / 10) * 10) if lows else 0
    parts = [_block_view(table, block, best, scale) for block in blocks(table)]
    statuses = Counter(cell["status"] for cell in table["cells"])
    missing = sum(statuses[status] for status in MISSING)
    accuracies = any(cell["unit"] == "%" for cell in table["cells"])
    return {
        "name": name,
        "title": table["title"],
        "note": table["note"],
        "head": table.get("head", "Method"),
        "heading": "Accuracy, %" if accuracies else "Counts",
        "blocks": parts,
        "rows": [row for part in parts for row in part["rows"]],
        "scale": scale,
        "has_accuracies": accuracies,
        "measure": show_measure(table),
        "has_bars": bool(lows),
        "has_cost": has_cost(table),
        "has_runs": any(cell["provenance"] for cell in table["cells"]),
        "varies": any("†" in lines[0] for part in parts for row in part["rows"] for lines in row["costs"]),
        "footnotes": _own_notes(table),
        "made": "run" if accuracies or missing else "computed",
        "done": len(table["cells"]) - missing,
        "total": len(table["cells"]),
        "verdicts": [(status, statuses[status]) for status in ("match", "better", "worse") if statuses[status]],
        "figures": _figures(name, table["title"], folder),
        "provenance": _provenance(table),
    }


def _own_notes(table: Mapping[str, Any]) -> list[str]:
    return [line for line in footnotes(table) if line[0] in f"[{RANDOM}{DIVERGED}" or line in table["footnotes"]]


def _block_view(table: Mapping[str, Any], block: Block, best: set[tuple[str, str]], scale: float) -> dict[str, Any]:
    rows = []
    for row, cells in block.rows.items():
        known = [cell for cell in cells if cell is not None]
        counts: list[float] = next((cell["parameters"]["per_client"] for cell in known if cell["parameters"]), [])
        rows.append(
            {
                "title": table["rows"][row],
                "cells": [cell and _cell_view(table, cell, best, scale) for cell in cells],
                "costs": costs(table, cells),
                "per_client": ", ".join(map(show_count, counts)),
                "registration": _registration(known),
            }
        )
    return {"title": block.title, "columns": list(block.columns.values()), "rows": rows}


def _cell_view(
    table: Mapping[str, Any], cell: Mapping[str, Any], best: set[tuple[str, str]], scale: float
) -> dict[str, Any]:
    shown, exact = show(table, cell, best), max(2, show_digits(table, cell))
    view = {
        **shown._asdict(),
        "id": re.sub(r"[^A-Za-z0-9_-]", "-", f"{table['table']}--{cell['row']}--{cell['column']}"),
        "column": table["columns"][cell["column"]],
        "status": cell["status"],
        "exact": cell["value_text"] or _number(cell["value"], f".{exact}f"),
        "of_clients": cell["lowest"] is not None,
        "done": ", ".join(map(str, cell["seeds"])),
        "best_round": _number(cell["best"], ".2f"),
        "last_round": _number(cell["last"], ".2f"),
        "runs": [
            run | {"short": run["fingerprint"][:12], "shown": f"{run['value']:.{exact}f}"}
            for run in cell["provenance"]
        ],
    }
    if cell["lowest"] is not None:
        left, middle, right = (100 * (cell[key] - scale) / (100 - scale) for key in ("lowest", "value", "highest"))
        view["bar"] = {"left": f"{left:.2f}", "width": f"{right - left:.2f}", "middle": f"{middle:.2f}"}
    return view


def _registration(cells: list[Mapping[str, Any]]) -> str:
    """The largest registration of a row over its columns, both ways, all clients."""
    totals = {
        way: max((cell[way]["registration"]["bytes"] for cell in cells if cell[way]), default=0) for way in WAYS
    }
    return ", ".join(f"{show_bytes(total)} {way}" for way, total in totals.items() if total)


def _figures(name: str, title: str, folder: Path) -> list[dict[str, Any]]:
    return [
        {
            "svg": inline_svg(path, f"{title}{suffix.replace('-', ': ')}", f"{name}{suffix}"),
            "caption": caption,
        }
        for suffix, caption in _CAPTIONS.items()
        if (path := folder / f"{name}{suffix}.svg").exists()
    ]


def _partitions(tables: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Per data set, the heat maps of the first seed of each split that a table names."""
    found: dict[str, dict[str, Markup]] = {}
    for table in tables:
        for place in table["provenance"].get("partitions", {}):
            dataset, _, partition = place.partition("/")
            split, _, seed = partition.rpartition("-s")
            path = folder / dataset / partition / "samples.svg"
            if seed == str(min(table["seeds"], default="")) and path.exists():
                title = table["columns"].get(split, split)
                maps = found.setdefault(dataset, {})
                maps.setdefault(partition, inline_svg(path, f"{dataset}, {title}", f"{dataset}-{partition}"))
    return [{"dataset": dataset, "maps": list(maps.values())} for dataset, maps in found.items()]


def _drawn(wanted: Iterable[str], folder: Path) -> list[dict[str, Any]]:
    """Those of some figures that have been drawn."""
    return [
        {"name": name, "svg": inline_svg(path, name, name)}
        for name in wanted
        if (path := folder / name / f"{name}.svg").exists()
    ]


def _provenance(table: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What stands behind a table: names, each with its (value, SHA-256 or nothing) pairs."""
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
        "Commit": [(commit, "") for commit in shared["commits"]],
        "Remarks": [(line, "") for line in show_differences(table)],
    }
    return [(name, values) for name, values in pairs.items() if values]


def inline_svg(path: Path, label: str, prefix: str) -> Markup:
    """One of our SVG files as part of a page: in the page's colours, its ids kept apart by a prefix."""
    text = path.read_text()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    prefix = re.sub(r"[^A-Za-z0-9_-]", "-", prefix)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'href="#', f'href="#{prefix}-', body)
    body = body.replace("url(#", f"url(#{prefix}-")
    for colour, name in _COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    width = float(box.group().split()[2]) if box else 0.0
    opening = Markup('<svg role="img" aria-label="{}" style="--width: {:.0f}pt" {}').format(
        label, width, Markup(box.group() if box else "")
    )
    return opening + Markup(' xmlns:xlink="http://www.w3.org/1999/xlink">' + body.rstrip())


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
