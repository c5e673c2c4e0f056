"""Which models exist, and how one is built.

A name is either one of the project's own architectures (tiny ones of the embedded default, MoCo-v3's, pFedPT's,
FedTGP's) or a vision transformer or residual network of timm with its weights' tag, e.g.
``vit_base_patch16_224.augreg_in21k_ft_in1k``. The tag ``random`` stands for an architecture with weights that are
drawn from its name.

A name without a tag may end in the kind of its head: ``-h512`` for a hidden layer of 512 with ReLU, ``-relu`` for a
ReLU behind the logits, ``-h512-relu`` for both; else the head is linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from hetfl.data.batches import InputSpec
from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws, seeded_library_code
from hetfl.errors import HetflError, unknown
from hetfl.files import sha256_file
from hetfl.models.base import Model, ModelOptions
from hetfl.models.cnn import PlainCNN, TorchvisionCNN, googlenet, last_side, mobilenet_v2, plain_cnn
from hetfl.models.fitting import Backbone, Fitted, Layer, fit, layered_head
from hetfl.models.grouped import GroupedViT
from hetfl.models.parts import part
from hetfl.models.resnet import FittedResNet, cifar_stem, small_resnet
from hetfl.models.vit import PromptedViT
from hetfl.tensors import read_tensors, write_tensors

DIGITS_VITS: dict[str, dict[str, Any]] = {
    # Widths keep the papers' ratio 384 : 768 : 1024 and depths their 12 : 12 : 24.
    "digits_vit_small": {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2},
    "digits_vit_base": {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3},
    "digits_vit_large": {"patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 4},
    "digits_pfedpt_vit": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2},
}
"""Tiny stand-ins for ViT-S, -B and -L and for pFedPT's, on 32x32 images with 8x8 patches."""

DIGITS_RESNETS: dict[str, dict[str, Any]] = {
    # Widths of the last map keep the papers' ratio 512 : 512 : 2048.
    "digits_resnet_small": {"block": "basic", "layers": (1, 1, 0, 0), "channels": (8, 16, 16, 16)},
    "digits_resnet_base": {"block": "basic", "layers": (1, 2, 0, 0), "channels": (8, 16, 16, 16)},
    "digits_resnet_large": {"block": "bottleneck", "layers": (1, 1, 0, 0), "channels": (8, 16, 16, 16)},
}
"""Tiny stand-ins for ResNet18, -34 and -50, on 16x16 images."""

MOCO_VITS: dict[str, dict[str, Any]] = {
    # Twelve heads for S, where timm's has six.
    "mocov3_vit_small": {"embed_dim": 384, "depth": 12, "num_heads": 12},
    "mocov3_vit_base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "mocov3_vit_large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}
"""Chen et al., "An Empirical Study of Training Self-Supervised Vision Transformers", ICCV 2021; L is MMPretrain's."""

MOCO_FILES = {
    "mocov3_vit_small": "https://dl.fbaipublicfiles.com/moco-v3/vit-s-300ep/vit-s-300ep.pth.tar",
    "mocov3_vit_base": "https://dl.fbaipublicfiles.com/moco-v3/vit-b-300ep/vit-b-300ep.pth.tar",
    "mocov3_vit_large": "https://download.openmmlab.com/mmselfsup/1.x/mocov3/"
    "mocov3_vit-large-p16_64xb64-amp-coslr-300e_in1k/"
    "mocov3_vit-large-p16_64xb64-amp-coslr-300e_in1k-224_20220829-9b88a442.pth",
}

PFEDPT_VITS: dict[str, dict[str, Any]] = {
    "pfedpt_vit": {"patch_size": 4, "embed_dim": 128, "depth": 8, "num_heads": 8, "mlp_ratio": 2},
}
"""pFedPT's own, 1,076,106 parameters with a head for 10 classes (FedHPL Table 5)."""

MINI_VITS: dict[str, dict[str, Any]] = {
    "mini_vit": {"patch_size": 4, "embed_dim": 96, "depth": 8, "num_heads": 3, "mlp_ratio": 2},
}
"""Small enough to be pre-trained on a CPU, deep enough for the prompts' places in FGPT and SGPT."""

MINI_TAGS = ("cifar10", "cifar100")
"""What :data:`MINI_VITS` are pre-trained on, the tags of their weights."""

RESNETS: dict[str, dict[str, Any]] = {
    "resnet4": {"block": "basic", "layers": (1, 0, 0, 0), "channels": (64, 64, 64, 64)},
    "resnet6": {"block": "basic", "layers": (1, 1, 0, 0), "channels": (64, 128, 128, 128)},
    "resnet8": {"block": "basic", "layers": (1, 1, 1, 0), "channels": (64, 128, 256, 256)},
    "resnet10": {"block": "basic", "layers": (1, 1, 1, 1), "channels": (64, 128, 256, 512)},
}
"""FedTGP's small residual networks: one basic block per stage."""


def _eight_cnns(prefix: str, convs: tuple[int, int], wide: int, narrow: int) -> dict[str, dict[str, Any]]:
    widths = ((narrow,), (narrow, narrow), (wide, narrow), (wide, narrow, narrow))
    kinds = [{"convs": convs[:many], "widths": chosen} for chosen in widths for many in (1, 2)]
    return {f"{prefix}{number}": kind for number, kind in enumerate(kinds, start=1)}


HTCNNS = _eight_cnns("htcnn", (32, 64), wide=1024, narrow=512)
"""FedTGP's HtCNN_8, for grey images of 28x28."""

DIGITS_CNNS = _eight_cnns("digits_cnn", (8, 16), wide=64, narrow=32)
"""Tiny stand-ins for HtCNN_8, on grey images of 16x16."""

CIFAR_CNNS: dict[str, dict[str, Any]] = {
    "cnn": {"convs": (32, 64), "widths": (512,)},
    "pfl_cnn": {"convs": (32, 64), "widths": (128,), "kernel": 3, "pool": "last"},
    "linear": {"convs": (), "widths": ()},
}
"""``cnn`` is FedAvg's, FedTGP's 4-layer CNN; ``pfl_cnn`` that of pfl-research's CIFAR-10 benchmark, without dropout;
``linear`` a head on the pixels, which shows what everything but arithmetic costs."""

PLAIN_CNNS: dict[str, dict[str, Any]] = {**CIFAR_CNNS, **HTCNNS, **DIGITS_CNNS}
"""Networks whose fully connected layers fix the size of the image."""

TORCHVISION: dict[str, Callable[[], nn.Module]] = {"googlenet": googlenet, "mobilenet_v2": mobilenet_v2}

FAMILIES: dict[str, type[Fitted]] = {
    "cnn": PlainCNN,
    "torchvision": TorchvisionCNN,
    "resnet": FittedResNet,
    "vit": PromptedViT,
    "grouped-vit": GroupedViT,
}
"""How backbones are used, each with ``numerics`` of its own, which those of the architectures' code are part of."""

_HALF = (0.5, 0.5, 0.5)
_GREY = (0.5,)
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

OWN_VITS = {**DIGITS_VITS, **PFEDPT_VITS, **MINI_VITS, **MOCO_VITS}
OWN_RESNETS = {**DIGITS_RESNETS, **RESNETS}
OWN_SPECS = {
    **dict.fromkeys([*DIGITS_VITS, *PFEDPT_VITS, *MINI_VITS], InputSpec(32, "bilinear", _HALF, _HALF)),
    **dict.fromkeys(DIGITS_RESNETS, InputSpec(16, "bilinear", _HALF, _HALF)),
    **dict.fromkeys(MOCO_VITS, InputSpec(224, "bicubic", *_IMAGENET)),
    **dict.fromkeys([*CIFAR_CNNS, *RESNETS, *TORCHVISION], InputSpec(32, "bilinear", _HALF, _HALF)),
    **dict.fromkeys(HTCNNS, InputSpec(28, "bilinear", _GREY, _GREY)),
    **dict.fromkeys(DIGITS_CNNS, InputSpec(16, "bilinear", _GREY, _GREY)),
}
"""What the project's own architectures want to see, by name."""

RANDOM = "random"
"""The tag of weights that are drawn from the model's name."""

_HEAD = re.compile(r"h(?P<hidden>[1-9]\d*)(-relu)?|relu")
"""Kinds of heads beside the linear one."""


def check_name(name: str, where: str = "") -> None:
    """Check that a model exists.

    Raises:
        HetflError: it does not; the nearest known name is suggested.
    """
    plain, _, head = name.partition("-")
    architecture = plain.partition(".")[0]
    tags = [f"{architecture}.{RANDOM}"]
    if architecture not in OWN_SPECS:
        known = _timm_architectures()
        if architecture not in known:
            raise unknown("model", plain, (*OWN_SPECS, *known), where)
        tags += _timm().list_pretrained(f"{architecture}.*")
    elif architecture in MINI_VITS:
        tags += [f"{architecture}.{tag}" for tag in MINI_TAGS]
    if "." in plain and plain not in tags:
        raise unknown("weights tag", plain, tags, where)
    prefix = f"{where}: " if where else ""
    if plain != name and not _HEAD.fullmatch(head):
        raise HetflError(f"{prefix}{name}: no such head {head!r}; use h<width>, relu or h<width>-relu")
    if head and "." in plain:
        raise HetflError(f"{prefix}{name}: a weights tag goes with a linear head; use {plain}")


def check_options(
    name: str,
    options: ModelOptions,
    where: str = "",
    inputs: InputSettings = InputSettings(),  # noqa: B008, it is frozen
) -> None:
    """Check that a model can be fitted out as a method wants it, without building it.

    Args:
        name: a name of this registry.
        options: what the method wants; its ``auxiliary`` is a name of this registry too.
        where: the key that is at fault, e.g. ``"params.yaml: experiments.x.rows.y"``.
        inputs: where the experiment's images depart from what the backbone wants.

    Raises:
        HetflError: the family does not take such prompts, a network does not take such images, or pre-trained weights
            do not allow such a stem or size.
    """
    prefix = f"{where}: " if where else ""
    if options.prompts in ("shallow", "deep", "inserted") and not is_vit(name):
        raise HetflError(f"{prefix}{name} takes no {options.prompts} prompts, it has no tokens; use frame or border")
    if options.prompts == "frame" and (is_vit(name) or architecture_of(name) in PLAIN_CNNS):
        others = "deep, shallow or border" if is_vit(name) else "border"
        raise HetflError(f"{prefix}{name} takes no frame, it is made for one size of images; use {others}")
    given = inputs.spec(input_spec(name))
    _check_size(name, given.size, prefix)
    if (second := options.auxiliary) is not None:
        if head_of(second):
            raise HetflError(f"{prefix}auxiliary: {second} must have a linear head; use {second.partition('-')[0]}")
        if (wanted := input_spec(second).channels) != given.channels:
            channels = f"{second} takes images of {wanted} channels, {name} of {given.channels}"
            raise HetflError(f"{prefix}auxiliary: {channels}; choose another")
        _check_size(second, given.size, f"{prefix}auxiliary: ")
    if options.weights == "scratch" or is_random(name):
        return
    if options.stem == "cifar" and is_resnet(name):
        raise HetflError(f"{prefix}{name}: pre-trained weights have the imagenet stem; a cifar stem needs scratch")
    if is_vit(name) and inputs.size is not None and inputs.size != (size := input_spec(name).size):
        raise HetflError(f"{prefix}{name}: pre-trained weights want {size} pixels, input.size is {inputs.size}")


def _check_size(name: str, size: int, prefix: str) -> None:
    kind = {key: value for key, value in PLAIN_CNNS.get(architecture_of(name), {}).items() if key != "widths"}
    if kind and last_side(size, **kind) < 1:
        raise HetflError(f"{prefix}{name}: nothing is left of images of {size} pixels; set a larger input.size")


def architecture_of(name: str) -> str:
    """A model's name without its weights' tag and the kind of its head."""
    return name.partition("-")[0].partition(".")[0]


def family_of(name: str, prompts: str = "none") -> str:
    """The key of :data:`FAMILIES` that a model is one of when it has such prompts."""
    if is_vit(name):
        return "grouped-vit" if prompts == "inserted" else "vit"
    if is_resnet(name):
        return "resnet"
    return "torchvision" if architecture_of(name) in TORCHVISION else "cnn"


def head_of(name: str) -> str:
    """The kind of a model's head, e.g. ``h512-relu``; empty for a linear one."""
    return name.partition("-")[2]


def is_vit(name: str) -> bool:
    """Whether a model of this registry is a vision transformer."""
    architecture = architecture_of(name)
    return architecture in OWN_VITS or architecture.startswith("vit_")


def is_resnet(name: str) -> bool:
    """Whether a model of this registry is a residual network."""
    architecture = architecture_of(name)
    return architecture in OWN_RESNETS or architecture.startswith("resnet")


def is_random(name: str) -> bool:
    """Whether a model's weights are drawn from its name, so that there is no file of them."""
    return name.partition(".")[2] == RANDOM


def input_spec(name: str) -> InputSpec:
    """What the backbone wants to see; for timm models the statistics its weights were trained with."""
    architecture = architecture_of(name)
    if architecture in OWN_SPECS:
        return OWN_SPECS[architecture]
    config = _timm().get_pretrained_cfg(_timm_name(name))
    return InputSpec(config.input_size[-1], config.interpolation, tuple(config.mean), tuple(config.std))


def weights_path(name: str, folder: Path) -> Path:
    """Where a model's pre-trained weights lie, whatever its head."""
    return folder / f"{name.partition('-')[0]}.safetensors"


def weights_file(name: str, folder: Path) -> Path | None:
    """The file that a model's pre-trained weights are read from, there or not; None for a ``random`` one."""
    return None if is_random(name) else weights_path(name, folder)


def weights_checksum(name: str, folder: Path) -> str:
    """SHA-256 of the file with a model's pre-trained weights, or ``random``.

    Raises:
        HetflError: the file is missing.
    """
    path = weights_file(name, folder)
    if path is None:
        return RANDOM
    if not path.exists():
        raise HetflError(missing_weights(name, path))
    return _file_checksum(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _file_checksum(path: Path, modified: int) -> str:
    return sha256_file(path)


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
        options: prompts, body, feature, head.
        weights: the folder with ``<name>.safetensors``, read when ``options.weights`` is ``pretrained``.
        inputs: where the experiment's images depart from what the backbone wants.

    Raises:
        HetflError: unknown name, options that do not fit, missing weights, or weights of another architecture.
    """
    check_name(name)
    if options.auxiliary is not None:
        check_name(options.auxiliary, "auxiliary")
    check_options(name, options, inputs=inputs)
    spec = inputs.spec(input_spec(name))
    backbone = _backbone(name, options, spec.size)
    second = _backbone(options.auxiliary, options, spec.size) if options.auxiliary is not None else None
    loaded = None
    if options.weights == "pretrained":
        loaded = _random_weights(name, backbone.create) if is_random(name) else load_weights(name, weights)
    try:
        return fit(backbone, num_classes, options, spec, loaded, second)
    except RuntimeError as error:
        if loaded is None or is_random(name):
            raise
        raise HetflError(f"{weights_path(name, weights)}: does not fit {name}: {_one_line(error)}") from error


def _backbone(name: str, options: ModelOptions, size: int) -> Backbone:
    create = creator(name, size, zero_init_last=options.init != "torch")
    if options.stem == "cifar" and is_resnet(name):
        create = cifar_stem(create)
    return Backbone(name, FAMILIES[family_of(name, options.prompts)], create, _head(name))


def _head(name: str) -> Layer:
    kind = _HEAD.fullmatch(head_of(name))
    if kind is None:
        return nn.Linear
    return layered_head(int(kind["hidden"]) if kind["hidden"] else None, relu=name.endswith("relu"))


def creator(name: str, size: int | None = None, zero_init_last: bool = True) -> Callable[[], nn.Module]:
    """A function that makes the backbone without a head, with fresh weights.

    Args:
        name: a name of this registry.
        size: pixels of a side that a vision transformer or plain CNN is made for; None: what its weights want.
        zero_init_last: whether the last batch normalisation of a residual block starts at 0.
    """
    architecture = architecture_of(name)
    if architecture in OWN_RESNETS:
        return partial(small_resnet, **OWN_RESNETS[architecture], zero_init_last=zero_init_last)
    if architecture in TORCHVISION:
        return TORCHVISION[architecture]
    spec = input_spec(name)
    size = size or spec.size
    if architecture in PLAIN_CNNS:
        return partial(plain_cnn, spec.channels, size, **PLAIN_CNNS[architecture])
    if architecture in OWN_VITS:
        return partial(_own_vit, size, OWN_VITS[architecture])
    arguments: dict[str, Any] = {}
    if is_resnet(name):
        arguments["zero_init_last"] = zero_init_last
    elif size != spec.size:
        arguments["img_size"] = size
    return lambda: _timm().create_model(_timm_name(name), pretrained=False, num_classes=0, **arguments)


def _own_vit(size: int, architecture: dict[str, Any]) -> nn.Module:
    # On the meta device there is nothing to fill, but torch would import its compiler, which takes seconds.
    fill = "skip" if torch.get_default_device().type == "meta" else ""
    timm = part("timm.models.vision_transformer")
    return timm.VisionTransformer(img_size=size, num_classes=0, weight_init=fill, **architecture)


def load_weights(name: str, folder: Path) -> dict[str, Tensor]:
    """The pre-trained weights of a backbone, by name of parameter.

    Raises:
        HetflError: the file is missing or broken.
    """
    path = weights_path(name, folder)
    if not path.exists():
        raise HetflError(missing_weights(name, path))
    # A count of batches, which files of other programs hold, decides nothing.
    return {key: value for key, value in read_tensors(path)[0].items() if not key.endswith("num_batches_tracked")}


def missing_weights(name: str, path: Path) -> str:
    """One line that says what to do about weights that are not there."""
    return f"{path}: the weights of {name} are missing; {_remedy(name)}"


def fetch_weights(name: str, folder: Path) -> Path:
    """Download a backbone's published weights through timm and store them as safetensors.

    Raises:
        HetflError: the name has no weights that timm publishes or the hub cannot be reached.
    """
    check_name(name)
    if is_random(name) or architecture_of(name) in OWN_SPECS:
        raise HetflError(f"{name}: {_remedy(name)}")
    try:
        model = _timm().create_model(_timm_name(name), pretrained=True, num_classes=0)
    except Exception as error:  # the hub client raises many kinds
        raise HetflError(f"{name}: cannot be downloaded ({_one_line(error)})") from error
    path = weights_path(name, folder)
    write_tensors(path, model.state_dict(), {"model": name})
    return path


def convert_weights(name: str, source: Path, folder: Path) -> Path:
    """Store a published checkpoint as a backbone's weights, with the checkpoint's name and SHA-256 in the metadata.

    Args:
        name: a name of this registry.
        source: see :func:`hetfl.models.published.backbone_weights`.
        folder: gets ``<name>.safetensors``.

    Raises:
        HetflError: the name is unknown or has no weights from elsewhere, or the file is not of that architecture.
    """
    from hetfl.models.published import backbone_weights

    check_name(name)
    architecture = architecture_of(name)
    if is_random(name) or (architecture in OWN_SPECS and architecture not in MOCO_VITS):
        raise HetflError(f"{name}: takes no weights from elsewhere; {_remedy(name)}")
    with torch.device("meta"):
        body = creator(name)()
    tensors = backbone_weights(source, body)
    path = weights_path(name, folder)
    write_tensors(path, tensors, {"model": name, "source": source.name, "source_sha256": sha256_file(source)})
    return path


def _remedy(name: str) -> str:
    if is_random(name):
        return "they are drawn from the name, nothing needs to be stored"
    architecture = architecture_of(name)
    if architecture in DIGITS_VITS or architecture in DIGITS_RESNETS:
        return "make them with dvc repro pretrain"
    if architecture in MINI_VITS:
        return f"make them with dvc repro pretrain-{name.partition('.')[2] or MINI_TAGS[0]}"
    if architecture in MOCO_FILES:
        return f"fetch {MOCO_FILES[architecture]} and run `hetfl weights {name} --from FILE`"
    if architecture in OWN_SPECS:
        return f"nobody publishes any, so use a method that starts from scratch, or {architecture}.{RANDOM}"
    return f"where the hub can be reached run `hetfl weights {name}`, else copy that file from such a machine"


def _random_weights(name: str, create: Callable[[], nn.Module]) -> dict[str, Tensor]:
    with seeded_library_code(Draws(0).key(f"weights:{name}")):
        return {key: value for key, value in create().state_dict().items() if not key.endswith("num_batches_tracked")}


def _timm_name(name: str) -> str:
    return architecture_of(name) if is_random(name) else name.partition("-")[0]


@cache
def _timm_architectures() -> tuple[str, ...]:
    timm = _timm()
    vits = timm.list_models("vit_*", module="vision_transformer")
    return (*vits, *timm.list_models("resnet*", module="resnet"))


def _one_line(error: Exception) -> str:
    return shorten(str(error), 300) or type(error).__name__


def _timm() -> Any:
    # Importing timm takes seconds; --help and settings errors must not wait for it.
    import timm

    return timm
