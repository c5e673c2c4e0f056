"""A table's faces: Markdown, CSV, LaTeX and plain text, all from the one mapping that the JSON holds."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from textwrap import fill
from typing import Any, NamedTuple

from tabulate import tabulate

Table = Mapping[str, Any]
Cell = Mapping[str, Any]

WIDTH = 150
WAYS = ("up", "down")
RANDOM = "‡"
"""Marks a number of random backbone weights."""
DIVERGED = "§"
"""Marks a number of runs of which some diverged."""


MISSING = ("not run", "not evaluated", "broken")
"""Statuses of a cell without a value."""


class Block(NamedTuple):
    """A part of a table: its title, its columns' titles, and each row's cells in the order of the columns."""

    title: str
    columns: dict[str, str]
    rows: dict[str, list[Cell | None]]


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    "–": "--",
    "—": "---",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "−": "$-$",
    "·": r"$\cdot$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "§": r"\S{}",
    "²": r"$^2$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
}


def filled(table: Table) -> dict[str, Any]:
    """A table with everything that the renderers ask for: rows and columns named, what may be missing left empty."""
    named = {axis: table[axis] for axis in ("rows", "columns")}
    named = {
        axis: {name: name for name in names} if isinstance(names, list) else names for axis, names in named.items()
    }
    whole = {"title": "", "rows": list(named["rows"]), "columns": list(named["columns"])}
    empty = {"note": "", "seeds": [], "blocks": [whole], "decimals": 1, "footnotes": [], "provenance": {}}
    return {**empty, **table, **named, "cells": [{**_EMPTY, **cell} for cell in table["cells"]]}


_NONE = (
    "printed_std",
    "printed_variance",
    "variance",
    "window",
    "std",
    "difference",
    "lowest",
    "highest",
    "best",
    "last",
    "rounds",
    "parameters",
    "up",
    "down",
)
_TEXTS = ("value_text", "printed_text", "footnote")
_EMPTY: dict[str, Any] = {
    **dict.fromkeys(_NONE),
    **dict.fromkeys(_TEXTS, ""),
    **{"seeds": [], "random": False, "unit": "%", "statistic": "average", "reading": "", "comparable": True},
    "provenance": [],
}


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


def has_run(cell: Cell) -> bool:
    """Whether there is something to show."""
    return cell["value"] is not None or bool(cell["value_text"])


def show_missing(cell: Cell) -> str:
    """What a cell without a value says instead."""
    return str(cell["status"]) if cell["status"] in MISSING else "not run"


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


def show_value(table: Table, cell: Cell) -> str:
    """``91.2 ± 0.4``, or the mean alone with one seed, with the marks of its footnotes."""
    digits = show_digits(table, cell)
    spread = "" if cell["std"] is None else f" ± {cell['std']:.{digits}f}"
    return (cell["value_text"] or f"{cell['value']:.{digits}f}{spread}") + show_marks(table, cell)


def show_digits(table: Table, cell: Cell) -> int:
    """Decimals of a cell: the table's of accuracies, more of cosines and of millions."""
    return table["decimals"] if cell["unit"] == "%" else 3 if cell["unit"] else 4


def show_marks(table: Table, cell: Cell) -> str:
    """The marks of a cell's footnotes, such as ``‡ [1]``."""
    number = f"[{numbered(table)[cell['footnote']]}]" if cell["footnote"] else ""
    marks = (RANDOM if cell["random"] else "", DIVERGED if show_diverged(cell) else "", number)
    return "".join(f" {mark}" for mark in marks if mark)


def show_diverged(cell: Cell) -> str:
    """When which of a cell's runs diverged, ``seed 0 in round 3, seed 2 in round 1``; empty where none did."""
    runs = [run for run in cell["provenance"] if "diverged" in run]
    return ", ".join(f"seed {run['seed']} in round {run['diverged']}" for run in runs)


def numbered(table: Table) -> dict[str, int]:
    """The footnotes of single cells with their numbers."""
    texts = dict.fromkeys(cell["footnote"] for cell in table["cells"] if cell["footnote"])
    return {text: number for number, text in enumerate(texts, 1)}


def show_range(table: Table, cell: Cell) -> str:
    """Lowest to highest client, ``88.0–93.1``, or the variance between rounds, ``var 0.40``; empty without either."""
    if cell["variance"] is not None:
        return f"var {cell['variance']:.{table['decimals']}f}"
    if cell["lowest"] is None:
        return ""
    return "–".join(f"{cell[end]:.{table['decimals']}f}" for end in ("lowest", "highest"))


def show_seeds(cell: Cell) -> str:
    """``2/3 seeds`` where some are missing, else empty."""
    wanted, done = len(cell.get("wanted", cell["seeds"])), len(cell["seeds"])
    return f"{done}/{wanted} seeds" if done < wanted else ""


def show_print(table: Table, cell: Cell) -> str:
    """What the paper prints: ``92.1``, ``92.1±0.3`` or ``92.1 var 0.4``, or empty.

    An accuracy has no fewer decimals than ours.
    """
    if cell["printed"] is None or cell["printed_text"]:
        return str(cell["printed_text"])
    text = f"{cell['printed']:g}"
    least = f"{cell['printed']:.{table['decimals']}f}" if cell["unit"] == "%" else text
    spread = "" if cell["printed_std"] is None else f"±{cell['printed_std']:.{table['decimals']}f}"
    if cell["printed_variance"] is not None:
        spread = f" var {cell['printed_variance']:.{table['decimals']}f}"
    return max(text, least, key=len) + spread


def show_printed(table: Table, cell: Cell) -> str:
    """``printed 92.1 (-0.3), match``, ``printed 92.1`` where nothing is run, or empty where nothing is printed.

    Where the printed value is of another setting, ``printed 92.1, other setting``.
    """
    if not (text := show_print(table, cell)):
        return ""
    if not has_run(cell):
        return f"printed {text}"
    difference = "" if cell["difference"] is None else f" ({cell['difference']:+.{show_digits(table, cell)}f})"
    return f"printed {text}{difference}, {show_status(cell)}"


def show_status(cell: Cell) -> str:
    """The verdict; of what is computed, whether it agrees with the print."""
    if cell.get("agrees") is None:
        return str(cell["status"])
    return "agrees" if cell["agrees"] else "differs"


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


def show_parameters(cells: Sequence[Cell]) -> str:
    """Trainable parameters per client over a row's cells."""
    counts = [count for cell in cells if cell.get("parameters") for count in cell["parameters"]["per_client"]]
    return show_span(counts, show_count)


def show_traffic(cells: Sequence[Cell], way: str) -> tuple[str, str]:
    """Elements and bytes per client and round over a row's cells; a dagger where training changes them."""
    sent = [cell[way] for cell in cells if cell.get(way)]
    dagger = "†" if any(traffic["varies"] for traffic in sent) else ""
    elements = show_span([traffic["elements"] for traffic in sent], show_count)
    size = show_span([traffic["bytes"] for traffic in sent], show_bytes)
    return elements + dagger, "" if not sent or elements == "0" else size


def footnotes(table: Table) -> list[str]:
    """What every figure of the table is, as plain sentences; the last one is the provenance."""
    own = numbered(table)
    notes = [f"[{number}] {text}" for text, number in own.items()]
    if any(cell["random"] for cell in table["cells"]):
        notes.append(f"{RANDOM} Random backbone weights where the experiment has pre-trained ones.")
    diverged = [
        f"{table['rows'][cell['row']]}, {table['columns'][cell['column']]}: {shown}"
        for cell in table["cells"]
        if (shown := show_diverged(cell))
    ]
    if diverged:
        notes.append(
            f"{DIVERGED} Diverged: from some round on a client's loss or scores were not finite; samples without "
            f"finite scores count as wrong. {'; '.join(diverged)}."
        )
    notes += [text for text in table["footnotes"] if text not in own]
    if any(cell["unit"] == "%" for cell in table["cells"]):
        notes += _on_accuracies(table)
    return [*notes, *show_differences(table), show_provenance(table)]


def _on_accuracies(table: Table) -> list[str]:
    cells, rows = table["cells"], _by_row(table)
    clients = "" if pooled(table) else "; the range is the lowest and the highest client, mean over seeds"
    notes = [
        f"Accuracy: {show_measure(table)}, in percent, mean ± sample standard deviation over seeds "
        f"{_join(table['seeds'])}{clients}. The best of each column is emphasised."
    ]
    if lowest(table):
        notes.append("Lowest client: in each of these rounds the client with the lowest accuracy.")
    if any(cell["variance"] is not None for cell in cells):
        notes.append(
            "var: variance between these rounds of one run, dividing by their number, in squared points, mean over "
            "seeds. It says nothing about seeds."
        )
    if any(cell["printed_variance"] is not None for cell in cells):
        notes.append("Printed with var: the paper's bracket, between rounds of one run. It enters no verdict.")
    if has_cost(table):
        notes.append(
            "Parameters: trainable elements of one client, a range where clients differ. "
            "Up, down: elements and bytes of the message that one client sends and receives in a round, measured, "
            "mean over the rounds that send one and over seeds, a range where columns differ. 1 kB = 1000 bytes."
        )
    notes.append(f"Rounds: {_rounds(rows, table['rows'])}{_stopped(cells)}.")
    changing = [
        f"{table['rows'][row]} {way} {_first_last(group, way)}"
        for row, group in rows.items()
        for way in WAYS
        if "†" in show_traffic(group, way)[0]
    ]
    if changing:
        notes.append(f"† The size changes with training; first → last round, elements: {'; '.join(changing)}.")
    registered = [
        f"{table['rows'][row]} {show_span(sizes, show_bytes)} {way}"
        for row, group in rows.items()
        for way in WAYS
        if any(sizes := [cell[way]["registration"]["bytes"] for cell in group if cell[way]])
    ]
    if registered:
        notes.append(f"Not in these: the registration before round 1, all clients together: {'; '.join(registered)}.")
    printed = {cell["comparable"] for cell in cells if cell["printed"] is not None}
    if True in printed:
        notes.append(
            "Printed: the paper's value, and ours less it. match: within two standard deviations or 0.5 points of "
            "it, whichever is larger; otherwise better or worse."
        )
    if False in printed:
        notes.append("Printed: the paper's value for its own setting, which is another one; it judges nothing here.")
    return notes


def show_measure(table: Table) -> str:
    """What the accuracies of a table are."""
    if pooled(table):
        return f"correct predictions of all clients over all their test samples, {_rounds_shown(table)} of each run"
    return "mean of the clients' test accuracies with the final model"


def pooled(table: Table) -> bool:
    """Whether the accuracies of a table are of all clients' test samples together."""
    return any(cell.get("statistic") in ("best_pooled", "window_pooled") for cell in table["cells"])


def lowest(table: Table) -> bool:
    """Whether a table has the accuracies of each round's lowest client beside those."""
    return any(cell.get("statistic") == "window_lowest" for cell in table["cells"])


def _rounds_shown(table: Table) -> str:
    """From which rounds the pooled accuracies are."""
    if any(cell["statistic"] == "best_pooled" for cell in table["cells"]):
        return "in the best round"
    sizes = [cell["window"] for cell in table["cells"] if cell["window"]]
    return f"mean over the last {show_span(sizes, show_count)} rounds" if sizes else "mean over the last rounds"


def has_cost(table: Table) -> bool:
    """Whether any run told its parameters and messages."""
    return any(cell["parameters"] for cell in table["cells"])


def show_provenance(table: Table) -> str:
    """What stands behind a table, in one line."""
    shared = table["provenance"]
    if not shared.get("datasets"):
        computed = any(cell["value_text"] for cell in table["cells"])
        if not computed:
            return "Provenance: nothing run yet."
        versions = [f"; {package} {_join(found)}" for package, found in shared.get("versions", {}).items()]
        return f"Provenance: computed{''.join(versions)}."
    parts = [
        *(f"data set {name} (sha256 {checksum[:12]})" for name, checksum in shared["datasets"].items()),
        f"models {', '.join(shared['models'])}",
        *(
            f"weights {name}" + ("" if name.endswith(".random") else f" (sha256 {checksum[:12]})")
            for name, checksum in shared["weights"].items()
        ),
        f"{_join(shared['clients'])} clients",
        f"engine {_join(shared['engines'])}",
        f"device {_join(shared['devices'])}",
        *(f"{package} {_join(version)}" for package, version in shared["versions"].items()),
        f"commit {_join(shared['commits'])}",
    ]
    return f"Provenance: {'; '.join(parts)}."


def show_differences(table: Table) -> list[str]:
    """In what the runs of a table differ that is no part of their identity, in one line; none if in nothing."""
    differences = table["provenance"].get("differences", {})
    parts = [
        f"{what} "
        + ", ".join(f"{value} ({number} run{'' if number == 1 else 's'})" for value, number in kinds.items())
        for what, kinds in differences.items()
    ]
    return [f"Runs differ in: {'; '.join(parts)}."] if parts else []


def render_markdown(table: Table) -> str:
    """The table for GitHub: one row per method, accuracy then cost, footnotes below."""
    table = filled(table)
    best = best_cells(table)

    def entry(cell: Cell | None) -> str:
        if cell is None:
            return ""
        if not has_run(cell):
            parts = [f"{show_missing(cell)}{show_marks(table, cell)}", show_printed(table, cell)]
        else:
            shown = _markdown(show_value(table, cell))
            value = f"**{shown}**" if (cell["row"], cell["column"]) in best else shown
            spread = show_range(table, cell)
            parts = [f"{value} ({spread})" if spread else value, show_seeds(cell)]
            parts.append(_markdown(show_printed(table, cell)))
        return _lines(*parts, separator="<br>")

    parts = [f"# {_markdown(table['title'])}"]
    if table["note"]:
        parts.append(f"> **Note.** {_markdown(table['note'])}")
    for block in blocks(table):
        cost = ["Parameters", "Up", "Down"] if has_cost(table) else []
        header = [*block.columns.values(), *cost]
        lines = [f"| {_head(table)} | {' | '.join(map(_markdown, header))} |", f"| :-- |{' --: |' * len(header)}"]
        for row, cells in block.rows.items():
            entries = [*map(entry, cells), *(_lines(*shown, separator="<br>") for shown in costs(table, cells))]
            lines.append(f"| {_markdown(table['rows'][row])} | {' | '.join(entries)} |")
        parts += [f"**{_markdown(block.title)}**"] if block.title else []
        parts.append("\n".join(lines))
    parts.append("\n".join(f"- {_markdown(line)}" for line in footnotes(table)))
    return "\n\n".join(parts) + "\n"


def costs(table: Table, cells: Sequence[Cell | None]) -> list[tuple[str, str]]:
    """A row's parameters, upload and download, each as two lines; nothing where no run told any."""
    if not has_cost(table):
        return []
    known = [cell for cell in cells if cell is not None]
    return [(show_parameters(known), ""), *(show_traffic(known, way) for way in WAYS)]


def render_csv(table: Table) -> str:
    """Long form: one line per (row, column) with every numeric field, empty where there is none."""
    lines = []
    names = ("row", "column", "status", "value", "std", "lowest", "highest", "best", "last", "rounds")
    for cell in filled(table)["cells"]:
        line = {key: cell[key] for key in names}
        line |= {key: cell[key] for key in ("printed", "printed_std", "difference", "unit")}
        line |= {key: cell[key] for key in ("statistic", "reading", "variance", "printed_variance", "window")}
        line |= {"value_text": cell["value_text"], "printed_text": cell["printed_text"], "random": cell["random"]}
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


def render_latex(table: Table) -> str:
    """A floating ``table`` with a booktabs ``tabular``; needs ``\\usepackage{booktabs}`` and nothing else."""
    table = filled(table)
    best = best_cells(table)

    def stack(*lines: str) -> str:
        shown = [line for line in lines if line]
        if len(shown) < 2:
            return "".join(shown)
        small = [shown[0], *(rf"{{\footnotesize {line}}}" for line in shown[1:])]
        return r"\begin{tabular}[t]{@{}r@{}}" + r" \\ ".join(small) + r"\end{tabular}"

    def entry(cell: Cell | None) -> str:
        if cell is None:
            return ""
        if not has_run(cell):
            return stack(f"{show_missing(cell)}{_latex(show_marks(table, cell))}", _latex(show_printed(table, cell)))
        value = _latex(show_value(table, cell))
        if (cell["row"], cell["column"]) in best:
            # \boldmath reaches the plus-minus, which is mathematics.
            value = rf"{{\bfseries\boldmath {value}}}"
        return stack(value, *map(_latex, (show_range(table, cell), show_seeds(cell), show_printed(table, cell))))

    caption = " ".join(part for part in (f"{table['title'].rstrip('.')}.", table["note"]) if part)
    lines = [
        r"% Needs \usepackage{booktabs}.",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(caption)}}}",
        rf"\label{{tab:{table['table']}}}",
    ]
    for block in blocks(table):
        header = [_head(table), *block.columns.values(), *(["Parameters", "Up", "Down"] if has_cost(table) else [])]
        lines += [rf"{_latex(block.title)}\par\smallskip"] if block.title else []
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule"]
        lines += [" & ".join(map(_latex, header)) + r" \\", r"\midrule"]
        for index, (row, cells) in enumerate(block.rows.items()):
            lines += [r"\addlinespace"] if index else []
            cost = [stack(*map(_latex, shown)) for shown in costs(table, cells)]
            lines.append(" & ".join([_latex(table["rows"][row]), *map(entry, cells), *cost]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", r"\par\medskip"]
    lines += [
        rf"\parbox{{\linewidth}}{{\footnotesize {_latex(' '.join(footnotes(table)))}}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def render_text(table: Table) -> str:
    """The table for a terminal of 150 columns; wider ones are cut into blocks. An asterisk marks the best."""
    table = filled(table)
    best = best_cells(table)

    def entry(cell: Cell | None) -> str:
        if cell is None:
            return ""
        if not has_run(cell):
            return _lines(f"{show_missing(cell)}{show_marks(table, cell)}", show_printed(table, cell))
        mark = "*" if (cell["row"], cell["column"]) in best else " "
        below = (show_range(table, cell), show_seeds(cell), *show_printed(table, cell).rsplit(", ", 1))
        return _lines(f"{show_value(table, cell)}{mark}", *(f"{line} " for line in below if line))

    parts = []
    for block in blocks(table):
        columns = {
            title: [entry(cells[index]) for cells in block.rows.values()]
            for index, title in enumerate(block.columns.values())
        }
        cost = zip(*(costs(table, cells) for cells in block.rows.values()), strict=True)
        columns |= {
            title: [_lines(*shown) for shown in column]
            for title, column in zip(("parameters", *WAYS), cost, strict=False)
        }
        titles = [table["rows"][row] for row in block.rows]
        parts += [block.title] if block.title else []
        parts += [_block(_head(table).lower(), titles, part) for part in _packed(columns, titles)]
    notes = [f"Note: {table['note']}"] if table["note"] else []
    below = "\n".join(_wrap(line) for line in footnotes(table))
    return "\n".join([table["title"], *map(_wrap, notes), "", "\n\n".join(parts), "", below, ""])


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
    return fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _lines(*lines: str, separator: str = "\n") -> str:
    return separator.join(line for line in lines if line)


def _head(table: Table) -> str:
    """What the rows are."""
    return table.get("head", "Method")


def _by_row(table: Table) -> dict[str, list[Cell]]:
    return {row: [cell for cell in table["cells"] if cell["row"] == row] for row in table["rows"]}


def _first_last(group: Sequence[Cell], way: str) -> str:
    ends = [(show_count(cell[way]["first"]), show_count(cell[way]["last"])) for cell in group if cell[way]]
    return ", ".join(f"{first} → {last}" for (first, last), _ in groupby(ends))


def _rounds(rows: Mapping[str, Sequence[Cell]], titles: Mapping[str, str]) -> str:
    by_count: dict[int, list[str]] = {}
    for row, group in rows.items():
        for count in {cell["rounds"] for cell in group if cell["rounds"]}:
            by_count.setdefault(count, []).append(titles[row])
    if len(by_count) < 2:
        return _join(list(by_count)) or "none yet"
    return "; ".join(f"{count} for {', '.join(named)}" for count, named in by_count.items())


def _stopped(cells: Sequence[Cell]) -> str:
    """How many runs stopped early, and when; a run that fills several cells counts once."""
    runs = {run["run"]: run.get("rounds") for cell in cells for run in cell["provenance"]}
    early = [played for played in runs.values() if played]
    return f"; {len(early)} of {len(runs)} runs stopped early, after {show_span(early, show_count)}" if early else ""


def _join(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _markdown(text: str) -> str:
    for character in "\\|*_<`":
        text = text.replace(character, f"\\{character}")
    return text


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
