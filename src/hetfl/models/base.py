"""What a method sees of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hetfl.config import Settings
from hetfl.data.batches import InputSpec
from hetfl.draws import Draws
from hetfl.message import Tensors


class Output(NamedTuple):
    """What a forward pass gives: ``features`` [B, d] that enter the head, and ``logits`` [B, C]."""

    features: Tensor
    logits: Tensor


class ModelOptions(Settings):
    """How a method wants a backbone fitted out.

    Attributes:
        prompts: ``shallow`` or ``deep`` tokens (ViT); a ``frame`` of pixels around the image (CNN, VPT's "pad"); or a
            ``border`` that is added to the image's own outer pixels (any model, pFedPT).
        prompt_length: prompts of a layer, or pixels of a frame's or border's width.
        body: whether the backbone trains.
        weights: what the backbone starts from.
        stem: a ResNet's first layers: 7x7 with stride 2 and a max-pool, or 3x3 with stride 1; other models have one.
        embedding: size of the feature that enters the head; None: the backbone's own width.
        reduce: how the backbone's feature gets that size: a trained linear ``projection`` or parameter-free pooling.
        flat: size to which a ResNet's last feature map is pooled and flattened before the projection, e.g. 2048 for
            512 channels x 2 x 2; None: one value per channel.
        extra_outputs: logits after the data set's own classes (FedMD's public classes).
        head_init: rule for the fresh head.
    """

    prompts: Literal["none", "shallow", "deep", "frame", "border"] = "none"
    prompt_length: int = 3
    body: Literal["frozen", "trained"] = "frozen"
    weights: Literal["pretrained", "scratch"] = "pretrained"
    stem: Literal["imagenet", "cifar"] = "imagenet"
    embedding: int | None = None
    reduce: Literal["linear", "pool"] = "linear"
    flat: int | None = None
    extra_outputs: int = 0
    head_init: Literal["timm", "vpt"] = "timm"


class Model:
    """An architecture with its frozen weights, as a function of the parameters that belong to a client.

    One instance serves all clients with the same architecture; what differs between them is passed in.

    Attributes:
        name: of the architecture.
        width: size d of the feature that enters the head.
        num_classes: the data set's number of classes; the logits may have further columns.
        groups: names by role: ``prompts``, ``body``, ``projection``, ``head``; and ``buffers``, the running
            statistics of a trained body's batch normalisation, where there are some.
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
        fresh: Callable[[Draws, int], dict[str, Tensor]],
    ) -> None:
        self.name, self.width, self.num_classes = name, width, num_classes
        self.groups, self.spec = groups, spec
        self._module = module.requires_grad_(False).eval()
        self._fresh = fresh
        norms = (layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm))
        self._norms = tuple(norms) if groups.get("buffers") else ()
        self._training = False

    def __call__(self, params: Tensors, images: Tensor) -> Output:
        """Run the model on ``images`` [B, 3, H, W] with a client's parameters."""
        if self._norms and self._norms[0].training != self._training:
            for norm in self._norms:
                norm.training = self._training
        return functional_call(self._module, dict(params), (images,), tie_weights=False)

    def train(self) -> Model:
        """A view that normalises a trained body's batches by their own statistics, and nothing else.

        Its forward pass moves the ``buffers`` among the parameters it is given, in place; dropout and stochastic
        depth stay off. A model without such statistics is its own view.
        """
        if not self._norms:
            return self
        view = copy(self)
        view._training = True
        return view

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

    @property
    def total_elements(self) -> int:
        """Elements of all parameters, frozen and trained."""
        return sum(parameter.numel() for parameter in self._module.parameters())

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Model:
        """Move the weights to a device; returns the model itself."""
        self._module.to(device, dtype)
        return self
