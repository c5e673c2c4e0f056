"""What a method sees of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """How a method wants a backbone fitted out."""

    prompts: Literal["none", "shallow", "deep"] = "none"
    prompt_length: int = 3
    body: Literal["frozen", "trained"] = "frozen"
    weights: Literal["pretrained", "scratch"] = "pretrained"
    embedding: int | None = None
    head_init: Literal["timm", "vpt"] = "timm"


class Model:
    """An architecture with its frozen weights, as a function of the parameters that belong to a client.

    One instance serves all clients with the same architecture; what differs between them is passed in.

    Attributes:
        name: of the architecture.
        width: size d of the feature that enters the head.
        num_classes: number of logits.
        groups: parameter names by role: ``prompts``, ``body``, ``projection``, ``head``.
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

    def __call__(self, params: Tensors, images: Tensor) -> Output:
        """Run the model on ``images`` [B, 3, H, W] with a client's parameters."""
        return functional_call(self._module, dict(params), (images,), tie_weights=False)

    def init(self, draws: Draws, client: int) -> dict[str, Tensor]:
        """Fresh parameters of one client (-1: the server), drawn from keys of their own."""
        reference = next(self._module.parameters())
        fresh = self._fresh(draws, client)
        return {name: tensor.to(reference.device, reference.dtype) for name, tensor in fresh.items()}

    def names(self, groups: Sequence[str]) -> tuple[str, ...]:
        """The parameter names of some roles, in the model's order."""
        return tuple(name for group in groups for name in self.groups.get(group, ()))

    @property
    def total_elements(self) -> int:
        """Elements of all parameters, frozen and trained."""
        return sum(parameter.numel() for parameter in self._module.parameters())

    def to(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Model:
        """Move the weights to a device; returns the model itself."""
        self._module.to(device, dtype)
        return self
