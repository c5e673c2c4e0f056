"""Features of whole data sets by frozen encoders: computed once, kept by content."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hetfl.data.batches import DeviceImages
from hetfl.errors import HetflError
from hetfl.files import sha256_json
from hetfl.models import Model
from hetfl.tensors import read_tensors, write_tensors

QUERY_BATCH = 64
"""Images per forward pass."""


def queries_of(
    images: DeviceImages, encoder: Model, block: int | None, content: object, folder: Path | None
) -> Tensor:
    """The encoder's features [N, d] of all images.

    Args:
        images: as the encoder wants them.
        encoder: a frozen backbone.
        block: see :meth:`Model.query`.
        content: what decides the features, as JSON: data, input, weights, block.
        folder: where features are kept by their content; None: nowhere.
    """
    path = None if folder is None else folder / f"{sha256_json(content)}.safetensors"
    if path is not None and path.exists():
        try:
            return read_tensors(path, images.device)[0]["queries"]
        except HetflError:
            path.unlink()  # a damaged copy is no more than work to do again
    index = torch.arange(len(images), device=images.device)
    batches = images.batches(index, QUERY_BATCH)
    found = torch.cat([encoder.query(batch.images, block) for batch in batches])
    if path is not None:
        write_tensors(path, {"queries": found})
    return found
