"""A table's faces: Markdown, CSV, LaTeX and plain text, all from the one mapping that the JSON holds."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from textwrap import fill
from typing import Any, NamedTuple

from tabulate import tabulate

Table = Mapping[str, Any]
Cell = Mapping[str, Any]

WIDTH = 150
"""Of the terminal, in characters."""
WAYS = ("up", "down")
RANDOM = "‡"
"""Marks a number of random backbone weights."""
DIVERGED = "§"
"""Marks a number of runs of which some diverged."""
MISSING = ("not run", "not evaluated", "broken")
"""Statuses of a cell without a value."""

_TEX_SYMBOLS = (
    "±pm ×times →rightarrow ≥geq ≤leq ·cdot †dagger ‡ddagger αalpha βbeta γgamma λlambda μmu ρrho σsigma τtau"
)
_TEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"${character}$" for character in "<>"}
    | {symbol[0]: f"$\\{symbol[1:]}$" for symbol in _TEX_SYMBOLS.split()}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"–": "--", "—": "---", "−": "$-$", "§": r"\S{}", "²": "$^2$"}
)
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\|*_<`"})


class Block(NamedTuple):
    """A part of a table: its title, its columns' titles, and each row's cells in the order of the columns."""

    title: str
    columns: dict[str, str]
    rows: dict[str, list[Cell | None]]


class Shown(NamedTuple):
    """What every face says of a cell: texts, empty where there is nothing to say.

    Attributes:
        has_run: whether there is a number to show; otherwise ``number`` says why not.
        best: whether it is the best accuracy of its column.
        number, std: ``91.2`` and ``0.4``; no deviation with one seed.
        marks: of its footnotes, such as `` ‡ [1]``.
        range: lowest to highest client, ``88.0–93.1``, or the variance between rounds, ``var 0.40``.
        seeds: ``2/3 seeds`` where some are missing.
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


_EMPTY: dict[str, Any] = {
    **dict.fromkeys(("printed_std", "printed_variance", "variance", "window", "std", "difference")),
    **dict.fromkeys(("lowest", "highest", "best", "last", "rounds", "parameters", *WAYS)),
    **dict.fromkeys(("value_text", "printed_text", "footnote", "reading"), ""),
    **{"seeds": [], "random": False, "unit": "%", "statistic": "average", "comparable": True, "provenance": []},
}


def filled(table: Table) -> dict[str, Any]:
    """A table with everything that the renderers ask for: rows and columns named, what may be missing left empty."""
    axes = {axis: table[axis] for axis in ("rows", "columns")}
    axes = {axis: {name: name for name in told} if isinstance(told, list) else told for axis, told in axes.items()}
    whole = {"title": "", **{axis: list(names) for axis, names in axes.items()}}
    empty = {"head": "Method", "note": "", "seeds": [], "blocks": [whole], "decimals": 1, "footnotes": []}
    return {**empty, "provenance": {}, **table, **axes, "cells": [{**_EMPTY, **cell} for cell in table["cells"]]}


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
    """The (row, column) with the highest accuracy of each column of a block; equal as displayed is equal."""
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
    marks = (RANDOM if cell["random"] else "", DIVERGED if show_diverged(cell) else "")
    note = f"[{numbered(table)[cell['footnote']]}]" if cell["footnote"] else ""
    missing = cell["status"] if cell["status"] in MISSING else "not run"
    number = cell["value_text"] or (missing if cell["value"] is None else f"{cell['value']:.{digits}f}")
    ends = "–".join(_number(cell[end], f".{decimals}f") for end in ("lowest", "highest"))
    variance = _number(cell["variance"], f".{decimals}f")
    wanted, done = len(cell.get("wanted", cell["seeds"])), len(cell["seeds"])
    agrees = {None: cell["status"], True: "agrees", False: "differs"}
    return Shown(
        has_run=cell["value"] is not None or bool(cell["value_text"]),
        best=(cell["row"], cell["column"]) in best,
        number=number,
        std="" if cell["value_text"] else _number(cell["std"], f".{digits}f"),
        marks="".join(f" {mark}" for mark in (*marks, note) if mark),
        range=f"var {variance}" if variance else ends.strip("–"),
        seeds=f"{done}/{wanted} seeds" if 0 < done < wanted else "",
        print=_print(cell, decimals),
        difference=_number(cell["difference"], f"+.{digits}f"),
        verdict=agrees[cell.get("agrees")],
    )


def _print(cell: Cell, decimals: int) -> str:
    """What the paper prints; an accuracy has no fewer decimals than ours."""
    if cell["printed"] is None or cell["printed_text"]:
        return str(cell["printed_text"])
    text = f"{cell['printed']:g}"
    least = f"{cell['printed']:.{decimals}f}" if cell["unit"] == "%" else text
    std, variance = (_number(cell[name], f".{decimals}f") for name in ("printed_std", "printed_variance"))
    return max(text, least, key=len) + (f" var {variance}" if variance else std and f"±{std}")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def show_digits(table: Table, cell: Cell) -> int:
    """Decimals of a cell: the table's of accuracies, more of cosines and of millions."""
    return table["decimals"] if cell["unit"] == "%" else 3 if cell["unit"] else 4


def show_diverged(cell: Cell) -> str:
    """When which of a cell's runs diverged, ``seed 0 in round 3, seed 2 in round 1``; empty where none did."""
    runs = [run for run in cell["provenance"] if "diverged" in run]
    return ", ".join(f"seed {run['seed']} in round {run['diverged']}" for run in runs)


def numbered(table: Table) -> dict[str, int]:
    """The footnotes of single cells with their numbers."""
    texts = dict.fromkeys(cell["footnote"] for cell in table["cells"] if cell["footnote"])
    return {text: number for number, text in enumerate(texts, 1)}


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
    if not pooled(table):
        return "mean of the clients' test accuracies with the final model"
    sizes = [cell["window"] for cell in table["cells"] if cell["window"]]
    window = f" {show_span(sizes, show_count)}" if sizes else ""
    rounds = "in the best round" if _has(table, "best_pooled") else f"mean over the last{window} rounds"
    return f"correct predictions of all clients over all their test samples, {rounds} of each run"


def pooled(table: Table) -> bool:
    """Whether the accuracies of a table are of all clients' test samples together."""
    return _has(table, "best_pooled", "window_pooled")


def lowest(table: Table) -> bool:
    """Whether a table has the accuracies of each round's lowest client beside those."""
    return _has(table, "window_lowest")


def _has(table: Table, *statistics: str) -> bool:
    return any(cell.get("statistic") in statistics for cell in table["cells"])


def show_differences(table: Table) -> list[str]:
    """In what the runs of a table differ that is no part of their identity, in one line; none if in nothing."""
    parts = [
        f"{what} " + ", ".join(f"{value} ({many} run{'' if many == 1 else 's'})" for value, many in kinds.items())
        for what, kinds in table["provenance"].get("differences", {}).items()
    ]
    return [f"Runs differ in: {'; '.join(parts)}."] if parts else []


def footnotes(table: Table) -> list[str]:
    """What every figure of the table is, as plain sentences; the last one is the provenance."""
    titles, cells = table["rows"], table["cells"]
    groups = {row: [cell for cell in cells if cell["row"] == row] for row in titles}
    by_way = [(row, group, way) for row, group in groups.items() for way in WAYS]
    sizes = [
        (row, way, [cell[way]["registration"]["bytes"] for cell in group if cell[way]]) for row, group, way in by_way
    ]
    text = _template("footnotes.jinja").render(
        **table,
        RANDOM=RANDOM,
        DIVERGED=DIVERGED,
        numbered=numbered(table),
        diverged=[
            f"{titles[cell['row']]}, {table['columns'][cell['column']]}: {shown}"
            for cell in cells
            if (shown := show_diverged(cell))
        ],
        accuracies=any(cell["unit"] == "%" for cell in cells),
        measure=show_measure(table),
        pooled=pooled(table),
        lowest=lowest(table),
        has_cost=has_cost(table),
        rounds=_rounds(groups, titles),
        stopped=_stopped(cells),
        changing=[
            f"{titles[row]} {way} {_first_last(group, way)}"
            for row, group, way in by_way
            if "†" in show_traffic(group, way)[0]
        ],
        registered=[f"{titles[row]} {show_span(some, show_bytes)} {way}" for row, way, some in sizes if any(some)],
        differences=show_differences(table),
    )
    return text.splitlines()


def _first_last(group: Sequence[Cell], way: str) -> str:
    ends = [(show_count(cell[way]["first"]), show_count(cell[way]["last"])) for cell in group if cell[way]]
    return ", ".join(f"{first} → {last}" for (first, last), _ in groupby(ends))


def _rounds(rows: Mapping[str, Sequence[Cell]], titles: Mapping[str, str]) -> str:
    by_count: dict[int, list[str]] = {}
    for row, group in rows.items():
        for count in {cell["rounds"] for cell in group if cell["rounds"]}:
            by_count.setdefault(count, []).append(titles[row])
    if len(by_count) < 2:
        return "".join(map(str, by_count)) or "none yet"
    return "; ".join(f"{count} for {', '.join(named)}" for count, named in by_count.items())


def _stopped(cells: Sequence[Cell]) -> str:
    """How many runs stopped early, and when; a run that fills several cells counts once."""
    runs = {run["run"]: run.get("rounds") for cell in cells for run in cell["provenance"]}
    early = [played for played in runs.values() if played]
    return f"; {len(early)} of {len(runs)} runs stopped early, after {show_span(early, show_count)}" if early else ""


def render_markdown(table: Table) -> str:
    """The table for GitHub: one row per method, accuracy then cost, footnotes below."""
    return _render("table.md.jinja", table)


def render_latex(table: Table) -> str:
    """A floating ``table`` with a booktabs ``tabular``; needs ``\\usepackage{booktabs}`` and nothing else."""
    return _render("table.tex.jinja", table)


def render_csv(table: Table) -> str:
    """Long form: one line per (row, column) with every numeric field, empty where there is none."""
    names = (
        "row column status value std lowest highest best last rounds printed printed_std difference unit statistic"
    )
    names += " reading variance printed_variance window value_text printed_text random"
    lines = []
    for cell in filled(table)["cells"]:
        line = {name: cell[name] for name in names.split()}
        line |= {"seeds": " ".join(map(str, cell["seeds"])), "diverged": show_diverged(cell)}
        line["parameters_mean"] = (cell["parameters"] or {}).get("mean")
        for way in WAYS:
            traffic = cell[way] or {}
            line |= {f"{way}_{key}": traffic.get(key) for key in ("elements", "bytes", "first", "last", "varies")}
            for part in ("registration", "total"):
                line |= {f"{way}_{part}_{key}": traffic.get(part, {}).get(key) for key in ("elements", "bytes")}
        lines.append(line)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def render_text(table: Table) -> str:
    """The table for a terminal of 150 columns; wider ones are cut into blocks. An asterisk marks the best."""
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
        parts += [_block(table["head"].lower(), titles, part) for part in _packed(columns, titles)]
    notes = [f"Note: {table['note']}"] if table["note"] else []
    below = "\n".join(map(_wrap, footnotes(table)))
    return "\n".join([table["title"], *map(_wrap, notes), "", "\n\n".join(parts), "", below, ""])


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
    environment.filters["md"] = lambda text: text.translate(_MARKDOWN)
    environment.filters["tex"] = lambda text: text.translate(_TEX)
    return environment.get_template(name)


def _packed(columns: Mapping[str, list[str]], rows: list[str]) -> list[dict[str, list[str]]]:
    """Columns in as many blocks as the terminal's width asks for."""

    def width(title: str, entries: list[str]) -> int:
        # tabulate keeps two places beside a header and two between columns.
        return 2 + max(len(title) + 2, *(len(line) for entry in entries for line in entry.split("\n")))

    head = width("method", rows)
    blocks: list[dict[str, list[str]]] = [{}]
    used = head
    for title, entries in columns.items():
        if blocks[-1] and used + width(title, entries) > WIDTH:
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


def _wrap(text: str) -> str:
    return fill(" ".join(text.split()), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)
