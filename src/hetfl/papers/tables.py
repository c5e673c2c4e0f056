"""Every table by the name of its stage."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from hetfl.errors import unknown
from hetfl.federation.plan import Params
from hetfl.papers import fedhpl, fedtgp
from hetfl.papers.spec import TableSpec, entry

PAPER_TABLES: dict[str, Callable[[Params], TableSpec]] = {**fedhpl.TABLES, **fedtgp.TABLES}
"""The tables of the papers that show runs."""

ARITHMETIC_TABLES = (*fedhpl.ARITHMETIC, *fedtgp.ARITHMETIC)
"""The tables of the papers that are computed."""


def table_spec(name: str, params: Params) -> TableSpec:
    """What a table prints; an experiment's own name stands for the table of all its rows and splits.

    Raises:
        HetflError: there is no table of that name.
    """
    if name in PAPER_TABLES:
        return PAPER_TABLES[name](params)
    if name not in params.experiments:
        raise unknown("table", name, [*PAPER_TABLES, *ARITHMETIC_TABLES, *params.experiments])
    experiment = params.experiments[name]
    splits = {row: settings.splits or [*experiment.splits] for row, settings in experiment.rows.items()}
    columns = experiment.splits | {s: s for some in splits.values() for s in some if s not in experiment.splits}
    return TableSpec(
        name=name,
        title=experiment.title,
        rows={row: settings.title for row, settings in experiment.rows.items()},
        columns=columns,
        entries={row: {split: entry(params, name, row, split) for split in some} for row, some in splits.items()},
        note=experiment.note,
        curves=all(list(some) == list(columns) for some in splits.values()),
    )


def arithmetic_table(name: str) -> dict[str, Any]:
    """A table of :data:`ARITHMETIC_TABLES`, computed anew, as its JSON file holds it."""
    # They build models, which takes seconds that other tables need not wait for.
    counts = import_module(f"hetfl.papers.{name.partition('-')[0]}_counts")
    table: dict[str, Any] = counts.arithmetic_table(name)
    return table
