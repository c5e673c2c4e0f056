"""A fresh table against a reference: accuracies within a tolerance, message sizes exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
    elsewhere = elsewhere_tolerance is not None and _computed_by(reference) != _computed_by(fresh)
    tolerance = elsewhere_tolerance if elsewhere and elsewhere_tolerance is not None else accuracy_tolerance
    rows = []
    for row, column, told, made, difference in pairs(reference, fresh):
        problem = "; ".join(_problems(told, made, tolerance, size_tolerance, elsewhere))
        values = {"reference": told.get("value"), "fresh": made.get("value"), "difference": difference}
        judged = {"sizes_equal": _sizes(told) == _sizes(made), "ok": not problem, "problem": problem}
        rows.append({"row": row, "column": column, **values, **judged})
    return rows


class Pair(NamedTuple):
    """A cell in two tables, empty in the one that lacks it, and how far its value moved."""

    row: str
    column: str
    first: Mapping[str, Any]
    second: Mapping[str, Any]
    difference: float | None


def pairs(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Pair]:
    """Every cell of either table."""
    old, new = ({(cell["row"], cell["column"]): cell for cell in table["cells"]} for table in (first, second))
    for place in dict.fromkeys([*old, *new]):
        told, made = old.get(place, {}), new.get(place, {})
        before, after = told.get("value"), made.get("value")
        yield Pair(*place, told, made, None if before is None or after is None else round(after - before, 6))


def render_comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """A comparison as text for a terminal, with a closing line that says how many cells differ."""
    header = ["row", "column", "reference", "fresh", "difference", "sizes", ""]
    forms = {"reference": ".2f", "fresh": ".2f", "difference": "+.2f"}
    body = [
        [row["row"], row["column"]]
        + ["–" if row[name] is None else format(row[name], form) for name, form in forms.items()]
        + ["equal" if row["sizes_equal"] else "differ", row["problem"] or "ok"]
        for row in rows
    ]
    differ = sum(not row["ok"] for row in rows)
    summary = f"{differ} of {len(rows)} cells differ" if differ else f"all {len(rows)} cells agree"
    align = ("left", "left", "right", "right", "right", "left", "left")
    return f"{tabulate(body, header, tablefmt='simple', disable_numparse=True, colalign=align)}\n\n{summary}\n"


def _problems(
    old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float, size_tolerance: float, mean_alone: bool
) -> Iterator[str]:
    """In what a fresh cell differs from the reference by more than it may."""
    if not old or not new:
        yield f"missing in the {'fresh table' if old else 'reference'}"
    elif (old["value"] is None) != (new["value"] is None):
        yield f"not run in the {'fresh table' if new['value'] is None else 'reference'}"
    elif old.get("value_text") != new.get("value_text"):
        yield f"{new.get('value_text')}, not {old.get('value_text')}"
    elif old["value"] is not None:
        if old["seeds"] != new["seeds"]:
            yield f"seeds {new['seeds']}, not {old['seeds']}"
        before, after = _accuracies(old, mean_alone), _accuracies(new, mean_alone)
        # Not a number is nowhere near another one.
        moved = max(
            (abs(after[name] - before[name]) for name in before.keys() & after), key=lambda by: (by != by, by)
        )
        if not moved <= tolerance:
            yield f"an accuracy moved by {moved:.2f} points"
        if old.get("parameters") != new.get("parameters"):
            yield "trainable parameters differ"
        told, made = _sizes(old), _sizes(new)
        if told.keys() != made.keys():
            lacking = "reference" if told.keys() < made.keys() else "fresh table"
            yield f"sizes of messages are missing in the {lacking}"
        for name, size in told.items():
            if name in made and abs(made[name] - size) > (size_tolerance * size if _varies(old, new, name) else 0):
                yield f"{name} {made[name]:,}, not {size:,}"


def _sizes(cell: Mapping[str, Any]) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for way in ("up", "down"):
        if traffic := cell.get(way):
            sizes |= {f"{way} {unit}": traffic[unit] for unit in _SIZES}
            sizes |= {f"registration {way} {unit}": traffic["registration"][unit] for unit in _SIZES}
    return sizes


def _computed_by(table: Mapping[str, Any]) -> Any:
    return sorted(table["provenance"].get("devices") or ()), table["provenance"].get("versions", {}).get("torch")


def _accuracies(cell: Mapping[str, Any], mean_alone: bool) -> dict[str, float]:
    """The cell's mean, and if wanted its lowest and highest client and every seed by itself, by name."""
    if mean_alone:
        return {"value": cell["value"]}
    own = {name: cell[name] for name in ("value", "lowest", "highest") if cell.get(name) is not None}
    return own | {f"seed {run['seed']}": run["value"] for run in cell["provenance"]}


def _varies(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> bool:
    way = name.partition(" ")[0]
    return way in ("up", "down") and (old[way]["varies"] or new[way]["varies"])
