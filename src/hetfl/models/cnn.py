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
"""Default kernel size of a plain network's convolutions in pixels; they have no padding."""

Pool = Literal["every", "last"]
"""The convolutions that a 2x2 max-pool follows."""


class PlainCNN(Fitted):
    """A network made by :func:`plain_cnn`, with prompts, projection and head."""

    numerics = 1


class TorchvisionCNN(Fitted):
    """Torchvision's GoogLeNet or MobileNet-v2, with prompts, projection and head."""

    numerics = 1


def last_side(size: int, convs: Sequence[int], kernel: int = KERNEL, pool: Pool = "every") -> int:
    """Height and width of a plain network's last feature map in pixels; less than 1 if the image is too small."""
    for number in range(1, len(convs) + 1):
        size = (size - kernel + 1) // (2 if pool == "every" or number == len(convs) else 1)
    return size


class Pixels(nn.Module):
    """Flatten images [B, C, H, W] to features [B, H * W * C], in the channels-last order of image files."""

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
    """Convolutions with ReLU and max-pools, then fully connected layers with ReLU, initialised as in torch.

    Args:
        channels: of the image.
        size: height and width of the image in pixels, which fix the first fully connected layer.
        convs: channels of each convolution's output; without any, the features are :class:`Pixels`.
        widths: of the fully connected layers; the last one is the size of the feature.
        kernel: size of the convolutions in pixels.
        pool: the convolutions that a max-pool follows.
    """
    layers: list[nn.Module] = []
    inputs = channels
    for number, outputs in enumerate(convs, start=1):
        # A ReLU behind the pool gives the bits of one before it, in gradients too, and has a quarter of the work.
        pooled = pool == "every" or number == len(convs)
        layers += [nn.Conv2d(inputs, outputs, kernel), *([nn.MaxPool2d(2)] if pooled else []), nn.ReLU()]
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
    """GoogLeNet without auxiliary heads, with dropout after global pooling."""
    from torchvision.models import GoogLeNet

    body: Any = GoogLeNet(aux_logits=False, init_weights=True)
    body.num_features = body.fc.in_features
    body.dropout, body.fc = KeyedDropout(body.dropout.p, body.num_features), nn.Identity()
    return body


def mobilenet_v2() -> nn.Module:
    """MobileNet-v2 of width 1, with dropout after global pooling."""
    from torchvision.models import MobileNetV2

    body: Any = MobileNetV2()
    body.num_features = body.last_channel
    body.classifier = KeyedDropout(body.classifier[0].p, body.num_features)
    return body
