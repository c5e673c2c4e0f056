"""Which models exist, and how one is built.

A name is either one of the tiny vision transformers of the embedded default or a vision transformer of timm with
its weights' tag, e.g. ``vit_base_patch16_224.augreg_in21k_ft_in1k``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hetfl.data.batches import InputSpec
from hetfl.data.inputs import InputSettings
from hetfl.errors import HetflError, unknown
from hetfl.models.base import Model, ModelOptions
from hetfl.models.vit import prompted_vit
from hetfl.tensors import read_tensors

DIGITS_VITS: dict[str, dict[str, int]] = {
    # Widths keep the papers' ratio 384 : 768 : 1024 and depths their 12 : 12 : 24.
    "digits_vit_small": {"embed_dim": 24, "depth": 2, "num_heads": 2},
    "digits_vit_base": {"embed_dim": 48, "depth": 2, "num_heads": 3},
    "digits_vit_large": {"embed_dim": 64, "depth": 4, "num_heads": 4},
}
"""Tiny stand-ins for ViT-S, -B and -L on 32x32 images with 8x8 patches."""

DIGITS_INPUT = InputSpec(32, "bilinear", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def check_name(name: str, where: str = "") -> None:
    """Check that a model exists.

    Raises:
        HetflError: it does not; the nearest known name is suggested.
    """
    if name in DIGITS_VITS:
        return
    timm = _timm()
    architecture = name.partition(".")[0]
    vits = [*DIGITS_VITS, *timm.list_models("vit_*", module="vision_transformer")]
    if architecture not in vits:
        raise unknown("model", name, vits, where)
    tags = timm.list_pretrained(f"{architecture}.*")
    if "." in name and name not in tags:
        raise unknown("weights tag", name, tags, where)


def input_spec(name: str) -> InputSpec:
    """What the backbone wants to see; for timm models the statistics its weights were trained with."""
    if name in DIGITS_VITS:
        return DIGITS_INPUT
    config = _timm().get_pretrained_cfg(name)
    return InputSpec(config.input_size[-1], config.interpolation, tuple(config.mean), tuple(config.std))


def weights_path(name: str, folder: Path) -> Path:
    """Where a model's pre-trained weights lie."""
    return folder / f"{name}.safetensors"


def build(
    name: str,
    num_classes: int,
    options: ModelOptions,
    weights: Path = Path("weights"),
    inputs: InputSettings = InputSettings(),  # noqa: B008, it is frozen
) -> Model:
    """Build a model as a method wants it.

    Args:
        name: a name of this registry.
        num_classes: C.
        options: prompts, body, projection, head rule.
        weights: the folder with ``<name>.safetensors``, read when ``options.weights`` is ``pretrained``.
        inputs: where the experiment's images depart from what the backbone wants.

    Raises:
        HetflError: unknown name, missing weights, or weights of another architecture.
    """
    check_name(name)
    loaded = load_weights(name, weights) if options.weights == "pretrained" else None
    try:
        return prompted_vit(name, creator(name), num_classes, options, inputs.spec(input_spec(name)), loaded)
    except RuntimeError as error:
        raise HetflError(f"{weights_path(name, weights)}: does not fit {name}: {_first_line(error)}") from error


def creator(name: str) -> Callable[[], nn.Module]:
    """A function that makes the backbone without a head, with fresh weights."""
    if name in DIGITS_VITS:
        from timm.models.vision_transformer import VisionTransformer

        size: dict[str, Any] = DIGITS_VITS[name]
        return lambda: VisionTransformer(img_size=32, patch_size=8, num_classes=0, **size)
    return lambda: _timm().create_model(name, pretrained=False, num_classes=0)


def load_weights(name: str, folder: Path) -> dict[str, Tensor]:
    """The pre-trained weights of a backbone, by name of parameter.

    Raises:
        HetflError: the file is missing or broken.
    """
    path = weights_path(name, folder)
    if not path.exists():
        raise HetflError(missing_weights(name, path))
    return read_tensors(path)[0]


def missing_weights(name: str, path: Path) -> str:
    """One line that says what to do about weights that are not there."""
    if name in DIGITS_VITS:
        return f"{path}: the weights of {name} are missing; make them with dvc repro pretrain"
    return (
        f"{path}: the weights of {name} are missing; where the hub can be reached run `hetfl weights {name}`, "
        "else copy that file from such a machine"
    )


def fetch_weights(name: str, folder: Path) -> Path:
    """Download a backbone's published weights through timm and store them as safetensors.

    Raises:
        HetflError: the name has no published weights or the hub cannot be reached.
    """
    from hetfl.tensors import write_tensors

    check_name(name)
    if name in DIGITS_VITS:
        raise HetflError(f"{name}: is trained by this project; run dvc repro pretrain")
    try:
        model = _timm().create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub client raises many kinds
        raise HetflError(f"{name}: cannot be downloaded ({_first_line(error)})") from error
    path = weights_path(name, folder)
    write_tensors(path, model.state_dict(), {"model": name})
    return path


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _timm() -> Any:
    # Importing timm takes seconds; --help and settings errors must not wait for it.
    import timm

    return timm
