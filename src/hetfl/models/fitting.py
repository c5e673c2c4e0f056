"""A backbone with what a method adds to it: prompts, a projection, a head, and possibly a second network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hetfl.data.batches import InputSpec
from hetfl.draws import Draws, seeded_library_code
from hetfl.errors import HetflError
from hetfl.models.base import AUXILIARY, BATCH_NORMS, Model, ModelOptions, Output
from hetfl.models.dropout import KeyedDropout
from hetfl.models.parts import part
from hetfl.models.pixels import PixelPrompts, pixel_prompts

STATISTICS = ("running_mean", "running_var")
"""The running statistics of batch normalisation."""

INSERTED = ("shared", "group", "keys")
"""Names of the parameters of inserted prompts."""

Layer = Callable[[int, int], nn.Module]
"""Makes a layer, or several, from the numbers of inputs and outputs."""


class Fitted(nn.Module):
    """A backbone, optional prompts, an optional projection, and a head.

    Subclasses are families of backbones. They define how features are computed, and which prompts there are besides
    those in pixels.

    Args:
        body: the backbone without a head.
        outputs: number of logits.
        options: what to add to the backbone.
        spec: the input of the model.
        head: makes the head.
        auxiliary: the second network.

    Attributes:
        numerics: version of the family's arithmetic and initial values, see ``experiments/versions.py``. This class's
            version stands for everything in this file.
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
        """Make the prompts: a parameter, or the module that holds the parameters; None without prompts."""
        return pixel_prompts(options, spec)

    def fresh_prompts(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Initial values of the prompts, by name of parameter."""
        if not isinstance(self.prompts, PixelPrompts):
            return {}
        return {f"prompts.{name}": value for name, value in self.prompts.fresh(generator).items()}

    def feature_width(self, options: ModelOptions) -> int:
        """Size d of the features that :meth:`features` computes."""
        return self.body.num_features

    def features(self, images: Tensor) -> Tensor:
        """The backbone's features [B, d] of ``images`` [B, channels, H, W]."""
        return self.body(images)

    def lower(self) -> bool:
        """Let the blocks of a frozen backbone multiply matrices in bfloat16; returns whether it has such blocks."""
        return False

    def query(self, images: Tensor, block: int | None = None) -> Tensor:
        """The backbone's features [B, d] without prompts; some families also compute them after a given ``block``."""
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
    """An architecture and how to make it.

    Attributes:
        name: of the architecture.
        family: the class that turns it into a complete network.
        create: makes it without a head, with newly initialised weights.
        head: makes its head.
    """

    name: str
    family: type[Fitted]
    create: Callable[[], nn.Module]
    head: Layer = nn.Linear


def layered_head(hidden: int | None, relu: bool) -> Layer:
    """A function that makes heads of several layers.

    Args:
        hidden: width of the hidden layer, which a ReLU follows; None: no hidden layer.
        relu: whether a ReLU follows the logits.
    """

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
    """Make a model from a backbone and a method's options.

    Args:
        backbone: the client's own.
        num_classes: C, the data set's number of classes.
        options: what to add to the backbone, and which parts train.
        spec: the input of the backbone.
        weights: the body's pre-trained weights; None: newly initialised ones.
        auxiliary: the second network's backbone.

    Raises:
        HetflError: the backbone does not support the options, or ``transform`` is set and the two networks' features
            have different sizes.
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
        # Random values would be overwritten, and take seconds for a large body.
        with on_meta():
            body = create()
        body.load_state_dict(weights, assign=True)
    for norm in body.modules():
        if isinstance(norm, BATCH_NORMS):
            # With a constant momentum the count of batches is not used, and it would have to be a client's parameter.
            norm.num_batches_tracked = None
    return body


@contextmanager
def on_meta() -> Iterator[None]:
    """Networks that are made here are on the meta device: only their shapes are there."""
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Leaves out steps of (truncated) normal draws for which torch would import its compiler, for two seconds."""

    steps = (Tensor.normal_, nn.init.normal_, Tensor.erfinv_, Tensor.clamp_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return next(iter([*args, *kwargs.values()])) if func in self.steps else func(*args, **kwargs)


def _statistics(module: nn.Module) -> list[str]:
    return [key for key, _ in module.named_buffers() if key.split(".")[-1] in STATISTICS]


def _initial(
    module: Fitted, backbone: Backbone, weights: dict[str, Tensor] | None, draws: Draws, client: int
) -> dict[str, Tensor]:
    """The initial parameters of one network, without its frozen parts."""
    params = module.fresh_prompts(draws.generator("init:prompts", client))
    if module.options.body == "trained":
        names = [*(key for key, _ in module.body.named_parameters()), *_statistics(module.body)]
        if weights is None:
            with seeded_library_code(draws.key("init:body", client)):
                drawn = backbone.create().state_dict()
            params |= {f"body.{key}": drawn[key] for key in names}
        else:
            params |= {f"body.{key}": weights[key].detach().clone() for key in names}
    if (linear := module.projection) is not None:
        sizes = linear.in_features, linear.out_features
        params |= _drawn("projection", nn.Linear, *sizes, draws.key("init:projection", client))
    head = draws.key("init:head", client)
    return params | _drawn("head", backbone.head, module.width, module.outputs, head, module.options.init)


def _drawn(prefix: str, make: Layer, inputs: int, outputs: int, seed: int, rule: str = "torch") -> dict[str, Tensor]:
    with seeded_library_code(seed):
        fresh = make(inputs, outputs)
        if isinstance(fresh, nn.Linear) and rule == "timm":
            # timm's truncated normal and not torch's, since torch's draws differ between its versions.
            part("timm.layers.weight_init").trunc_normal_(fresh.weight, std=0.02)
            nn.init.zeros_(fresh.bias)
        elif isinstance(fresh, nn.Linear) and rule == "vpt":
            nn.init.kaiming_normal_(fresh.weight, mode="fan_out")
            nn.init.constant_(fresh.bias, -math.log(99))
    return {f"{prefix}.{key}": value for key, value in fresh.state_dict().items()}
