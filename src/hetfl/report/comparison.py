"""A fresh table against a reference: accuracies within a tolerance, message sizes exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

_SIZES = ("elements", "bytes")


def compare_tables(
    reference: Mapping[str, Any],
    fresh: Mapping[str, Any],
    accuracy_tolerance: float,
    size_tolerance: float = 0.0,
    elsewhere_tolerance: float | None = None,
) -> list[dict[str, Any]]:
    """Compare two tables cell by cell.

    Accuracies are the cell's mean, its lowest and highest client and each seed's value. Where the tables come from
    other processors or versions of torch, last bits differ, and training from random weights makes points of them:
    there the mean alone is compared, within a tolerance of its own. Trainable parameters and
    message sizes must be equal to the element, except for messages whose size changes with training (``varies``),
    which are compared within ``size_tolerance``.

    Args:
        reference: the table that is believed, as ``<name>.json`` holds it.
        fresh: the table to check.
        accuracy_tolerance: how far a value may move, in percentage points.
        size_tolerance: how far a size that depends on training may move, as a fraction of the reference.
        elsewhere_tolerance: how far a mean may move between processors or versions of torch; None: as on one.

    Returns:
        One mapping per cell of either table: ``row``, ``column``, ``reference``, ``fresh`` and ``difference``
        (percent, None where not run), ``sizes_equal`` (exactly), ``ok``, and ``problem`` (empty when ok).
    """
    tolerance, alone = accuracy_tolerance, False
    if elsewhere_tolerance is not None and _computed_by(reference) != _computed_by(fresh):
        tolerance, alone = elsewhere_tolerance, True
    old, new = ({(cell["row"], cell["column"]): cell for cell in table["cells"]} for table in (reference, fresh))
    return [
        _compare(key, old.get(key, {}), new.get(key, {}), tolerance, size_tolerance, alone)
        for key in dict.fromkeys([*old, *new])
    ]


def render_comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """A comparison as text for a terminal, with a closing line that says how many cells differ."""
    header = ["row", "column", "reference", "fresh", "difference", "sizes", ""]
    body = [
        [
            row["row"],
            row["column"],
            _number(row["reference"], ".2f"),
            _number(row["fresh"], ".2f"),
            _number(row["difference"], "+.2f"),
            "equal" if row["sizes_equal"] else "differ",
            row["problem"] or "ok",
        ]
        for row in rows
    ]
    differ = sum(not row["ok"] for row in rows)
    summary = f"{differ} of {len(rows)} cells differ" if differ else f"all {len(rows)} cells agree"
    align = ("left", "left", "right", "right", "right", "left", "left")
    return f"{tabulate(body, header, tablefmt='simple', disable_numparse=True, colalign=align)}\n\n{summary}\n"


def _compare(
    key: tuple[str, str],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    accuracy_tolerance: float,
    size_tolerance: float,
    mean_alone: bool,
) -> dict[str, Any]:
    before, after = old.get("value"), new.get("value")
    difference = None if before is None or after is None else round(after - before, 6)
    sizes_old, sizes_new = _sizes(old), _sizes(new)
    problems = []
    if not old or not new:
        problems.append(f"missing in the {'fresh table' if old else 'reference'}")
    elif (before is None) != (after is None):
        problems.append(f"not run in the {'fresh table' if after is None else 'reference'}")
    elif old.get("value_text") != new.get("value_text"):
        problems.append(f"{new.get('value_text')}, not {old.get('value_text')}")
    elif difference is not None:
        if old["seeds"] != new["seeds"]:
            problems.append(f"seeds {new['seeds']}, not {old['seeds']}")
        values = zip(_accuracies(old, mean_alone), _accuracies(new, mean_alone), strict=False)
        moved = max(abs(b - a) for a, b in values)
        if moved > accuracy_tolerance:
            problems.append(f"an accuracy moved by {moved:.2f} points")
        if old.get("parameters") != new.get("parameters"):
            problems.append("trainable parameters differ")
        problems += [
            f"{name} {sizes_new[name]:,}, not {size:,}"
            for name, size in sizes_old.items()
            if abs(sizes_new[name] - size) > (size_tolerance * size if _varies(old, new, name) else 0)
        ]
    row, column = key
    return {
        "row": row,
        "column": column,
        "reference": before,
        "fresh": after,
        "difference": difference,
        "sizes_equal": sizes_old == sizes_new,
        "ok": not problems,
        "problem": "; ".join(problems),
    }


def _sizes(cell: Mapping[str, Any]) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for way in ("up", "down"):
        traffic = cell.get(way)
        if traffic:
            sizes |= {f"{way} {unit}": traffic[unit] for unit in _SIZES}
            sizes |= {f"registration {way} {unit}": traffic["registration"][unit] for unit in _SIZES}
    return sizes


def _computed_by(table: Mapping[str, Any]) -> Any:
    return table["provenance"].get("devices"), table["provenance"].get("versions", {}).get("torch")


def _accuracies(cell: Mapping[str, Any], mean_alone: bool) -> list[float]:
    """The cell's mean, and if wanted its lowest and highest client and every seed by itself."""
    if mean_alone:
        return [cell["value"]]
    own = [cell[name] for name in ("value", "lowest", "highest") if cell.get(name) is not None]
    return [*own, *(run["value"] for run in cell["provenance"])]


def _varies(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> bool:
    way = name.partition(" ")[0]
    return way in ("up", "down") and (old[way]["varies"] or new[way]["varies"])


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
