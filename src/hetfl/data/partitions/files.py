"""A partition on disk: ``indices.npz`` and a card that describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hetfl.data.archive import DAMAGE
from hetfl.data.npz import npz
from hetfl.data.partitions.base import Partition, Scheme, Side
from hetfl.data.store import Dataset
from hetfl.errors import HetflError, one_line
from hetfl.files import atomic_folder, read_json, sha256_file, write_json


def write_partition(folder: Path, partition: Partition, settings: Scheme, dataset: Dataset, seed: int) -> None:
    """Write ``indices.npz`` and ``card.json``, replacing the folder as a whole.

    Args:
        folder: the folder to write.
        partition: the partition.
        settings: the scheme that made it.
        dataset: the data set that it divides.
        seed: the seed of the trial; it is the partition's seed, unless the settings have one.
    """
    sides = _sides(partition)
    arrays: dict[str, Any] = {f"{side}-{k}": part for side, parts in sides.items() for k, part in enumerate(parts)}
    with atomic_folder(folder) as temporary:
        indices = temporary / "indices.npz"
        # Not compressed: the bytes must not depend on the version of zlib.
        np.savez(indices, **arrays)
        card = {
            # Without defaults, since a new setting must not change the cards, and so the runs, that do not use it.
            "settings": settings.model_dump(include={"scheme"})
            | settings.model_dump(mode="json", exclude_defaults=True),
            "seed": seed if settings.seed is None else settings.seed,
            "dataset": dataset.name,
            "dataset_checksum": dataset.checksum,
            "splits": {"train": partition.train_from, "test": partition.test_from},
            **_described(partition, dataset),
            "sha256": sha256_file(indices),
        }
        write_json(temporary / "card.json", card)


def _sides(partition: Partition) -> dict[Side, tuple[np.ndarray, ...]]:
    """The indices of each client; ``test`` only if clients have their own samples."""
    sides: dict[Side, tuple[np.ndarray, ...]] = {"train": partition.train}
    return sides if partition.test is None else {**sides, "test": partition.test}


def _described(partition: Partition, dataset: Dataset) -> dict[str, Any]:
    """What a card tells that follows from the indices and the data set."""
    trains, tests = (partition.holders(side, dataset) for side in ("train", "test"))
    held = np.concatenate(list(trains.values()))
    unused = np.concatenate([(trains[name] == 0) & (tests.get(name, 0) == 0) for name in trains])
    return {
        "clients": partition.clients,
        "sizes": {side: [len(part) for part in parts] for side, parts in _sides(partition).items()},
        "class_names": dataset.class_names,
        "class_counts": {side: part.tolist() for side, part in class_counts(partition, dataset).items()},
        "overlap": float(np.mean(held > 1)),
        "unused": float(np.mean(unused)),
    }


def class_counts(partition: Partition, dataset: Dataset) -> dict[str, np.ndarray]:
    """Samples per client and class, int64 [clients, classes]; ``test`` only if clients have their own samples."""
    sides: dict[Side, tuple[str, ...]] = {"train": partition.train_from}
    if partition.test is not None:
        sides["test"] = partition.test_from
    return {
        side: partition.class_counts(dataset.labels(names), dataset.num_classes, side)
        for side, names in sides.items()
    }


def read_partition(folder: Path, dataset: Dataset | None = None) -> tuple[Partition, dict[str, Any]]:
    """Read a partition and its card.

    The checksum of the indices, the number of clients, the subsets and the data set's checksum are part of a run's
    identity. All else that a card tells follows from these, and is checked where the data set is given: so the whole
    card belongs to the identity.

    Args:
        folder: the partition's.
        dataset: that it divides; if given, indices must lie in it and the card must describe it.

    Raises:
        HetflError: a file is missing or damaged, the card is not one, or the two or the data set do not belong
            together.
    """
    path, indices = folder / "card.json", folder / "indices.npz"
    card = read_json(path)
    remedy = "delete the folder and run dvc repro again"
    try:
        clients, expected = card["clients"], str(card["sha256"])
        names = [tuple(map(str, card["splits"][side])) for side in ("train", "test")]
    except (KeyError, TypeError) as error:
        raise HetflError(f"{path}: is not the card of a partition; {remedy}") from error
    if not isinstance(clients, int) or isinstance(clients, bool) or clients < 1:
        raise HetflError(f"{path}: clients is {clients!r}, a number of at least 1 is needed; {remedy}")
    found = sha256_file(indices)
    if found != expected:
        raise HetflError(f"{indices}: SHA-256 is {found[:12]}, the card says {expected[:12]}; {remedy}")
    try:
        sides = _read_sides(npz(indices), clients)
    except (*DAMAGE, LookupError, TypeError) as error:
        raise HetflError(f"{indices}: {one_line(error)}; {remedy}") from error
    partition = Partition(sides["train"], sides.get("test"), *names)
    if dataset is not None:
        if card.get("dataset_checksum") != dataset.checksum:
            raise HetflError(f"{folder}: was made from other data; run dvc repro partition@{dataset.name}")
        _check_card(card, partition, dataset, f"{path}", remedy)
    return partition, card


def _read_sides(arrays: Mapping[str, np.ndarray], clients: int) -> dict[str, tuple[np.ndarray, ...]]:
    """The indices of each side.

    Raises:
        ValueError: they are not those of so many clients.
    """
    there = set(arrays)
    sides = ("train", "test") if "test-0" in there else ("train",)
    if len(there) != clients * len(sides):
        raise ValueError(f"has {len(there)} arrays, the card says {clients} clients")
    found: dict[str, tuple[np.ndarray, ...]] = {}
    for side in sides:
        found[side] = tuple(arrays[f"{side}-{client}"] for client in range(clients))
        for client, part in enumerate(found[side]):
            if part.dtype != np.int64 or part.ndim != 1 or len(np.unique(part)) < len(part):
                what = f"{part.dtype} {list(part.shape)}"
                raise ValueError(f"{side}-{client} is {what}, int64 [n] without duplicates is needed")
    return found


def _check_card(card: Mapping[str, Any], partition: Partition, dataset: Dataset, where: str, remedy: str) -> None:
    """Check that indices lie in the data set, and that the card describes them.

    Raises:
        HetflError: they do not.
    """
    for (side, parts), names in zip(
        _sides(partition).items(), (partition.train_from, partition.test_from), strict=False
    ):
        size = len(dataset.labels(names))
        for client, part in enumerate(parts):
            if len(part) and (part.min() < 0 or part.max() >= size):
                wrong = int(part.min()) if part.min() < 0 else int(part.max())
                raise HetflError(f"{where}: {side}-{client} has {wrong}, indices lie in 0..{size - 1}; {remedy}")
    for name, value in _described(partition, dataset).items():
        if name in card and card[name] != json.loads(json.dumps(value)):
            raise HetflError(f"{where}: {name} is not what the indices and the data set say; {remedy}")
