"""A finished run, loaded without its data, says of test images what the run's record says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from record_factory import make_run
from test_pages import shown

import hetfl
from hetfl.data.inputs import InputSettings
from hetfl.data.store import Dataset
from hetfl.draws import Draws
from hetfl.errors import HetflError
from hetfl.experiments import loading
from hetfl.experiments.cell import run_rounds
from hetfl.experiments.record import Record
from hetfl.methods import METHODS
from hetfl.models.registry import weights_checksum
from hetfl.schema import ClassCounts, Inputs, Run, read_rounds
from hetfl.training.state import ResumePoints

CLASSES = {"toy": ("a", "b", "c"), "public": ("x", "y")}
RUN = Path("runs/toy/method/row/iid-s0")
Train = Callable[..., Path]


@pytest.fixture
def trained(toy_engine, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Trains one round on the toy federation; returns the folder of the run."""
    monkeypatch.setattr(loading, "entry", lambda name, where="": SimpleNamespace(class_names=CLASSES[name]))

    def train(method: str, group: str = "homogeneous", **changes) -> Path:
        engine = toy_engine(method, group, rounds=1)
        clients = engine.federation.clients
        told = dict(
            fingerprint="f",
            device="cpu",
            method=method,
            dataset="toy",
            models=[client.model.name for client in clients],
            settings=engine.method.settings.model_dump(mode="json"),
            rounds=1,
            clients=len(clients),
            seed=0,
            input=InputSettings().model_dump(),
            public={"dataset": "public", "subset": "train"} if engine.method.public else None,
            class_counts=ClassCounts(train=[client.class_counts.tolist() for client in clients], test=[[10] * 3] * 3),
            precision="float32",
            numerics={},
            inputs=Inputs(
                dataset="d",
                partition="p",
                weights={client.model.name: weights_checksum(client.model.name, weights) for client in clients},
            ),
        )
        run: Run = make_run(**(told | changes))
        folder = tmp_path / RUN
        with ResumePoints(tmp_path / "resume") as resume:
            run_rounds(engine, Draws(0), Record(folder), resume, run)
        (tmp_path / "weights").symlink_to(weights)
        return folder

    return train


@pytest.mark.parametrize("method", sorted(METHODS))
def test_predictions_have_the_records_accuracy(trained: Train, toy_data: Dataset, method: str) -> None:
    folder = trained(method, "two vits" if METHODS[method].heterogeneous else "homogeneous")
    loaded, test = hetfl.load(folder), toy_data.subset("test")
    assert loaded.class_names == CLASSES["toy"] and len(loaded.models) == 3
    recorded = read_rounds(folder, finished=True)[-1].accuracy
    for client in range(3):
        found = loaded.predict(test.images, client)
        assert float(np.mean(found.labels == test.labels)) == recorded[client]
        assert [name for name, label in zip(found.names, test.labels, strict=True) if name == "abc"[label]] == [
            name for name, right in zip(found.names, found.labels == test.labels, strict=True) if right
        ]
        scored = np.isfinite(found.scores).any(axis=1)
        assert np.allclose(found.probabilities[scored].sum(axis=1), 1)
    default, own = loaded.predict(test.images[:7]), loaded.predict(test.images[:7], 0)
    assert np.array_equal(default.scores, own.scores)
    if loaded.has_global:
        assert np.array_equal(default.scores, loaded.predict(test.images[:7], 2).scores)
    images = torch.from_numpy(test.images).permute(0, 3, 1, 2)
    scores = loaded.module(1)(images)
    assert np.allclose(scores.numpy(), loaded.predict(test.images, 1).scores, rtol=1e-3, atol=1e-4)


def test_which_methods_have_a_global_model(trained: Train, tmp_path: Path) -> None:
    assert hetfl.load(trained("pt-fedavg")).has_global
    (tmp_path / "weights").unlink()
    assert not hetfl.load(trained("fedhpl")).has_global


@pytest.mark.parametrize("method", ["fedavg", "fgpt"])
def test_a_module_becomes_a_program_of_its_own(trained: Train, toy_data: Dataset, method: str) -> None:
    loaded, images = hetfl.load(trained(method)), torch.from_numpy(toy_data.subset("test").images).permute(0, 3, 1, 2)
    module = loaded.module()
    several = torch.export.Dim("images", min=2)
    program = torch.export.export(module, (images[:3],), dynamic_shapes=({0: several},))
    assert torch.allclose(program.module()(images), module(images), rtol=1e-3, atol=1e-4)
    assert module.class_names == CLASSES["toy"]


def test_images_may_come_in_any_form(trained: Train, toy_data: Dataset) -> None:
    loaded, images = hetfl.load(trained("fedhpl")), toy_data.subset("test").images[:4]
    expected = loaded.predict(images)
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
    forms = [
        tensor,
        tensor.float() / 255,
        [*images],
        [image[..., 0] for image in images],
        [Image.fromarray(image[..., 0]) for image in images],
        [Image.fromarray(image[..., 0]).convert("RGB") for image in images],
        [images[0], tensor[1], images[2:4]],
    ]
    for form in forms:
        assert np.array_equal(loaded.predict(form).scores, expected.scores)
    for one in (images[0], images[0, :, :, 0], tensor[0], Image.fromarray(images[0, :, :, 0])):
        assert np.allclose(loaded.predict(one).scores, expected.scores[:1], atol=1e-5)
    # Of other sizes: resized as test images would be, each on its own.
    large = np.kron(images[0, :, :, 0], np.ones((4, 4), np.uint8))
    both = loaded.predict([images[1], large])
    assert both.names[0] == expected.names[1] and len(both.names) == 2
    assert loaded.predict(large[:, :24]).scores.shape == (1, 3)
    assert loaded.predict([]).names == [] and loaded.predict(images[:0]).scores.shape == (0, 3)


def test_mistakes_are_one_line(trained: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained("fedhpl")
    loaded, image = hetfl.load(folder), np.zeros((8, 8), np.uint8)
    wrong = {
        "client: is 3, the run has clients 0 to 2": (image, 3),
        "images: are float64; give uint8 arrays": (image / 255, 0),
        "images: are str; give uint8 arrays": ("cat.png", 0),
        r"images: have the shape \[8, 8, 2\]": (np.zeros((8, 8, 2), np.uint8), 0),
        r"images: have the shape \[8\]; tensors are": (torch.zeros(8), 0),
        "images: are floats beyond": (torch.full((1, 8, 8), 2.0), 0),
    }
    if loaded.models[0].spec.channels == 1:
        wrong["images: are in colour, the model takes grey ones"] = (np.zeros((8, 8, 3), np.uint8), 0)
    for message, (images, client) in wrong.items():
        with pytest.raises(HetflError, match=f"^{message}"):
            loaded.predict(images, client)
    with pytest.raises(HetflError, match=r"has no run.json; name the folder of a trained cell, runs/"):
        hetfl.load(tmp_path)
    # A copied run may lie in fewer folders than a project's.
    assert loading.beside_runs(Path("/copies/run")) == Path("/weights")
    with pytest.raises(HetflError, match="the file is missing|weights of digits_vit_base|does not exist"):
        hetfl.load(folder, weights=tmp_path / "nowhere")
    monkeypatch.setattr(loading, "weights_checksum", lambda *_: "other")
    with pytest.raises(HetflError, match="weights of digits_vit_base are not those that"):
        hetfl.load(folder)


def test_an_unfinished_run_and_one_of_other_versions_say_so(trained: Train, tmp_path: Path) -> None:
    folder = trained("fedavg", numerics={"engine": 0})
    with pytest.warns(UserWarning, match="is of engine 0, the code is 1"):
        hetfl.load(folder)
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"complete"', '"running"'))
    with pytest.raises(HetflError, match="training is not complete; run hetfl train"), warnings.catch_warnings():
        hetfl.load(folder)


def test_importing_hetfl_loads_nothing() -> None:
    program = "import hetfl, sys; assert 'torch' not in sys.modules and 'load' in hetfl.__all__"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_documentations_lines_run(
    trained: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    (code,) = shown("experiment.md", "python")
    named = tmp_path / re.search(r'load\("(.*?)"\)', code)[1]
    shutil.copytree(trained("fedavg"), named)
    record = named / "run.json"
    content = json.loads(record.read_text())
    content["models"] = content["models"] + content["models"][:1]
    content["class_counts"]["train"] += content["class_counts"]["train"][:1]
    record.write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("digit.png")
    exec(compile(code, "experiment.md", "exec"), {"__name__": "page"})
    assert re.fullmatch(r"\['[abc]'\] \[0?\.\d+\]\n", capsys.readouterr().out)
