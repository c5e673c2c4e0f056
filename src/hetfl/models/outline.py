"""Models without weights: they have the shapes of real ones, and count the images that they are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hetfl.data.inputs import InputSettings
from hetfl.draws import Draws
from hetfl.message import Tensors
from hetfl.models.base import Model, ModelOptions, Output
from hetfl.models.fitting import Backbone, fit, on_meta
from hetfl.models.registry import backbone_of, input_spec

NETWORKS = ("body", "auxiliary", "buffers")
"""Roles of parameters that are shapes only: whole networks, of which no method reads values to know what to send."""


BODY = ("body",)
"""The name of a whole body that trains."""


class Outline(Model):
    """A model of which only the shapes are there.

    It computes nothing: features are zeros, and the class with the largest logit is the value of the image's first
    pixel. Parameters of whole networks are on the meta device, those of prompts, projections and heads are zeros on
    the CPU, since methods read their values. A body that trains is one vector, ``body``: methods send and combine it
    as a whole, and hundreds of tensors for each client take a hundred times as long.

    Args:
        model: whose shapes it has.
        options: that it was built with.
        whole: whether a body that trains has all of its tensors by name instead.
        valued: whether parameters of whole networks are zeros on the CPU as well.

    Attributes:
        seen: how many images went through the client's own network and through the second one, ``auxiliary``, so far.
        graded: how many of these passes keep what a gradient needs. Images that want a gradient themselves count
            twice in both: the loss goes back through that gradient, too.
    """

    def __init__(self, model: Model, options: ModelOptions, whole: bool = False, valued: bool = False) -> None:
        vars(self).update(vars(model))
        for made in ("_initial", "shapes"):
            vars(self).pop(made, None)  # of another outline
        self.options, self._valued = options, valued
        self.seen: Counter[str] = Counter()
        self.graded: Counter[str] = Counter()
        self._tensors: Mapping[str, tuple[str, ...]] = getattr(model, "_tensors", model.groups)
        together = self._tensors.get("body") and not whole
        self.groups = {**self._tensors, "body": BODY} if together else self._tensors

    def __call__(self, params: Tensors, images: Tensor, groups: Tensor | None = None) -> Output:
        """Run nothing; an image that is predicted with several groups counts as often."""
        many = groups.shape[1] if groups is not None and groups.dim() == 2 else 1
        self._see("own", images, many)
        return self._output(images, self.width)

    def auxiliary(self, params: Tensors, images: Tensor) -> Output:
        """Run nothing."""
        self._see("auxiliary", images)
        return self._output(images, self.width if self.options.transform else 1)

    def _see(self, role: str, images: Tensor, many: int = 1) -> None:
        wants = torch.is_grad_enabled()
        passes = many * len(images) * (2 if wants and images.requires_grad else 1)
        self.seen[role] += passes
        self.graded[role] += passes if wants else 0

    def query(self, images: Tensor, block: int | None = None) -> Tensor:
        """Zeros."""
        return torch.zeros(len(images), self.width)

    def _output(self, images: Tensor, width: int) -> Output:
        outputs = self.num_classes + self.options.extra_outputs
        pixel = images[:, 0, 0, 0]
        right = F.one_hot(pixel.detach().round().long().clamp(0, outputs - 1), outputs)
        # A function of the images, since some methods take a gradient with respect to them.
        zeros = 0 * pixel[:, None]
        return Output(zeros.expand(-1, width), zeros + right.to(zeros.dtype))

    @property
    def largest_map(self) -> int:
        """0: batches are as large as one likes."""
        return 0

    def masks(self, seed: int, size: int) -> dict[str, Tensor]:
        """None: nothing is dropped."""
        return {}

    def init(self, draws: Draws, client: int) -> dict[str, Tensor]:
        """The parameters' shapes; see the class."""
        return dict(self._initial)

    @cached_property
    def _initial(self) -> dict[str, Tensor]:
        known, initial = self._known, dict[str, Tensor]()
        for role, names in self.groups.items():
            device = "meta" if role in NETWORKS and not self._valued else "cpu"
            if names == BODY:
                initial["body"] = torch.zeros(self._elements(self._tensors["body"]), device=device)
                continue
            for name in names:
                initial[name] = torch.zeros_like(known[name], device=device)
        return initial

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """As for any model; a body that is one vector has one shape."""
        return {name: tensor.shape for name, tensor in self._initial.items()}

    @property
    def blocks(self) -> int:
        """Number of blocks of a transformer; 0 for other networks."""
        return len(getattr(self._module.body, "blocks", ()))

    @property
    def patch(self) -> int:
        """Height and width of a transformer's patches in pixels; 1 for other networks."""
        embed = getattr(self._module.body, "patch_embed", None)
        return 1 if embed is None else int(embed.patch_size[0])

    def elements(self, groups: Sequence[str]) -> int:
        """As for any model, from sizes that are looked up once."""
        return sum(self._elements(self._tensors.get(group, ())) for group in groups)

    def _elements(self, names: Iterable[str]) -> int:
        return sum(self._sizes.get(name, 0) for name in names)

    def products(self, groups: Sequence[str]) -> int:
        """Elements of the matrices with these roles: multiplications for one sample, if they are linear layers."""
        names = (name for group in groups for name in self._tensors.get(group, ()))
        return self._elements(name for name in names if self._known[name].dim() == 2)

    @cached_property
    def total_elements(self) -> int:
        """As for any model, counted once."""
        return sum(self._sizes.values()) - self.elements(["auxiliary", "transform"])

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {name: tensor.numel() for name, tensor in self._module.named_parameters()}

    def run(self, images: Tensor, groups: Tensor | None = None) -> Output:
        """A pass of the shapes through the client's own network, with parameters that want a gradient."""
        return Model.__call__(self, self._shapes(), images, groups)

    def run_auxiliary(self, images: Tensor) -> Output:
        """The same through the second network."""
        return Model.auxiliary(self, self._shapes(), images)

    def _shapes(self) -> dict[str, Tensor]:
        return {
            name: torch.empty_like(self._known[name], device="meta").requires_grad_(role != "buffers")
            for role, names in self._tensors.items()
            for name in names
        }


T = TypeVar("T")


def rehearsed(play: Callable[[bool], T]) -> T:
    """What is found by playing with outlines, which have values if a method cannot do without them.

    Few methods look at a body's values, or put them together with a head's in one number, and those of whole networks
    take long to play with.

    Args:
        play: plays; its argument is that of the same name of :class:`Outline`.
    """
    try:
        return play(False)
    except (RuntimeError, TypeError) as error:  # torch has no class for it; numpy() raises the second
        if "meta" not in str(error):
            raise
    return play(True)


@cache
def outline(name: str, num_classes: int, options: ModelOptions, inputs: InputSettings) -> Outline:
    """The outline of a model, with the arguments of :func:`hetfl.models.registry.build`.

    It is made once. Outlines of one architecture share its body, however many methods and data sets they are for.

    Raises:
        HetflError: the model does not support the options.
    """
    spec = inputs.spec(input_spec(name))
    with on_meta():
        backbone = _shared(name, options, spec.size, "own")
        second = _shared(options.auxiliary, options, spec.size, "auxiliary") if options.auxiliary else None
        return Outline(fit(backbone, num_classes, options, spec, None, second), options)


def _shared(name: str, options: ModelOptions, size: int, role: str) -> Backbone:
    stem, zero = options.stem, options.init != "torch"
    return replace(backbone_of(name, options, size), create=partial(_body, name, stem, zero, size, role))


@cache
def _body(name: str, stem: str, zero_init_last: bool, size: int, role: str) -> nn.Module:
    """An architecture's body; the two networks of one model (``role``) must not share theirs."""
    options = ModelOptions.model_validate({"stem": stem, "init": "timm" if zero_init_last else "torch"})
    with on_meta():
        return backbone_of(name, options, size).create()
