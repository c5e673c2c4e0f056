"""Evaluate a finished cell from its checkpoint."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from hetfl.data.batches import DeviceImages, class_counts, class_sums
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments.cell import set_up
from hetfl.experiments.plan import Cell, ComputeSettings, Workspace
from hetfl.experiments.record import device_name, libraries, versions
from hetfl.experiments.versions import EVALUATION
from hetfl.files import clear_leftovers, sha256_file, write_json, write_text
from hetfl.message import Tensors
from hetfl.metrics.accuracy import best_round, per_class, summary, window
from hetfl.metrics.groups import congruence, entropy, kmeans
from hetfl.models.base import Model
from hetfl.schema import (
    METRICS,
    MODEL,
    PER_CLASS,
    ROUNDS,
    Basis,
    Metrics,
    Round,
    Run,
    needed_run,
    read_metrics,
    read_rounds,
)
from hetfl.tensors import read_tensors, write_tensors
from hetfl.training.local import LocalEngine
from hetfl.training.registry import FLOWER
from hetfl.training.scoring import scoring_tasks
from hetfl.training.sequential import Sequential
from hetfl.training.state import State

SAME = 1e-9
"""Tolerance of accuracies on a CPU: they are ratios of counts, so the checkpoint must give the recorded ones."""


def evaluate_cell(
    cell: Cell,
    workspace: Workspace,
    device: torch.device,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008, it is frozen
    again: bool = False,
) -> None:
    """Test a cell's checkpoint and write ``metrics.json`` and ``per_class.csv``, unless that is done already.

    For an experiment with ``features``, it also writes ``prototypes.safetensors``, see :func:`representations`; for a
    method that sorts samples into groups, ``groups.safetensors``, see :func:`groups`.

    Args:
        cell: the cell.
        workspace: the checkout.
        device: where to compute.
        compute: threads; the precision is that of the training.
        again: do it even so.

    Raises:
        HetflError: the cell is not trained, its clients are on other machines, its checkpoint does not give the
            recorded accuracy, or the experiment has ``features`` but the clients' features differ in size.
    """
    torch.set_num_threads(compute.threads)
    folder = workspace.runs / cell.path
    run = needed_run(folder)
    if not run.complete:
        raise HetflError(f"{folder}: training is not complete; run hetfl train {cell.experiment}")
    if is_evaluated(cell, workspace, run) and not again:
        return
    if run.engine == FLOWER:
        raise HetflError(
            f"{folder}: cannot be evaluated here, since its clients' test data and models are on their nodes; "
            "their accuracies after each round are in rounds.jsonl"
        )
    # With the precision of the training, so that accuracies can be compared with the record's.
    then = {name: run.throughout(name)[-1] for name in ("precision", "device", "versions", "threads")}
    setup = set_up(cell, workspace, device, compute.model_copy(update={"precision": then["precision"]}))
    sizes = sorted({model.width for model in setup.federation.models})
    if cell.features and len(sizes) > 1:
        raise HetflError(
            f"params.yaml: experiments.{cell.experiment}.features: the models of row {cell.row} have features of "
            f"{', '.join(map(str, sizes))} elements; use embedding to give them the same size, or set features to 0"
        )
    tensors, metadata = read_tensors(folder / MODEL, device)
    state = State.from_tensors(int(metadata["round"]), tensors)
    # Whichever engine trained it, the checkpoint is tested here.
    engine = LocalEngine(setup.method, setup.federation, Sequential(setup.method))
    matrices = confusions(engine, state, setup.draws.at(state.round))
    found = summary(matrices)
    lines = [line for line in read_rounds(folder, finished=True) if line.round]
    # Other processors, libraries and numbers of threads, and GPUs, round otherwise, and a sample may be on the edge
    # between two classes.
    same = (
        device.type == "cpu"
        and (then["device"], then["threads"]) == (device_name(device), compute.threads)
        and libraries(then["versions"]) == libraries(versions())
    )
    recorded, tolerance = lines[-1].accuracy, SAME if same else 0.02
    samples = np.array([sum(counts) for counts in run.class_counts.test])
    each = np.full(len(samples), SAME) if same else np.maximum(tolerance, 1 / np.maximum(samples, 1) + SAME)
    tested, told = (np.array(shares, dtype=float) for shares in (found["accuracy"], recorded))  # None becomes NaN
    if not np.allclose(tested, told, rtol=0, atol=each, equal_nan=True):
        raise HetflError(
            f"{folder / MODEL}: gives accuracies {found['accuracy']}, rounds.jsonl has {recorded}; "
            "delete the folder and run dvc repro again"
        )
    _check_pooled(lines, run, found["pooled"], folder, float(each @ samples / max(samples.sum(), 1)) + SAME)
    names = setup.dataset.class_names
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["client", "class", "accuracy", "samples"])
    for k, recalls in enumerate(per_class(matrices)):
        for c, recall in enumerate(recalls):
            writer.writerow([k, names[c], "" if np.isnan(recall) else f"{recall:.6f}", int(matrices[k, c].sum())])
    stored = {
        "prototypes": representations(engine, state, setup.draws, cell.features) if cell.features else {},
        "groups": groups(engine, state, setup.draws),
    }
    metrics = Metrics(
        fingerprint=run.fingerprint,
        basis=_basis(cell, workspace),
        **found,
        **best_round(lines),
        **of_window(lines, cell.settings),
        **of_groups(stored["groups"], cell.settings),
    )
    out, lock = workspace.evaluations / cell.path, workspace.lock(cell.path)
    with FileLock(lock):  # another process may evaluate the cell, too
        clear_leftovers(out)
        for name, tensors in stored.items():
            if tensors:
                write_tensors(out / f"{name}.safetensors", tensors)
            else:
                (out / f"{name}.safetensors").unlink(missing_ok=True)
        # The metrics come last: whoever finds them finds the other files too.
        write_text(out / PER_CLASS, table.getvalue())
        write_json(out / METRICS, metrics.as_json())


def _check_pooled(lines: Sequence[Round], run: Run, pooled: float, folder: Path, tolerance: float) -> None:
    """Check the recorded accuracies over all test samples: each line's by those of its clients, the last's anew.

    Raises:
        HetflError: a recorded number is not the one that the record itself, or the checkpoint, gives.
    """
    samples = np.array([sum(counts) for counts in run.class_counts.test], dtype=float)
    for line in lines:
        if line.accuracy is None or line.pooled is None:
            continue
        shares = np.array([0.0 if share is None else share for share in line.accuracy])
        told: dict[str, tuple[float, float]] = {}
        if len(shares) == len(samples):
            told["its clients give"] = float(shares @ samples / max(samples.sum(), 1)), SAME
        if line is lines[-1]:
            told["the checkpoint gives"] = pooled, tolerance
        for what, (number, allowed) in told.items():
            if not abs(number - line.pooled) <= allowed:
                raise HetflError(
                    f"{folder / ROUNDS}: round {line.round} has the pooled accuracy {line.pooled}, {what} {number}; "
                    "delete the folder and run dvc repro again"
                )


def is_evaluated(cell: Cell, workspace: Workspace, run: Run) -> bool:
    """Whether a cell's evaluation is of this run and checkpoint, by the present version, with these features."""
    try:
        found = read_metrics(workspace.evaluations / cell.path, run)
    except HetflError:
        return False  # it is damaged, and replaced
    if found is None or not (workspace.runs / cell.path / MODEL).is_file():
        return False
    return found.basis == _basis(cell, workspace)


def _basis(cell: Cell, workspace: Workspace) -> Basis:
    model = sha256_file(workspace.runs / cell.path / MODEL)
    return Basis(model=model, version=EVALUATION, features=cell.features)


def confusions(engine: LocalEngine, state: State, draws: Draws) -> np.ndarray:
    """The confusion matrix of each client's test samples: [K, C, C'] int64, rows are true classes.

    Columns from C on count predictions outside the data set's classes; the last column counts samples without finite
    logits.
    """
    classes = engine.federation.num_classes
    columns = classes + (engine.method.public_classes if engine.method.public else 0) + 1
    engine.restore(state.clients)
    tasks = scoring_tasks(engine, state.server, state.round)
    counts = [
        torch.bincount(found.true * columns + found.predicted % columns, minlength=classes * columns)
        for found in engine.predictions(tasks, draws)
    ]
    return torch.stack(counts).reshape(-1, classes, columns).cpu().numpy()


def of_window(lines: Sequence[Round], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Accuracies over the last rounds, also by further inference rules, for methods with the setting ``window``."""
    if "window" not in settings:
        return {}
    trained = [line for line in lines if not line.fine_tuning]

    def over(reading: str) -> dict[str, Any]:
        return window([line.test(reading) for line in trained], settings["window"])

    return {**over(""), "extra": {name: over(name) for name in lines[-1].extra}}


@torch.inference_mode()
def groups(engine: LocalEngine, state: State, draws: Draws) -> dict[str, Tensor]:
    """The groups of all clients' training samples at the end, and K-means clusters of the same samples.

    Returns:
        For n samples, client by client, [n] int16 each: ``group`` by the inference rule; ``cluster`` by K-means of
        the queries with as many clusters as groups; ``label``; ``client``. Empty for methods without groups.
    """
    method, federation = engine.method, engine.federation
    if method.queries() is None:
        return {}
    engine.restore(state.clients)
    tasks = scoring_tasks(engine, state.server, state.round)
    params, received = engine.tested_with(tasks[0], draws)
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
    """Normalised entropy of the groups from :func:`groups`, and their congruence with the clusters."""
    if not sorted_by:
        return {}
    group, cluster, label = (sorted_by[name].cpu().numpy() for name in ("group", "cluster", "label"))
    sizes = np.bincount(group, minlength=settings["groups"])
    return {"group_entropy": entropy(sizes), "congruence": congruence(group, cluster, label)}


@torch.inference_mode()
def representations(engine: LocalEngine, state: State, draws: Draws, samples: int) -> dict[str, Tensor]:
    """Features of test samples, and prototypes, by the networks of a checkpoint in evaluation mode.

    Args:
        engine: the cell's engine.
        state: the checkpoint.
        draws: the run's draws, so that all methods with the same seed use the same test samples.
        samples: number of test samples, drawn without replacement from those of all clients; all if there are fewer.

    Returns:
        For n test samples, client by client: ``features`` [n, d] float32 by the network of the sample's client,
        ``labels`` [n] int16 and ``client`` [n] int16. If the method predicts by global prototypes, also ``clients``
        [K, C, d] float32, the mean feature of each client's training samples of each class, which is zero unless
        ``owned`` [K, C] bool; and ``global`` [C, d] float32, which is zero unless ``global_valid`` [C] bool.
    """
    federation = engine.federation
    engine.restore(state.clients)
    tasks = scoring_tasks(engine, state.server, state.round)
    tests = [data.test for data in federation.data]
    owner = torch.cat([torch.full((len(index),), k) for k, index in enumerate(tests)])
    drawn = torch.randperm(len(owner), generator=draws.at(0).generator("features"))[:samples].sort().values
    found: dict[str, list[Tensor]] = {"features": [], "labels": [], "client": [], "clients": [], "owned": []}
    for k, (client, data) in enumerate(zip(federation.clients, federation.data, strict=True)):
        params, received = engine.tested_with(tasks[k], draws)
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
    """Features [n, d] float32 and labels [n] of the images at ``index`` [n]."""
    size = images.large_batch(model.largest_map)
    parts = [model(params, batch.images).features for batch in images.batches(index, size)]
    # Without samples there is no batch to concatenate.
    features = torch.cat([part.float() for part in parts] or [torch.empty(0, model.width, device=images.device)])
    return features, images.labels[index]
