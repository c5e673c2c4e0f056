"""A table's faces: Markdown, CSV, LaTeX and plain text, all from the one mapping that the JSON holds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, pairwise
from statistics import mean
from textwrap import wrap
from typing import Any, NamedTuple

from tabulate import tabulate

from hetfl.compact import WAYS
from hetfl.report.shown import (
    DIVERGED,
    FAILED,
    RANDOM,
    Cell,
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
_TEX_HEADER, _TEX_TITLE, _TEX_WIDTH, _TEX_HEIGHT, _TEX_CAPTION = 16, 30, 90, 42, 70
"""Characters of a column's and of a row's title; characters and lines of 12 pt that a float has beside a caption of
three lines; characters in a line of a caption. With about 5 pt to a character, a float is not higher than 550 pt, the
text of letter paper, and at 345 pt, its width, no text is smaller than 6.5 pt."""
_TEX_SMALL = 0.925
"""How wide a character of ``\\small`` is to one of the text."""
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\|*_<`"})


class Entry(NamedTuple):
    """What stands at a place of a table, line by line.

    Attributes:
        lines: the first one is the number or why there is none.
        best: whether it is emphasised; None where there is no number of which one could be the best.
    """

    lines: list[str]
    best: bool | None = None


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
    table = filled(table)
    text: str = _template("table.md.jinja").render(**table, shown=_shown(table), notes=footnotes(table))
    return text


def render_latex(table: Table) -> str:
    """Floating ``table``s of booktabs ``tabular``s, each at most as wide as the text, and the notes behind them.

    Most tables are one float. Columns that would be too small at the text's width stand below the others, and what is
    too high for a page goes on in further floats, labelled ``tab:<name>-2`` and so on. It needs
    ``\\usepackage{booktabs,graphicx}``.
    """
    table = filled(table)
    title = table["title"].rstrip(".")
    captions = [f"{title}. {table['note']}".rstrip()]
    parts: list[dict[str, Any]] = []
    for block in _shown(table):
        # Two more lines of a caption fit anyway.
        above = 0 if parts else max(len(captions[0]) / _TEX_CAPTION - 2, 0)
        parts += _tex_parts(block, above)
    floats = [parts[some] for some in _packed([part["height"] for part in parts], 0, _TEX_HEIGHT)]
    for some in floats[1:]:
        named = "; ".join(dict.fromkeys(part["title"] for part in some if part["title"]))
        captions.append(f"{title}, continued{named and f': {named}'}.")
    told = {"table": table["table"], "head": table["head"], "notes": footnotes(table)}
    text: str = _template("table.tex.jinja").render(**told, floats=[*zip(captions, floats, strict=True)])
    return text


def _tex_parts(block: Mapping[str, Any], above: float) -> Iterator[dict[str, Any]]:
    """What of a block of :func:`_shown` fits in width and height, below so many lines of a caption.

    Heights are in lines and without regard to scaling, so that they are upper bounds.
    """
    rows = [(_cut(row["title"], _TEX_TITLE), _entries(row)) for row in block["rows"]]
    header = [_cut(name, _TEX_HEADER) for name in block["header"]]
    widths = [
        _width([*([line] for line in name), *(entry.lines for entry in column)], _TEX_SMALL)
        for name, *column in zip(header, *(entries for _, entries in rows), strict=True)
    ]
    for some in _packed(widths, _width([line] for title, _ in rows for line in title), _TEX_WIDTH):
        cut = [(title, entries[some]) for title, entries in rows]
        # Between rows there is half an em, and there are three rules.
        heights = [max(map(len, [title, *(entry.lines for entry in entries)])) + 5 / 12 for title, entries in cut]
        top = max(map(len, header[some])) + 1.5 + bool(block["title"])
        heights[0] += above
        above = 0
        for part in _packed(heights, top, _TEX_HEIGHT):
            height = top + sum(heights[part])
            yield {"title": block["title"], "header": header[some], "rows": cut[part], "height": height}


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

    def marked(entry: Entry) -> list[str]:
        if entry.best is None:
            return entry.lines
        first, *below = entry.lines
        return [f"{first}{'*' if entry.best else ' '}", *(f"{line} " for line in below)]

    parts = []
    for block in _shown(table):
        titles = [[row["title"]] for row in block["rows"]]
        header = [*block["columns"], *map(str.lower, block["header"][len(block["columns"]) :])]
        columns = [[*map(marked, column)] for column in zip(*map(_entries, block["rows"]), strict=True)]
        # tabulate keeps two places beside a header.
        widths = [_width([[f"{name}  "], *column]) for name, column in zip(header, columns, strict=True)]
        parts += [block["title"]] if block["title"] else []
        parts += [
            _block([table["head"].lower(), *header[some]], [titles, *columns[some]])
            for some in _packed(widths, _width([["method  "], *titles]), width)
        ]
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


def _entries(row: Mapping[str, Any]) -> list[Entry]:
    """A row of :func:`_shown`, its cells and costs alike."""
    cells = [Entry(cell.lines, cell.best if cell.has_run else None) if cell else Entry([]) for cell in row["cells"]]
    return [*cells, *(Entry([line for line in lines if line]) for lines in row["costs"])]


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


def _packed(sizes: Iterable[float], head: float, most: float) -> list[slice]:
    """In which parts things of these sizes, in their order, fit into ``most``, each part with a ``head``."""
    starts, used, end = [0], head, 0
    for end, size in enumerate(sizes, 1):
        if end - 1 > starts[-1] and used + size > most:
            starts.append(end - 1)
            used = head
        used += size
    return [slice(*ends) for ends in pairwise([*starts, end])]


def _width(column: Iterable[Sequence[str]], small: float = 1) -> float:
    """Of entries in characters, with two to the next column; below the first line one is ``small`` times as wide."""
    return 2 + max((len(line) * (small if at else 1) for lines in column for at, line in enumerate(lines)), default=0)


def _block(header: Sequence[str], columns: Iterable[Sequence[Sequence[str]]]) -> str:
    body = [["\n".join(lines) for lines in row] for row in zip(*columns, strict=True)]
    align = ("left", *("right" for _ in header[1:]))
    return tabulate(body, header, tablefmt="simple", disable_numparse=True, colalign=align, preserve_whitespace=True)


def _wrap(text: str, width: int) -> str:
    return "\n".join(_cut(text, width, "  "))


def _cut(text: str, width: int, indent: str = "") -> list[str]:
    words = " ".join(text.split())
    return wrap(words, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
