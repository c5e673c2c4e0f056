"""Images stored on the device, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import prod
from weakref import ReferenceType, ref

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hetfl.data.store import Subset
from hetfl.errors import HetflError

NORMALISED_CACHE_BYTES = 256 * 2**20
"""If all normalised images together fit into this many bytes, they are normalised once instead of batch by batch."""

CHUNK = 32
"""Images that share a draw of the augmentation, on every device, so that all draw the same; and those that a CPU
normalises and resizes at once, so that intermediate results fit into its cache."""

READ_AHEAD_BYTES = 2**20
"""Bytes of normalised images that are read at once: several batches if they are small."""

LARGE_BATCH = 512
"""Samples of a batch on a GPU where nothing is trained, which is faster with large batches."""

CPU_BATCH_BYTES, CPU_BATCH = 8 * 2**20, 16
"""On a CPU such a batch has as many samples as keep its largest feature map within ``CPU_BATCH_BYTES``, but at least
``CPU_BATCH``. Feature maps larger than the caches cost more time than large batches save."""

Transform = Callable[[Tensor, torch.Generator], Tensor]
"""Augments images [B, C, h, w] in [0, 1], in their stored size, with a CPU generator; see :class:`Augmentation`."""


@dataclass(frozen=True)
class InputSpec:
    """The input that a backbone expects.

    Attributes:
        size: height and width in pixels.
        interpolation: for resizing, ``bilinear`` or ``bicubic``.
        mean, std: of each channel, for pixels in [0, 1].
    """

    size: int
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def channels(self) -> int:
        """3 for colour, 1 for grey."""
        return len(self.mean)


@dataclass(frozen=True)
class Batch:
    """Some samples of one client.

    Attributes:
        images: [B, channels, H, W], normalised.
        labels: [B], int64.
        weight: [B], 1 for a sample and 0 for padding; None without padding.
        rows: [B], int64, positions of the samples in the round's public alignment set; None for other data.
        seed: of this batch's random draws; see :meth:`Method.drawn`.
        drawn: the tensors that the method drew for this batch.
        queries: [B, d], features by which the method assigns samples to groups; None if it does not.
    """

    images: Tensor
    labels: Tensor
    weight: Tensor | None = None
    rows: Tensor | None = None
    seed: int = 0
    queries: Tensor | None = None
    drawn: Mapping[str, Tensor] = field(default_factory=dict)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of ``values`` [B] over all samples but padding."""
        if self.weight is None:
            return values.mean()
        return (values * self.weight).sum() / self.weight.sum()

    def of_step(self, seed: int, drawn: Mapping[str, Tensor], rows: Tensor | None) -> Batch:
        """The same samples, with the seed, draws and alignment rows of one optimiser step."""
        return Batch(self.images, self.labels, self.weight, rows, seed, self.queries, drawn)

    def split(self, size: int) -> Iterator[Batch]:
        """Divide images, labels and queries into batches of ``size`` samples; the last one may be smaller."""
        queries = repeat(None) if self.queries is None else self.queries.split(size)
        for images, labels, part in zip(self.images.split(size), self.labels.split(size), queries, strict=False):
            yield Batch(images, labels, queries=part)


def membership(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """1 where a sample is of a class and 0 elsewhere, [B, C].

    ``one_hot`` looks at the labels' values, which the recording of a CUDA graph cannot.
    """
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)).to(dtype)


def class_sums(values: Tensor, labels: Tensor, num_classes: int, weight: Tensor | None = None) -> Tensor:
    """Sum values per class, in float64, so that sums over thousands of samples stay exact enough.

    Args:
        values: [B, D].
        labels: [B], int64.
        num_classes: C.
        weight: [B] factor of each sample, or None for 1.

    Returns:
        [C, D].
    """
    member = membership(labels, num_classes, torch.float64)
    if weight is not None:
        member = member * weight[:, None]
    return member.T @ values.to(torch.float64)


def class_counts(labels: Tensor, num_classes: int, weight: Tensor | None = None) -> Tensor:
    """Count samples per class [C], in float64; see :func:`class_sums`."""
    return class_sums(torch.ones_like(labels, dtype=torch.float64)[:, None], labels, num_classes, weight)[:, 0]


class DeviceImages:
    """Subsets of a data set, stored on the device as uint8 and read as normalised images.

    On a CPU a single subset is not copied, so processes that read the same data set share its memory. Images that
    keep their stored size are channels-last in memory there: they are stored that way, and convolutions prefer it.

    Args:
        subsets: images uint8 [N, h, w, 1 or 3] and labels [N]. Indices run through several subsets as if they were
            concatenated. A backbone for colour images gets grey images with their channel repeated.
        spec: the input that the backbone expects.
        device: where images and labels are stored.
        dtype: of the normalised images; arithmetic is in float32 or more.

    Attributes:
        labels: [N], int64.
        queries: [N, d], features of all images that their batches include, or None.

    Raises:
        HetflError: the backbone expects grey images, and these are in colour.
    """

    def __init__(
        self, subsets: Sequence[Subset], spec: InputSpec, device: torch.device, dtype: torch.dtype = torch.float32
    ):
        self.spec, self.device, self.dtype = spec, device, dtype
        self._subsets = subsets
        self.labels = _join([subset.labels for subset in subsets]).to(device)
        self._raw = _join([subset.images for subset in subsets]).to(device)
        height, width, stored = self._raw.shape[1:]
        if spec.channels < stored:
            raise HetflError(
                f"images: have {stored} channels, the model takes {spec.channels}; choose a model for colour images"
            )
        self._exact = torch.promote_types(dtype, torch.float32)
        mean = torch.tensor(spec.mean, device=device, dtype=self._exact)
        std = torch.tensor(spec.std, device=device, dtype=self._exact)
        # 0..255 is normalised by x * scale + shift. In full size, since broadcasting over channels is slow.
        self._scale = (1 / (255 * std)).expand(height, width, -1).contiguous()
        self._shift = (-mean / std).expand(height, width, -1).contiguous()
        self._range = torch.stack([-mean / std, (1 - mean) / std], dim=1).tolist()
        self._rows, self._columns = (
            _resampler(length, spec).to(device, self._exact) if length != spec.size else None
            for length in (height, width)
        )
        self.queries: Tensor | None = None
        self._channels_last = device.type == "cpu" and self._rows is None and self._columns is None
        self._normalised: Tensor | None = None
        if len(self) * self.bytes <= NORMALISED_CACHE_BYTES:
            self._normalised = self._read(torch.arange(len(self), device=device))
            _memory.forget()

    def __len__(self) -> int:
        return len(self._raw)

    @property
    def bytes(self) -> int:
        """Bytes of one normalised image."""
        return self.spec.channels * self.spec.size**2 * self.dtype.itemsize

    def large_batch(self, largest_map: int = 0) -> int:
        """How many samples a batch should have where nothing is trained.

        Args:
            largest_map: elements of the model's largest feature map for one image.
        """
        if self.device.type != "cpu":
            return LARGE_BATCH
        largest = max(self.bytes, largest_map * self.dtype.itemsize)
        return min(LARGE_BATCH, max(CPU_BATCH, CPU_BATCH_BYTES // largest))

    def tensors(self) -> list[Tensor]:
        """All tensors that are stored on the device for these images."""
        own = (self._raw, self.labels, self._normalised, self.queries)
        return [tensor for tensor in own if tensor is not None]

    def stored(self) -> DeviceImages:
        """The same images, normalised but not resized."""
        size = self._raw.shape[1]
        spec = replace(self.spec, size=size)
        return self if size == self.spec.size else DeviceImages(self._subsets, spec, self.device, self.dtype)

    def batch(
        self, index: Tensor, transform: Transform | None = None, generator: torch.Generator | None = None
    ) -> Batch:
        """The samples at ``index`` [B] (int64, on the device), augmented by ``transform`` if there is one."""
        if self._normalised is not None and transform is None:
            images = self._normalised.index_select(0, index)
        else:
            images = self._read(index, transform, generator)
        images = images.permute(0, 3, 1, 2) if self._channels_last else images
        queries = None if self.queries is None else self.queries.index_select(0, index)
        return Batch(images, self.labels.index_select(0, index), queries=queries)

    def batches(self, index: Tensor, batch_size: int, transform: Transform | None = None, seed: int = 0) -> Batches:
        """The samples at ``index`` [N] in order, in batches; see :class:`Batches`."""
        return Batches(self, index, batch_size, transform, seed)

    def _read(
        self, index: Tensor, transform: Transform | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        if self._channels_last and transform is None:
            images = _empty((len(index), *self._scale.shape), self._exact, self.device)
            images.copy_(self._raw.index_select(0, index))
            return torch.addcmul(self._shift, images, self._scale, out=images).to(self.dtype)
        chunk = CHUNK if self.device.type == "cpu" or transform is not None else max(len(index), 1)
        parts = (self._small(part, transform, generator) for part in index.split(chunk))
        if self._channels_last:
            return torch.cat(list(parts)).to(self.dtype)
        size = self.spec.size
        images = _empty((len(index), self.spec.channels, size, size), self.dtype, self.device)
        for small, out in zip(parts, images.split(chunk), strict=True):
            self._resize(small.permute(0, 3, 1, 2), out)
        return images

    def _small(
        self, index: Tensor, transform: Transform | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Normalised images [B, h, w, channels] in stored size, since resizing commutes with scale and shift."""
        stored = self._raw.index_select(0, index).to(self._exact)
        if transform is not None and generator is not None:
            stored = 255 * transform(stored.permute(0, 3, 1, 2) / 255, generator).permute(0, 2, 3, 1)
        return torch.addcmul(self._shift, stored, self._scale)

    def _resize(self, images: Tensor, out: Tensor) -> None:
        if self._rows is None and self._columns is None:
            out.copy_(images)
            return
        if self._columns is not None:
            images = images.reshape(-1, images.shape[-1]) @ self._columns.T
            images = images.view(len(out), out.shape[1], -1, self.spec.size)
        if self._rows is not None:
            flat = images.reshape(-1, *images.shape[-2:])
            target = out.view(-1, *out.shape[-2:])
            rows = self._rows.expand(len(flat), -1, -1)
            if out.dtype == flat.dtype:
                torch.bmm(rows, flat, out=target)
            else:
                target.copy_(torch.bmm(rows, flat))
        else:
            out.copy_(images)
        if self.spec.interpolation == "bicubic":
            # Bicubic weights leave [0, 1]; image files cannot.
            for channel, (low, high) in zip(out.unbind(1), self._range, strict=True):
                channel.clamp_(low, high)


@dataclass(frozen=True)
class Batches:
    """Normalised batches of some samples, in order; the last one may be smaller. It can be iterated repeatedly.

    Attributes:
        images: the images that samples are read from.
        index: [N], int64, on the device of the images.
        batch_size: samples of a batch.
        transform: augments the images before they are resized, or None.
        seed: of the transform's generator; every iteration starts from it.
    """

    images: DeviceImages
    index: Tensor
    batch_size: int
    transform: Transform | None = None
    seed: int = 0

    def __len__(self) -> int:
        return -(-len(self.index) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        if self.transform is None:
            many = max(1, READ_AHEAD_BYTES // (self.batch_size * self.images.bytes))
            for part in self.index.split(many * self.batch_size):
                yield from self.images.batch(part).split(self.batch_size)
            return
        generator = torch.Generator().manual_seed(self.seed)
        for part in self.index.split(self.batch_size):
            yield self.images.batch(part, self.transform, generator)


def _join(arrays: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(_memory.take(prod(shape) * dtype.itemsize)).view(dtype).view(shape)


class _Memory:
    """Memory for batches on a CPU, which is reused when no tensor uses it any more.

    The first access to fresh memory costs more than computing a batch. Two buffers are kept, since a loop holds one
    batch while the next one is made. A caller that keeps more batches gets fresh memory for them.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[np.ndarray, ReferenceType[np.ndarray]]] = []

    def take(self, size: int) -> np.ndarray:
        """An uninitialised array, uint8 [size]; its memory is not reused while it or a tensor made from it exists."""
        free = [place for place, (_, user) in enumerate(self._kept) if user() is None]
        place = next((place for place in free if self._kept[place][0].size >= size), None)
        # numpy requests huge pages, torch does not.
        piece = np.empty(size, np.uint8) if place is None else self._kept[place][0]
        if place is None and len(self._kept) == 2:
            place = free[0] if free else None
        # A tensor holds a reference to this slice, so the slice lives as long as the tensor.
        given = piece[:size]
        entry = (piece, ref(given))
        if place is not None:
            self._kept[place] = entry
        elif len(self._kept) < 2:
            self._kept.append(entry)
        return given

    def forget(self) -> None:
        """Forget all buffers: their users keep them for good."""
        self._kept.clear()


_memory = _Memory()


def _resampler(length: int, spec: InputSpec) -> Tensor:
    """Matrix [size, length] of torch's antialiased interpolation along one axis, a linear function of the image."""
    unit = torch.eye(length, dtype=torch.float64)[None, None]
    return F.interpolate(unit, (spec.size, length), mode=spec.interpolation, antialias=True)[0, 0]
