"""Readers of checkpoints in the formats that others publish."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from hetfl.errors import HetflError, few
from hetfl.tensors import read_tensors

_OPENMMLAB = (
    (r"^patch_embed\.projection\.", "patch_embed.proj."),
    (r"^ln1\.", "norm."),
    (r"^layers\.", "blocks."),
    (r"\.ln([12])\.", r".norm\1."),
    (r"\.ffn\.layers\.0\.0\.", ".mlp.fc1."),
    (r"\.ffn\.layers\.1\.", ".mlp.fc2."),
)
"""Patterns of MMPretrain's names of a vision transformer's parameters, and timm's names."""

_BESIDE = re.compile(r"^(head|fc)\.|\.num_batches_tracked$")


def backbone_weights(path: Path, body: nn.Module) -> dict[str, Tensor]:
    """Read the weights of a backbone from a published checkpoint, under timm's names.

    It may be a state dict of the plain architecture, of MoCo-v3's pre-training (``module.base_encoder.*``) or linear
    probe (``module.*``), or of MMPretrain (``backbone.*``). Heads and momentum encoders are ignored.

    Args:
        path: a safetensors file, or a file of ``torch.save`` with only tensors and plain values.
        body: the architecture, for names and shapes; may be on the meta device.

    Raises:
        HetflError: the file is missing, is not a checkpoint, or is of another architecture.
    """
    found = _timm_names(_read(path))
    expected = {key: tensor for key, tensor in body.state_dict().items() if not _BESIDE.search(key)}
    if missing := sorted(expected.keys() - found.keys()):
        raise HetflError(f"{path}: lacks {few(missing, 3)}; give a checkpoint of this architecture")
    if extra := sorted(found.keys() - expected.keys()):
        raise HetflError(f"{path}: has {few(extra, 3)} beside the backbone; give a checkpoint of this architecture")
    for key, tensor in expected.items():
        if found[key].shape != tensor.shape:
            shapes = f"{list(found[key].shape)} instead of {list(tensor.shape)}"
            raise HetflError(f"{path}: {key} is {shapes}; give a checkpoint of this architecture")
    return {key: found[key] for key in expected}


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise HetflError(f"{path}: is not a file; give a checkpoint")
    if path.suffix == ".safetensors":
        return read_tensors(path)[0]
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling can raise any exception
        raise HetflError(
            f"{path}: is not a checkpoint of tensors ({type(error).__name__}); fetch it again"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise HetflError(f"{path}: holds a {type(content).__name__} instead of a state dict; give a checkpoint")
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def _timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefixes = ("module.base_encoder.", "backbone.", "module.")
    prefix = next((prefix for prefix in prefixes if any(key.startswith(prefix) for key in tensors)), "")
    found = {}
    for key, tensor in tensors.items():
        if not key.startswith(prefix):
            continue
        key = key.removeprefix(prefix)
        if prefix == "backbone.":
            for theirs, ours in _OPENMMLAB:
                key = re.sub(theirs, ours, key)
        if not _BESIDE.search(key):
            found[key] = tensor
    return found
