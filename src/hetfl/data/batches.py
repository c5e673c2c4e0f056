"""Images that live on the device, and the batches made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hetfl.data.store import Split

NORMALISED_CACHE_BYTES = 256 * 2**20
"""A split whose normalised images fit into this many bytes is normalised once instead of per batch."""


@dataclass(frozen=True)
class InputSpec:
    """What a backbone wants to see: square size in pixels, interpolation, channel statistics in [0, 1]."""

    size: int
    interpolation: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class Batch:
    """Some samples of one client.

    Attributes:
        images: [B, 3, H, W], normalised.
        labels: [B], int64.
        weight: [B], 1 for a sample and 0 for padding; None when nothing is padded.
    """

    images: Tensor
    labels: Tensor
    weight: Tensor | None = None

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one value per sample [B] over the real samples."""
        if self.weight is None:
            return values.mean()
        return (values * self.weight).sum() / self.weight.sum()


def class_sums(values: Tensor, labels: Tensor, num_classes: int, weight: Tensor | None = None) -> Tensor:
    """Sum values per class, in float64 so that thousands of samples lose no digits.

    Args:
        values: [B, D].
        labels: [B], int64.
        num_classes: C.
        weight: [B] factor of each sample, or None for 1.

    Returns:
        [C, D].
    """
    member = F.one_hot(labels, num_classes).to(torch.float64)
    if weight is not None:
        member = member * weight[:, None]
    return member.T @ values.to(torch.float64)


def class_counts(labels: Tensor, num_classes: int, weight: Tensor | None = None) -> Tensor:
    """Count samples per class [C], in float64; see :func:`class_sums`."""
    return class_sums(torch.ones_like(labels, dtype=torch.float64)[:, None], labels, num_classes, weight)[:, 0]


class DeviceImages:
    """One split of a data set, resident on the device as uint8, read as normalised images.

    Args:
        split: images uint8 [N, h, w, 1 or 3] and labels [N].
        spec: what the backbone wants.
        device: where everything lives.
        dtype: of the normalised images.
    """

    def __init__(self, split: Split, spec: InputSpec, device: torch.device, dtype: torch.dtype = torch.float32):
        self.spec, self.device, self.dtype = spec, device, dtype
        self.labels = torch.from_numpy(np.array(split.labels)).to(device)
        self._raw = torch.from_numpy(np.array(split.images)).to(device).permute(0, 3, 1, 2)
        self._mean = torch.tensor(spec.mean, device=device, dtype=dtype)[:, None, None]
        self._std = torch.tensor(spec.std, device=device, dtype=dtype)[:, None, None]
        self._normalised: Tensor | None = None
        if len(self) * 3 * spec.size**2 * self._mean.element_size() <= NORMALISED_CACHE_BYTES:
            self._normalised = torch.cat([self._normalise(part) for part in self._raw.split(1024)])

    def __len__(self) -> int:
        return len(self._raw)

    def batch(self, index: Tensor) -> Batch:
        """The samples at ``index`` [B] (int64, on the device)."""
        cached = self._normalised
        images = self._normalise(self._raw[index]) if cached is None else cached[index]
        return Batch(images, self.labels[index])

    def batches(self, index: Tensor, batch_size: int) -> Iterator[Batch]:
        """The samples at ``index`` [N] in order, in batches; the last one may be smaller."""
        for part in index.split(batch_size):
            yield self.batch(part)

    def _normalise(self, raw: Tensor) -> Tensor:
        images = raw.to(self.dtype) / 255
        size = (self.spec.size, self.spec.size)
        if images.shape[-2:] != size:
            images = F.interpolate(images, size, mode=self.spec.interpolation, antialias=True)
        # Interpolation may leave [0, 1]; image files cannot.
        images = images.clamp(0, 1).expand(-1, 3, -1, -1)
        return (images - self._mean) / self._std
