"""A backbone fitted out as a method wants it: prompts before, projection and head behind, a second network beside."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hetfl.data.batches import InputSpec
from hetfl.draws import Draws, seeded_library_code
from hetfl.errors import HetflError
from hetfl.models.base import AUXILIARY, BATCH_NORMS, Model, ModelOptions, Output
from hetfl.models.dropout import KeyedDropout
from hetfl.models.parts import part
from hetfl.models.pixels import PixelPrompts, pixel_prompts

STATISTICS = ("running_mean", "running_var")
"""What batch normalisation learns from images rather than from gradients."""

INSERTED = ("shared", "group", "keys")
"""Parameters of inserted prompts."""

Layer = Callable[[int, int], nn.Module]
"""Makes a layer, or a few, from the numbers of its inputs and outputs."""


class Fitted(nn.Module):
    """A backbone, optional prompts, an optional projection, and a head.

    A family says how its backbone makes features and which prompts it takes beside those in pixels.

    Args:
        body: the backbone without a head.
        outputs: number of logits.
        options: prompts, feature.
        spec: the images given to the model.
        head: makes the head.
        auxiliary: the second network.

    Attributes:
        numerics: version of the family's arithmetic and start values, as a method's: see
            ``experiments/versions.py``. This one is of everything in this file.
        width: size of the feature that enters the head.
        lowered: whether the blocks' matrix products are in bfloat16.
    """

    numerics: ClassVar[int] = 1
    prompts: nn.Parameter | PixelPrompts | None
    lowered = False

    def __init__(
        self,
        body: Any,
        outputs: int,
        options: ModelOptions,
        spec: InputSpec,
        head: Layer = nn.Linear,
        auxiliary: Fitted | None = None,
    ) -> None:
        super().__init__()
        self.body, self.options, self.outputs = body, options, outputs
        self.prompts = self.make_prompts(options, spec)
        self.prompt_dropout: KeyedDropout | None = None
        if options.prompt_dropout and isinstance(self.prompts, nn.Parameter):
            self.prompt_dropout = KeyedDropout(options.prompt_dropout, *self.prompts.shape)
        width = self.feature_width(options)
        self.width = options.embedding or width
        linear = options.embedding is not None and options.reduce == "linear"
        self.projection = nn.Linear(width, self.width) if linear else None
        self.head = head(self.width, outputs)
        self.auxiliary = auxiliary
        self.transform = nn.Linear(self.width, self.width, bias=False) if options.transform else None

    def make_prompts(self, options: ModelOptions, spec: InputSpec) -> nn.Parameter | PixelPrompts | None:
        """The prompts' parameters, or the module that holds them."""
        return pixel_prompts(options, spec)

    def fresh_prompts(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Start values of the prompts by name of parameter."""
        if not isinstance(self.prompts, PixelPrompts):
            return {}
        return {f"prompts.{name}": value for name, value in self.prompts.fresh(generator).items()}

    def feature_width(self, options: ModelOptions) -> int:
        """Size of what :meth:`features` gives."""
        return self.body.num_features

    def features(self, images: Tensor) -> Tensor:
        """The backbone's features [B, d] of ``images`` [B, channels, H, W]."""
        return self.body(images)

    def lower(self) -> bool:
        """Have the blocks of a frozen backbone multiply matrices in bfloat16; says whether there are some."""
        return False

    def query(self, images: Tensor, block: int | None = None) -> Tensor:
        """The backbone's features [B, d] without prompts; some families know them after a ``block``, too."""
        return self.features(images)

    def forward(self, images: Tensor) -> Output:
        """Features and logits of ``images`` [B, channels, H, W]."""
        features = self.features(self.prompts(images) if isinstance(self.prompts, PixelPrompts) else images)
        if self.projection is not None:
            features = self.projection(features)
        elif self.options.embedding not in (None, features.shape[-1]):
            features = F.adaptive_avg_pool1d(features, self.options.embedding)
        return Output(features, self.head(features))


@dataclass(frozen=True)
class Backbone:
    """An architecture, ready to be made.

    Attributes:
        name: of the architecture.
        family: how it is used.
        create: makes it without a head, with fresh weights.
        head: makes the head that belongs to it.
    """

    name: str
    family: type[Fitted]
    create: Callable[[], nn.Module]
    head: Layer = nn.Linear


def layered_head(hidden: int | None, relu: bool) -> Layer:
    """Makes heads with a hidden layer, a ReLU behind it, and perhaps a ReLU behind the logits."""

    def make(width: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for sizes in pairwise((width, *([hidden] if hidden else []), outputs)):
            layers += [nn.Linear(*sizes), nn.ReLU()]
        return nn.Sequential(*(layers if relu else layers[:-1]))

    return make


def fit(
    backbone: Backbone,
    num_classes: int,
    options: ModelOptions,
    spec: InputSpec,
    weights: dict[str, Tensor] | None,
    auxiliary: Backbone | None = None,
) -> Model:
    """Fit a backbone out as a method wants it.

    Args:
        backbone: the client's own.
        num_classes: C, the data set's number of classes.
        options: prompts, body, feature, head.
        spec: the input the backbone is given.
        weights: the body's pre-trained weights, or None for fresh ones.
        auxiliary: the second network's backbone.

    Raises:
        HetflError: the options do not fit the backbone, or a square matrix the two networks' features.
        RuntimeError: the weights do not fit the backbone.
    """
    outputs = num_classes + options.extra_outputs
    trained = options.body == "trained"
    kept = options.model_dump(include={"stem", "embedding", "reduce", "init"})
    plain = ModelOptions(body="trained", weights="scratch", **kept)
    second = None
    if auxiliary is not None:
        second = auxiliary.family(_body(auxiliary.create, None), outputs, plain, spec, auxiliary.head)
    module = backbone.family(_body(backbone.create, weights), outputs, options, spec, backbone.head, second)
    if auxiliary and second and options.transform and second.width != module.width:
        widths = f"{module.width} values with {backbone.name}, {second.width} with {auxiliary.name}"
        raise HetflError(f"embedding: the feature has {widths}; set a common size")
    roles = ("prompts", *(["body"] if trained else []), "projection", "head", "auxiliary", "transform", *INSERTED)
    groups = {role: tuple(key for key, _ in module.named_parameters() if key.split(".")[0] == role) for role in roles}
    moving = ("body", "auxiliary") if trained else ("auxiliary",)
    if statistics := tuple(key for key in _statistics(module) if key.split(".")[0] in moving):
        groups["buffers"] = statistics

    def fresh(draws: Draws, client: int) -> dict[str, Tensor]:
        params = _initial(module, backbone, weights, draws, client)
        if auxiliary and second:
            beside = _initial(second, auxiliary, None, Draws(draws.key("init:auxiliary", client)), client)
            params |= {AUXILIARY + key: value for key, value in beside.items()}
        if module.transform is not None:
            square = partial(nn.Linear, bias=False)
            params |= _drawn("transform", square, module.width, module.width, draws.key("init:transform", client))
        return params

    changing: list[nn.Module] = [*([module.body] if trained else []), *([second.body] if second else [])]
    if module.prompt_dropout is not None:
        changing.append(module.prompt_dropout)
    return Model(backbone.name, module, module.width, num_classes, groups, spec, changing, fresh)


def _body(create: Callable[[], nn.Module], weights: dict[str, Tensor] | None) -> nn.Module:
    if weights is None:
        with seeded_library_code(0):
            body = create()
    else:
        # Drawing values that are overwritten at once would take seconds for a large backbone.
        with torch.device("meta"):
            body = create()
        body.load_state_dict(weights, assign=True)
    for norm in body.modules():
        if isinstance(norm, BATCH_NORMS):
            # The momentum is constant, so the count decides nothing, and it is no parameter to pass around.
            norm.num_batches_tracked = None
    return body


def _statistics(module: nn.Module) -> list[str]:
    return [key for key, _ in module.named_buffers() if key.split(".")[-1] in STATISTICS]


def _initial(
    module: Fitted, backbone: Backbone, weights: dict[str, Tensor] | None, draws: Draws, client: int
) -> dict[str, Tensor]:
    """What one network starts from, the frozen parts left out."""
    params = module.fresh_prompts(draws.generator("init:prompts", client))
    if module.options.body == "trained":
        values = weights
        if values is None:
            with seeded_library_code(draws.key("init:body", client)):
                values = backbone.create().state_dict()
        names = [*(key for key, _ in module.body.named_parameters()), *_statistics(module.body)]
        params |= {f"body.{key}": values[key].detach().clone() for key in names}
    if (linear := module.projection) is not None:
        sizes = linear.in_features, linear.out_features
        params |= _drawn("projection", nn.Linear, *sizes, draws.key("init:projection", client))
    head = draws.key("init:head", client)
    return params | _drawn("head", backbone.head, module.width, module.outputs, head, module.options.init)


def _drawn(prefix: str, make: Layer, inputs: int, outputs: int, seed: int, rule: str = "torch") -> dict[str, Tensor]:
    with seeded_library_code(seed):
        fresh = make(inputs, outputs)
        if isinstance(fresh, nn.Linear) and rule == "timm":
            # timm's truncated normal rather than torch's, whose draws changed between versions.
            part("timm.layers.weight_init").trunc_normal_(fresh.weight, std=0.02)
            nn.init.zeros_(fresh.bias)
        elif isinstance(fresh, nn.Linear) and rule == "vpt":
            nn.init.kaiming_normal_(fresh.weight, mode="fan_out")
            nn.init.constant_(fresh.bias, -math.log(99))
    return {f"{prefix}.{key}": value for key, value in fresh.state_dict().items()}
