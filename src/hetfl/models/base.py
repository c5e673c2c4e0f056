"""The interface of models: functions of a client's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from hetfl.config import Settings
from hetfl.data.batches import InputSpec
from hetfl.draws import Draws
from hetfl.errors import unknown
from hetfl.message import Tensors
from hetfl.models.dropout import KeyedDropout
from hetfl.torch_private import own_tensors

AUXILIARY = "auxiliary."
"""Prefix of the names of the second network's parameters."""

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Layers that normalise a batch by its own statistics in training."""


class Output(NamedTuple):
    """Result of a forward pass: the ``features`` [B, d] that enter the head, and the ``logits`` [B, C]."""

    features: Tensor
    logits: Tensor


class ModelOptions(Settings):
    """What a method adds to a backbone, and which parts of it train.

    Attributes:
        prompts: ``shallow`` or ``deep`` tokens (ViT); ``inserted`` tokens, which enter before some blocks and remain
            until the end (ViT); a ``frame`` of pixels around the image (CNN, VPT's "pad"); or a ``border`` that is
            added to the image's outer pixels (any model, pFedPT).
        prompt_length: number of prompts per layer, or width of a frame or border in pixels.
        prompt_dropout: share of the values of ``shallow`` or ``deep`` tokens that training drops, per sample.
        shared_blocks: numbers of the blocks, from 1, before which ``inserted`` prompts of all samples enter.
        shared_lengths: number of these prompts for each of these blocks; empty: ``prompt_length`` for each.
        shared_init: whether these prompts start uniform, as other prompts do, or at zero.
        group_blocks: numbers of the blocks before which one prompt of the sample's group enters.
        groups: number of groups.
        keys: start values of learned keys [groups, d]: orthogonal, or uniform in [-1, 1]; None: there are no keys.
        readout: the head's input: the class token, or the mean of the class token and the group prompts, if any.
        body: whether the backbone is frozen or trained.
        weights: whether the backbone starts from pre-trained weights or from scratch.
        stem: a ResNet's first layers: ``imagenet``, 7x7 with stride 2 and a max-pool, or ``cifar``, 3x3 with stride
            1. Other models ignore it.
        embedding: size of the feature that enters the head; None: the backbone's width.
        reduce: how the backbone's feature is brought to that size: by a trained ``linear`` projection, or by a
            ``pool`` without parameters.
        flat: size to which a ResNet's last feature map is pooled and flattened before the projection, e.g. 2048 for
            512 channels x 2 x 2; None: one value per channel.
        extra_outputs: number of logits after those of the data set's classes (FedMD's public classes).
        init: initialisation of the head, as in timm, torch or VPT; a head of several layers is always initialised as
            in torch. With ``torch``, the last batch normalisation of a residual block starts at 1, as in torchvision;
            otherwise at 0.
        auxiliary: architecture of a second network beside the client's own, or None. It trains from scratch on the
            same images, with a linear head and with the same ``stem``, ``embedding`` and ``reduce``.
        transform: whether there is a square matrix [d, d], without bias, between the features of the two networks.
    """

    prompts: Literal["none", "shallow", "deep", "inserted", "frame", "border"] = "none"
    prompt_length: int = 3
    prompt_dropout: float = 0.0
    shared_blocks: tuple[int, ...] = ()
    shared_lengths: tuple[int, ...] = ()
    shared_init: Literal["uniform", "zero"] = "uniform"
    group_blocks: tuple[int, ...] = ()
    groups: int = 1
    keys: Literal["orthogonal", "uniform"] | None = None
    readout: Literal["class", "mean"] = "class"
    body: Literal["frozen", "trained"] = "frozen"
    weights: Literal["pretrained", "scratch"] = "pretrained"
    stem: Literal["imagenet", "cifar"] = "imagenet"
    embedding: int | None = None
    reduce: Literal["linear", "pool"] = "linear"
    flat: int | None = None
    extra_outputs: int = 0
    init: Literal["timm", "torch", "vpt"] = "timm"
    auxiliary: str | None = None
    transform: bool = False


Place = tuple[dict[str, Any], str, str]
"""The parameters or buffers of a module, a tensor's name in them, and its name among a client's parameters."""


@contextmanager
def products(rounded: bool | None) -> Iterator[None]:
    """Have a GPU round the factors of products to 10 bits, which is TF32, or not.

    Args:
        rounded: whether it does; None: as torch does by itself, which is to round those of convolutions only.
    """
    if rounded is None:
        yield
        return
    matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matrices.allow_tf32, convolutions.allow_tf32
    matrices.allow_tf32 = convolutions.allow_tf32 = rounded
    try:
        yield
    finally:
        matrices.allow_tf32, convolutions.allow_tf32 = before


class Model:
    """An architecture with its frozen weights, as a function of a client's parameters.

    All clients with the same architecture share one instance and pass their parameters to it.

    Args:
        module: the network; its attribute ``auxiliary`` is the second network, if there is one.
        trained: the modules whose batch normalisation and dropout have a training mode: backbones that train, and the
            dropout of prompts.
        fresh: makes the initial parameters of a client.

    Attributes:
        name: of the architecture.
        width: d, size of the feature that enters the head.
        num_classes: the data set's number of classes; there may be more logits.
        groups: the names of parameters by role: ``prompts``, or ``shared``, ``group`` and ``keys`` for inserted ones;
            ``body``; ``projection``; ``head``; ``auxiliary``, all of the second network; ``transform``; ``buffers``,
            the running statistics of batch normalisation in bodies that train.
        spec: the input that the backbone expects.
        rounded: whether a GPU rounds the factors of its products, see :func:`products`; None on a CPU.
    """

    rounded: bool | None = None

    def __init__(
        self,
        name: str,
        module: nn.Module,
        width: int,
        num_classes: int,
        groups: Mapping[str, tuple[str, ...]],
        spec: InputSpec,
        trained: Sequence[nn.Module],
        fresh: Callable[[Draws, int], dict[str, Tensor]],
    ) -> None:
        self.name, self.width, self.num_classes = name, width, num_classes
        self.groups, self.spec = groups, spec
        self._module = module.requires_grad_(False).eval()
        self._fresh = fresh
        self._begins: torch.device | None = None  # where initial parameters are; None: where the weights are
        passed = [key for role in groups for key in groups[role] if role != "transform"]
        # The tensors of each network that a client's parameters replace.
        self._own = [_place(module, key) for key in passed if not key.startswith(AUXILIARY)]
        self._second = [_place(module, key) for key in passed if key.startswith(AUXILIARY)]
        layers = [layer for body in trained for layer in body.modules()]
        self._norms = tuple(layer for layer in layers if isinstance(layer, BATCH_NORMS))
        self._dropouts = tuple(layer for layer in layers if isinstance(layer, KeyedDropout))
        self._training = False
        self._masks: tuple[Tensor | None, ...] = (None,) * len(self._dropouts)

    def __call__(self, params: Tensors, images: Tensor, groups: Tensor | None = None) -> Output:
        """Run the client's own network on ``images`` [B, channels, H, W] with a client's parameters.

        Args:
            params: the client's parameters by name.
            images: normalised.
            groups: [B] int64, the group whose prompts each sample gets; or [B, K], and the output is the mean over
                these K groups. None: no group prompts.
        """
        return self._run(self._module, self._own, params, (images,) if groups is None else (images, groups))

    @torch.no_grad()
    def query(self, images: Tensor, block: int | None = None) -> Tensor:
        """The frozen backbone's features [B, d] of ``images`` without any prompts, their products not rounded.

        Args:
            images: normalised.
            block: number of the transformer block whose output is used, with the final normalisation; None: the last.
        """
        with products(rounded=False):
            found: Tensor = self._module.query(images, block)  # type: ignore[operator]
        return found

    def auxiliary(self, params: Tensors, images: Tensor) -> Output:
        """Run the second network on ``images`` [B, channels, H, W]; see ``auxiliary`` of :class:`ModelOptions`."""
        return self._run(self._module.get_submodule("auxiliary"), self._second, params, (images,))

    def _run(
        self, network: nn.Module, places: Sequence[Place], params: Tensors, inputs: tuple[Tensor, ...]
    ) -> Output:
        if self._norms and self._norms[0].training != self._training:
            for norm in self._norms:
                norm.training = self._training
        for dropout, mask in zip(self._dropouts, self._masks, strict=True):
            dropout.mask = mask
        # Like torch.func.functional_call, which however searches for the modules again in every call.
        own = [tensors[name] for tensors, name, _ in places]
        try:
            for tensors, name, key in places:
                tensors[name] = params[key]
            with products(self.rounded):
                output: Output = network(*inputs)
            return output
        finally:
            for (tensors, name, _), value in zip(places, own, strict=True):
                tensors[name] = value

    @cached_property
    def largest_map(self) -> int:
        """Number of elements of the largest layer output for one image, measured by a forward pass."""
        sizes: list[int] = []

        def note(module: nn.Module, given: Any, output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            sizes.extend(value.numel() for value in outputs if isinstance(value, Tensor))

        hooks = [layer.register_forward_hook(note) for layer in self._module.modules()]
        # A training pass leaves batch normalisation in training mode, in which one image may be too few, and dropout
        # with masks, which torch.func.vmap may have hidden an axis of.
        for norm in self._norms:
            norm.training = False
        for dropout in self._dropouts:
            dropout.mask = None
        reference = next(self._module.parameters())
        with torch.no_grad():
            self._module(reference.new_zeros(1, self.spec.channels, self.spec.size, self.spec.size))
        for hook in hooks:
            hook.remove()
        return max(sizes)

    def masks(self, seed: int, size: int) -> dict[str, Tensor]:
        """Draw the dropout masks of a training pass over ``size`` samples, by layer, for :meth:`train`."""
        if not self._dropouts:
            return {}
        reference, draws = next(self._module.parameters()), Draws(seed)
        return {
            f"dropout{place}": layer.draw(draws.key("dropout", -1, place), size).to(reference, non_blocking=True)
            for place, layer in enumerate(self._dropouts)
        }

    def train(self, masks: Tensors = {}) -> Model:  # noqa: B006 - never mutated
        """The same model in training mode.

        Batch normalisation of bodies that train uses the batch's statistics, and updates the ``buffers`` among the
        parameters in place. Dropout uses ``masks`` from :meth:`masks`. Stochastic depth remains off. A model without
        such layers is returned as it is.
        """
        if not self._norms and not self._dropouts:
            return self
        view = copy(self)
        view._training = True
        view._masks = tuple(masks.get(f"dropout{place}") for place in range(len(self._dropouts)))
        return view

    @property
    def mixes_samples(self) -> bool:
        """Whether the samples of a training batch influence each other, through batch normalisation."""
        return bool(self._norms)

    def init(self, draws: Draws, client: int) -> dict[str, Tensor]:
        """Initial parameters and buffers of a client (-1: the server), each role from its own draw."""
        reference = next(self._module.parameters())
        device = self._begins or reference.device
        fresh = self._fresh(draws, client)
        return {name: tensor.to(device, reference.dtype) for name, tensor in fresh.items()}

    def names(self, groups: Sequence[str]) -> tuple[str, ...]:
        """The names of all parameters with these roles, in the model's order.

        Raises:
            HetflError: there is no such role. The body and the buffers have no names where nothing changes them.
        """
        for role in groups:
            if role not in self.groups and role not in ("body", "buffers"):
                raise unknown("parameter group", role, [*self.groups, "body", "buffers"])
        return tuple(name for role in groups for name in self.groups.get(role, ()))

    def elements(self, groups: Sequence[str]) -> int:
        """Number of elements of all parameters with these roles, without buffers."""
        parameters = dict(self._module.named_parameters())
        return sum(parameters[name].numel() for name in self.names(groups) if name in parameters)

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shapes of a client's parameters and buffers, by name."""
        return {name: self._known[name].shape for names in self.groups.values() for name in names}

    @cached_property
    def _known(self) -> dict[str, Tensor]:
        """All tensors of the networks, for their shapes: moving the model to a device may replace them."""
        return {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}

    def misfit(self, params: Tensors) -> str | None:
        """The first of a client's parameters that is missing or of another shape or type than here, in words."""
        own = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        for name, shape in self.shapes.items():
            if name not in params:
                return f"{name} is missing"
            if params[name].shape != shape:
                return f"{name} has the shape {[*params[name].shape]}; that of {self.name} is {[*shape]}"
            wanted = own.get(name, params[name]).dtype  # outlines have bodies that are no tensors of theirs
            if params[name].dtype != wanted:
                return f"{name} is {params[name].dtype}; that of {self.name} is {wanted}"
        return None

    def tensors(self) -> list[Tensor]:
        """All weights and buffers that the model holds, including those that a client's parameters replace."""
        return [*self._module.parameters(), *self._module.buffers()]

    @property
    def total_elements(self) -> int:
        """Number of elements of all parameters of the client's own network, frozen and trained."""
        beside = {*self.groups.get("auxiliary", ()), *self.groups.get("transform", ())}
        return sum(value.numel() for name, value in self._module.named_parameters() if name not in beside)

    def lower(self) -> bool:
        """Let the blocks of a frozen backbone multiply matrices in bfloat16; returns whether it has such blocks."""
        frozen = "body" not in self.groups or not self.groups["body"]
        return frozen and bool(self._module.lower())  # type: ignore[operator]

    def shapes_only(self) -> Model:
        """Drop the weights for their shapes, on the meta device; what :meth:`init` gives is on the CPU.

        Returns the model itself.
        """
        self._begins = torch.device("cpu")
        return self.to(torch.device("meta"))

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Model:
        """Move the weights to a device; returns the model itself."""
        self._module.to(device, dtype)
        return self


def _place(module: nn.Module, key: str) -> Place:
    path, _, name = key.rpartition(".")
    owner = module.get_submodule(path)
    return own_tensors(owner, name), name, key
