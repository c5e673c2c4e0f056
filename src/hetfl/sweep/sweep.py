"""A sweep as a person sees it: what is done first, what it costs, what came of it."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tabulate import tabulate

from hetfl.config import read_pairs
from hetfl.errors import FailedCellsError, HetflError, unknown
from hetfl.experiments.plan import Params, Workspace, load_params
from hetfl.experiments.status import status
from hetfl.planning import clock
from hetfl.sweep.backend import Backend
from hetfl.sweep.choice import Choice, Chosen, choose, ends
from hetfl.targets import needed_cells
from hetfl.tracking import Apart, MlflowMirror, Progress
from hetfl.tracking.follow import Subscriber
from hetfl.train import check_cells

BACKENDS = ("local", "slurm", "ray")
UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def sweep(
    root: Path,
    targets: Sequence[str],
    budget: float = math.inf,
    on: str = "local",
    dry_run: bool = False,
    wait: bool = False,
    address: str | None = None,
    slurm: Mapping[str, Any] = {},
) -> None:
    """Train and evaluate cells, the most valuable per second first, as far as a budget of time goes.

    Args:
        root: the repository's root.
        targets: see :func:`hetfl.targets.cells_of`.
        budget: seconds.
        on: one of :data:`BACKENDS`.
        dry_run: only print the order.
        wait: wait for another sweep that holds a device of this machine.
        address: of a Ray cluster.
        slurm: parameters of the jobs, besides those in ``compute.slurm``.

    Raises:
        HetflError: a setting or name is wrong; nothing was written.
        FailedCellsError: some cells could not be done; the others went on.
    """
    until = time.time() + budget
    workspace = Workspace(root)
    params = load_params(workspace.params)
    cells = needed_cells(targets, params)
    backend = make_backend(on, workspace, params, wait, address, slurm)
    check_cells(cells, params, root)
    chosen = choose(cells, params, workspace, backend.device)
    failures = {workspace.runs / choice.cell.path: choice.lacks for choice in chosen.order if choice.lacks}
    able = [choice for choice in chosen.order if not choice.lacks]
    for line in _before(chosen, len(failures), budget):
        print(line)
    if dry_run:
        print(_listing(chosen.order, backend.at_once(len(chosen.order)), budget))
        if failures:
            print(f"\nThese cannot begin:\n{FailedCellsError(failures)}".replace(f"{root}/", ""))
        return
    if able:
        expected = {choice.cell.path: choice.rounds for choice in able}
        mirror = Apart(partial(MlflowMirror, root, list(chosen.identities)))
        subscribers: list[Subscriber] = [Progress(expected), mirror]
        failures |= backend.do(able, until, subscribers)
    print(_after(able, workspace, failures))
    if failures:
        raise FailedCellsError(failures)


def make_backend(
    on: str,
    workspace: Workspace,
    params: Params,
    wait: bool = False,
    address: str | None = None,
    slurm: Mapping[str, Any] = {},
) -> Backend:
    """The backend of a name; imports what only it needs.

    Raises:
        HetflError: there is none of that name, it is not installed, or an option is another backend's.
    """
    for option, given, backend in (("--slurm", slurm, "slurm"), ("--address", address, "ray")):
        if given and on != backend:
            raise HetflError(f"{option}: is for --on {backend}, and this sweep is --on {on}")
    if on == "slurm":
        from hetfl.sweep.slurm import Slurm

        return Slurm(workspace, params.compute, {**as_submitit(params.compute.slurm), **slurm})
    if on == "ray":
        from hetfl.sweep.ray import Ray

        return Ray(workspace, params.compute, address)
    if on == "local":
        from hetfl.sweep.local import Local

        return Local(workspace, params.compute, wait)
    raise unknown("backend", on, BACKENDS, "--on")


def duration(text: str) -> float:
    """Seconds of a duration such as ``90s``, ``25m`` or ``1h30m``.

    Raises:
        HetflError: it is none, or none in which anything can be done.
    """
    parts = re.findall(r"([\d.]+)([dhms])", text) if re.fullmatch(r"(\d+(\.\d+)?[dhms])+", text) else []
    if seconds := sum(float(number) * UNITS[unit] for number, unit in parts):
        return seconds
    raise HetflError(f"--budget: {text!r} is no duration; write one such as 90s, 25m or 1h30m")


def options(pairs: Sequence[str]) -> dict[str, Any]:
    """Parameters from ``key=value``, each value read as YAML.

    Raises:
        HetflError: one is not of this form, or its value is not YAML.
    """
    return as_submitit(read_pairs(pairs, "--slurm", "is no parameter; write e.g. partition=gpu"))


def as_submitit(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of Slurm's jobs by submitit's names, which have underscores where sbatch has dashes."""
    return {key.replace("-", "_"): value for key, value in parameters.items()}


def _before(chosen: Chosen, unable: int, budget: float) -> list[str]:
    """What is to be done, in a few lines."""
    known = [choice.seconds for choice in chosen.order if choice.seconds is not None]
    unknown = len(chosen.order) - len(known)
    parts = [f"{len(chosen.order)} cells to do"]
    parts += [f"{unable} of them cannot begin"] if unable else []
    parts += [f"{chosen.done} done"]
    parts += [f"{chosen.in_git} in git (hetfl train trains them here as well)"] if chosen.in_git else []
    parts += [*([f"{chosen.elsewhere} in training elsewhere"] if chosen.elsewhere else [])]
    lines = [", ".join(parts)]
    if chosen.order:
        more = f" and {unknown} cells of unknown length" if unknown else ""
        limit = f"; the budget is {clock(budget)}" if math.isfinite(budget) else ""
        lines.append(f"{clock(sum(known))} of computing are left{more}{limit}")
    return lines


def _listing(order: Sequence[Choice], at_once: int, budget: float) -> str:
    """The order of the cells, with what decides it."""
    rows = []
    for number, (choice, end) in enumerate(zip(order, ends(order, at_once), strict=True), start=1):
        shown = clock(end) + (" (later)" if end is not None and end > budget else "")
        per_hour = "" if choice.seconds is None else f"{3600 * choice.worth:.3g}"
        name = choice.cell.path.as_posix()
        rows.append((number, name, str(choice.status), f"{choice.value:.2f}", clock(choice.seconds), per_hour, shown))
    heads = ["", "cell", "status", "value", "left", "value per hour", "ends after"]
    return tabulate(rows, headers=heads, disable_numparse=True)


def _after(done: Sequence[Choice], workspace: Workspace, failures: Mapping[Path, str]) -> str:
    """What came of it, in one line."""
    found = Counter(
        status(choice.cell, workspace).state for choice in done if workspace.runs / choice.cell.path not in failures
    )
    counts: Counter[str] = Counter()
    for state, number in found.items():
        counts[state if state in ("done", "interrupted", "running") else "not run"] += number
    parts = [f"{number} {what}" for what, number in counts.items()]
    parts += [f"{len(failures)} failed"] if failures else []
    more = any(what != "done" for what in counts)
    return f"cells: {', '.join(parts) or 'none to do'}" + ("; the same command goes on" if more else "")
