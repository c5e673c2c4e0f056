"""What a method sees of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from hetfl.config import Settings
from hetfl.data.batches import InputSpec
from hetfl.draws import Draws
from hetfl.message import Tensors
from hetfl.models.dropout import KeyedDropout
from hetfl.torch_private import own_tensors

AUXILIARY = "auxiliary."
"""Starts the names of the second network's parameters."""

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Layers that normalise a batch by its own statistics in training."""


class Output(NamedTuple):
    """What a forward pass gives: ``features`` [B, d] that enter the head, and ``logits`` [B, C]."""

    features: Tensor
    logits: Tensor


class ModelOptions(Settings):
    """How a method wants a backbone fitted out.

    Attributes:
        prompts: ``shallow`` or ``deep`` tokens (ViT); ``inserted`` ones that enter before some blocks and stay (ViT);
            a ``frame`` of pixels around the image (CNN, VPT's "pad"); or a ``border`` that is added to the image's
            own outer pixels (any model, pFedPT).
        prompt_length: prompts of a layer, or pixels of a frame's or border's width.
        prompt_dropout: share of the values of ``shallow`` or ``deep`` tokens that training drops, sample by sample.
        shared_blocks: blocks, counted from 1, before which ``inserted`` prompts enter that all samples share.
        shared_lengths: how many of them each of these blocks has; empty: all ``prompt_length``.
        shared_init: whether they start uniform, as prompts do, or at zero.
        group_blocks: blocks before which one prompt of the sample's group enters.
        groups: number of groups.
        keys: how keys [groups, d] that are learned start: orthogonal, or uniform in [-1, 1]; None: there are none.
        readout: what enters the head: the class token, or its mean with the group prompts where some are there.
        body: whether the backbone trains.
        weights: what the backbone starts from.
        stem: a ResNet's first layers: 7x7 with stride 2 and a max-pool, or 3x3 with stride 1; other models have one.
        embedding: size of the feature that enters the head; None: the backbone's own width.
        reduce: how the backbone's feature gets that size: a trained linear ``projection`` or parameter-free pooling.
        flat: size to which a ResNet's last feature map is pooled and flattened before the projection, e.g. 2048 for
            512 channels x 2 x 2; None: one value per channel.
        extra_outputs: logits after the data set's own classes (FedMD's public classes).
        init: rule for the fresh head, timm's, torch's or VPT's (a head of several layers always has torch's); with
            ``torch`` the last batch normalisation of a residual block starts at 1 as torchvision has it, else at 0.
        auxiliary: architecture of a second network beside the client's own, trained from scratch on the same images,
            with a plain head and, where they are set, the same ``stem``, ``embedding`` and ``reduce``.
        transform: whether a square matrix [d, d] without bias lies between the features of the two.
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
"""A module's own parameters or buffers, a tensor's name there, and its name among a client's parameters."""


class Model:
    """An architecture with its frozen weights, as a function of the parameters that belong to a client.

    One instance serves all clients with the same architecture; what differs between them is passed in.

    Args:
        module: the network; has the second one, if there is one, as its ``auxiliary``.
        trained: the parts whose batch normalisation and dropout know a training mode: backbones that train, and the
            dropout of prompts.
        fresh: gives the initial parameters.

    Attributes:
        name: of the architecture.
        width: size d of the feature that enters the head.
        num_classes: the data set's number of classes; the logits may have further columns.
        groups: names by role: ``prompts``, or ``shared`` and ``group`` where they are inserted, with their ``keys``;
            ``body``, ``projection``, ``head``; all of the second network's as ``auxiliary``; ``transform``; and
            ``buffers``, the running statistics of both networks' batch normalisation, where there are some and their
            body trains.
        spec: the input the backbone wants.
    """

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
        passed = [key for role in groups for key in groups[role] if role != "transform"]
        # Where each network takes what from a client's parameters.
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
            params: of the client.
            images: normalised.
            groups: [B] or [B, K] int64, the group whose prompts each sample gets; of K the mean of the outputs. None:
                no group prompts.
        """
        return self._run(self._module, self._own, params, (images,) if groups is None else (images, groups))

    @torch.no_grad()
    def query(self, images: Tensor, block: int | None = None) -> Tensor:
        """The frozen backbone's features [B, d] of ``images`` without any prompts.

        Args:
            images: normalised.
            block: after which block of a transformer, followed by its last normalisation; None: after all.
        """
        found: Tensor = self._module.query(images, block)  # type: ignore[operator]
        return found

    def auxiliary(self, params: Tensors, images: Tensor) -> Output:
        """Run the second network on ``images`` [B, channels, H, W]; see :attr:`ModelOptions.auxiliary`."""
        return self._run(self._module.get_submodule("auxiliary"), self._second, params, (images,))

    def _run(
        self, network: nn.Module, places: Sequence[Place], params: Tensors, inputs: tuple[Tensor, ...]
    ) -> Output:
        if self._norms and self._norms[0].training != self._training:
            for norm in self._norms:
                norm.training = self._training
        for dropout, mask in zip(self._dropouts, self._masks, strict=True):
            dropout.mask = mask
        # As torch.func.functional_call does it, which looks for the places anew in every call.
        own = [tensors[name] for tensors, name, _ in places]
        try:
            for tensors, name, key in places:
                tensors[name] = params[key]
            output: Output = network(*inputs)
            return output
        finally:
            for (tensors, name, _), value in zip(places, own, strict=True):
                tensors[name] = value

    @cached_property
    def largest_map(self) -> int:
        """Elements of the largest output of a layer for one image, found by a forward pass."""
        sizes: list[int] = []

        def note(module: nn.Module, given: Any, output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            sizes.extend(value.numel() for value in outputs if isinstance(value, Tensor))

        hooks = [layer.register_forward_hook(note) for layer in self._module.modules()]
        reference = next(self._module.parameters())
        with torch.no_grad():
            self._module(reference.new_zeros(1, self.spec.channels, self.spec.size, self.spec.size))
        for hook in hooks:
            hook.remove()
        return max(sizes)

    def masks(self, seed: int, size: int) -> dict[str, Tensor]:
        """What a training pass of ``size`` samples drops, by layer: what :meth:`train` takes."""
        if not self._dropouts:
            return {}
        reference = next(self._module.parameters())
        return {
            f"dropout{place}": layer.draw(Draws(seed).key("dropout", -1, place), size).to(reference)
            for place, layer in enumerate(self._dropouts)
        }

    def train(self, masks: Tensors = {}) -> Model:  # noqa: B006 - never mutated
        """A view that trains: trained bodies normalise batches by their own statistics, dropout is by ``masks``.

        Its forward pass moves the network's ``buffers`` among the parameters it is given, in place; stochastic depth
        stays off. A model without such layers is its own view.
        """
        if not self._norms and not self._dropouts:
            return self
        view = copy(self)
        view._training = True
        view._masks = tuple(masks.get(f"dropout{place}") for place in range(len(self._dropouts)))
        return view

    @property
    def mixes_samples(self) -> bool:
        """Whether samples of a training batch see each other, as in batch normalisation."""
        return bool(self._norms)

    def init(self, draws: Draws, client: int) -> dict[str, Tensor]:
        """Fresh parameters (and buffers) of one client (-1: the server), drawn from keys of their own."""
        reference = next(self._module.parameters())
        fresh = self._fresh(draws, client)
        return {name: tensor.to(reference.device, reference.dtype) for name, tensor in fresh.items()}

    def names(self, groups: Sequence[str]) -> tuple[str, ...]:
        """The parameter names of some roles, in the model's order."""
        return tuple(name for group in groups for name in self.groups.get(group, ()))

    def elements(self, groups: Sequence[str]) -> int:
        """Elements of the parameters of some roles; buffers are none."""
        parameters = dict(self._module.named_parameters())
        return sum(parameters[name].numel() for name in self.names(groups) if name in parameters)

    def tensors(self) -> list[Tensor]:
        """The model's own weights and buffers, frozen and replaced ones."""
        return [*self._module.parameters(), *self._module.buffers()]

    @property
    def total_elements(self) -> int:
        """Elements of all parameters of the client's own network, frozen and trained."""
        beside = {*self.groups.get("auxiliary", ()), *self.groups.get("transform", ())}
        return sum(value.numel() for name, value in self._module.named_parameters() if name not in beside)

    def lower(self) -> bool:
        """Have the blocks of a frozen backbone multiply matrices in bfloat16; says whether there are some."""
        frozen = "body" not in self.groups or not self.groups["body"]
        return frozen and bool(self._module.lower())  # type: ignore[operator]

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Model:
        """Move the weights to a device; returns the model itself."""
        self._module.to(device, dtype)
        return self


def _place(module: nn.Module, key: str) -> Place:
    path, _, name = key.rpartition(".")
    owner = module.get_submodule(path)
    return own_tensors(owner, name), name, key
