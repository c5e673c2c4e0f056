"""Named tensors on disk, as safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from hetfl.errors import HetflError
from hetfl.files import write_bytes


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors (any shape and device) and metadata to a safetensors file, atomically."""
    contiguous: dict[str, torch.Tensor] = {}
    written: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        # safetensors refuses tensors that share memory, so the second one is a copy.
        place = value.untyped_storage().data_ptr()
        contiguous[name] = value.clone() if place in written else value
        written.add(place)
    # Of no tensors and empty metadata safetensors makes a header that it cannot read.
    told = dict(metadata or {}) if metadata or contiguous else None
    write_bytes(path, save(contiguous, told))


def read_metadata(path: Path) -> dict[str, str] | None:
    """The metadata of a safetensors file; None if it is missing, or its size is not the one that its header says."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError):
        return None


def read_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read named tensors and their metadata from a safetensors file.

    Args:
        path: the file.
        device: where the tensors are loaded.

    Raises:
        HetflError: the file is missing or is not valid safetensors.
    """
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError as error:
        raise HetflError(f"{path}: does not exist; run the stage that makes it with dvc repro") from error
    except SafetensorError as error:
        raise HetflError(f"{path}: is not a valid safetensors file ({error}); delete it and make it again") from error
