"""Parameter counts of FedHPL's tables, from models on the meta device."""

from __future__ import annotations

from functools import cache

import pytest

from hetfl.data.inputs import InputSettings
from hetfl.models import Model, ModelOptions, build
from hetfl.models.fitting import on_meta
from hetfl.models.outline import outline

K, M = 1024, 1024**2
"""FedHPL's units: elements, not bytes."""
CLASSES = (10, 100)
RESNETS = ("resnet18", "resnet34", "resnet50")

POOLED = {"embedding": 512, "reduce": "pool"}
TABLE_7_OPTIONS = {
    "FedGen": POOLED,
    "FedGH": {"stem": "cifar", "embedding": 512},
    "FedProto": {"embedding": 512, "flat": 2048},
    "FedTGP": POOLED,
    "FedMD": {"stem": "cifar", "extra_outputs": 10},
    "FedHE": {"stem": "cifar"},
}
TABLE_7_M = {
    "FedGen": ((10.664, 20.304, 22.424), (10.708, 20.348, 22.468)),
    "FedGH": ((10.907, 20.547, 23.417), (10.951, 20.591, 23.461)),
    "FedProto": ((11.664, 21.304, 23.424), (11.708, 21.348, 23.468)),
    "FedTGP": ((10.664, 20.304, 22.424), (10.708, 20.348, 22.468)),
    "FedMD": ((10.661, 20.301, 22.451), (10.705, 20.345, 22.627)),
    "FedHE": ((10.656, 20.296, 22.431), (10.700, 20.340, 22.607)),
    "FedHPL_32": ((10.665, 20.305, 22.440), (10.709, 20.349, 22.616)),
    "FedHPL_224": ((10.671, 20.311, 22.446), (10.715, 20.355, 22.622)),
}
TABLE_8_HEAD_K = {10: (5.01, 5.01, 20.01), 100: (50.10, 50.10, 200.10)}
TABLE_8_SUM_K = {
    (32, 10): (6.24, 6.24, 21.24),
    (224, 10): (12.99, 12.99, 27.99),
    (32, 100): (51.33, 51.33, 201.33),
    (224, 100): (58.08, 58.08, 208.08),
}
GENERATOR = 531_456
PROTOTYPE_GENERATOR = 530_432
TABLE_2_M = {
    "FedGen": (84.867, GENERATOR),
    "FedGH": (86.325, 0),
    "FedProto": (89.360, 0),
    "FedTGP": (84.866, PROTOTYPE_GENERATOR),
    "FedMD": (84.375, 0),
    "FedHE": (84.335, 0),
}


@cache
def resnet(size: str, classes: int, method: str) -> Model:
    if method in TABLE_7_OPTIONS:
        options = ModelOptions(body="trained", weights="scratch", **TABLE_7_OPTIONS[method])
        inputs = InputSettings(size=32)
    else:
        options = ModelOptions(prompts="frame", prompt_length=3, weights="scratch")
        inputs = InputSettings(size=int(method.removeprefix("FedHPL_")))
    return outline(f"{size}.tv_in1k", classes, options, inputs)


@pytest.mark.parametrize("method", TABLE_7_M)
def test_table_7_entire_models(method: str):
    for classes, printed in zip(CLASSES, TABLE_7_M[method], strict=True):
        models = [resnet(size, classes, method) for size in RESNETS]
        assert tuple(round(model.total_elements / M, 3) for model in models) == printed
        if method in TABLE_7_OPTIONS:
            assert all(model.elements(tuple(model.groups)) == model.total_elements for model in models)


@pytest.mark.parametrize("method", TABLE_2_M)
def test_table_2_sums_over_the_clients(method: str):
    printed, server = TABLE_2_M[method]
    # The paper adds up what its Table 7 has rounded.
    clients = [round(resnet(size, 10, method).total_elements / M, 3) for size in RESNETS]
    assert round(2 * clients[0] + 2 * clients[1] + clients[2] + round(server / M, 3), 3) == printed


@pytest.mark.parametrize(("size", "classes"), TABLE_8_SUM_K)
def test_table_8_trained_elements(size: int, classes: int):
    models = [resnet(name, classes, f"FedHPL_{size}") for name in RESNETS]
    sides, ends = (models[0]._module.get_parameter(name) for name in models[0].names(["prompts"]))
    assert (sides.numel(), ends.numel()) == {32: (576, 684), 224: (4032, 4140)}[size]
    assert tuple(round(model.elements(["head"]) / K, 2) for model in models) == TABLE_8_HEAD_K[classes]
    trained = [model.elements(tuple(model.groups)) for model in models]
    assert tuple(round(count / K, 2) for count in trained) == TABLE_8_SUM_K[size, classes]
    if (size, classes) == (224, 10):
        assert round((2 * trained[0] + 2 * trained[1] + trained[2]) / M, 3) == 0.078


def test_bodies_differ_by_their_stem():
    imagenet = [resnet(size, 10, "FedGen").elements(["body"]) for size in RESNETS]
    cifar = [resnet(size, 10, "FedHE").elements(["body"]) for size in RESNETS]
    assert imagenet == [11_176_512, 21_284_672, 23_508_032]
    assert cifar == [count - 7680 for count in imagenet]


def test_widths_are_those_of_table_4():
    assert [resnet(size, 10, "FedHPL_224").width for size in RESNETS] == [512, 512, 2048]
    assert [resnet(size, 10, "FedGH").width for size in RESNETS] == [512, 512, 512]


@pytest.mark.parametrize(("classes", "vit", "both"), [(10, 1_076_106, 1.028), (100, 1_087_716, 1.039)])
def test_table_5_pfedpt(classes: int, vit: int, both: float):
    options = ModelOptions(prompts="border", prompt_length=4, body="trained", weights="scratch")
    with on_meta():
        model = build("pfedpt_vit", classes, options)
    assert model.elements(["body", "head"]) == vit
    assert model.elements(["prompts"]) / K == 1.3125
    assert round(model.total_elements / M, 3) == both


@pytest.mark.parametrize(("size", "width", "elements"), [("small", 384, 21_665_664), ("base", 768, 85_798_656)])
def test_moco_models_count_as_the_supervised_ones(size: str, width: int, elements: int):
    with on_meta():
        model = build(f"mocov3_vit_{size}", 10, ModelOptions(weights="scratch"))
    assert (model.width, model.total_elements - model.elements(["head"])) == (width, elements)
