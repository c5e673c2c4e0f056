"""What every run goes through, augmentations, evaluation and pre-training, recorded with their versions."""

from __future__ import annotations

import itertools
import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from golden_numbers import FOLDER, check, figures, recording, unmoved
from playing import play_round, start
from record_factory import make_round

from hetfl.data.batches import DeviceImages, InputSpec, class_counts, class_sums
from hetfl.data.corruptions import CORRUPTIONS
from hetfl.data.inputs import Augmentation, InputSettings
from hetfl.data.partitions import Scheme
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.experiments import evaluation
from hetfl.experiments.plan import PretrainSettings
from hetfl.experiments.versions import ENGINE, EVALUATION, MODELS, PRETRAINING, lineage
from hetfl.methods import METHODS
from hetfl.methods.base import weighted_mean
from hetfl.metrics.accuracy import best_round, summary
from hetfl.optimisers import SGD, Adam, Optimiser
from hetfl.tensors import read_tensors
from hetfl.training.pretrain import pretrain
from hetfl.training.sampling import participants

CPU = torch.device("cpu")
OPTIMISERS: dict[type[Optimiser], list[dict[str, Any]]] = {
    SGD: [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.1}],
    Adam: [{}, {"weight_decay": 0.1}, {"fused": False}],
}
CHANGED: dict[str, Any] = {"flip": True, "rotation": 30.0, "noise": 0.1}
"""Of each augmentation a value that is not its default."""
SPECS = {
    "stored": InputSpec(8, "bilinear", (0.5,), (0.5,)),
    "larger, bilinear": InputSpec(13, "bilinear", (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)),
    "larger, bicubic": InputSpec(13, "bicubic", (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)),
    "smaller, bicubic": InputSpec(5, "bicubic", (0.5,), (0.25,)),
}


def steps(kind: type[Optimiser], **settings: Any) -> list[float]:
    """Where three leaves are after three steps."""
    generator = torch.Generator().manual_seed(2)
    leaves = [torch.randn(shape, generator=generator).requires_grad_() for shape in ((3, 4), (5,), (2, 2))]
    optimiser = kind(leaves, lr=0.1, **settings)
    for _ in range(3):
        for leaf in leaves:
            leaf.grad = torch.randn(leaf.shape, generator=generator)
        optimiser.step()
    return figures(leaves)


def drawn() -> dict[str, Any]:
    """Keys and draws; who takes part."""
    draws = Draws(3).at(2)
    return {
        "key": str(draws.key("batches", 4, 1)),
        "torch": torch.rand(4, generator=draws.generator("x", 1)).tolist(),
        "numpy": draws.numpy_generator("x", 1).random(4).tolist(),
        "order": torch.randperm(9, generator=draws.generator("order", 2, 1)).tolist(),
        "participants": [participants(20, share, draws) for share in (0.05, 0.3, 1.0)],
    }


def shared_formulas() -> dict[str, Any]:
    """What methods compute by the same functions."""
    generator = torch.Generator().manual_seed(1)
    values, labels = torch.randn(7, 3, generator=generator), torch.tensor([0, 2, 2, 1, 0, 2, 4])
    messages = [{"w": torch.randn(4, generator=generator)} for _ in range(3)]
    return {
        "class sums": figures([class_sums(values, labels, 5), class_counts(labels, 5)]),
        "weighted mean": figures(weighted_mean(messages, torch.tensor([1, 2, 5])).values()),
    }


@pytest.mark.golden
def test_golden_engine(toy_data: Dataset, in_float64, request):
    found: dict[str, Any] = {"draws": drawn(), **shared_formulas()}
    for kind, cases in OPTIMISERS.items():
        found |= {f"{kind.__name__} {json.dumps(case)}": steps(kind, **case) for case in cases}
    for name, spec in SPECS.items():
        images = DeviceImages([toy_data.subset("train")], spec, CPU, torch.float64)
        batches = images.batches(torch.arange(50), 16)
        found[f"images {name}"] = figures(batch.images for batch in batches)
    defaults = InputSettings().model_dump(mode="json", exclude={"augment"})
    found |= {f"input.{name}": value for name, value in defaults.items()}
    check("engine", {"engine": ENGINE}, found, "ENGINE (experiments/versions.py)", request)


def test_every_optimiser_has_its_vector():
    assert set(OPTIMISERS) == set(Optimiser.__subclasses__())


@pytest.mark.golden
def test_golden_augmentation(toy_data: Dataset, in_float64, request):
    defaults = Augmentation().model_dump(mode="json")
    assert CHANGED.keys() == defaults.keys(), "give every augmentation a vector here"
    images = torch.from_numpy(toy_data.subset("train").images[:20]).permute(0, 3, 1, 2) / 255
    found: dict[str, Any] = {f"settings.{name}": value for name, value in defaults.items()}
    for several in (*((name,) for name in CHANGED), tuple(CHANGED)):
        augment = Augmentation(**{name: CHANGED[name] for name in several})
        found[" and ".join(several)] = figures([augment(images, torch.Generator().manual_seed(5))])
    raises = "`numerics` of Augmentation (data/inputs.py)"
    check("augmentation", {"Augmentation": Augmentation.numerics}, found, raises, request)


@pytest.mark.golden
def test_golden_evaluation(exact_engine, request):
    versions, found = {"engine": ENGINE, "evaluation": EVALUATION}, {}
    for method in ("fedproto", "fgpt"):
        engine = exact_engine(method)
        state, line = start(engine, Draws(0))
        lines = []
        for round in (1, 2):
            state, line = play_round(engine, state, Draws(0).at(round))
            lines.append(line)
        matrices = evaluation.confusions(engine, state, Draws(0).at(2))
        sorted_by = evaluation.groups(engine, state, Draws(0))
        shown = evaluation.representations(engine, state, Draws(0), 20)
        found |= {
            f"{method} confusions": matrices.tolist(),
            f"{method} summary": summary(matrices),
            f"{method} best": best_round(lines),
            f"{method} window": evaluation.of_window(lines, {"window": 2}),
            f"{method} groups": evaluation.of_groups(sorted_by, {"groups": 3}),
            f"{method} sorted": {name: figures([tensor]) for name, tensor in sorted_by.items()},
            # Stored in float32.
            f"{method} representations": {
                name: [float(f"{x:.4g}") for x in figures([tensor])] for name, tensor in shown.items()
            },
        }
        versions |= lineage(METHODS[method])
    # Clients of whom each has another accuracy, and one no test sample.
    made = np.array(
        [[[4, 1, 0], [2, 3, 1], [0, 0, 5]], [[1, 2, 0], [0, 0, 0], [3, 1, 1]], np.zeros((3, 3))], np.int64
    )
    tests = {1: [0.2, 0.9, None], 2: [0.8, 0.5, None], 3: None, 4: [0.6, 0.4, None]}
    lines = [
        make_round(number, accuracy=test, pooled=test and (test[0] * 2 + test[1]) / 3, extra={})
        for number, test in tests.items()
    ]
    found |= {
        "made summary": summary(made),
        "made best": best_round(lines),
        "made window": evaluation.of_window(lines, {"window": 3}),
    }
    versions |= lineage(MODELS["vit"]) | lineage(MODELS["grouped-vit"])
    check("evaluation", versions, found, "EVALUATION (experiments/versions.py)", request)


@pytest.mark.golden
def test_golden_pretraining(toy_data: Dataset, in_float64, tmp_path, monkeypatch, request):
    images = partial(DeviceImages, dtype=torch.float64)
    monkeypatch.setattr("hetfl.training.pretrain.DeviceImages", images)
    settings = PretrainSettings(
        dataset="toy", subset="train", models=["digits_vit_small"], epochs=2, batch_size=16, lr=0.01, weight_decay=0.1
    )
    found: dict[str, Any] = {}
    for model in ("digits_vit_small", "digits_resnet_small"):
        accuracy = pretrain(model, settings, toy_data, tmp_path, CPU)
        weights = read_tensors(tmp_path / f"{model}.safetensors")[0]
        found[model] = [accuracy, *figures(weights.values())]
    versions = {"engine": ENGINE, "pretraining": PRETRAINING, **lineage(MODELS["vit"]), **lineage(MODELS["resnet"])}
    check("pretraining", versions, found, "PRETRAINING (experiments/versions.py)", request)


def test_what_has_a_version_has_golden_numbers_and_the_rest_has_none():
    wanted = {*METHODS, *(f"model-{name}" for name in MODELS)}
    wanted |= {"engine", "augmentation", "evaluation", "pretraining"}
    there = {path.stem for path in FOLDER.glob("*.json")}
    assert there <= wanted, f"delete {', '.join(sorted(there - wanted))} in tests/golden: nothing has these names"
    for name in sorted(METHODS.keys() - there):
        pytest.fail(
            f"{name}: has no golden numbers; type: {recording(f'tests/methods/test_golden.py::test_golden[{name}]')}",
            pytrace=False,
        )
    assert there == wanted
    for cls in (*METHODS.values(), *MODELS.values()):
        assert type(cls.__dict__.get("numerics")) is int, f"{cls.__name__}: declare numerics = 1 in the class"
    # A run knows the checksums of what these made.
    schemes = {scheme for scheme in itertools.chain(*map(descendants, [Scheme]))}
    assert len(schemes) > 5
    assert not [made for made in (*schemes, *CORRUPTIONS.values()) if hasattr(made, "numerics")]


def descendants(cls: type) -> list[type]:
    return [found for child in cls.__subclasses__() for found in (child, *descendants(child))]


def test_whatever_was_raised_moved_some_number():
    files = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    assert unmoved(files) == [], "raised, but no recorded number changed; lower it, or record a case that shows why"
