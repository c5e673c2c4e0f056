"""Residual networks on timm's implementation.

Sources: He et al., CVPR 2016; FedHPL Tables 7 and 8 for stems and features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hetfl.errors import HetflError
from hetfl.models.base import ModelOptions
from hetfl.models.fitting import Fitted
from hetfl.models.parts import part


class FittedResNet(Fitted):
    """A residual network whose last feature map is pooled to one value per channel, or to a small flattened grid."""

    numerics = 1

    def feature_width(self, options: ModelOptions) -> int:
        """The number of channels, or ``flat`` if it is set.

        Raises:
            HetflError: ``flat`` is not the number of channels times a square number.
        """
        channels = self.body.num_features
        if options.flat is None:
            return channels
        if (side := math.isqrt(options.flat // channels)) < 1 or channels * side**2 != options.flat:
            raise HetflError(f"flat: {options.flat} is not {channels} channels times a square; use {4 * channels}")
        return options.flat

    def features(self, images: Tensor) -> Tensor:
        """The pooled last feature map [B, d] of ``images`` [B, 3, H, W]."""
        last = self.body.forward_features(images)
        if self.options.flat is None:
            return self.body.forward_head(last, pre_logits=True)
        return F.adaptive_avg_pool2d(last, math.isqrt(self.options.flat // self.body.num_features)).flatten(1)


def cifar_stem(create: Callable[[], Any]) -> Callable[[], nn.Module]:
    """Wrap ``create`` so that its network has a stem for small images: 3x3 with stride 1, no max-pool.

    The function that is returned raises a HetflError for networks whose stem has several convolutions.
    """

    def made() -> nn.Module:
        body = create()
        if not isinstance(body.conv1, nn.Conv2d):
            raise HetflError("stem: a ResNet with a deep stem has no cifar stem; use imagenet")
        body.conv1 = nn.Conv2d(3, body.conv1.out_channels, 3, stride=1, padding=1, bias=False)
        body.maxpool = nn.Identity()
        nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
        return body

    return made


def small_resnet(
    block: str, layers: Sequence[int], channels: Sequence[int], zero_init_last: bool = True
) -> nn.Module:
    """A small residual network with newly initialised weights and no head.

    Args:
        block: ``basic`` or ``bottleneck``.
        layers: number of blocks of each of the four stages; the last stages may be empty.
        channels: of each stage; the stem has as many as the first stage.
        zero_init_last: whether the last batch normalisation of a block starts at 0.
    """
    timm = part("timm.models.resnet")
    kinds: dict[str, Any] = {"basic": timm.BasicBlock, "bottleneck": timm.Bottleneck}
    # timm's plain stem always has 64 channels. A deep stem takes a width; its convolution is replaced below.
    more: dict[str, Any] = {"stem_type": "deep", "stem_width": channels[0] // 2, "zero_init_last": zero_init_last}
    # timm fails for a single block, since it divides by the number of blocks minus one.
    single = sum(layers) == 1
    made = (1, 1, 0, 0) if single else tuple(layers)
    body: Any = timm.ResNet(kinds[block], made, num_classes=0, channels=tuple(channels), **more)
    if single:
        body.layer2 = nn.Sequential()
    body.conv1 = nn.Conv2d(3, channels[0], 7, stride=2, padding=3, bias=False)
    body.init_weights(zero_init_last)
    return body
