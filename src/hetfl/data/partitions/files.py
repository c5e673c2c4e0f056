"""A partition on disk: ``indices.npz`` and a card that describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hetfl.data.npz import npz
from hetfl.data.partitions.base import Partition, Scheme, Side
from hetfl.data.readers import reading
from hetfl.data.store import Dataset
from hetfl.errors import HetflError
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
    trains, tests = (partition.holders(side, dataset) for side in ("train", "test"))
    held = np.concatenate(list(trains.values()))
    unused = np.concatenate([(trains[name] == 0) & (tests.get(name, 0) == 0) for name in trains])
    sides = {"train": partition.train} | ({} if partition.test is None else {"test": partition.test})
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
            "clients": partition.clients,
            "sizes": {side: [len(part) for part in parts] for side, parts in sides.items()},
            "class_names": dataset.class_names,
            "class_counts": {side: part.tolist() for side, part in class_counts(partition, dataset).items()},
            "overlap": float(np.mean(held > 1)),
            "unused": float(np.mean(unused)),
            "sha256": sha256_file(indices),
        }
        write_json(temporary / "card.json", card)


def class_counts(partition: Partition, dataset: Dataset) -> dict[str, np.ndarray]:
    """Samples per client and class, int64 [clients, classes]; ``test`` only if clients have their own samples."""
    sides: dict[Side, tuple[str, ...]] = {"train": partition.train_from}
    if partition.test is not None:
        sides["test"] = partition.test_from
    return {
        side: partition.class_counts(dataset.labels(names), dataset.num_classes, side)
        for side, names in sides.items()
    }


def read_partition(folder: Path) -> tuple[Partition, dict[str, Any]]:
    """Read a partition and its card.

    Raises:
        HetflError: a file is missing, the card is not one, or the indices do not match its checksum.
    """
    card = read_json(folder / "card.json")
    remedy = "delete the folder and run dvc repro again"
    if not isinstance(card, dict) or not {"sha256", "splits", "clients"} <= card.keys():
        raise HetflError(f"{folder / 'card.json'}: is not the card of a partition; {remedy}")
    indices = folder / "indices.npz"
    found = sha256_file(indices)
    if found != card["sha256"]:
        raise HetflError(f"{indices}: SHA-256 is {found[:12]}, the card says {str(card['sha256'])[:12]}; {remedy}")
    with reading(folder):
        arrays, splits, clients = npz(indices), card["splits"], range(card["clients"])
        train = tuple(arrays[f"train-{client}"] for client in clients)
        test = tuple(arrays[f"test-{client}"] for client in clients) if "test-0" in arrays else None
        return Partition(train, test, tuple(splits["train"]), tuple(splits["test"])), card
