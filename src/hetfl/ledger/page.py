"""The ledger as a page, as CSV and as totals in the README, all from the same lines."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hetfl.errors import HetflError
from hetfl.experiments.plan import Params, Workspace, around
from hetfl.files import write_text
from hetfl.ledger.lines import REASONS, TRAINED, VERDICTS, Ledger, Line, ledger
from hetfl.tables.notation import PAPERS, content
from hetfl.tables.verdict import NOISE, pooled_noise

PAGE, CSV = Path("ledger.md"), Path("results/ledger.csv")
MARKS = "<!-- ledger -->", "<!-- end of ledger -->"
"""What stands around the totals in the README."""

COLUMNS = {
    "paper": "paper",
    "table": "table",
    "row": "row",
    "column": "column",
    "unit": "unit",
    "printed": "number",
    "printed_std": "number_std",
    "printed_text": "printed",
    "value": "value",
    "std": "std",
    "value_text": "ours",
    "difference": "difference",
    "verdict": "verdict",
    "reason": "reason",
    "because": "because",
    "seeds_done": "done",
    "seeds": "wanted",
    "rounds": "rounds",
    "hours": "hours",
    "device": "device",
    "commit": "commit",
    "diverged": "diverged",
}
"""Columns of the CSV, by the fields of a line; ``tried`` and ``doubts`` come last."""

HEAD = """\
# Ledger

Every number that FedHPL, FedTGP and FGPT print in a results table, with ours beside it. `hetfl ledger` writes this
page, [`results/ledger.csv`](results/ledger.csv) and the totals in the [README](../README.md) from what is in git: the
compact records in `results/`, the settings, the printed numbers and the computed tables.

- **match**, **better**, **worse**: accuracies are compared by intervals of two standard deviations of a run around
  both numbers. Ours is the deviation over seeds, the paper's the one that it prints. Where a side has none, that of
  repeated runs of the protocol that did not diverge stands for it:
  {noise}
  A match can be wider than the differences between methods, so read the difference, too.
  [`verdict.py`](../src/hetfl/tables/verdict.py) has the arithmetic. Cosines match or **differ**.
- **in progress**: a run of the paper's setting has begun. Its accuracies stand in no table before it is finished
  and evaluated. Runs of other settings, such as fewer rounds, are never shown here.
- **counted**: computed from models and messages; nothing is trained. It *agrees* with the printed number as far as
  that has digits, or it *differs*.
- **not run**: *weights* or *data* if a cell needs pre-trained weights or a data set that no run of this project has
  used yet, *hours* if it only takes time.
- Where a cell has also been run with another choice that the paper or its code leaves open, a line below its table
  has that run's number and its difference to the printed one. One that is in progress is compared with the cell's own
  run, in the last rounds that both have been tested in.
- Rounds and hours are of all seeds together; hours are of training on the named device, all processes added up. The
  commit is that of the newest run.
- A number in brackets leads to a remark: on a printed number that looks inherited, inconsistent or implausible, or on
  what is counted beside it.
"""


def write_ledger(workspace: Workspace, params: Params) -> list[Path]:
    """Write the page, the CSV, and the totals in the README.

    Raises:
        HetflError: a compact record or table is damaged, or the README has no place for the totals.
    """
    made = files(workspace, params)
    for path, text in made.items():
        write_text(workspace.root / path, text)
    return [*made]


def files(workspace: Workspace, params: Params) -> dict[Path, str]:
    """The content of every file that the ledger is in. The README is that of the repository.

    Raises:
        HetflError: as :func:`write_ledger`.
    """
    book, outer = ledger(workspace, params), around(workspace.root)
    place = Path("../README.md" if outer else "README.md")
    link = PAGE if outer is None else workspace.root.absolute().relative_to(outer) / PAGE
    text, (first, last) = (workspace.root / place).read_text(), MARKS
    if text.count(first) != 1 or text.count(last) != 1 or text.index(first) > text.index(last):
        raise HetflError(f"{place}: has no place for the ledger's totals; write {first} and {last} where they belong")
    before, rest = text.split(first)
    _, after = rest.split(last)
    totals = f"{first}\n\n{_totals_of_papers(book.lines, link.as_posix())}\n\n{last}"
    return {PAGE: page(book), CSV: table(book.lines), place: f"{before}{totals}{after}"}


def table(lines: Iterable[Line]) -> str:
    """The lines as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*COLUMNS, "tried", "doubts"])
    for line in lines:
        told = [getattr(line, field) for field in COLUMNS.values()]
        told += ["; ".join(f"{tried.title}: {tried.says}" for tried in line.tried)]
        writer.writerow(["" if value is None else value for value in told] + [" ".join(line.doubts)])
    return buffer.getvalue()


def page(book: Ledger) -> str:
    """The lines as Markdown: totals, then each table."""
    parts = [HEAD.format(noise=_noises(book.repeated)), "## Totals\n", _totals_of_papers(book.lines, ""), ""]
    parts += [_totals_of_tables(book.lines), ""]
    for paper, of_paper in groupby(book.lines, key=lambda line: line.paper):
        parts += [f"## {title_of(paper)}\n"]
        for name, some in groupby(of_paper, key=lambda line: line.table):
            parts += [_section([*some], book.titles[name])]
    return "\n".join(parts).rstrip("\n") + "\n"


def _noises(repeated: Mapping[str, list[list[float]]]) -> str:
    told = [
        f"{noise:.3f} points for {protocol}, of {sum(map(len, cells))} runs of {len(cells)} "
        f"cell{'s' * (len(cells) != 1)}"
        for protocol, cells in sorted(repeated.items())
        if (noise := pooled_noise(cells)) is not None
    ]
    if not told:
        return f"{NOISE} points are assumed, since no cell has two runs yet that did not diverge."
    return (
        f"{'; '.join(told)}; for others {NOISE} points are assumed, and in tables for all, as a table knows only its "
        "own cells."
    )


def title_of(paper: str) -> str:
    """A paper's short name with its venue."""
    told = content(paper)["paper"]
    return f"{told['short']} ({told['venue']})"


DETAILS = {"counted": ("because", ("agrees", "differs")), "not run": ("reason", REASONS)}
"""Verdicts within which the totals tell more apart: by which field of a line, and its values."""

COUNTED = [
    f"{verdict}: {detail}" if detail else verdict
    for verdict in VERDICTS
    for detail in (DETAILS[verdict][1] if verdict in DETAILS else ("",))
]
"""What the totals count."""


def counts(lines: Iterable[Line]) -> dict[str, int]:
    """How many lines there are of each verdict in :data:`COUNTED`, and how many have a remark."""
    several = [*lines]
    found = Counter(
        f"{line.verdict}: {getattr(line, DETAILS[line.verdict][0])}" if line.verdict in DETAILS else line.verdict
        for line in several
    )
    return {name: found[name] for name in COUNTED} | {"remarks": sum(bool(line.doubts) for line in several)}


def _counts(lines: Iterable[Line]) -> list[str]:
    return [str(count or "") for count in counts(lines).values()]


def _totals_of_papers(lines: Sequence[Line], page: str) -> str:
    rows = []
    for paper in PAPERS:
        of_paper = [line for line in lines if line.paper == paper]
        title = title_of(paper)
        rows.append([f"[{title}]({page}#{anchor(title)})", str(len(of_paper)), *_counts(of_paper)])
    rows.append(["SGPT (CVPR 2024): only figures are targets", "", *_counts([])])
    rows.append(["**all**", str(len(lines)), *_counts(lines)])
    return "\n\n".join(filter(None, [_grid(["paper", "printed", *COUNTED, "remarks"], rows), _how_sure(lines)]))


def _how_sure(lines: Iterable[Line]) -> str:
    """How many of the trained numbers lack seeds, or have a run in which something went wrong; empty without any."""
    trained = [line for line in lines if line.verdict in TRAINED]
    fewer, wrong = sum(line.done < line.wanted for line in trained), sum(bool(line.diverged) for line in trained)
    says = f"Of the {len(trained)} trained numbers, {fewer} do not have all of the paper's seeds yet"
    return f"{says}, and {wrong} have a run that diverged or went on without a client." if trained else ""


def _totals_of_tables(lines: Sequence[Line]) -> str:
    rows = []
    for name, some in groupby(lines, key=lambda line: line.table):
        of_table = [*some]
        rows.append([f"[{name}](#{name})", str(len(of_table)), *_counts(of_table)])
    return _grid(["table", "printed", *COUNTED, "remarks"], rows)


def _section(lines: Sequence[Line], titles: dict[str, Any]) -> str:
    """One table: what there is of it, its grid, the cells with runs, what the others need, and remarks."""
    name = lines[0].table
    remarks = {text: number for number, text in enumerate(dict.fromkeys(d for line in lines for d in line.doubts), 1)}
    same = len({line.says for line in lines}) == 1
    found = {(line.row, line.column): line for line in lines}
    parts = [f"### {name}\n", f"{titles['title']}.\n"]
    for block in titles["blocks"]:
        columns = [column for column in block["columns"] if any((row, column) in found for row in block["rows"])]
        rows = [row for row in block["rows"] if any((row, column) in found for column in columns)]
        body = [
            [
                _cell_text(titles["rows"][row]),
                *(_shown(found.get((row, column)), remarks, same) for column in columns),
            ]
            for row in rows
        ]
        parts += [f"{block['title']}:\n"] if block["title"] and columns else []
        parts += (
            [_grid(["", *(_cell_text(titles["columns"][column]) for column in columns)], body), ""] if columns else []
        )
    if run := [line for line in lines if line.rounds is not None]:
        parts += [_runs(run, titles), ""]
    parts += [
        f"- {_cell_text(titles['columns'][line.column])}, with one other choice "
        f"([{tried.experiment}](tables/{tried.experiment}/{tried.experiment}.md)): "
        f"*{_cell_text(tried.title)}*, {tried.says}."
        for line in lines
        for tried in line.tried
    ]
    for (says, because), some in _grouped(line for line in lines if line.verdict == "not run").items():
        parts.append(f"- {some} {'cell' if some == 1 else 'cells'} {says}: {because}.")
    parts += [""] if parts[-1] else []
    parts += [f"[{number}] {_cell_text(text)}\n" for text, number in remarks.items()]
    return "\n".join(parts)


def _shown(line: Line | None, remarks: dict[str, int], same: bool) -> str:
    """A place of a grid: the printed number, ours and the verdict."""
    if line is None:
        return ""
    # Two brackets beside one another would be a link of Markdown.
    marks = f" [{', '.join(str(remarks[text]) for text in line.doubts)}]" if line.doubts else ""
    printed = f"{_cell_text(line.printed)}{marks}"
    if line.verdict == "counted":
        return f"{printed}<br>**{_cell_text(line.ours)}**{'' if line.because == 'agrees' else ' differs'}"
    if line.ours:
        return f"{printed}<br>**{line.ours}** {line.says}"
    return printed if same else f"{printed}<br>{line.says}"


def _runs(lines: Sequence[Line], titles: dict[str, Any]) -> str:
    header = ["row", "column", "printed", "ours", "difference", "verdict", "seeds", "rounds", "hours", "device"]
    rows = [
        [
            _cell_text(titles["rows"][line.row]),
            _cell_text(titles["columns"][line.column]),
            line.printed,
            line.ours,
            "" if line.difference is None else f"{line.difference:+.2f}",
            line.says,
            f"{line.done} of {line.wanted}",
            str(line.rounds),
            f"{line.hours:.2f}",
            _cell_text(line.device),
            line.commit,
        ]
        for line in lines
    ]
    return _grid([*header, "commit"], rows)


def _grouped(lines: Iterable[Line]) -> dict[tuple[str, str], int]:
    return dict(Counter((line.says, line.because) for line in lines))


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    marks = ["---", *("---:" for _ in header[1:])]
    return "\n".join(
        "|".join(["", *(f" {text} " if text else " " for text in row), ""]) for row in (header, marks, *rows)
    )


def _cell_text(text: str) -> str:
    return re.sub(r"([|*_<])", r"\\\1", text)


def anchor(title: str) -> str:
    """The name that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
