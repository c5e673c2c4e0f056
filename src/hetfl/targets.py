"""What a person names on the command line: tables, experiments, methods of them, single cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetfl.errors import HetflError, unknown
from hetfl.experiments.plan import Cell, Params, all_cells
from hetfl.experiments.settings import ADHOC
from hetfl.tables.catalogue import printed_by, table_names


def cells_of(targets: Sequence[str], params: Params) -> list[Cell]:
    """The cells that some targets stand for, each once, in the order of the targets.

    Args:
        targets: names of experiments (all their cells) or tables (the cells that they print), or paths below
            ``runs/``: ``fedtgp-htfe8-cifar10-practical/fedproto`` stands for all cells of that method there.
        params: the settings.

    Raises:
        HetflError: a target is none of these.
    """
    every = {cell.path.as_posix(): cell for cell in all_cells(params)}
    found: dict[str, Cell] = {}
    for target in targets:
        path = target.removeprefix("runs/").rstrip("/")
        within = {name: cell for name, cell in every.items() if f"{name}/".startswith(f"{path}/")}
        if not within and path in table_names(params):
            within = {cell.as_posix(): every[cell.as_posix()] for cell in sorted(printed_by(path, params))}
            if not within:
                continue  # a table that is counted has no cells
        if not within:
            if path.startswith(ADHOC):
                raise HetflError(
                    f"{target}: runs of hetfl run stand in no table; hetfl curve and hetfl diff take them"
                )
            if "/" in path:
                raise _unknown_cell(path, every, table_names(params))
            raise unknown("table, experiment or cell", target, [*table_names(params), *params.experiments])
        found |= within
    return list(found.values())


def needed_cells(targets: Sequence[str], params: Params) -> list[Cell]:
    """As :func:`cells_of`, for what can be done with cells alone.

    Raises:
        HetflError: a target is unknown, or nothing is trained for any of them.
    """
    if found := cells_of(targets, params):
        return found
    names = " ".join(targets)
    raise HetflError(f"{names}: has no cells, as nothing is trained for it; dvc repro {names} makes it")


def _unknown_cell(path: str, every: Iterable[str], tables: Iterable[str]) -> HetflError:
    """An error for a path that no cell has, with what stands in the place of its first wrong part."""
    wanted, names = path.split("/"), [name.split("/") for name in every]
    if wanted[0] in tables and wanted[0] not in {name[0] for name in names}:
        told = f"{wanted[0]} is a table; a cell's path begins with its experiment, see hetfl cells {wanted[0]}"
        return HetflError(f"{path}: is no cell, since {told}")
    right = 0
    while any(name[: right + 1] == wanted[: right + 1] for name in names):
        right += 1
    known = {"/".join(name[: right + 1]) for name in names if name[:right] == wanted[:right]}
    return unknown("table, experiment or cell", "/".join(wanted[: right + 1]) or path, known)
