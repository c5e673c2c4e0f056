"""A table's faces: Markdown, CSV, LaTeX and plain text, all from the one mapping that the JSON holds."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from tabulate import tabulate

Table = Mapping[str, Any]
Cell = Mapping[str, Any]

WIDTH = 150
WAYS = ("up", "down")

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
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
}


def cells_by_row(table: Table) -> dict[str, dict[str, Cell]]:
    """Row name -> column name -> cell, in the table's order."""
    return {row: {cell["column"]: cell for cell in table["cells"] if cell["row"] == row} for row in table["rows"]}


def best_cells(table: Table) -> set[tuple[str, str]]:
    """The (row, column) with the highest value of each column; equal as displayed is equal."""
    best = set()
    for column in table["columns"]:
        shown = {
            cell["row"]: round(cell["value"], 1)
            for cell in table["cells"]
            if cell["column"] == column and cell["value"] is not None
        }
        best |= {(row, column) for row, value in shown.items() if value == max(shown.values())}
    return best


def show_value(cell: Cell) -> str:
    """``91.2 ± 0.4``, or the mean alone with one seed."""
    spread = "" if cell.get("std") is None else f" ± {cell['std']:.1f}"
    return f"{cell['value']:.1f}{spread}"


def show_range(cell: Cell) -> str:
    """Lowest to highest client, ``88.0–93.1``; empty where the cell has none."""
    return "" if cell.get("lowest") is None else f"{cell['lowest']:.1f}–{cell['highest']:.1f}"


def show_seeds(table: Table, cell: Cell) -> str:
    """``2/3 seeds`` where some are missing, else empty."""
    wanted, done = len(table.get("seeds", cell["seeds"])), len(cell["seeds"])
    return f"{done}/{wanted} seeds" if done < wanted else ""


def show_printed(cell: Cell) -> str:
    """``printed 92.1, match``, or empty where nothing is printed."""
    return "" if cell["printed"] is None else f"printed {cell['printed']:g}, {cell['status']}"


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
    cells, rows = table["cells"], cells_by_row(table)
    seeds = ", ".join(map(str, table["seeds"]))
    notes = [
        "Accuracy: mean of the clients' test accuracies with the final model, in percent, "
        f"mean ± sample standard deviation over seeds {seeds}; the range is the lowest and the highest "
        "client, mean over seeds. The best of each column is emphasised.",
        "Parameters: trainable elements of one client, a range where clients differ. "
        "Up, down: elements and bytes of the message that one client sends and receives in a round, measured, "
        "mean over the rounds that send one and over seeds, a range where columns differ. 1 kB = 1000 bytes.",
        f"Rounds: {_rounds(rows, table['rows'])}.",
    ]
    changing = [
        f"{table['rows'][row]} {way} {_first_last(group, way)}"
        for row, group in rows.items()
        for way in WAYS
        if "†" in show_traffic(list(group.values()), way)[0]
    ]
    if changing:
        notes.append(f"† The size changes with training; first → last round, elements: {'; '.join(changing)}.")
    registered = [
        f"{table['rows'][row]} {show_span(sizes, show_bytes)} {way}"
        for row, group in rows.items()
        for way in WAYS
        if any(sizes := [cell[way]["registration"]["bytes"] for cell in group.values() if cell.get(way)])
    ]
    if registered:
        notes.append(f"Not in these: the registration before round 1, all clients together: {'; '.join(registered)}.")
    if any(cell["printed"] is not None for cell in cells):
        notes.append(
            "Printed: the paper's value. match: within two standard deviations or 0.5 points of it, "
            "whichever is larger; otherwise better or worse."
        )
    return [*notes, show_provenance(table["provenance"])]


def show_provenance(shared: Mapping[str, Any]) -> str:
    """What stands behind a table, in one line."""
    if not shared.get("datasets"):
        return "Provenance: nothing run yet."
    parts = [
        *(f"data set {name} (sha256 {checksum[:12]})" for name, checksum in shared["datasets"].items()),
        f"models {', '.join(shared['models'])}",
        *(f"weights {name} (sha256 {checksum[:12]})" for name, checksum in shared["weights"].items()),
        f"{_join(shared['clients'])} clients",
        f"engine {_join(shared['engines'])}",
        f"device {_join(shared['devices'])}",
        *(f"{package} {_join(version)}" for package, version in shared["versions"].items()),
        f"commit {_join(shared['commits'])}",
    ]
    return f"Provenance: {'; '.join(parts)}."


def render_markdown(table: Table) -> str:
    """The table for GitHub: one row per method, accuracy then cost, footnotes below."""
    best = best_cells(table)

    def accuracy(cell: Cell) -> str:
        if cell["value"] is None:
            return _lines("not run", show_printed(cell).partition(",")[0], separator="<br>")
        value = f"**{show_value(cell)}**" if (cell["row"], cell["column"]) in best else show_value(cell)
        spread = f"{value} ({show_range(cell)})" if show_range(cell) else value
        return _lines(spread, show_seeds(table, cell), show_printed(cell), separator="<br>")

    header = [*table["columns"].values(), "Parameters", "Up", "Down"]
    lines = [f"| Method | {' | '.join(map(_markdown, header))} |", f"| :-- |{' --: |' * len(header)}"]
    for row, group in cells_by_row(table).items():
        cells = list(group.values())
        traffic = [_lines(*show_traffic(cells, way), separator="<br>") for way in WAYS]
        entries = [*map(accuracy, cells), show_parameters(cells), *traffic]
        lines.append(f"| {_markdown(table['rows'][row])} | {' | '.join(entries)} |")
    note = f"> **Note.** {_markdown(table['note'])}\n\n" if table["note"] else ""
    below = "\n".join(f"- {_markdown(line)}" for line in footnotes(table))
    return f"# {_markdown(table['title'])}\n\n{note}" + "\n".join(lines) + f"\n\n{below}\n"


def render_csv(table: Table) -> str:
    """Long form: one line per (row, column) with every numeric field, empty where there is none."""
    lines = []
    for cell in table["cells"]:
        line = {
            key: cell[key]
            for key in ("row", "column", "status", "value", "std", "lowest", "highest", "best", "last", "rounds")
        }
        line |= {"printed": cell["printed"], "printed_std": cell["printed_std"]}
        line["seeds"] = " ".join(map(str, cell["seeds"]))
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
    best = best_cells(table)

    def stack(*lines: str) -> str:
        shown = [line for line in lines if line]
        if len(shown) < 2:
            return "".join(shown)
        small = [shown[0], *(rf"{{\footnotesize {line}}}" for line in shown[1:])]
        return r"\begin{tabular}[t]{@{}r@{}}" + r" \\ ".join(small) + r"\end{tabular}"

    def accuracy(cell: Cell) -> str:
        if cell["value"] is None:
            return stack("not run", _latex(show_printed(cell).partition(",")[0]))
        value = _latex(show_value(cell))
        if (cell["row"], cell["column"]) in best:
            # \boldmath reaches the plus-minus, which is mathematics.
            value = rf"{{\bfseries\boldmath {value}}}"
        return stack(value, *map(_latex, (show_range(cell), show_seeds(table, cell), show_printed(cell))))

    header = ["Method", *table["columns"].values(), "Parameters", "Up", "Down"]
    caption = " ".join(part for part in (f"{table['title'].rstrip('.')}.", table["note"]) if part)
    lines = [
        r"% Needs \usepackage{booktabs}.",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(caption)}}}",
        rf"\label{{tab:{table['table']}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\toprule",
        " & ".join(map(_latex, header)) + r" \\",
        r"\midrule",
    ]
    for index, (row, group) in enumerate(cells_by_row(table).items()):
        if index:
            lines.append(r"\addlinespace")
        cells = list(group.values())
        traffic = [stack(*map(_latex, show_traffic(cells, way))) for way in WAYS]
        entries = [
            _latex(table["rows"][row]),
            *map(accuracy, cells),
            _latex(show_parameters(cells)),
            *traffic,
        ]
        lines.append(" & ".join(entries) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\par\medskip"]
    lines += [
        rf"\parbox{{\linewidth}}{{\footnotesize {_latex(' '.join(footnotes(table)))}}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def render_text(table: Table) -> str:
    """The table for a terminal of 150 columns; wider ones are cut into blocks. An asterisk marks the best."""
    best = best_cells(table)

    def accuracy(cell: Cell) -> str:
        if cell["value"] is None:
            return _lines("not run", show_printed(cell).partition(",")[0])
        mark = "*" if (cell["row"], cell["column"]) in best else " "
        below = (show_range(cell), show_seeds(table, cell), *show_printed(cell).split(", "))
        return _lines(f"{show_value(cell)}{mark}", *(f"{line} " for line in below if line))

    rows = {row: list(group.values()) for row, group in cells_by_row(table).items()}
    columns = {
        title: [accuracy(cells[index]) for cells in rows.values()]
        for index, title in enumerate(table["columns"].values())
    }
    columns["parameters"] = [show_parameters(cells) for cells in rows.values()]
    for way in WAYS:
        columns[way] = [_lines(*show_traffic(cells, way)) for cells in rows.values()]
    blocks = [_block(list(table["rows"].values()), part) for part in _packed(columns, list(table["rows"].values()))]
    notes = [f"Note: {table['note']}"] if table["note"] else []
    below = "\n".join(_wrap(line) for line in footnotes(table))
    return "\n".join([table["title"], *map(_wrap, notes), "", "\n\n".join(blocks), "", below, ""])


def _packed(columns: Mapping[str, list[str]], rows: list[str]) -> list[dict[str, list[str]]]:
    """Columns in as many blocks as the terminal's width asks for."""

    def width(title: str, entries: list[str]) -> int:
        return 2 + max(len(line) for entry in (title, *entries) for line in entry.split("\n"))

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


def _block(rows: list[str], columns: Mapping[str, list[str]]) -> str:
    body = [[row, *entries] for row, *entries in zip(rows, *columns.values(), strict=True)]
    align = ("left", *("right" for _ in columns))
    header = ["method", *columns]
    return tabulate(body, header, tablefmt="simple", disable_numparse=True, colalign=align, preserve_whitespace=True)


def _wrap(text: str) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + 1 + len(word) > WIDTH and lines[-1]:
            lines.append(f"  {word}")
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return "\n".join(lines)


def _lines(*lines: str, separator: str = "\n") -> str:
    return separator.join(line for line in lines if line)


def _first_last(group: Mapping[str, Cell], way: str) -> str:
    sent = [cell[way] for cell in group.values() if cell.get(way)]
    ends = [(show_count(traffic["first"]), show_count(traffic["last"])) for traffic in sent]
    return ", ".join(f"{first} → {last}" for (first, last), _ in groupby(ends))


def _rounds(rows: Mapping[str, Mapping[str, Cell]], titles: Mapping[str, str]) -> str:
    by_count: dict[int, list[str]] = {}
    for row, group in rows.items():
        for count in {cell["rounds"] for cell in group.values() if cell.get("rounds")}:
            by_count.setdefault(count, []).append(titles[row])
    if len(by_count) < 2:
        return _join(list(by_count)) or "none yet"
    return "; ".join(f"{count} for {', '.join(named)}" for count, named in by_count.items())


def _join(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _markdown(text: str) -> str:
    for character in "\\|*_<`":
        text = text.replace(character, f"\\{character}")
    return text


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
