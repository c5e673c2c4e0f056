"""Finished cells with accuracies of our choice, and the figures drawn from them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from record_factory import CLIENTS, make_round, trained, write_metrics, write_record
from settings_files import PAPER_PARAMS as PARAMS

from hetfl.experiments.identity import fingerprint
from hetfl.experiments.plan import Workspace
from hetfl.figures.base import Figure, Panel
from hetfl.figures.grid import PartitionFigure, RunFigure
from hetfl.figures.partitions import PartitionPanel
from hetfl.figures.sources import Sources
from hetfl.tables.records import Records
from hetfl.tables.spec import Entry
from hetfl.tensors import write_tensors

ROOT = Path(__file__).parents[2]
HELD_OUT, GROUPS = 2, 4
SAMPLES = {"train": 200, "test": 100}
"""Of each class that the first client has; the next have ten more."""


def cell(row: str = "fedhpl", split: str = "dir", seeds: Iterable[int] = (0,)) -> Entry:
    return Entry(experiment="some", method="fedhpl", row=row, split=split, seeds=list(seeds))


def write_cell(
    root: Path,
    entry: Entry,
    seed: int = 0,
    rounds: int = 6,
    names: Iterable[str] = ("cat", "dog"),
    level: float = 0.5,
) -> None:
    """A finished cell whose accuracies lie around a level; the best round is the one before the last."""
    draws = np.random.default_rng([seed, *map(ord, "/".join((entry.experiment, entry.row, entry.split)))])
    classes = list(names)
    final = np.clip(level + draws.normal(0, 0.03, CLIENTS), 0, 1)
    lines = []
    for number in range(rounds + 1):
        accuracy = final + 0.01 if number == rounds - 1 else final - 0.2 * 0.6**number * (number < rounds)
        seen = {"err01": (1 - accuracy).tolist(), "logit_bound": (2.2 - 2 * accuracy).tolist()}
        if number:
            seen |= {name: (draws.random(CLIENTS) * 0.6**number).tolist() for name in ("kd_loss", "kd_ce", "kd_max")}
            seen |= {"param_kl": (30 * number + draws.random(CLIENTS)).tolist(), "agg_conf": [None] * CLIENTS}
            seen |= {"upload_rate": draws.random((CLIENTS, len(classes))).tolist()}
        seen |= {"groups": draws.integers(0, 30, (CLIENTS, GROUPS)).tolist()}
        training = np.clip(accuracy + 0.2, 0, 1).tolist()
        figures = {"clients": seen, "diagnostics": {}}
        shares = {"accuracy": accuracy.tolist(), "pooled": accuracy.mean().item(), "train_accuracy": training}
        lines.append(make_round(number, **shares, **figures))
    counts = {side: [[step + 10 * k] * len(classes) for k in range(CLIENTS)] for side, step in SAMPLES.items()}
    settings = {"held_out": HELD_OUT, "window": 3, "groups": GROUPS}
    planned = Records(Workspace(root), PARAMS).cell(entry.path(seed))
    known = "f" * 64 if planned is None else fingerprint(planned, trained().run.inputs)
    described = {"fingerprint": known, "rounds": rounds, "class_counts": counts, "settings": settings}
    described["partition"] = planned.partition if planned else {"classes": [2 * (k + 1) for k in range(CLIENTS)]}
    if planned:
        described["dataset"] = planned.dataset
    write_record(root / "runs", entry.path(seed), lines, **described)
    average, lowest, highest = (float(value) for value in (final.mean(), final.min(), final.max()))
    metrics = {"accuracy": final.tolist(), "average": average, "lowest": lowest, "highest": highest}
    pooled = average + draws.normal(0, 0.01)
    metrics |= {"window_pooled": pooled, "window_lowest": lowest, "congruence": average + 0.2}
    better = {"window_pooled": pooled + 0.01, "window_lowest": lowest + 0.01}
    evaluation = write_metrics(
        root / "evaluations", entry.path(seed), fingerprint=known, extra={"top-5": better}, **metrics
    )
    with (evaluation / "per_class.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "class", "accuracy", "samples"])
        for client, label in np.ndindex(CLIENTS, len(classes)):
            value = float(np.clip(final[client] + draws.normal(0, 0.1), 0, 1))
            writer.writerow([client, classes[label], f"{value:.6f}", 100])
    write_tensors(evaluation / "prototypes.safetensors", representations(draws, len(classes)))
    write_tensors(evaluation / "groups.safetensors", sorted_samples(draws, len(classes)))


def representations(draws: np.random.Generator, classes: int, samples: int = 40) -> dict[str, torch.Tensor]:
    """Features [n, 8] around a centre for each class, and prototypes; the first client has no sample of class 0."""
    centres = draws.normal(0, 3, (classes, 8))
    clients = centres + draws.normal(0, 1, (CLIENTS, classes, 8))
    labels = np.arange(samples) % classes
    owned = np.ones((CLIENTS, classes), dtype=bool)
    owned[0, 0] = False
    arrays = {
        "features": (centres[labels] + draws.normal(0, 1, (samples, 8))).astype(np.float32),
        "labels": labels.astype(np.int16),
        "client": (np.arange(samples) * CLIENTS // samples).astype(np.int16),
        "clients": (clients * owned[:, :, None]).astype(np.float32),
        "owned": owned,
        "global": clients.mean(0).astype(np.float32),
        "global_valid": np.ones(classes, dtype=bool),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def sorted_samples(draws: np.random.Generator, classes: int, samples: int = 60) -> dict[str, torch.Tensor]:
    """The groups of samples, as many for each client; each client has a favourite."""
    client = np.repeat(np.arange(CLIENTS), samples // CLIENTS)
    group = np.where(draws.random(len(client)) < 0.6, client % GROUPS, draws.integers(0, GROUPS, len(client)))
    arrays = {"group": group, "client": client, "label": np.arange(len(client)) % classes, "cluster": group}
    return {name: torch.from_numpy(array.astype(np.int16)) for name, array in arrays.items()}


def sources(root: Path) -> Sources:
    return Sources(Workspace(root), PARAMS)


def grid(*panels: Panel, columns: int = 1, caption: str = "") -> RunFigure | PartitionFigure:
    """A figure of some panels."""
    kind = PartitionFigure if isinstance(panels[0], PartitionPanel) else RunFigure
    return kind(name="figure", title="", columns=columns, panels=panels, caption=caption)


@contextmanager
def without_layout() -> Iterator[None]:
    """Figures are drawn without the search for a good layout, which takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetfl.figures.base.settle", lambda canvas: canvas.set_layout_engine(None))
        yield


def draw(figure: Figure, source: Path | Sources, path: Path) -> list[str]:
    """The words of the figure, which is drawn without the search for a good layout."""
    with without_layout():
        (written,) = figure.write(sources(source) if isinstance(source, Path) else source, path)
    assert written.name == f"{path.name}.svg"
    return re.findall(r"<text[^>]*>([^<]*)</text>", written.read_text())


def drawn_twice_alike(figure: Figure, source: Path, folder: Path) -> None:
    """The figure's files are the same every time."""
    one, two = (figure.write(sources(source), folder / copy) for copy in "ab")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
