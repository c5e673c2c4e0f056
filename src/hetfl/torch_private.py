"""Names of torch that it keeps private and that have no public equal, each behind one function.

Tested with torch 2.11 and 2.15. ``tests/test_private_names.py`` says what is gone where another version lacks one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn


def add_to_all(tensors: list[Tensor], others: list[Tensor], alpha: float) -> None:
    """Add ``alpha`` times each of ``others`` to each of ``tensors``, in one kernel where the device has one."""
    torch._foreach_add_(tensors, others, alpha=alpha)


def copy_to_all(tensors: list[Tensor], others: list[Tensor]) -> None:
    """Copy each of ``others`` into each of ``tensors``, in one kernel where the device has one."""
    torch._foreach_copy_(tensors, others)


def changes(tensor: Tensor) -> int:
    """How often a tensor's memory was changed in place; 0 for an inference tensor, of which torch keeps no count."""
    return 0 if tensor.is_inference() else tensor._version


def forget_workspaces() -> None:
    """Give back the memory that products of matrices on CUDA keep from call to call."""
    torch._C._cuda_clearCublasWorkspaces()


def is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor has an axis that ``torch.func.vmap`` hides."""
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def no_modes() -> AbstractContextManager[Any]:
    """While this is active, no ``TorchFunctionMode`` is."""
    return torch._C.DisableTorchFunction()


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies matrices in bfloat16, other than by emulation."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def own_tensors(module: nn.Module, name: str) -> dict[str, Any]:
    """The dictionary of a module that holds its parameter or buffer of that name; what is put in takes its place."""
    return module._parameters if name in module._parameters else module._buffers
