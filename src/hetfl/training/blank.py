"""Federations of blank images, in which rounds are played without images, weights or training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hetfl.data.batches import Batch, DeviceImages, InputSpec, Transform
from hetfl.data.inputs import InputSettings
from hetfl.methods.base import Client, Method
from hetfl.models.base import Model, ModelOptions
from hetfl.models.outline import outline
from hetfl.training.federation import ClientData, Federation

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Holdings:
    """The labels that a run sees, by client; no images.

    Attributes:
        train: of each client's training samples, in the partition's order, int64 [n_k].
        test: of each client's test samples; if all clients share them, the same object.
        public: of the public data set; None without one.
        side: height and width of the stored images in pixels.
        public_side: of the public ones.
        shown: whether images show the class of their label, or another one.
    """

    train: Sequence[Tensor]
    test: Sequence[Tensor]
    classes: int
    side: int
    public: Tensor | None = None
    public_classes: int = 0
    public_side: int = 0
    shown: bool = True


class Blank(DeviceImages):
    """Images that cost nothing to read: all pixels are the number of a class, which outlines then predict.

    Args:
        labels: of the samples [N].
        side: of the stored images in pixels.
        shown: whether that class is the sample's label, or another one.
        queries: size of the features that samples are sorted by; 0: they are not sorted.
        dtype: of images and features.
    """

    def __init__(
        self,
        labels: Tensor,
        spec: InputSpec,
        side: int,
        queries: int = 0,
        dtype: torch.dtype = torch.float32,
        shown: bool = True,
    ) -> None:
        self.labels, self.spec, self.device, self.dtype = labels, spec, CPU, dtype
        self._side, self._width, self._shown = side, queries, shown
        self.queries = torch.zeros(1, queries, dtype=dtype).expand(len(labels), -1) if queries else None

    def __len__(self) -> int:
        return len(self.labels)

    def large_batch(self, largest_map: int = 0) -> int:
        """All of them."""
        return max(1, len(self))

    def tensors(self) -> list[Tensor]:
        """None that is worth counting."""
        return []

    def stored(self) -> Blank:
        """The same in the size in which they are stored."""
        return Blank(
            self.labels, replace(self.spec, size=self._side), self._side, self._width, self.dtype, self._shown
        )

    def batch(
        self, index: Tensor, transform: Transform | None = None, generator: torch.Generator | None = None
    ) -> Batch:
        """Images of one value each, and the samples' labels."""
        size, labels = self.spec.size, self.labels.index_select(0, index)
        pixels = labels if self._shown else labels == 0
        images = pixels.to(self.dtype).view(-1, 1, 1, 1).expand(-1, self.spec.channels, size, size)
        queries = None if self.queries is None else self.queries[:1].expand(len(index), -1)
        return Batch(images, labels, queries=queries)

    def batches(self, index: Tensor, batch_size: int, transform: Transform | None = None, seed: int = 0) -> Any:
        """Batches of such images."""
        return (self.batch(part) for part in index.split(batch_size))


def blank_federation(
    method: Method,
    models: Sequence[Model],
    held: Holdings,
    inputs: InputSettings = InputSettings(),  # noqa: B008
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Clients with blank images of the labels that they hold.

    Args:
        method: that they follow.
        models: every client's architecture.
        held: the labels.
        inputs: what the experiment does to images.
        dtype: of images.
    """
    query = method.queries()
    by = query and query.model and outline(query.model, held.classes, ModelOptions(weights="scratch"), inputs)
    made: dict[tuple[int, InputSpec], Blank] = {}

    def blank(labels: Tensor, model: Model, side: int) -> Blank:
        key = id(labels), model.spec
        if key not in made:
            made[key] = Blank(labels, model.spec, side, (by or model).width if query else 0, dtype, held.shown)
        return made[key]

    clients, data = [], []
    for k, (model, train, test) in enumerate(zip(models, held.train, held.test, strict=True)):
        clients.append(Client(k, model, torch.bincount(train, minlength=held.classes)))
        public = None if held.public is None else blank(held.public, model, held.public_side)
        data.append(
            ClientData(
                blank(train, model, held.side),
                torch.arange(len(train)),
                blank(test, model, held.side),
                torch.arange(len(test)),
                public_images=public,
            )
        )
    return Federation(tuple(clients), tuple(data), held.classes, CPU)
