"""What a run's precision has torch do on a GPU, which need not be there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from playing import run
from toy import LOCAL_ENGINES

from hetfl.methods.fedavg import FedAvg
from hetfl.models import build
from hetfl.models.base import ModelOptions
from hetfl.training.engines import make_engine
from hetfl.training.federation import set_precision

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture(params=[(False, True), (True, True)], autouse=True)
def before(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    """Torch's defaults, or what somebody else has chosen; nothing may change it for good."""
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = request.param
    yield request.param
    found = flags()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    assert found == request.param


@pytest.mark.parametrize(
    ("wanted", "frozen", "used"),
    [
        ("float32", True, "float32"),
        ("tf32", True, "tf32"),
        ("auto", False, "tf32"),
        ("auto", True, "bfloat16"),
        ("bfloat16", True, "bfloat16"),
        ("bfloat16", False, "tf32"),
    ],
)
def test_a_gpu_rounds_all_products_of_a_model_or_none(wanted, frozen, used, weights, monkeypatch):
    """Torch's defaults round convolutions alone, so that "float32" would say too much."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    name = "digits_vit_base" if frozen else "digits_resnet_small"
    options = ModelOptions(prompts="shallow") if frozen else ModelOptions(body="trained")
    model = build(name, 3, options, weights)
    assert set_precision([model], wanted, GPU) == used
    rounds = used != "float32"
    assert model.rounded == rounds
    seen = []
    monkeypatch.setattr(model, "_module", lambda images: seen.append(flags()))
    model(dict.fromkeys(model.names([*model.groups])), torch.zeros(1))
    assert seen == [(rounds, rounds)]


def test_a_gpu_without_bfloat16_does_not_emulate_it(weights, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    model = build("digits_vit_base", 3, ModelOptions(prompts="shallow"), weights)
    assert set_precision([model], "auto", GPU) == "tf32"


def test_a_cpu_rounds_nothing(weights):
    for wanted in ("float32", "tf32", "auto"):
        model = build("digits_vit_base", 3, ModelOptions(), weights)
        assert set_precision([model], wanted, CPU) == "float32" and model.rounded is None
    assert set_precision([model], "bfloat16", CPU) == "bfloat16" and model.rounded is None


@pytest.mark.parametrize("engine", LOCAL_ENGINES)
def test_only_passes_of_models_are_rounded(engine, toy_engine, monkeypatch, before):
    """Not what clients and server make of the results."""
    played, seen = toy_engine("fedavg"), {}

    def note(name: str) -> None:
        function = getattr(FedAvg, name)

        def noted(*given):
            seen.setdefault(name, set()).add(flags())
            return function(*given)

        monkeypatch.setattr(FedAvg, name, noted)

    for name in ("adopt", "uplink", "aggregate", "objective"):
        note(name)
    monkeypatch.setattr(played.models[0], "rounded", True)
    run(make_engine(played.method, played.federation, engine))
    trained = seen.pop("objective")
    assert (True, True) in trained and trained <= {(True, True), before}  # the batched engine measures memory first
    assert seen == {"adopt": {before}, "uplink": {before}, "aggregate": {before}}


def test_features_that_samples_are_sorted_by_are_not_rounded(weights, monkeypatch):
    model = build("digits_vit_base", 3, ModelOptions(), weights)
    set_precision([model], "tf32", GPU)
    seen = []
    monkeypatch.setattr(type(model._module), "query", lambda *given: seen.append(flags()))
    model.query(torch.zeros(1))
    assert seen == [(False, False)]
