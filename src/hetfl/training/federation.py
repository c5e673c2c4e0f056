"""What a run is made of and never changes: the clients, their models and their data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hetfl.data.batches import DeviceImages, Transform
from hetfl.data.inputs import InputSettings
from hetfl.data.partitions import Partition
from hetfl.data.store import Dataset, Subset
from hetfl.methods.base import Client, Method
from hetfl.models import Model, ModelOptions, build
from hetfl.models.registry import weights_checksum
from hetfl.torch_private import multiplies_bfloat16
from hetfl.training.queries import queries_of
from hetfl.training.registry import Precision

LARGE = 5_000_000
"""Parameters of a backbone from which bfloat16 pays on a CPU."""

PUBLIC = ("",)
"""Stands for the public data set where subsets are named."""


@dataclass(frozen=True)
class ClientData:
    """One client's share: images on the device and the indices that are its own.

    Attributes:
        train_images, test_images: the subsets that the indices count through, shared by all clients whose models
            want the same input.
        train, test: int64 indices on the device; clients that are tested on the whole test subset share one tensor.
        augment: changes training images while they are trained on, or None.
        public_images: the public data set that clients and server share, or None.
    """

    train_images: DeviceImages
    train: Tensor
    test_images: DeviceImages
    test: Tensor
    augment: Transform | None = None
    public_images: DeviceImages | None = None


@dataclass(frozen=True)
class Federation:
    """Clients with their models and data, on one device.

    Attributes:
        precision: of products; sums are in the data's own type.
    """

    clients: tuple[Client, ...]
    data: tuple[ClientData, ...]
    num_classes: int
    device: torch.device
    precision: Precision = "float32"

    @property
    def models(self) -> list[Model]:
        """The architecture of every client."""
        return [client.model for client in self.clients]


def build_federation(
    method: Method,
    models: Sequence[str],
    dataset: Dataset,
    partition: Partition,
    weights: Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    inputs: InputSettings = InputSettings(),  # noqa: B008, it is frozen
    public: Subset | None = None,
    features: Path | None = None,
    precision: Precision | Literal["auto"] = "float32",
) -> Federation:
    """Put clients together.

    Args:
        method: says how backbones are fitted out.
        models: names of architectures, dealt to clients in turn.
        dataset: with subsets ``train`` and ``test``.
        partition: which samples are whose.
        weights: folder with pre-trained weights.
        device: where everything lives.
        dtype: of parameters and images.
        inputs: what the experiment does to images.
        public: the public data set's samples, for methods that share one.
        features: folder where features that samples are sorted by are kept from run to run; None: nowhere.
        precision: of products; ``auto``: the lowest that gains. What a processor or model cannot have is ``float32``.

    Raises:
        HetflError: a model is unknown or its weights are missing.
    """
    options = method.model_options()
    built = {
        name: build(name, dataset.num_classes, options, weights, inputs).to(device, dtype)
        for name in dict.fromkeys(models)
    }
    query = method.queries()
    encoder = None
    if query is not None and query.model is not None:
        encoder = build(query.model, dataset.num_classes, ModelOptions(), weights).to(device, dtype)
    resident: dict[tuple[Any, ...], DeviceImages] = {}

    def images(names: tuple[str, ...], model_name: str) -> DeviceImages:
        spec = built[model_name].spec
        if (names, spec) not in resident:
            subsets = [public] if names == PUBLIC and public else [dataset.subset(name) for name in names]
            resident[names, spec] = found = DeviceImages(subsets, spec, device, dtype)
            if query is not None:
                by = encoder or built[model_name]
                seen = found if by.spec == spec else DeviceImages(subsets, by.spec, device, dtype)
                content = {
                    "data": [dataset.checksum, names],
                    "input": asdict(by.spec),
                    "encoder": [by.name, query.block, str(dtype)],
                    "weights": weights_checksum(by.name, weights),
                }
                found.queries = queries_of(seen, by, query.block, content, features)
        return resident[names, spec]

    def on_device(index: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(index, dtype=np.int64)).to(device)

    everything: dict[DeviceImages, Tensor] = {}

    def whole(images: DeviceImages) -> Tensor:
        if images not in everything:
            everything[images] = torch.arange(len(images), device=device)
        return everything[images]

    counts = partition.class_counts(dataset.labels(partition.train_from), dataset.num_classes)
    clients, data = [], []
    for k in range(partition.clients):
        name = models[k % len(models)]
        clients.append(Client(k, built[name], torch.as_tensor(np.asarray(counts[k]), dtype=torch.int64)))
        train_images, test_images = images(partition.train_from, name), images(partition.test_from, name)
        test = whole(test_images) if partition.test is None else on_device(partition.test[k])
        train = on_device(partition.train[k])
        shared = None if public is None else images(PUBLIC, name)
        data.append(ClientData(train_images, train, test_images, test, inputs.transform(), shared))
    # Last, since features that samples are sorted by are in full precision.
    used = set_precision(built.values(), precision, device)
    return Federation(tuple(clients), tuple(data), dataset.num_classes, device, used)


def set_precision(models: Iterable[Model], wanted: Precision | Literal["auto"], device: torch.device) -> Precision:
    """Give the products of models a precision; returns the one that a run then has.

    Products outside of models, such as the server's, are in full precision.

    Args:
        models: of the run.
        wanted: the precision; ``auto`` and ``bfloat16`` round as ``tf32`` does.
        device: of the run.
    """
    rounded = wanted != "float32" if device.type == "cuda" else None
    lowered = False
    for model in models:
        model.rounded = rounded
        if wanted == "bfloat16" or (wanted == "auto" and gains(model, device)):
            lowered |= model.lower()
    return "bfloat16" if lowered else "tf32" if rounded else "float32"


def gains(model: Model, device: torch.device) -> bool:
    """Whether frozen blocks are faster in bfloat16: on GPUs that multiply it, and large ones on processors that do.

    Below ViT-Ti's size conversions take what products save; see ``benchmarks/precision-cpu.md``.
    """
    return multiplies_bfloat16(device) and (device.type != "cpu" or model.total_elements >= LARGE)
