"""Splits on trial: whether each can be drawn, what would do where it cannot, and a picture for the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from pydantic import ValidationError

from hetfl.data.own import outline
from hetfl.data.partitions import Partition, Scheme, make_partition
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError, unknown
from hetfl.experiments.forecast import outlined
from hetfl.experiments.plan import SCHEME, Params, Workspace

PATIENCE = 4.0
"""Seconds in which a remedy for one split is looked for."""
ROWS, COLUMNS = 30, 50
"""Clients and classes that a picture has room for; more classes are put together, more clients left out."""
SHADES = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Check:
    """What came of drawing one split.

    Attributes:
        dataset, split: their names.
        seed: the first one that failed, else the first one.
        scheme: the kind of split.
        counts: samples of each client and class to train on, int64 [K, C]; None if it cannot be drawn.
        tested: samples of each client to test on, [K]; None if all clients are tested on the same.
        class_names: one name per label.
        problem: why it cannot be drawn; empty if it can.
        remedies: what would do, each a change of one setting that was tried.
        note: what the labels are, if not those of the prepared data set.
    """

    dataset: str
    split: str
    seed: int
    scheme: str
    counts: np.ndarray | None
    tested: np.ndarray | None
    class_names: tuple[str, ...]
    problem: str
    remedies: Sequence[str]
    note: str

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"dataset": self.dataset, "split": self.split, "seed": self.seed, "scheme": self.scheme} | {
            "drawn": not self.problem,
            "problem": self.problem,
            "remedies": [*self.remedies],
            "labels": self.note,
            "train": None if self.counts is None else self.counts.tolist(),
            "test": None if self.tested is None else self.tested.tolist(),
        }


def check_splits(
    params: Params, workspace: Workspace, sets: Sequence[str], split: str | None = None, seed: int | None = None
) -> Iterator[Check]:
    """Draw splits of data sets, which need not be prepared, and write nothing.

    Args:
        params: the settings.
        workspace: the checkout.
        sets: names of data sets; empty: all whose labels are known.
        split: only this one.
        seed: only this one.

    Raises:
        HetflError: a name is unknown, or the labels of a data set that was named are not known.
    """
    for name in sets:
        if name not in params.partitions:
            raise unknown("data set", name, params.partitions, "params.yaml: partitions")
    chosen = [name for name in sets or params.partitions if split is None or split in params.partitions[name].splits]
    if split is not None:
        for name in sets:
            if name not in chosen:
                raise unknown("split", split, params.partitions[name].splits, name)
        if not chosen:
            raise unknown("split", split, chain(*(each.splits for each in params.partitions.values())), "--split")
    for name in chosen:
        known = params.partitions[name]
        dataset, note = _labels(name, params, workspace)
        if dataset is None:
            if sets:
                raise HetflError(f"data set {name}: {note}")
            continue
        for each in [split] if split is not None else known.splits:
            yield _check(name, each, known.splits[each], dataset, known.seeds if seed is None else [seed], note)


def render(check: Check) -> str:
    """A check for a terminal: the picture, or what is wrong and what would do."""
    note = f"; {check.note}" if check.note else ""
    head = f"{check.dataset} / {check.split} ({check.scheme}, seed {check.seed}{note})"
    if check.problem:
        would = [f"  would do: {remedy}" for remedy in check.remedies] or [
            "  no change of a single setting was found"
        ]
        return "\n".join([f"{head}\n  cannot be drawn: {check.problem}", *would, ""])
    assert check.counts is not None
    return f"{head}\n{picture(check.counts, check.class_names, check.tested)}\n"


def picture(counts: np.ndarray, class_names: Sequence[str], tested: np.ndarray | None = None) -> str:
    """Clients by classes: the higher the block, the more samples; full blocks are the largest number.

    Args:
        counts: samples to train on, int64 [K, C].
        class_names: C names.
        tested: samples to test on, [K]; None: the same for all.
    """
    clients, classes = counts.shape
    per = -(-classes // COLUMNS)
    binned = np.add.reduceat(counts, np.arange(0, classes, per), axis=1)
    most = max(int(binned.max()), 1)
    wide = " " if binned.shape[1] <= COLUMNS // 2 else ""
    lines = []
    for client in range(min(clients, ROWS)):
        levels = np.ceil(binned[client] / most * (len(SHADES) - 1)).astype(int)
        blocks = wide.join(SHADES[level] for level in levels)
        own = "" if tested is None else f", {tested[client]} to test on"
        held = int((counts[client] > 0).sum())
        kinds = f"{held} class{'' if held == 1 else 'es'}"
        lines.append(f"  client {client:3d} |{blocks}| {counts[client].sum():6d} samples of {kinds}{own}")
    if clients > ROWS:
        sizes = counts[ROWS:].sum(axis=1)
        lines.append(f"  and {clients - ROWS} more clients with {sizes.min()} to {sizes.max()} samples")
    together = f"{per} classes to a column, " if per > 1 else ""
    names = ", ".join(class_names) if len(", ".join(class_names)) < 90 else f"{class_names[0]} to {class_names[-1]}"
    lines.append(f"  {together}classes from left to right: {names}; a full block is {most} samples")
    return "\n".join(lines)


def _check(name: str, split: str, settings: Scheme, dataset: Dataset, seeds: Sequence[int], note: str) -> Check:
    where = f"params.yaml: partitions.{name}.splits.{split}"
    scheme = str(settings.model_dump()["scheme"])
    first: Partition | None = None
    for seed in seeds:
        drawn = _drawn(settings, dataset, seed, where)
        if isinstance(drawn, str):
            remedies = _remedies(settings, dataset, seeds, where)
            return Check(name, split, seed, scheme, None, None, dataset.class_names, drawn, remedies, note)
        first = first or drawn
    assert first is not None
    counts = first.class_counts(dataset.labels(first.train_from), dataset.num_classes)
    tested = None if first.test is None else np.array([len(part) for part in first.test])
    return Check(name, split, seeds[0], scheme, counts, tested, dataset.class_names, "", (), note)


def _drawn(settings: Scheme, dataset: Dataset, seed: int, where: str) -> Partition | str:
    """The partition, or why there is none."""
    try:
        return make_partition(settings, dataset, Draws(seed), where)
    except HetflError as error:
        return str(error)


def _remedies(settings: Scheme, dataset: Dataset, seeds: Sequence[int], where: str) -> list[str]:
    """Changes of one setting with which all seeds can be drawn, the smallest change of each setting."""
    until = time.monotonic() + PATIENCE
    found: list[str] = []
    raw = settings.model_dump()
    for key, candidates in _candidates(raw, dataset).items():
        for value in candidates:
            if time.monotonic() > until:
                return found
            try:
                changed = SCHEME.validate_python({**raw, key: value})
            except ValidationError:
                continue
            if all(not isinstance(_drawn(changed, dataset, seed, where), str) for seed in seeds):
                found.append(f"{key}: {value} instead of {raw[key]}")
                break
    return found


def _candidates(raw: dict[str, Any], dataset: Dataset) -> dict[str, list[Any]]:
    """Other values of the settings that decide whether a split can be drawn, the nearest first."""
    found: dict[str, list[Any]] = {}
    classes = dataset.num_classes
    if (minimum := raw.get("minimum")) is not None:
        if isinstance(minimum, int):
            lower = [int(minimum * share) for share in (0.9, 0.75, 0.5, 0.25, 0.1, 0.05)]
            found["minimum"] = [value for value in dict.fromkeys([*lower, 1]) if 1 <= value < minimum]
        else:
            most = float(f"{1 / raw['clients']:.2g}")
            found["minimum"] = [
                value for value in (most, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001, 0.0) if value < minimum
            ]
    for key in ("beta", "alpha"):
        if raw.get(key) is not None:
            found[key] = [round(raw[key] * factor, 4) for factor in (1.5, 2, 3, 5, 10, 100)]
    if (taken := raw.get("classes_per_client")) is not None:
        near = sorted(range(1, classes + 1), key=lambda value: (abs(value - taken), value))
        found["classes_per_client"] = [value for value in near if value != taken][:40]
    if "clients" in raw and "classes" not in raw:
        clients = raw["clients"]
        near = [*range(clients - 1, max(0, clients - 21), -1), *range(clients + 1, clients + 11)]
        found["clients"] = [*near, *(clients // by for by in (2, 4, 10) if clients // by)]
    if raw.get("limit") is not None:
        found["limit"] = [value for value in (0.1, 0.25, 0.5, 1.0) if value > raw["limit"]]
    if "attribute" in raw:
        found["attribute"] = [*dataset.attributes]
    return found


def _labels(name: str, params: Params, workspace: Workspace) -> tuple[Dataset | None, str]:
    """A data set with its labels, and a note on where these come from."""
    settings = params.data.sets[name]
    prepared = (workspace.dataset(name) / "card.json").exists()
    if not prepared and name in params.data.own:
        return outline(name, params.data.own[name], workspace.root), "labels of the folder"
    found = outlined(workspace, name, settings or {})
    if found is None:
        return None, f"its labels are known once it is prepared; run dvc repro download-{name}"
    return found, "" if prepared else "not prepared: published sizes, equal classes"
