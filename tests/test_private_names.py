"""Private names of torch and timm: that they are there, do what is said, and stand behind one module each."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import hetfl
from hetfl import torch_private
from hetfl.models import parts

ROOT = Path(hetfl.__file__).parent
PRIVATE = {
    "torch_private.py": (
        r"\btorch(\.\w+)*\._[a-z]|\._(foreach_|(version|cdata|BatchNorm|parameters|buffers|modules)\b)"
    ),
    "models/parts.py": r"\btimm(\.\w+)*\._[a-z]|\._pos_embed\b",
}
"""The module that may use what a pattern finds."""


def added():
    tensors = [torch.ones(2), torch.ones(3)]
    torch_private.add_to_all(tensors, [torch.ones(2), torch.full((3,), 2.0)], alpha=-0.5)
    return [tensor.tolist() for tensor in tensors] == [[0.5, 0.5], [0.0, 0.0, 0.0]]


def copied():
    tensors = [torch.ones(2), torch.ones(3)]
    torch_private.copy_to_all(tensors, [torch.zeros(2), torch.full((3,), 2.0)])
    return [tensor.tolist() for tensor in tensors] == [[0.0, 0.0], [2.0, 2.0, 2.0]]


def counted():
    tensor = torch.zeros(3)
    tensor.detach()[1:].add_(1)
    with torch.inference_mode():
        inference = torch.zeros(3).add_(1)
    return [torch_private.changes(each) for each in (tensor, tensor.clone(), inference)] == [1, 0, 0]


def mapped():
    seen = []
    torch.func.vmap(lambda x: seen.append(torch_private.is_mapped(x)) or x)(torch.ones(2, 3))
    return seen == [True] and not torch_private.is_mapped(torch.ones(2))


def without_modes():
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode(), torch_private.no_modes():
        torch.ones(1) + 1
    return not seen


def replaced():
    layer = nn.BatchNorm1d(2).eval()
    torch_private.own_tensors(layer, "weight")["weight"] = torch.full((2,), 3.0)
    torch_private.own_tensors(layer, "running_mean")["running_mean"] = torch.ones(2)
    return torch.allclose(layer(torch.ones(1, 2)), torch.zeros(1, 2))


def embedded():
    body = parts.part("timm.models.vision_transformer").VisionTransformer(
        img_size=16, patch_size=8, embed_dim=6, depth=1, num_heads=2, num_classes=0
    )
    return parts.embed_positions(body, torch.zeros(3, 4, 6)).shape == (3, 5, 6)


NAMES = {
    "torch._foreach_add_": added,
    "torch._foreach_copy_": copied,
    "Tensor._version": counted,
    "torch._C._cuda_clearCublasWorkspaces": lambda: callable(torch._C._cuda_clearCublasWorkspaces),
    "torch._C._functorch.is_batchedtensor": mapped,
    "torch._C.DisableTorchFunction": without_modes,
    "torch.cpu._is_amx_tile_supported, torch.cpu._is_avx512_bf16_supported": (
        lambda: torch_private.multiplies_bfloat16(torch.device("cpu")) in (True, False)
    ),
    "nn.Module._parameters, nn.Module._buffers": replaced,
    "timm's VisionTransformer._pos_embed": embedded,
    "timm.models._registry": lambda: parts.timm_registry().get_pretrained_cfg("resnet18.tv_in1k").input_size[0] == 3,
    "timm.models._factory": lambda: parts.timm_model("resnet18").num_features == 512,
}


@pytest.mark.parametrize("name", NAMES)
def test_private_name_does_what_it_is_used_for(name):
    versions = f"torch {torch.__version__}, timm {version('timm')}"
    try:
        works = NAMES[name]()
    except AttributeError as error:
        pytest.fail(f"{versions}: {name} is gone ({error}); use what took its place, and say so in the docstring")
    assert works, f"{versions}: {name} does something else"


@pytest.mark.parametrize("module", PRIVATE)
def test_private_names_stand_in_one_module(module):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(ROOT.rglob("*.py"))
        if path != ROOT / module
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(PRIVATE[module], line)
    ]
    assert found == []
