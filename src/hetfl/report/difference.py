"""How two runs, two tables, or two folders of runs or tables differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from tabulate import tabulate

from hetfl.compact import read_compact
from hetfl.errors import HetflError
from hetfl.files import sha256_file
from hetfl.report.comparison import pairs
from hetfl.report.shown import read_table, show_setting
from hetfl.report.terminal import METRICS, runs_below
from hetfl.schema import MODEL, RUN, Round, Run, flat, needed_run, read_rounds

TOLD = [
    "method",
    "dataset",
    "split",
    "seed",
    "models",
    "clients",
    "partition",
    "input",
    "public",
    "inputs",
    "numerics",
]
BESIDE = ["device", "engine", "precision", "threads", "changes", "commit", "versions"]
"""Fields of a run that decide its numbers, and those that should not."""


def difference(first: str, second: str, root: Path) -> dict[str, Any]:
    """The difference of two results of one kind, as JSON.

    Args:
        first, second: paths, names of tables, or paths below ``runs/``, also of runs that are in git alone.
        root: the checkout.

    Raises:
        HetflError: one is nothing that can be compared, or they are of different kinds.
    """
    (kind, one), (other, two) = (_found(name, root) for name in (first, second))
    if kind != other:
        raise HetflError(f"{first} is a {kind}, {second} is a {other}; name two of a kind")
    head = {"kind": kind, "first": first, "second": second}
    if kind == "run":
        return head | _runs(one, two)
    if kind == "table":
        return head | {"cells": _tables(one, two)}
    if kind == "folder of tables":
        return head | _folders(_by_name(one, "*/*.json"), _by_name(two, "*/*.json"), _tables_in_short)
    return head | _folders(_by_name(one, f"**/{RUN}"), _by_name(two, f"**/{RUN}"), _runs_in_short)


def render(found: Mapping[str, Any]) -> str:
    """A difference for a terminal."""
    rows: list[Any]
    parts = [f"A: {found['first']}\nB: {found['second']}"]
    if found["kind"] == "run":
        for heading in ("settings", "beside"):
            rows = [(line["name"], _short(line["first"]), _short(line["second"])) for line in found[heading]]
            title = "settings and inputs" if heading == "settings" else "where they ran"
            parts.append(_columns([title, "A", "B"], rows) or f"{title}: the same")
        rows = [
            (line["name"], _number(line["first"]), _number(line["second"]), _number(line["difference"], "+"))
            for line in found["results"]
        ]
        parts.append(_columns(["result", "A", "B", "B - A"], rows, ["left", "right", "right", "right"]))
        parts.append("\n".join(found["rounds"]))
    elif found["kind"] == "table":
        changed = [
            cell
            for cell in found["cells"]
            if cell["difference"] or not cell["sizes_equal"] or (cell["first"] is None) != (cell["second"] is None)
        ]
        rows = [
            (cell["row"], cell["column"], *(_number(cell[key]) for key in ("first", "second", "difference")))
            + ("" if cell["sizes_equal"] else "differ",)
            for cell in changed
        ]
        parts.append(_columns(["row", "column", "A", "B", "B - A", "bytes"], rows))
        parts.append(f"{len(changed)} of {len(found['cells'])} cells differ")
    else:
        rows = [(line["name"], line["difference"]) for line in found["different"]]
        parts.append(_columns(["name", "difference"], rows))
        for key, title in (("only_first", "only in A"), ("only_second", "only in B")):
            if found[key]:
                parts.append(f"{title}: {', '.join(found[key])}")
        parts.append(f"{len(found['different'])} of {found['both']} that are in both differ")
    return "\n\n".join(part for part in parts if part)


def _columns(heads: list[str], rows: list[Any], align: list[str] | None = None) -> str:
    """Columns with their heads; nothing where there is no row."""
    return tabulate(rows, heads, disable_numparse=True, colalign=align) if rows else ""


def _found(name: str, root: Path) -> tuple[str, Path]:
    """What a name stands for, and where it is."""
    path = Path(name)
    for table in (path, path / f"{path.name}.json", root / "tables" / name / f"{path.name}.json"):
        if table.suffix == ".json" and table.is_file() and table.name != RUN:
            read_table(table)
            return "table", table
    if path.is_dir() and any(_is_table(file) for file in path.glob("*/*.json")):
        return "folder of tables", path
    kept = root / "results" / f"{name.removeprefix('runs/').rstrip('/')}.json"
    if kept.is_file() and not (root / "runs" / kept.relative_to(root / "results").with_suffix("") / RUN).is_file():
        return "run", kept
    folders = runs_below(name, root / "runs", root / "results")
    if (folders[0] / RUN).is_file() and len(folders) == 1 and folders[0].name == path.name:
        return "run", folders[0]
    below = root / "runs" / name.removeprefix("runs/")
    return "folder of runs", path if path.is_dir() else below


def _is_table(file: Path) -> bool:
    return file.stem == file.parent.name


def _by_name(folder: Path, pattern: str) -> dict[str, Path]:
    """Runs or tables of a folder, by their path in it."""
    found = (path for path in sorted(folder.glob(pattern)) if path.name == RUN or _is_table(path))
    names = ((path, path.parent.relative_to(folder)) for path in found)
    return {name.as_posix(): path for path, name in names if not any(part.startswith(".") for part in name.parts)}


class _Record(NamedTuple):
    """What a run's folder or its compact record says.

    Attributes:
        model: the SHA-256 of its final models, if known.
        file: that has them; None for a compact record.
    """

    run: Run
    rounds: list[Round]
    model: str | None
    file: Path | None = None


def _read(path: Path) -> _Record:
    if path.is_dir():
        run, rounds, model = needed_run(path), read_rounds(path), path / MODEL
        return _Record(run, rounds, sha256_file(model), model) if model.is_file() else _Record(run, rounds, None)
    record = read_compact(path)
    assert record is not None
    return _Record(record.run, record.rounds(), record.files.get(MODEL))


def _runs(one: Path, two: Path) -> dict[str, Any]:
    first, second = _read(one), _read(two)
    results = [
        {"name": name, "first": a, "second": b, "difference": None if a is None or b is None else b - a}
        for (name, a), b in zip(_results(first.rounds).items(), _results(second.rounds).values(), strict=True)
    ]
    return {
        "settings": _changes(*(_told(run, TOLD) | flat(run.settings) for run in (first.run, second.run))),
        "beside": _changes(*(_told(run, BESIDE) for run in (first.run, second.run))),
        "results": results,
        "rounds": _rounds(first, second),
    }


def _told(run: Run, fields: list[str]) -> dict[str, Any]:
    """Some fields of a run, flat."""
    content = run.as_json()
    return flat({key: content.get(key) for key in fields})


def _changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "first": first.get(name), "second": second.get(name)}
        for name in dict.fromkeys([*first, *second])
        if first.get(name) != second.get(name)
    ]


def _results(lines: Sequence[Round]) -> dict[str, float | None]:
    """Accuracies in percent, megabytes and seconds of a run."""
    tested = [line for line in lines if line.accuracy is not None and line.round]
    last = tested[-1] if tested else None
    best = max((line.pooled for line in tested if line.pooled is not None), default=None)
    final = {name: None if last is None else read(last) for name, read in METRICS.items()}
    return {
        "rounds": float(max((line.round for line in lines if not line.fine_tuning), default=0)),
        "accuracy, mean over clients (%)": final["accuracy"],
        "accuracy, lowest client (%)": final["lowest"],
        "accuracy, all samples together (%)": final["pooled"],
        "the same in the best round (%)": None if best is None else 100 * best,
        "sent to the server (MB)": sum(line.up.bytes for line in lines) / 1e6,
        "sent to clients (MB)": sum(line.down.bytes for line in lines) / 1e6,
        "time of all rounds (s)": sum(sum(line.seconds.values()) for line in lines),
    }


def _rounds(one: _Record, two: _Record) -> list[str]:
    """Where the curves part, and whether the final models are the same."""
    first, second = ({line.round: line for line in record.rounds} for record in (one, two))
    both = [round for round in first if round in second and first[round].accuracy and second[round].accuracy]
    apart = next((round for round in both if first[round].accuracy != second[round].accuracy), None)
    lines = []
    if both and apart is None:
        lines.append(f"all {len(both)} rounds that both tested have the same accuracies")
    elif apart is not None:
        lines.append(f"accuracies differ from round {apart} on")
    if one.model and two.model:
        lines.append(f"the final models are {_models(one, two)}")
    return lines


def _models(one: _Record, two: _Record) -> str:
    """Whether final models are the same. Those of a deployment lack what its clients keep."""
    if one.model == two.model:
        return "the same"
    if not one.file or not two.file:
        return "different"
    try:
        with safe_open(one.file, framework="numpy") as first, safe_open(two.file, framework="numpy") as second:
            a, b = ({*file.keys()} for file in (first, second))
            if a == b or not all(np.array_equal(first.get_tensor(name), second.get_tensor(name)) for name in a & b):
                return "different"
    except SafetensorError:
        return "different"
    lacks = {"A": sorted(b - a), "B": sorted(a - b)}
    told = [f"{side} lacks {len(names)} tensors, such as {names[0]}" for side, names in lacks.items() if names]
    return f"the same in the {len(a & b)} tensors that both have; {', '.join(told)}"


def _tables(one: Path, two: Path) -> list[dict[str, Any]]:
    """Every cell of either table: its values, their difference, and whether the message sizes are the same."""
    return [
        {
            "row": row,
            "column": column,
            "first": first.get("value"),
            "second": second.get("value"),
            "difference": difference,
            "sizes_equal": all(first.get(way) == second.get(way) for way in ("up", "down")),
        }
        for row, column, first, second, difference in pairs(read_table(one), read_table(two))
    ]


def _folders(first: Mapping[str, Path], second: Mapping[str, Path], compare: Any) -> dict[str, Any]:
    both = [name for name in first if name in second]
    found = {name: compare(first[name], second[name]) for name in both}
    return {
        "both": len(both),
        "different": [{"name": name, "difference": what} for name, what in found.items() if what],
        "only_first": [name for name in first if name not in second],
        "only_second": [name for name in second if name not in first],
    }


def _tables_in_short(one: Path, two: Path) -> str:
    cells = _tables(one, two)
    moved = [cell for cell in cells if cell["difference"]]
    news = sum((cell["first"] is None) != (cell["second"] is None) for cell in cells)
    sizes = sum(not cell["sizes_equal"] for cell in cells)
    most = max((abs(cell["difference"]) for cell in moved), default=0.0)
    parts = [f"{len(moved)} of {len(cells)} values, by at most {most:.2f} points"] if moved else []
    parts += [f"{news} cells are only in one"] if news else []
    parts += [f"bytes of {sizes} cells"] if sizes else []
    return ", ".join(parts)


def _runs_in_short(one: Path, two: Path) -> str:
    found = _runs(one.parent, two.parent)
    parts = [f"settings: {', '.join(line['name'] for line in found['settings'])}"] if found["settings"] else []
    accuracy = found["results"][1]
    if accuracy["difference"]:
        parts.append(f"accuracy {accuracy['first']:.2f} -> {accuracy['second']:.2f}")
    elif accuracy["difference"] is None and accuracy["first"] != accuracy["second"]:
        parts.append("one has no result yet")
    return "; ".join(parts)


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign},.2f}"


def _short(value: Any, most: int = 50) -> str:
    text = "-" if value is None else show_setting(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
