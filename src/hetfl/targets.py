"""What a person names on the command line: tables, experiments, methods of them, single cells."""

from __future__ import annotations

from collections.abc import Sequence

from hetfl.errors import unknown
from hetfl.experiments.plan import Cell, Params, cells
from hetfl.stages import printed_by, table_names


def cells_of(targets: Sequence[str], params: Params) -> list[Cell]:
    """The cells that some targets stand for, each once, in the order of the targets.

    Args:
        targets: names of experiments (all their cells) or tables (the cells that they print), or paths below
            ``runs/``: ``fedtgp-htfe8-cifar10-practical/fedproto`` stands for all cells of that method there.
        params: the settings.

    Raises:
        HetflError: a target is none of these.
    """
    every = {cell.path.as_posix(): cell for name in params.experiments for cell in cells(params, name)}
    found: dict[str, Cell] = {}
    for target in targets:
        path = target.removeprefix("runs/").rstrip("/")
        within = {name: cell for name, cell in every.items() if f"{name}/".startswith(f"{path}/")}
        if not within and path in table_names(params):
            within = {cell.as_posix(): every[cell.as_posix()] for cell in sorted(printed_by(path, params))}
            if not within:
                continue  # a table that is counted has no cells
        if not within:
            # Cells are many; they are the answer only to what looks like one.
            known = every if "/" in path else dict.fromkeys([*table_names(params), *params.experiments])
            raise unknown("table, experiment or cell", target, known)
        found |= within
    return list(found.values())
