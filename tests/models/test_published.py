"""Checkpoints of others: MoCo-v3 in three formats, timm's architectures, and files that are no such thing."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from hetfl.cli import app
from hetfl.draws import Draws, seeded_library_code
from hetfl.errors import HetflError
from hetfl.files import sha256_file
from hetfl.models import ModelOptions, build, registry
from hetfl.models.parts import part, timm_registry
from hetfl.models.registry import convert_weights, creator, fetch_weights, load_weights, weights_path
from hetfl.tensors import read_tensors, write_tensors

NAME = "mocov3_vit_small"


@pytest.fixture
def backbone(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A MoCo-v3 transformer, narrow so that its files are small."""
    monkeypatch.setitem(registry.OWN_VITS, NAME, {"embed_dim": 24, "depth": 2, "num_heads": 12})
    with seeded_library_code(1):
        body = creator(NAME)().eval()
        for parameter in body.parameters():
            nn.init.normal_(parameter, std=0.1)
    return body


def pretraining(state: dict[str, Tensor]) -> dict[str, Any]:
    momentum = {f"module.momentum_encoder.{key}": value + 1 for key, value in state.items()}
    base = {f"module.base_encoder.{key}": value for key, value in state.items()}
    heads = {"module.base_encoder.head.0.weight": torch.ones(2, 2), "module.predictor.0.weight": torch.ones(2, 2)}
    return {"epoch": 300, "arch": "vit_small", "state_dict": momentum | base | heads, "optimizer": {"state": {}}}


def linear_probe(state: dict[str, Tensor]) -> dict[str, Any]:
    head = {"module.head.weight": torch.ones(5, 24), "module.head.bias": torch.ones(5)}
    return {"epoch": 90, "state_dict": {f"module.{key}": value for key, value in state.items()} | head}


def openmmlab(state: dict[str, Tensor]) -> dict[str, Any]:
    names = {"patch_embed.proj": "patch_embed.projection", "norm.weight": "ln1.weight", "norm.bias": "ln1.bias"}
    names |= {"mlp.fc1": "ffn.layers.0.0", "mlp.fc2": "ffn.layers.1", ".norm1": ".ln1", ".norm2": ".ln2"}
    names |= {"blocks.": "layers."}
    theirs = {}
    for key, value in state.items():
        for ours, other in names.items():
            key = key.replace(ours, other) if key.startswith(ours) or not ours.startswith("norm.") else key
        theirs[f"backbone.{key}"] = value
    return {
        "meta": {},
        "state_dict": theirs | {"neck.fc0.weight": torch.ones(2), "data_preprocessor.mean": torch.ones(3)},
    }


@pytest.mark.parametrize("publish", [pretraining, linear_probe, openmmlab])
def test_moco_checkpoints_of_three_formats(publish: Any, backbone: nn.Module, tmp_path: Path):
    source = tmp_path / "published.pth.tar"
    torch.save(publish(backbone.state_dict()), source)
    path = convert_weights(NAME, source, tmp_path / "weights")
    assert path == weights_path(NAME, tmp_path / "weights")
    expected = {"model": NAME, "source": source.name, "source_sha256": sha256_file(source)}
    assert read_tensors(path)[1] == expected
    model = build(NAME, 3, ModelOptions(), tmp_path / "weights")
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = backbone(images)
    assert torch.allclose(model(model.init(Draws(0), 0), images).features, features, atol=1e-5)


def test_mmpretrains_names_are_those_written_down():
    state = {
        "blocks.3.mlp.fc1.bias": torch.ones(1),
        "blocks.3.norm2.bias": torch.ones(1),
        "norm.weight": torch.ones(1),
    }
    written = set(openmmlab(state)["state_dict"])
    assert written >= {"backbone.layers.3.ffn.layers.0.0.bias", "backbone.layers.3.ln2.bias", "backbone.ln1.weight"}


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.marker),)


def test_files_that_are_no_checkpoint(backbone: nn.Module, tmp_path: Path):
    good = linear_probe(backbone.state_dict())
    lacking = {key: value for key, value in good["state_dict"].items() if "pos_embed" not in key}
    wider = good["state_dict"] | {"module.cls_token": torch.zeros(1, 1, 25)}
    deeper = good["state_dict"] | {"module.blocks.2.norm1.weight": torch.zeros(24)}
    files: dict[str, tuple[Any, str]] = {
        "list.pth": ([1, 2], "holds a list instead of a state dict"),
        "empty.pth": ({}, "lacks blocks.0.attn.proj.bias"),
        "lacking.pth": ({"state_dict": lacking}, r"lacks pos_embed; give a checkpoint of this architecture"),
        "wider.pth": ({"state_dict": wider}, r"cls_token is \[1, 1, 25\] instead of \[1, 1, 24\]"),
        "deeper.pth": ({"state_dict": deeper}, r"has blocks.2.norm1.weight beside the backbone"),
        "object.pth": (nn.Linear(1, 1), "is not a checkpoint of tensors"),
    }
    for name, (content, message) in files.items():
        torch.save(content, tmp_path / name)
        with pytest.raises(HetflError, match=message) as caught:
            convert_weights(NAME, tmp_path / name, tmp_path / "weights")
        assert "\n" not in str(caught.value) and name in str(caught.value)
    marker = tmp_path / "executed"
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Malicious(marker), protocol=2))
    (tmp_path / "text.pth.tar").write_text("<html>not found</html>")
    (tmp_path / "text.safetensors").write_text("<html>not found</html>")
    for name in ("evil.pth", "text.pth.tar", "text.safetensors", "absent.pth"):
        with pytest.raises(HetflError, match=name) as caught:
            convert_weights(NAME, tmp_path / name, tmp_path / "weights")
        assert "\n" not in str(caught.value)
    assert not marker.exists() and not (tmp_path / "weights").exists()


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_state_dicts_of_timms_architectures(suffix: str, tmp_path: Path):
    timm_registry()
    made = part("timm.models._factory").create_model("resnet18", pretrained=False, num_classes=4)
    source = tmp_path / f"resnet18.{suffix}"
    if suffix == "pth":
        torch.save(made.state_dict(), source)
    else:
        write_tensors(source, made.state_dict())
    convert_weights("resnet18.tv_in1k", source, tmp_path)
    loaded = load_weights("resnet18.tv_in1k", tmp_path)
    assert not any(key.startswith("fc") or key.endswith("num_batches_tracked") for key in loaded)
    assert all(torch.equal(value, made.state_dict()[key]) for key, value in loaded.items())
    assert build("resnet18.tv_in1k", 3, ModelOptions(prompts="frame"), tmp_path).width == 512


def test_the_command_converts_or_says_what_to_fetch(backbone: nn.Module, tmp_path: Path):
    source, folder = tmp_path / "linear.pth.tar", tmp_path / "weights"
    torch.save(linear_probe(backbone.state_dict()), source)
    arguments = ["weights", NAME, "--folder", str(folder)]
    without = CliRunner().invoke(app, arguments)
    assert isinstance(without.exception, HetflError)
    assert "fetch https://dl.fbaipublicfiles.com/moco-v3/vit-s-300ep/vit-s-300ep.pth.tar" in str(without.exception)
    done = CliRunner().invoke(app, [*arguments, "--from", str(source)])
    assert done.exit_code == 0
    assert sha256_file(weights_path(NAME, folder)) in done.output


@pytest.mark.parametrize("name", ["digits_vit_small", "pfedpt_vit", "resnet18.random"])
def test_models_without_published_weights(name: str, tmp_path: Path):
    with pytest.raises(HetflError, match=name):
        fetch_weights(name, tmp_path)
    with pytest.raises(HetflError, match="has no published weights"):
        convert_weights(name, tmp_path / "x.pth", tmp_path)


def test_weights_are_taken_from_the_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with torch.random.fork_rng():
        source = creator("resnet18.tv_in1k")()
    write_tensors(tmp_path / "mirror" / "weights" / "resnet18.tv_in1k.safetensors", source.state_dict())
    monkeypatch.setenv("HETFL_MIRROR", str(tmp_path / "mirror"))
    done = CliRunner().invoke(app, ["weights", "resnet18.tv_in1k", "--folder", str(tmp_path / "weights")])
    assert done.exit_code == 0, done.output
    loaded = load_weights("resnet18.tv_in1k", tmp_path / "weights")
    assert torch.equal(loaded["conv1.weight"], source.state_dict()["conv1.weight"])
