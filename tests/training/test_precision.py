"""What a run's precision has torch do on a GPU, which need not be there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hetfl.training.federation import set_precision

GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(autouse=True)
def torchs_own() -> Iterator[None]:
    """Torch's defaults, before and after."""
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = own = True, False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = own


@pytest.mark.parametrize(
    ("wanted", "lowered", "used"),
    [
        ("float32", False, "float32"),
        ("tf32", False, "tf32"),
        ("auto", False, "tf32"),
        ("auto", True, "bfloat16"),
        ("bfloat16", True, "bfloat16"),
        ("bfloat16", False, "tf32"),
    ],
)
def test_a_gpu_rounds_all_products_or_none(wanted, lowered, used):
    """Torch's defaults round convolutions alone, so that "float32" would say too much."""
    assert set_precision(wanted, lowered, GPU) == used
    rounds = used != "float32"
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (rounds, rounds)


def test_a_cpu_rounds_nothing():
    for wanted in ("float32", "tf32", "auto", "bfloat16"):
        assert set_precision(wanted, False, CPU) == "float32"
    assert set_precision("auto", True, CPU) == "bfloat16"
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (True, False)
