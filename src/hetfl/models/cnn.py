"""Plain convolutional networks, and torchvision's GoogLeNet and MobileNet-v2, all without a head.

Sources: McMahan et al., AISTATS 2017; Szegedy et al., CVPR 2015; Sandler et al., CVPR 2018; the models of FedTGP
(Zhang et al., AAAI 2024) and of the benchmarks of pfl-research (Granqvist et al., NeurIPS 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from hetfl.models.dropout import KeyedDropout
from hetfl.models.fitting import Fitted

KERNEL = 5
"""Pixels of a side of a plain network's convolutions, which pad nothing, where nothing else is said."""

Pool = Literal["every", "last"]
"""Which convolutions a max-pool of 2 follows."""


class PlainCNN(Fitted):
    """What :func:`plain_cnn` makes, fitted out."""

    numerics = 1


class TorchvisionCNN(Fitted):
    """Torchvision's GoogLeNet or MobileNet-v2, fitted out."""

    numerics = 1


def last_side(size: int, convs: Sequence[int], kernel: int = KERNEL, pool: Pool = "every") -> int:
    """Pixels of a side of a plain network's last map; less than 1 where the image is too small for it."""
    for number in range(1, len(convs) + 1):
        size = (size - kernel + 1) // (2 if pool == "every" or number == len(convs) else 1)
    return size


class Pixels(nn.Module):
    """Images [B, C, H, W] as features [B, H * W * C] in the order in which image files, and processors, hold them."""

    def forward(self, images: Tensor) -> Tensor:
        return images.permute(0, 2, 3, 1).flatten(1)


def plain_cnn(
    channels: int,
    size: int,
    convs: Sequence[int],
    widths: Sequence[int],
    kernel: int = KERNEL,
    pool: Pool = "every",
) -> nn.Module:
    """Convolutions with ReLU and max-pools, then fully connected layers with ReLU, as torch starts them.

    Args:
        channels: of the image.
        size: pixels of its side, which the first fully connected layer is made for.
        convs: channels after each convolution; none: see :class:`Pixels`.
        widths: of the fully connected layers; the last one's is the feature's.
        kernel: pixels of a convolution's side.
        pool: which convolutions are followed by a max-pool.
    """
    layers: list[nn.Module] = []
    inputs = channels
    for number, outputs in enumerate(convs, start=1):
        layers += [nn.Conv2d(inputs, outputs, kernel), nn.ReLU()]
        if pool == "every" or number == len(convs):
            layers.append(nn.MaxPool2d(2))
        inputs = outputs
    layers.append(nn.Flatten() if convs else Pixels())
    inputs *= last_side(size, convs, kernel, pool) ** 2
    for outputs in widths:
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        inputs = outputs
    body: Any = nn.Sequential(*layers)
    body.num_features = inputs
    return body


def googlenet() -> nn.Module:
    """GoogLeNet without auxiliary heads; dropout between global pooling and what follows."""
    from torchvision.models import GoogLeNet

    body: Any = GoogLeNet(aux_logits=False, init_weights=True)
    body.num_features = body.fc.in_features
    body.dropout, body.fc = KeyedDropout(body.dropout.p, body.num_features), nn.Identity()
    return body


def mobilenet_v2() -> nn.Module:
    """MobileNet-v2 of width 1; dropout between global pooling and what follows."""
    from torchvision.models import MobileNetV2

    body: Any = MobileNetV2()
    body.num_features = body.last_channel
    body.classifier = KeyedDropout(body.classifier[0].p, body.num_features)
    return body
