"""Evaluation of a finished cell from its checkpoint alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetfl.data.batches import DeviceImages, class_counts, class_sums
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments.cell import set_up
from hetfl.experiments.plan import Cell, ComputeSettings, Workspace
from hetfl.files import write_json, write_text
from hetfl.message import Tensors
from hetfl.metrics.accuracy import best_round, per_class, summary, window
from hetfl.metrics.groups import congruence, entropy, kmeans
from hetfl.models.base import Model
from hetfl.schema import METRICS, MODEL, PER_CLASS, Metrics, Round, needed_run, read_rounds
from hetfl.tensors import read_tensors, write_tensors
from hetfl.training.rounds import predictions, tested_with
from hetfl.training.sequential import Sequential
from hetfl.training.state import State

SAME = 1e-9
"""Accuracies are counts over counts: on the machine that trained, the checkpoint must give the same ones."""


def evaluate_cell(
    cell: Cell,
    workspace: Workspace,
    device: torch.device,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008, it is frozen
) -> None:
    """Test a cell's checkpoint and write ``metrics.json`` and ``per_class.csv``.

    An experiment with ``features`` has ``prototypes.safetensors`` besides, see :func:`representations`.

    Raises:
        HetflError: the cell is not trained, its checkpoint does not give the accuracy that the record states, or
            features are wanted of models that disagree about their size.
    """
    torch.set_num_threads(compute.threads)
    folder = workspace.runs / cell.path
    run = needed_run(folder)
    if not run.complete:
        raise HetflError(f"{folder}: training is not complete; run hetfl train {cell.experiment}")
    # In the precision of the training, which the record's accuracies are in.
    setup = set_up(cell, workspace, device, compute.model_copy(update={"precision": run.precision}))
    sizes = sorted({model.width for model in setup.federation.models})
    if cell.features and len(sizes) > 1:
        raise HetflError(
            f"params.yaml: experiments.{cell.experiment}.features: the models of row {cell.row} have features of "
            f"{', '.join(map(str, sizes))} elements; give them one size with embedding or set features to 0"
        )
    tensors, metadata = read_tensors(folder / MODEL, device)
    state = State.from_tensors(int(metadata["round"]), tensors)
    matrices = confusions(setup.engine, state, setup.draws.at(state.round))
    found = summary(matrices)
    lines = [line for line in read_rounds(folder, finished=True) if line.round]
    recorded, tolerance = lines[-1].accuracy, SAME if run.device.startswith("cpu") else 0.02
    tested, told = (np.array(shares, dtype=float) for shares in (found["accuracy"], recorded))  # None becomes NaN
    if not np.allclose(tested, told, rtol=0, atol=tolerance, equal_nan=True):
        raise HetflError(
            f"{folder / MODEL}: gives accuracies {found['accuracy']} but rounds.jsonl says {recorded}; "
            "delete the folder and run dvc repro again"
        )
    names = setup.dataset.class_names
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["client", "class", "accuracy", "samples"])
    for k, recalls in enumerate(per_class(matrices)):
        for c, recall in enumerate(recalls):
            writer.writerow([k, names[c], "" if np.isnan(recall) else f"{recall:.6f}", int(matrices[k, c].sum())])
    out = workspace.evaluations / cell.path
    stored = {
        "prototypes": representations(setup.engine, state, setup.draws, cell.features) if cell.features else {},
        "groups": groups(setup.engine, state, setup.draws),
    }
    for name, tensors in stored.items():
        if tensors:
            write_tensors(out / f"{name}.safetensors", tensors)
        else:
            (out / f"{name}.safetensors").unlink(missing_ok=True)
    metrics = Metrics(
        fingerprint=run.fingerprint,
        **found,
        **best_round(lines),
        **of_window(lines, cell.settings),
        **of_groups(stored["groups"], cell.settings),
    )
    write_json(out / METRICS, metrics.as_json())
    write_text(out / PER_CLASS, table.getvalue())


def confusions(engine: Sequential, state: State, draws: Draws) -> np.ndarray:
    """What each client's test samples are taken for: [K, C, C'] int64, rows are true classes.

    Columns from C on are predictions that are none of the data set's classes; the last one is :data:`NONE`.
    """
    classes = engine.federation.num_classes
    columns = classes + (engine.method.public_classes if engine.method.public else 0) + 1
    counts = [
        torch.bincount(true * columns + predicted % columns, minlength=classes * columns)
        for predicted, true in predictions(engine, state, draws)
    ]
    return torch.stack(counts).reshape(-1, classes, columns).cpu().numpy()


def of_window(lines: Sequence[Round], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Accuracies over the last rounds, where a method reports them so, also by its other inference rules."""
    if "window" not in settings:
        return {}
    trained = [line for line in lines if not line.closing]

    def over(reading: str) -> dict[str, Any]:
        return window([line.test(reading) for line in trained], settings["window"])

    return {**over(""), "also": {name: over(name) for name in lines[-1].also}}


@torch.inference_mode()
def groups(engine: Sequential, state: State, draws: Draws) -> dict[str, Tensor]:
    """How a method sorts all clients' training samples at the end, and how K-means sorts the same queries.

    Returns:
        Of n samples, client by client, [n] int16 each: ``group`` by the inference rule, ``cluster`` by K-means with
        as many clusters as there are groups, ``label`` and ``client``; nothing if the method does not sort samples.
    """
    method, federation = engine.method, engine.federation
    if method.queries() is None:
        return {}
    params, received = tested_with(engine, state, draws, 0)
    found: dict[str, list[Tensor]] = {"group": [], "label": [], "client": []}
    points = []
    for k, data in enumerate(federation.data):
        size = data.train_images.large_batch(federation.clients[k].model.largest_map)
        for batch in data.train_images.batches(data.train, size):
            found["group"].append(method.choose(params, batch, received))
            found["label"].append(batch.labels)
            found["client"].append(torch.full_like(batch.labels, k))
            points.append(method.points(batch))
    sorted_by = {name: torch.cat(parts).to(torch.int16) for name, parts in found.items()}
    clusters = kmeans(torch.cat(points).float().cpu().numpy(), method.model_options().groups)
    return sorted_by | {"cluster": torch.from_numpy(clusters).to(torch.int16)}


def of_groups(sorted_by: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """How even the groups of :func:`groups` are, and how much they are like the clusters."""
    if not sorted_by:
        return {}
    group, cluster, label = (sorted_by[name].cpu().numpy() for name in ("group", "cluster", "label"))
    sizes = np.bincount(group, minlength=settings["groups"])
    return {"group_entropy": entropy(sizes), "congruence": congruence(group, cluster, label)}


@torch.inference_mode()
def representations(engine: Sequential, state: State, draws: Draws, samples: int) -> dict[str, Tensor]:
    """What a state's networks make of images, in evaluation mode.

    Args:
        engine: the cell's.
        state: as a checkpoint holds it.
        draws: the run's, so that every method of a seed shows the same test samples.
        samples: test samples, drawn without replacement from those of all clients together; all if there are fewer.

    Returns:
        Of n test samples, client by client: ``features`` [n, d] float32 by the network of the sample's client, their
        ``labels`` [n] and ``client`` [n] int16. Where prediction reads global prototypes: ``clients`` [K, C, d]
        float32, the mean feature of each client's training samples by class, zero unless ``owned`` [K, C] bool; and
        ``global`` [C, d] float32, zero unless ``global_valid`` [C] bool.
    """
    federation = engine.federation
    tests = [data.test for data in federation.data]
    owner = torch.cat([torch.full((len(index),), k) for k, index in enumerate(tests)])
    drawn = torch.randperm(len(owner), generator=draws.at(0).generator("features"))[:samples].sort().values
    found: dict[str, list[Tensor]] = {"features": [], "labels": [], "client": [], "clients": [], "owned": []}
    for k, (client, data) in enumerate(zip(federation.clients, federation.data, strict=True)):
        params, received = tested_with(engine, state, draws, k)
        own = drawn[owner[drawn] == k] - sum(map(len, tests[:k]))
        features, labels = _features(client.model, params, data.test_images, tests[k][own.to(tests[k].device)])
        found["features"].append(features)
        found["labels"].append(labels.to(torch.int16))
        found["client"].append(torch.full_like(labels, k, dtype=torch.int16))
        if "means" in received:
            features, labels = _features(client.model, params, data.train_images, data.train)
            counts = class_counts(labels, federation.num_classes)
            means = class_sums(features, labels, federation.num_classes) / counts.clamp(min=1)[:, None]
            found["clients"].append(means.float())
            found["owned"].append(counts > 0)
    stored = {name: torch.cat(found[name]) for name in ("features", "labels", "client")}
    if "means" in received:
        stored |= {name: torch.stack(found[name]) for name in ("clients", "owned")}
        stored |= {"global": received["means"].float(), "global_valid": received["valid"]}
    return stored


def _features(model: Model, params: Tensors, images: DeviceImages, index: Tensor) -> tuple[Tensor, Tensor]:
    """Features [n, d] float32 and labels [n] of some images."""
    size = images.large_batch(model.largest_map)
    parts = [model(params, batch.images).features for batch in images.batches(index, size)]
    # No sample leaves no batch.
    features = torch.cat([part.float() for part in parts] or [torch.empty(0, model.width, device=images.device)])
    return features, images.labels[index]
