"""CIFAR-10 as it really is, from the folder that HETFL_MIRROR names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hetfl.data.catalogue import Cifar10Settings, Sources, prepare_dataset
from hetfl.data.partitions import make_partition
from hetfl.data.store import Dataset, read_dataset
from hetfl.draws import Draws
from hetfl.federation.plan import load_params

pytestmark = pytest.mark.realdata


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    mirror = Path(os.environ.get("HETFL_MIRROR", ""))
    if not (mirror / "cifar10").is_dir():
        pytest.skip("HETFL_MIRROR names no folder with cifar10/")
    folder = tmp_path_factory.mktemp("data") / "cifar10"
    prepare_dataset("cifar10", Cifar10Settings(), folder, Sources(mirror, folder))
    return read_dataset(folder)


def test_cifar10_is_the_official_set(cifar10: Dataset):
    train, test = cifar10.split("train"), cifar10.split("test")
    assert train.class_counts(10).tolist() == [5000] * 10
    assert test.class_counts(10).tolist() == [1000] * 10
    assert train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]  # the first of data_batch_1
    mean = train.images.reshape(-1, 3).mean(axis=0) / 255
    assert np.allclose(mean, [0.4914, 0.4822, 0.4465], atol=1e-3)


def test_the_papers_splits_of_cifar10(cifar10: Dataset):
    """FedHPL: 10,000 a client in IID and Dir, 50 of a class at least, every image used once in Non-IID."""
    labels = cifar10.split("train").labels
    parts = {
        split: make_partition(settings, labels, cifar10.split("test").labels, 10, Draws(0))
        for split, settings in load_params(Path("params.yaml")).partitions["cifar10"].splits.items()
    }
    counts = {split: part.class_counts(labels, 10) for split, part in parts.items()}
    assert counts["iid"].sum(axis=1).tolist() == counts["dir"].sum(axis=1).tolist() == [10_000] * 5
    assert counts["noniid"].sum(axis=0).tolist() == [5000] * 10
    assert min(counts["dir"].min(), counts["noniid"].min()) >= 50
