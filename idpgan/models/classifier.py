"""Three classifiers of different strength that together measure what a set of images can teach.

All take float images in [-1, 1] of any size. The stems of the two convolutional ones first reduce height and width to
at most 16, so that 64 x 64 images cost little more than 28 x 28 ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from idpgan.config import nearest_hint
from idpgan.errors import InputError
from idpgan.models.initialize import seeded_init

_BODY_PX = 16  # the stem brings the longer side down to at most this
_NUM_HIDDEN = 64


class Classifier(nn.Module):
    """A body that turns images into features and a linear head that turns features into logits.

    Batch normalization is allowed: these networks judge images, they are never trained under differential privacy.

    Args:
        body: Maps (B, C, H, W) to features (B, num_features).
    """

    def __init__(self, body: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(num_features, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to the input of the head, (B, F)."""
        features: Tensor = self.body(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to logits (B, K)."""
        logits: Tensor = self.head(self.features(images))
        return logits


def build_classifier(name: str, image_shape: tuple[int, int, int], num_classes: int, *, seed: int = 0) -> Classifier:
    """Build a classifier with fresh weights, on the CPU. The head starts at zero: all classes are equally likely.

    Args:
        name: "cnn" (three convolutions, one hidden layer), "resnet" (three residual blocks, He et al. (2016),
            arXiv:1512.03385; at most 100,000 parameters up to 300 classes) or "logistic" (regression on the pixels).
        image_shape: (C, H, W).
        num_classes: K >= 1.
        seed: Seed of the initial weights, >= 0. The caller's random state is neither read nor changed.

    Raises:
        InputError: If there is no classifier of that name, or the seed is negative.
    """
    if name not in CLASSIFIERS:
        raise InputError(f"There is no classifier '{name}'. {nearest_hint(name, CLASSIFIERS)}")
    with seeded_init(seed):
        body, num_features = CLASSIFIERS[name](image_shape)
        classifier = Classifier(body, num_features, num_classes)
    nn.init.zeros_(classifier.head.weight)
    nn.init.zeros_(classifier.head.bias)
    return classifier


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, which is a 1 x 1 convolution where shapes differ."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *convolution(channels_in, channels_out, 3, stride), *convolution(channels_out, channels_out, 3, 1)[:-1]
        )
        same = channels_in == channels_out and stride == 1
        shortcut = [] if same else convolution(channels_in, channels_out, 1, stride)[:-1]
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels_in, H, W) to (B, channels_out, H / stride, W / stride)."""
        return torch.relu(self.residual(images) + self.shortcut(images))


def convolution(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Return convolution, batch normalization and ReLU."""
    return [
        nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    ]


def _stem(image_shape: tuple[int, int, int], channels_out: int) -> list[nn.Module]:
    """First convolution, with the smallest stride 1, 2, 4, ... that leaves at most 16 x 16."""
    channels, height, width = image_shape
    stride = 1
    while max(height, width) > _BODY_PX * stride:
        stride *= 2
    return convolution(channels, channels_out, max(3, 2 * stride - 1), stride)


def _cnn(image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
    """Three convolutions that halve the grid twice, then one hidden layer."""
    layers = [
        *_stem(image_shape, 32),
        *convolution(32, 64, 3, 2),
        *convolution(64, 64, 3, 2),
        nn.AdaptiveAvgPool2d(4),
    ]
    hidden = [nn.Flatten(), nn.Linear(64 * 4 * 4, _NUM_HIDDEN), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *hidden), _NUM_HIDDEN


def _resnet(image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
    """Stem and three residual blocks of 16, 32, 64 channels, averaged over positions."""
    blocks = [ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2)]
    return nn.Sequential(*_stem(image_shape, 16), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 64


def _logistic(image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
    """No body: the features are the pixels."""
    channels, height, width = image_shape
    return nn.Flatten(), channels * height * width


CLASSIFIERS: dict[str, Callable[[tuple[int, int, int]], tuple[nn.Module, int]]] = {
    "cnn": _cnn,
    "resnet": _resnet,
    "logistic": _logistic,
}
