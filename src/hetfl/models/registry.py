"""The registry of models: which names exist, and how a model is built.

A name is one of hetfl's own architectures (tiny ones for the embedded default, and those of MoCo-v3, pFedPT and
FedTGP), or a vision transformer or residual network of timm with the tag of its weights, e.g.
``vit_base_patch16_224.augreg_in21k_ft_in1k``. The tag ``random`` stands for random weights, seeded by the name.

A name without a tag may end in a kind of head: ``-h512`` for a hidden layer of 512 with ReLU, ``-relu`` for a ReLU
after the logits, ``-h512-relu`` for both. Otherwise the head is linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
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
from hetfl.models.fitting import Backbone, Fitted, Layer, fit, layered_head, on_meta
from hetfl.models.grouped import GroupedViT
from hetfl.models.parts import part, timm_model, timm_registry
from hetfl.models.resnet import FittedResNet, cifar_stem, small_resnet
from hetfl.models.vit import PromptedViT
from hetfl.tensors import read_tensors, write_tensors

DIGITS_VITS: dict[str, dict[str, Any]] = {
    # Widths have the ratio of the papers' 384 : 768 : 1024, and depths that of their 12 : 12 : 24.
    "digits_vit_small": {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2},
    "digits_vit_base": {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3},
    "digits_vit_large": {"patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 4},
    "digits_pfedpt_vit": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2},
}
"""Tiny versions of ViT-S, -B and -L and of pFedPT's ViT, for 32x32 images with 8x8 patches."""

DIGITS_RESNETS: dict[str, dict[str, Any]] = {
    # Channels of the last feature map have the ratio of the papers' 512 : 512 : 2048.
    "digits_resnet_small": {"block": "basic", "layers": (1, 1, 0, 0), "channels": (8, 16, 16, 16)},
    "digits_resnet_base": {"block": "basic", "layers": (1, 2, 0, 0), "channels": (8, 16, 16, 16)},
    "digits_resnet_large": {"block": "bottleneck", "layers": (1, 1, 0, 0), "channels": (8, 16, 16, 16)},
}
"""Tiny versions of ResNet18, -34 and -50, for 16x16 images."""

MOCO_VITS: dict[str, dict[str, Any]] = {
    # ViT-S has twelve heads here, six in timm.
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
"""pFedPT's ViT, which has 1,076,106 parameters with a head for 10 classes (FedHPL Table 5)."""

MINI_VITS: dict[str, dict[str, Any]] = {
    "mini_vit": {"patch_size": 4, "embed_dim": 96, "depth": 8, "num_heads": 3, "mlp_ratio": 2},
}
"""Small enough for pre-training on a CPU, and deep enough for the blocks at which FGPT and SGPT insert prompts."""

OWN_TAGS = {
    **dict.fromkeys(MINI_VITS, ("cifar10", "cifar100")),
    **dict.fromkeys(DIGITS_VITS, ("mnist", "cifar100_long")),
}
"""The tags of small transformers' weights, each the name of a pre-training; without a tag, the weights
of :data:`DIGITS_VITS` are of the digits."""

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
"""Tiny versions of HtCNN_8, for grey images of 16x16."""

CIFAR_CNNS: dict[str, dict[str, Any]] = {
    "cnn": {"convs": (32, 64), "widths": (512,)},
    "pfl_cnn": {"convs": (32, 64), "widths": (128,), "kernel": 3, "pool": "last"},
    "linear": {"convs": (), "widths": ()},
}
"""``cnn`` is the CNN of FedAvg, which FedTGP calls 4-layer CNN. ``pfl_cnn`` is that of pfl-research's CIFAR-10
benchmark, without dropout. ``linear`` is a head on the pixels; with it, benchmarks measure overhead."""

PLAIN_CNNS: dict[str, dict[str, Any]] = {**CIFAR_CNNS, **HTCNNS, **DIGITS_CNNS}
"""Networks that are made for one size of images, because of their fully connected layers."""

TORCHVISION: dict[str, Callable[[], nn.Module]] = {"googlenet": googlenet, "mobilenet_v2": mobilenet_v2}

FAMILIES: dict[str, type[Fitted]] = {
    "cnn": PlainCNN,
    "torchvision": TorchvisionCNN,
    "resnet": FittedResNet,
    "vit": PromptedViT,
    "grouped-vit": GroupedViT,
}
"""The families of backbones. The ``numerics`` of a family are also the version of its architectures' code."""

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
"""The inputs that hetfl's own architectures expect, by name."""

USUAL = (
    *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)),
    *(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large")),
)
"""Those of timm that most weights are of."""

RANDOM = "random"
"""The tag of random weights, seeded by the model's name."""

_HEAD = re.compile(r"h(?P<hidden>[1-9]\d*)(-relu)?|relu")
"""Kinds of heads beside the linear one."""


def check_name(name: str, where: str = "") -> None:
    """Check that a model exists.

    Raises:
        HetflError: it does not exist; the error suggests the most similar name.
    """
    plain, _, head = name.partition("-")
    architecture = plain.partition(".")[0]
    tags = [f"{architecture}.{RANDOM}"]
    if architecture not in OWN_SPECS:
        known = _timm_architectures()
        if architecture not in known:
            raise unknown("model", plain, (*OWN_SPECS, *known), where)
        tags += timm_registry().list_pretrained(f"{architecture}.*")
    tags += [f"{architecture}.{tag}" for tag in OWN_TAGS.get(architecture, ())]
    if "." in plain and plain not in tags:
        raise unknown("weights tag", plain, tags, where)
    prefix = f"{where}: " if where else ""
    if plain != name and not _HEAD.fullmatch(head):
        raise HetflError(f"{prefix}{name}: unknown head {head!r}; use h<width>, relu or h<width>-relu")
    if head and "." in plain:
        raise HetflError(f"{prefix}{name}: a model with a weights tag has a linear head; use {plain}")


def check_options(
    name: str,
    options: ModelOptions,
    where: str = "",
    inputs: InputSettings = InputSettings(),  # noqa: B008, it is frozen
) -> None:
    """Check that a model supports a method's options, without building it.

    Args:
        name: a name of this registry.
        options: the method's options; their ``auxiliary`` is also a name of this registry.
        where: the key to name in an error, e.g. ``"params.yaml: experiments.x.rows.y"``.
        inputs: the experiment's input settings.

    Raises:
        HetflError: the model does not support the prompts or the images, or its pre-trained weights do not allow the
            stem or the size.
    """
    prefix = f"{where}: " if where else ""
    if options.prompts in ("shallow", "deep", "inserted") and not is_vit(name):
        raise HetflError(
            f"{prefix}{name} takes no {options.prompts} prompts, since it has no tokens; use frame or border"
        )
    if options.prompts in ("shallow", "deep", "inserted"):
        check_class_token(name, f"it takes no {options.prompts} prompts", where)
    if options.prompts == "frame" and (is_vit(name) or architecture_of(name) in PLAIN_CNNS):
        others = "deep, shallow or border" if is_vit(name) else "border"
        raise HetflError(f"{prefix}{name} takes no frame, since it is made for one size of images; use {others}")
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
        raise HetflError(
            f"{prefix}{name}: pre-trained weights have the imagenet stem; a cifar stem needs weights: scratch"
        )
    if is_vit(name) and inputs.size is not None and inputs.size != (size := input_spec(name).size):
        raise HetflError(f"{prefix}{name}: pre-trained weights need {size} pixels, input.size is {inputs.size}")


def check_class_token(name: str, why: str, where: str = "") -> None:
    """Check that a model, if it is a transformer, has a class token.

    Args:
        name: a name of this registry.
        why: what cannot be without one, as the end of a sentence.
        where: the key to name in an error.

    Raises:
        HetflError: it has none, such as those of timm that average their patches.
    """
    architecture = architecture_of(name)
    if is_vit(name) and architecture not in (*OWN_VITS, *USUAL) and not _has_class_token(architecture):
        prefix = f"{where}: " if where else ""
        raise HetflError(f"{prefix}{name} has no class token, so {why}; use a model such as {USUAL[-1]}")


@cache
def _has_class_token(architecture: str) -> bool:
    with on_meta():
        return timm_model(architecture).cls_token is not None


def _check_size(name: str, size: int, prefix: str) -> None:
    kind = {key: value for key, value in PLAIN_CNNS.get(architecture_of(name), {}).items() if key != "widths"}
    if kind and last_side(size, **kind) < 1:
        raise HetflError(f"{prefix}{name}: images of {size} pixels are too small; set a larger input.size")


def architecture_of(name: str) -> str:
    """A model's name without the tag of its weights and the kind of its head."""
    return name.partition("-")[0].partition(".")[0]


def family_of(name: str, prompts: str = "none") -> str:
    """The key in :data:`FAMILIES` of a model with such ``prompts``."""
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
    """Whether a model has random weights, seeded by its name, which need no file."""
    return name.partition(".")[2] == RANDOM


def input_spec(name: str) -> InputSpec:
    """The input that a backbone expects; for timm models, the one that its weights were trained with."""
    architecture = architecture_of(name)
    if architecture in OWN_SPECS:
        return OWN_SPECS[architecture]
    config = timm_registry().get_pretrained_cfg(_timm_name(name))
    return InputSpec(config.input_size[-1], config.interpolation, tuple(config.mean), tuple(config.std))


def weights_path(name: str, folder: Path) -> Path:
    """The path of a model's pre-trained weights, which does not depend on its head."""
    return folder / f"{name.partition('-')[0]}.safetensors"


def weights_file(name: str, folder: Path) -> Path | None:
    """The path of a model's pre-trained weights, whether or not the file exists; None for random weights."""
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
    shapes_only: bool = False,
) -> Model:
    """Build a model for a method.

    Args:
        name: a name of this registry.
        num_classes: C.
        options: the method's options.
        weights: the folder with ``<name>.safetensors``, read if ``options.weights`` is ``pretrained``.
        inputs: the experiment's input settings.
        shapes_only: whether the networks are on the meta device, for whoever needs names, sizes and clients' initial
            parameters, and never runs the model. Frozen weights are then not in memory.

    Raises:
        HetflError: the name is unknown, the model does not support the options, or its weights are missing or of
            another architecture.
    """
    check_name(name)
    if options.auxiliary is not None:
        check_name(options.auxiliary, "auxiliary")
    check_options(name, options, inputs=inputs)
    spec = inputs.spec(input_spec(name))
    backbone = backbone_of(name, options, spec.size)
    second = backbone_of(options.auxiliary, options, spec.size) if options.auxiliary is not None else None
    loaded = None
    if options.weights == "pretrained":
        needed = not shapes_only or options.body == "trained"
        random = is_random(name)
        loaded = _random_weights(name, backbone.create, needed) if random else load_weights(name, weights, needed)
    try:
        with on_meta() if shapes_only else nullcontext():
            model = fit(backbone, num_classes, options, spec, loaded, second)
        return model.shapes_only() if shapes_only else model
    except RuntimeError as error:
        if loaded is None or is_random(name):
            raise
        kind = _architecture_with(loaded)
        held = f" but {kind}" if kind else ""
        raise HetflError(f"{weights_path(name, weights)}: does not fit {name}{held}: {_one_line(error)}") from error


def backbone_of(name: str, options: ModelOptions, size: int) -> Backbone:
    """An architecture as a method wants it, for images of ``size`` pixels."""
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
    """A function that makes the backbone without a head, with newly initialised weights.

    Args:
        name: a name of this registry.
        size: height and width of images in pixels, for vision transformers and plain CNNs; None: the size that the
            backbone expects.
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
    return lambda: timm_model(_timm_name(name), **arguments)


def _own_vit(size: int, architecture: dict[str, Any]) -> nn.Module:
    timm = part("timm.models.vision_transformer")
    return timm.VisionTransformer(img_size=size, num_classes=0, **architecture)


def load_weights(name: str, folder: Path, values: bool = True) -> dict[str, Tensor]:
    """Read the pre-trained weights of a backbone, by name of parameter; without ``values``, on the meta device.

    Raises:
        HetflError: the file is missing or broken.
    """
    path = weights_path(name, folder)
    if not path.exists():
        raise HetflError(missing_weights(name, path))
    found = _without_counts(read_tensors(path)[0])
    if not values:
        return {key: torch.empty_like(value, device="meta") for key, value in found.items()}
    for key, value in found.items():
        # A sum that is finite has no other terms; one that is not can have overflowed.
        if value.is_floating_point() and not value.sum().isfinite() and not value.isfinite().all():
            raise HetflError(f"{path}: {key} has values that are not finite; delete the file and make it again")
    return found


def _without_counts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors without the count of batches, which published files contain and which is not used."""
    return {key: value for key, value in tensors.items() if not key.endswith("num_batches_tracked")}


def _architecture_with(weights: Mapping[str, Tensor]) -> str:
    """The first usual architecture whose tensors have these names and shapes; empty if none has."""
    shapes = {key: value.shape for key, value in weights.items()}
    for architecture in (*OWN_SPECS, *USUAL):
        with on_meta():
            held = _without_counts(creator(architecture)().state_dict())
        if {key: value.shape for key, value in held.items()} == shapes:
            return architecture
    return ""


def missing_weights(name: str, path: Path) -> str:
    """An error line about missing weights that says how to get them."""
    return f"{path}: the weights of {name} are missing; {_remedy(name)}"


def origin_of(name: str) -> str:
    """Where a backbone's weights are published."""
    architecture = architecture_of(name)
    if architecture in MOCO_FILES:
        return MOCO_FILES[architecture]
    if architecture in OWN_SPECS:
        return "not published"
    config = timm_registry().get_pretrained_cfg(_timm_name(name))
    return f"huggingface.co/{config.hf_hub_id}" if config.hf_hub_id else str(config.url)


def fetch_weights(name: str, folder: Path) -> Path:
    """Download a backbone's published weights through timm and store them as safetensors.

    Returns:
        The path of the file.

    Raises:
        HetflError: timm publishes no weights for the name, or the hub cannot be reached.
    """
    check_name(name)
    if is_random(name) or architecture_of(name) in OWN_SPECS:
        raise HetflError(f"{name}: {_remedy(name)}")
    try:
        model = timm_model(_timm_name(name), pretrained=True)
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
        HetflError: the name is unknown or has no published weights, or the file is of another architecture.
    """
    from hetfl.models.published import backbone_weights

    check_name(name)
    architecture = architecture_of(name)
    if is_random(name) or (architecture in OWN_SPECS and architecture not in MOCO_VITS):
        raise HetflError(f"{name}: has no published weights; {_remedy(name)}")
    with on_meta():
        body = creator(name)()
    tensors = backbone_weights(source, body)
    path = weights_path(name, folder)
    write_tensors(path, tensors, {"model": name, "source": source.name, "source_sha256": sha256_file(source)})
    return path


def _remedy(name: str) -> str:
    if is_random(name):
        return "its weights are random, seeded by the name, and need no file"
    architecture = architecture_of(name)
    tag = name.partition(".")[2]
    if architecture in OWN_TAGS or architecture in DIGITS_RESNETS:
        first = OWN_TAGS[architecture][0] if architecture in MINI_VITS else "digits"
        return f"make them with dvc repro pretrain-{tag or first}"
    if architecture in MOCO_FILES:
        return f"fetch {MOCO_FILES[architecture]} and run `hetfl weights {name} --from FILE`"
    if architecture in OWN_SPECS:
        return f"there are no published ones; use a method that trains from scratch, or {architecture}.{RANDOM}"
    return f"run `hetfl weights {name}`, or copy the file from a machine that can reach the hub"


def _random_weights(name: str, create: Callable[[], nn.Module], values: bool = True) -> dict[str, Tensor]:
    with seeded_library_code(Draws(0).key(f"weights:{name}")), nullcontext() if values else on_meta():
        return _without_counts(create().state_dict())


def _timm_name(name: str) -> str:
    return architecture_of(name) if is_random(name) else name.partition("-")[0]


@cache
def _timm_architectures() -> tuple[str, ...]:
    timm = timm_registry()
    vits = timm.list_models("vit_*", module="vision_transformer")
    return (*vits, *timm.list_models("resnet*", module="resnet"))


def _one_line(error: Exception) -> str:
    return shorten(str(error), 300) or type(error).__name__
