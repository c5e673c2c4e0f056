"""Every table by the name of its stage."""

from __future__ import annotations

from collections.abc import Callable

from hetfl.errors import unknown
from hetfl.federation.plan import Params
from hetfl.papers import fedhpl
from hetfl.papers.spec import TableSpec, columns_of

PAPER_TABLES: dict[str, Callable[[Params], TableSpec]] = {
    "fedhpl-table-3": fedhpl.table_3,
}
"""The tables of the papers that have a stage."""


def table_spec(name: str, params: Params) -> TableSpec:
    """What a table prints; an experiment's own name stands for the table of all its rows and splits.

    Raises:
        HetflError: there is no table of that name.
    """
    if name in PAPER_TABLES:
        return PAPER_TABLES[name](params)
    if name not in params.experiments:
        raise unknown("table", name, [*PAPER_TABLES, *params.experiments])
    experiment = params.experiments[name]
    return TableSpec(
        name=name,
        title=experiment.title,
        rows={row: settings.title for row, settings in experiment.rows.items()},
        columns=columns_of(name, experiment.splits),
        seeds=experiment.seeds,
        note=experiment.note,
    )
