"""The plan of a training: what is done, what is left, what it takes and what it needs, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from rich.filesize import decimal

from hetfl.errors import few
from hetfl.experiments.calibration import Case, calibrate, cases
from hetfl.experiments.forecast import Forecast, Forecaster
from hetfl.experiments.needs import Need, needs
from hetfl.experiments.plan import Cell, Params, Workspace, all_cells
from hetfl.experiments.record import device_name
from hetfl.experiments.schedule import at_once
from hetfl.experiments.status import State
from hetfl.methods import method_class
from hetfl.methods.base import Method
from hetfl.tables.catalogue import printed_by, table_names

WORDS: Mapping[State, str] = {
    "done": "done",
    "in git": "in git, without models",
    "running": "running",
    "interrupted": "interrupted",
    "not run": "not run",
    "stale": "stale, to be trained anew",
    "broken": "broken",
}
"""The states of cells in the order in which a plan lists them."""

NAMED = 5
"""How many cells of one state are named."""
LONG = 600.0
"""Seconds of training from which on a plan says how they could be fewer."""


@dataclass(frozen=True)
class Plan:
    """What the training of some cells takes and needs.

    Attributes:
        device: the kind of device that seconds are for.
        at_once: cells that are trained at the same time.
        idle: how many further ones could be, which an engine with processes of its own would use for these cells.
    """

    forecasts: Sequence[Forecast]
    needs: Sequence[Need]
    device: str
    at_once: int
    idle: int = 0

    @property
    def left(self) -> list[Forecast]:
        """The cells that are not done."""
        return [each for each in self.forecasts if each.status.left]

    @property
    def seconds(self) -> float | None:
        """Of all cells together, one after another; None if that of one cell is unknown."""
        return total(self.left)

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        return {
            "device": self.device,
            "at_once": self.at_once,
            "seconds": self.seconds,
            "cells": [_json(each) for each in self.forecasts],
            "needs": [
                {"kind": n.kind, "name": n.name, "there": n.there, "bytes": n.bytes, "origin": n.origin}
                for n in self.needs
            ],
        }


def make_plan(
    chosen: Sequence[Cell],
    params: Params,
    workspace: Workspace,
    device: torch.device,
    calibrated: Callable[[Case], None] | None = None,
) -> Plan:
    """The plan of some cells on a device.

    Args:
        chosen: the cells.
        params: the settings.
        workspace: the checkout.
        device: where they would be trained.
        calibrated: if given, networks that are not measured on this machine are measured first, and this is called
            before each one.
    """
    if calibrated is not None:
        planner = Forecaster(params, workspace, device)
        wanted = [case for cell in chosen if (rehearsal := planner.rehearsal(cell)) for case in cases(rehearsal)]
        calibrate(wanted, workspace, device, params.compute, calibrated)
    found = Forecaster(params, workspace, device).all(chosen)
    return _planned(found, needs(chosen, params, workspace), params, device)


def short_plan(chosen: Sequence[Cell], params: Params, workspace: Workspace, device: torch.device) -> Plan:
    """A plan for one line, made fast: it takes partitions with as many clients as alike, and looks for no needs."""
    found = Forecaster(params, workspace, device, exact=False).all(chosen)
    return _planned(found, [], params, device)


def _planned(found: Sequence[Forecast], needed: Sequence[Need], params: Params, device: torch.device) -> Plan:
    left = [each.cell for each in found if each.status.left]
    many, idle = at_once(device, params.compute, len(left)), 0
    shared = all(method_class(cell.method).in_turn is Method.in_turn for cell in left)
    if left and shared and device.type == "cpu" and not params.compute.own_processes:
        idle = at_once(device, params.compute) - many
    return Plan(found, needed, device_name(device), many, idle)


def rest_of_tables(
    chosen: Sequence[Cell], params: Params, workspace: Workspace, device: torch.device
) -> dict[str, Plan]:
    """Of each table that some cells are trained for, the plan of its other cells; tables without others are left out.

    Args:
        chosen: the cells of one training stage.
        params: the settings.
        workspace: the checkout.
        device: where they would be trained.
    """
    own = {cell.path for cell in chosen}
    others = {name: printed - own for name in table_names(params) if (printed := printed_by(name, params)) & own}
    wanted = {cell.path: cell for cell in all_cells(params) if any(cell.path in paths for paths in others.values())}
    every = short_plan([*wanted.values()], params, workspace, device)
    found = {}
    for name, paths in others.items():
        some = [each for each in every.forecasts if each.cell.path in paths]
        if any(each.status.left for each in some):
            found[name] = Plan(some, [], every.device, every.at_once)
    return found


def total(some: Iterable[Forecast]) -> float | None:
    """Seconds of some forecasts together; None if one is unknown."""
    seconds = [each.seconds for each in some]
    return None if None in seconds else sum(taken for taken in seconds if taken is not None)


def render(plan: Plan) -> str:
    """The plan for a terminal."""
    parts = [_states(plan), _table(plan), _needs(plan), _sum(plan)]
    return "\n\n".join(part for part in parts if part)


def summary(plan: Plan) -> str:
    """How many cells are left and how long they take, and a line for each reason why some cannot be trained."""
    left = plan.left
    counts = ", ".join(f"{count} {WORDS[state]}" for state, count in _counts(plan).items())
    if not left:
        return f"plan: {counts}; nothing to train"
    loads = [each.load for each in left if each.load]
    moved, images = sum(load.up + load.down for load in loads), sum(load.trained for load in loads)
    least = "at least " if len(loads) < len(left) else ""
    work = f"{least}{number(images)} images to train on, {decimal(moved)} to send, " if loads else ""
    wrong = by_reason((each.cell.path.as_posix(), each.wrong) for each in left if each.wrong)
    lines = [f"plan: {counts}; {work}{duration(plan)}", *_hint(plan)]
    return "\n".join([*lines, *(f"cannot be trained: {line}" for line in wrong)])


def _hint(plan: Plan) -> list[str]:
    """How cores that have no cell could help, where a plan is long enough."""
    if not plan.idle or (plan.seconds or 0) < LONG:
        return []
    more = f"{plan.idle} more cell{'s' * (plan.idle > 1)}"
    return [f"there are cores for {more} at once; --engine ray has them train clients of the same cell"]


def _counts(plan: Plan) -> dict[State, int]:
    counts = Counter(each.status.state for each in plan.forecasts)
    return {state: counts[state] for state in WORDS if counts[state]}


def _states(plan: Plan) -> str:
    """How many cells are in which state, with rounds and reasons."""
    lines = []
    for state, count in _counts(plan).items():
        own = [each for each in plan.forecasts if each.status.state == state]
        lines.append(f"{count:5d} {WORDS[state]}")
        if state in ("running", "interrupted"):
            lines += _few(f"{each.cell.path}: round {each.status.round} of {each.status.rounds}" for each in own)
        elif state in ("stale", "broken"):
            lines += _few(by_reason((each.cell.path.as_posix(), each.status.why) for each in own))
    return "\n".join([f"{len(plan.forecasts)} cells", *lines, *(f"  {line}" for line in doubts(plan))])


def doubts(plan: Plan) -> list[str]:
    """The cells whose runs are from before their method's file changed, by reason."""
    return by_reason((each.cell.path.as_posix(), each.status.doubt) for each in plan.forecasts if each.status.doubt)


def by_reason(found: Iterable[tuple[str, str]]) -> list[str]:
    """Cells and a reason for each, as one line for each reason: ``a/b/iid-s0 and 3 more: lr 0.5, now 0.01``."""
    reasons: dict[str, list[str]] = {}
    for name, why in found:
        reasons.setdefault(why, []).append(name)
    return [f"{few(names, 1)}: {why}" for why, names in reasons.items()]


def _few(lines: Iterable[str]) -> list[str]:
    every = [*lines]
    more = [f"      and {len(every) - NAMED} more"] if len(every) > NAMED else []
    return [f"      {line}" for line in every[:NAMED]] + more


def _table(plan: Plan) -> str:
    """What is left by row."""
    from tabulate import tabulate

    rows: dict[tuple[str, str], list[Forecast]] = {}
    for each in plan.left:
        rows.setdefault((each.cell.experiment, each.cell.row), []).append(each)
    if not rows:
        return ""
    lines = []
    for (experiment, row), own in rows.items():
        loads = [each.load for each in own if each.load]
        known = len(loads) == len(own)
        rounds = ("at most " if any(each.at_most for each in own) else "") + str(sum(each.rounds for each in own))
        lines.append(
            (
                experiment,
                row,
                len(own),
                rounds,
                number(sum(load.trained for load in loads)) if known else "?",
                number(sum(load.seen for load in loads)) if known else "?",
                number(sum(sum(load.operations.values()) for load in loads)) if known else "?",
                decimal(sum(load.up for load in loads)) if known else "?",
                decimal(sum(load.down for load in loads)) if known else "?",
                clock(total(own)),
                ", ".join(dict.fromkeys(each.source for each in own)),
            )
        )
    heads = ["experiment", "row", "cells", "rounds", "trained", "seen", "operations", "up", "down", "time", "by"]
    return tabulate(lines, headers=heads, disable_numparse=True, colalign=("left", "left", *["right"] * 8, "left"))


def _needs(plan: Plan) -> str:
    """Data sets, partitions and weights: present, or how to get them."""
    lines = []
    for need in plan.needs:
        if need.kind == "partition":
            continue
        size = [decimal(need.bytes)] if need.bytes is not None else []
        if need.there:
            lines.append(f"{need.kind} {need.name}: here, {', '.join([*size, need.origin])}")
        else:
            lines.append(f"{need.kind} {need.name}: not here yet, {', '.join([*size, need.origin])}")
            lines.append(f"      {need.lack.partition('; ')[2]}")
    parts = [need for need in plan.needs if need.kind == "partition"]
    if parts:
        there = sum(need.there for need in parts)
        more = "" if there == len(parts) else f"; dvc repro draws {'the others' if there else 'them'}"
        lines.append(f"partitions: {there} of {len(parts)} here{more}")
    return "\n".join(lines)


def _sum(plan: Plan) -> str:
    left = plan.left
    if not left:
        return "nothing to train"
    bases = Counter(each.basis if each.seconds is None else f"by {each.basis}" for each in left)
    words = [f"{count} cell{'s' * (count > 1)} {basis}" for basis, count in bases.most_common(NAMED)]
    memory = max((each.memory or 0 for each in left), default=0)
    lines = [f"on {plan.device}: {duration(plan)}", *(f"      {line}" for line in words), *_hint(plan)]
    lines.append(f"memory of the largest cell: about {decimal(memory)}" if memory else "memory: unknown")
    if any(each.at_most for each in left):
        lines.append("at most: these runs stop when their accuracy no longer rises, and none has finished yet")
    if any(each.source == "operations" for each in left):
        lines.append("counted operations are a rough guide; hetfl plan --calibrate measures this machine")
    return "\n".join(lines)


def duration(plan: Plan) -> str:
    """How long the cells that are left take; roughly, where that is known from counted operations for some."""
    seconds = plan.seconds
    if seconds is None:
        known = sum(each.seconds for each in plan.left if each.seconds is not None)
        return f"more than {clock(known)}" if known else "time unknown"
    rough = any(each.source == "operations" for each in plan.left)
    most = "at most " if any(each.at_most for each in plan.left) else "" if rough else "about "
    several = f", {clock(seconds / plan.at_once)} with {plan.at_once} cells at once" if plan.at_once > 1 else ""
    return f"{'roughly ' if rough else ''}{most}{clock(seconds)}{several}"


def clock(seconds: float | None) -> str:
    """A duration for people: ``42 s``, ``3 min``, ``2 h 05 min`` or ``12 days``; ``?`` if unknown."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{timedelta(minutes=minutes) / timedelta(days=1):,.1f} days"


def number(count: float) -> str:
    """A large number for people: ``1.2 M``."""
    for size, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}"


def _json(each: Forecast) -> dict[str, Any]:
    load = each.load
    return {
        "cell": each.cell.path.as_posix(),
        "status": each.status.state,
        "round": each.status.round,
        "rounds": each.status.rounds,
        "why": each.status.why,
        "doubt": each.status.doubt,
        "left": each.rounds,
        "at_most": each.at_most,
        "images_trained": load and round(load.trained),
        "images_seen": load and round(load.seen),
        "operations": load and round(sum(load.operations.values())),
        "bytes_up": load and load.up,
        "bytes_down": load and load.down,
        "seconds": each.seconds,
        "source": each.source,
        "basis": each.basis,
        "memory": each.memory,
    }
