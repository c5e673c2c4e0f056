"""A table's faces: Markdown, CSV, LaTeX and plain text, all from the one mapping that the JSON holds."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from statistics import mean
from textwrap import fill
from typing import Any

from tabulate import tabulate

from hetfl.compact import WAYS
from hetfl.report.shown import (
    DIVERGED,
    FAILED,
    RANDOM,
    Cell,
    Shown,
    Table,
    best_cells,
    blocks,
    costs,
    differs_from_diverged,
    filled,
    has_cost,
    numbered,
    show,
    show_bytes,
    show_count,
    show_differences,
    show_first,
    show_measure,
    show_span,
    show_traffic,
)
from hetfl.schema import flat
from hetfl.tables.spec import compares, has_statistic, pooled, several_seeds
from hetfl.tables.verdict import NOISE

WIDTH = 150
"""Of the terminal, in characters."""
_CSV = (
    "row column status value std lowest highest best last rounds printed printed_std difference unit statistic "
    "reading against interval_low interval_high variance printed_variance window value_text printed_text agrees "
    "random seeds diverged base_diverged failed parameters_mean"
)
_CSV_SIZES = "elements bytes first last varies registration_elements registration_bytes total_elements total_bytes"
_TEX_SYMBOLS = (
    "±pm ×times →rightarrow ≥geq ≤leq ·cdot †dagger ‡ddagger αalpha βbeta γgamma λlambda μmu ρrho σsigma τtau"
)
_TEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"${character}$" for character in "<>"}
    | {symbol[0]: f"$\\{symbol[1:]}$" for symbol in _TEX_SYMBOLS.split()}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"–": "--", "—": "---", "−": "$-$", "§": r"\S{}", "¶": r"\P{}", "²": "$^2$"}
)
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\|*_<`"})


def footnotes(table: Table, page: bool = False) -> list[str]:
    """What every figure of the table is, as plain sentences; the last one is the provenance.

    Args:
        table: filled.
        page: whether they stand on the report's page, which says elsewhere what is alike in many tables.
    """
    titles, cells = table["rows"], table["cells"]
    groups = {row: [cell for cell in cells if cell["row"] == row] for row in titles}
    by_way = [(row, group, way) for row, group in groups.items() for way in WAYS]
    sizes = [
        (row, way, [cell[way]["registration"]["bytes"] for cell in group if cell[way]]) for row, group, way in by_way
    ]
    text = _template("footnotes.jinja").render(
        **table,
        whole=table,
        page=page,
        diverged=_troubled("diverged", table, groups),
        failed=_troubled("failed", table, groups),
        differing=any(map(differs_from_diverged, cells)),
        rounds=_rounds(groups, titles),
        stopped=_stopped(cells),
        changing=[
            f"{titles[row]} {way} {_first_last(group, way)}"
            for row, group, way in by_way
            if "†" in show_traffic(group, way)[0]
        ],
        registered=[f"{titles[row]} {show_span(some, show_bytes)} {way}" for row, way, some in sizes if any(some)],
    )
    return text.splitlines()


def _troubled(trouble: str, table: Table, groups: Mapping[str, Sequence[Cell]]) -> list[str]:
    """When which runs of each row first ``diverged`` or ``failed``; with columns where others of the row did not."""
    texts = []
    for row, group in groups.items():
        title, found = table["rows"][row], dict[str, list[str]]()
        for cell in group:
            found.setdefault(show_first(trouble, cell), []).append(table["columns"][cell["column"]])
        for shown, where in found.items():
            if shown:
                texts.append(f"{title}: {shown}" if len(found) == 1 else f"{title}, {' and '.join(where)}: {shown}")
    return texts


def _first_last(group: Sequence[Cell], way: str) -> str:
    ends = [(show_count(cell[way]["first"]), show_count(cell[way]["last"])) for cell in group if cell[way]]
    return ", ".join(f"{first} → {last}" for (first, last), _ in groupby(ends))


def _rounds(rows: Mapping[str, Sequence[Cell]], titles: Mapping[str, str]) -> list[str]:
    """The rounds of all rows, or the rows of each number of rounds; none where nothing is run."""
    by_count: dict[int, list[str]] = {}
    for row, group in rows.items():
        for count in {cell["rounds"] for cell in group if cell["rounds"]}:
            by_count.setdefault(count, []).append(titles[row])
    if len(by_count) < 2:
        return [*map(str, by_count)]
    return [f"{count} for {', '.join(named)}" for count, named in by_count.items()]


def _stopped(cells: Sequence[Cell]) -> str:
    """How many runs stopped early, and when; a run that fills several cells counts once."""
    runs = {run["run"]: run.get("rounds") for cell in cells for run in cell["provenance"]}
    early = [played for played in runs.values() if played]
    return f"; {len(early)} of {len(runs)} runs stopped early, after {show_span(early, show_count)}" if early else ""


def render_markdown(table: Table) -> str:
    """The table for GitHub: one row per method, accuracy then cost, footnotes below."""
    return _render("table.md.jinja", table)


def render_latex(table: Table) -> str:
    """A floating ``table`` with a booktabs ``tabular``, at most as wide as the text, and its notes behind it.

    It needs ``\\usepackage{booktabs,graphicx}``.
    """
    return _render("table.tex.jinja", table)


def render_csv(table: Table) -> str:
    """Long form: one line per (row, column) with every numeric field, empty where there is none.

    ``rounds`` are those that the runs played, mean over seeds; runs with patience stop before their limit.
    """
    names = [*_CSV.split(), *(f"{way}_{size}" for way in WAYS for size in _CSV_SIZES.split())]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for cell in filled(table)["cells"]:
        told: dict[str, Any] = {name: show_first(name, cell) for name in ("diverged", "failed")}
        told |= {"seeds": " ".join(map(str, cell["seeds"])), "base_diverged": differs_from_diverged(cell) or ""}
        told |= dict(zip(("interval_low", "interval_high"), cell["interval"] or ("", ""), strict=True))
        if cell["rounds"]:
            told["rounds"] = round(mean(run.get("rounds", cell["rounds"]) for run in cell["provenance"]), 6)
        writer.writerow(flat(cell, "_") | told)
    return buffer.getvalue()


def render_text(table: Table, width: int = WIDTH) -> str:
    """The table for a terminal of so many columns; wider ones are cut into blocks. An asterisk marks the best."""
    table = filled(table)

    def entry(cell: Shown | None) -> str:
        if cell is None:
            return ""
        if not cell.has_run:
            return _lines(cell.value, cell.printed)
        below = (cell.range, cell.seeds, *cell.printed.rsplit(", ", 1))
        return _lines(f"{cell.value}{'*' if cell.best else ' '}", *(f"{line} " for line in below if line))

    parts = []
    for block in _shown(table):
        rows = [[*map(entry, row["cells"]), *(_lines(*shown) for shown in row["costs"])] for row in block["rows"]]
        titles = [row["title"] for row in block["rows"]]
        header = [*block["columns"], *map(str.lower, block["header"][len(block["columns"]) :])]
        columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
        parts += [block["title"]] if block["title"] else []
        parts += [_block(table["head"].lower(), titles, part) for part in _packed(columns, titles, width)]
    notes = [_wrap(f"Note: {table['note']}", width)] if table["note"] else []
    below = [_wrap(text, width) for text in footnotes(table)]
    return "\n".join([table["title"], *notes, "", "\n\n".join(parts), "", *below, ""])


def _shown(table: Table) -> list[dict[str, Any]]:
    """The parts of a table with all that a face says of them: titles, cells as :class:`Shown`, and costs."""
    best, cost = best_cells(table), ["Parameters", "Up", "Down"] if has_cost(table) else []
    return [
        {
            "title": block.title,
            "columns": [*block.columns.values()],
            "header": [*block.columns.values(), *cost],
            "rows": [
                {
                    "title": table["rows"][row],
                    "cells": [cell and show(table, cell, best) for cell in cells],
                    "costs": costs(table, cells),
                }
                for row, cells in block.rows.items()
            ],
        }
        for block in blocks(table)
    ]


def _render(template: str, table: Table) -> str:
    table = filled(table)
    text: str = _template(template).render(**table, shown=_shown(table), notes=footnotes(table))
    return text


@cache
def _template(name: str) -> Any:
    """A template of this package; LaTeX's own braces ask for other delimiters in ``.tex``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hetfl.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    if ".tex" in name:
        environment = environment.overlay("<%", "%>", "<<", ">>", "<#", "#>")
    told = (compares, has_cost, has_statistic, numbered, pooled, several_seeds, show_differences, show_measure)
    environment.globals |= {function.__name__: function for function in told}
    environment.globals |= {"RANDOM": RANDOM, "DIVERGED": DIVERGED, "FAILED": FAILED, "NOISE": NOISE}
    environment.filters["md"] = lambda text: text.translate(_MARKDOWN)
    environment.filters["tex"] = lambda text: text.translate(_TEX)
    return environment.get_template(name)


def _packed(columns: Mapping[str, list[str]], rows: list[str], most: int) -> list[dict[str, list[str]]]:
    """Columns in as many blocks as the terminal's width asks for."""

    def width(title: str, entries: list[str]) -> int:
        # tabulate keeps two places beside a header and two between columns.
        return 2 + max(len(title) + 2, *(len(line) for entry in entries for line in entry.split("\n")))

    head = width("method", rows)
    blocks: list[dict[str, list[str]]] = [{}]
    used = head
    for title, entries in columns.items():
        if blocks[-1] and used + width(title, entries) > most:
            blocks.append({})
            used = head
        blocks[-1][title] = entries
        used += width(title, entries)
    return blocks


def _block(head: str, rows: list[str], columns: Mapping[str, list[str]]) -> str:
    body = [[row, *entries] for row, *entries in zip(rows, *columns.values(), strict=True)]
    align = ("left", *("right" for _ in columns))
    header = [head, *columns]
    return tabulate(body, header, tablefmt="simple", disable_numparse=True, colalign=align, preserve_whitespace=True)


def _wrap(text: str, width: int) -> str:
    return fill(" ".join(text.split()), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)
