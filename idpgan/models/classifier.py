"""Classifiers that judge images: three of different strength, a recognizer of faces, and those of DPImageBench.

All take float images in [-1, 1]. The three (`build_classifier`) take any size: the stems of the two convolutional ones
first reduce height and width to at most 16, so that 64 x 64 images cost little more than 28 x 28 ones.

The recognizer is that of Liu Chao, Yang Jing, Zhao Weinan, Zhang Yining, Li Jingyou, Mu Chunmiao (2021), "Face image
publication based on differential privacy", Wireless Communications and Mobile Computing, section 4.3: "an improved
AlexNet [...] has a simpler network structure and fewer parameters". No layer is stated. Ours keeps AlexNet's order
(Krizhevsky, Sutskever and Hinton 2012): five convolutions, pooling after the first, second and fifth, dropout before
the fully connected layers. It has between a twelfth and a quarter of the channels, one hidden layer, and batch
normalization in place of local response normalization.

ResNet, WideResNet and ResNeXt are for images of up to 32 x 32, have three stages that halve height and width twice, and
average over positions at the end. With the default sizes they are those of Gong et al. (2025), "DPImageBench: A Unified
Benchmark for Differentially Private Image Synthesis", CCS (repository 2019ChenGong/DPImageBench,
evaluation/classifier/).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from idpgan.config import nearest_hint
from idpgan.errors import InputError
from idpgan.models.initialize import seeded_init

CLASSIFIERS = ("cnn", "resnet", "logistic")  # of `build_classifier`
_BODY_PX = 16  # the stem brings the longer side down to at most this
_NUM_HIDDEN = 64
_RECOGNIZER_PX, _RECOGNIZER_HIDDEN = 48, 128  # after the first convolution; of the layer before the last
_RECOGNIZER_GRID = 4  # positions per side after the last pooling
SMALLEST_PX, LARGEST_PX = 8, 32  # that the networks of DPImageBench take


class Classifier(nn.Module):
    """A body that turns images into features and a linear head that turns features into logits.

    Batch normalization is allowed: these networks judge images and are never trained under differential privacy.

    Args:
        body: Maps (B, C, H, W) to features (B, num_features).
    """

    def __init__(self, body: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(num_features, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to the input of the head, (B, F)."""
        return self.body(images)

    def forward(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to logits (B, K)."""
        return self.head(self.features(images))


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
    return _undecided(name, image_shape, num_classes, seed)


def _undecided(name: str, image_shape: tuple[int, int, int], num_classes: int, seed: int) -> Classifier:
    """Build a network whose head is zero."""
    with seeded_init(seed):
        classifier = Classifier(*classifier_body(name, image_shape), num_classes)
    nn.init.zeros_(classifier.head.weight)
    nn.init.zeros_(classifier.head.bias)
    return classifier


def classifier_body(name: str, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
    """Return one of `CLASSIFIERS`, or the "recognizer", up to its features, and their number.

    The stem leaves at most 16 x 16. "cnn": three convolutions that halve the grid twice, then one hidden layer;
    "resnet": stem and three residual blocks of 16, 32, 64 channels, averaged over positions; "logistic": no body, the
    features are the pixels.
    """
    channels, stride = image_shape[0], stride_to(image_shape, _BODY_PX)
    kernel = max(3, 2 * stride - 1)  # of the stem
    if name == "cnn":
        body = nn.Sequential(
            *convolution(channels, 32, kernel, stride),
            *convolution(32, 64, 3, 2),
            *convolution(64, 64, 3, 2),
            _averaged([math.ceil(math.ceil(side / stride) / 4) for side in image_shape[1:]], 4),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, _NUM_HIDDEN),
            nn.ReLU(inplace=True),
        )
        return body, _NUM_HIDDEN
    if name == "resnet":
        blocks = [ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2)]
        stem = convolution(channels, 16, kernel, stride)
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 64
    if name == "recognizer":
        stride = stride_to(image_shape, _RECOGNIZER_PX)
        body = nn.Sequential(
            *convolution(channels, 24, 2 * stride + 3, stride),
            nn.MaxPool2d(3, 2, padding=1),
            *convolution(24, 48, 5),
            nn.MaxPool2d(3, 2, padding=1),
            *convolution(48, 64, 3),
            *convolution(64, 64, 3),
            *convolution(64, 64, 3),
            nn.AdaptiveMaxPool2d(_RECOGNIZER_GRID),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(64 * _RECOGNIZER_GRID * _RECOGNIZER_GRID, _RECOGNIZER_HIDDEN),
            nn.ReLU(inplace=True),
        )
        return body, _RECOGNIZER_HIDDEN
    return nn.Flatten(), math.prod(image_shape)


class _Residual(nn.Module):
    """Learned layers beside a shortcut, followed by a ReLU."""

    residual: nn.Module
    shortcut: nn.Module

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels_in, H, W) to (B, channels_out, H / stride, W / stride)."""
        return torch.relu(self.residual(images) + self.shortcut(images))


class ResidualBlock(_Residual):
    """Two 3 x 3 convolutions beside a shortcut, which is a 1 x 1 convolution where shapes differ."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *convolution(channels_in, channels_out, 3, stride), *convolution(channels_out, channels_out, 3, 1)[:-1]
        )
        same = channels_in == channels_out and stride == 1
        shortcut = [] if same else convolution(channels_in, channels_out, 1, stride)[:-1]
        self.shortcut = nn.Sequential(*shortcut)


def convolution(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Return convolution, batch normalization and ReLU."""
    return [
        nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    ]


def _averaged(sides: Sequence[int], side: int) -> nn.Module:
    """Return averages over ``side`` x ``side`` cells of a grid; where they only copy it, by what copies faster."""
    if set(sides) == {side}:
        return nn.Identity()
    return nn.Upsample(scale_factor=2) if set(sides) == {side // 2} else nn.AdaptiveAvgPool2d(side)


def stride_to(image_shape: tuple[int, int, int], most_px: int) -> int:
    """Return the smallest stride 1, 2, 4, ... that leaves at most so many rows and columns of an image (C, H, W)."""
    stride = 1
    while max(image_shape[1:]) > most_px * stride:
        stride *= 2
    return stride


def build_recognizer(image_shape: tuple[int, int, int], num_people: int, *, seed: int = 0) -> Classifier:
    """Build a recognizer with fresh weights, on the CPU: float images in [-1, 1] to a logit per person.

    Batch normalization is allowed: the network judges images and is never trained under differential privacy.

    Args:
        image_shape: (C, H, W), H and W at least 16.
        num_people: At least 1.
        seed: Of the initial weights. The caller's random state is neither read nor changed.
    """
    return _undecided("recognizer", image_shape, num_people, seed)


@dataclass(frozen=True)
class ResNet:
    """He et al. (2016), "Deep Residual Learning for Image Recognition", section 4.2, with projections for shortcuts.

    Attributes:
        depth: 6 n + 2 layers, n blocks per stage.
        width: Channels of the first stage; each further stage has twice as many.
        grid_px: The first convolution has the smallest stride 1, 2, 4, ... that leaves at most so many rows and
            columns; this makes a small network fast.
    """

    depth: int = 110
    width: int = 16
    grid_px: int = LARGEST_PX

    def body(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        """Return the network up to its features, and their number."""
        stem = convolution(image_shape[0], self.width, 3, stride_to(image_shape, self.grid_px))
        return _staged(stem, ResidualBlock, self.width, self.width, (self.depth, 6, 2))


@dataclass(frozen=True)
class WideResNet:
    """Zagoruyko and Komodakis (2016), "Wide Residual Networks": normalization and ReLU before each convolution.

    Attributes:
        depth: 6 n + 4 layers, n blocks per stage.
        widening: Channels of the first stage in multiples of 16.
        dropout: Share of the numbers between two convolutions of a block that a training step sets to 0.
        grid_px: See `ResNet`.
    """

    depth: int = 40
    widening: int = 4
    dropout: float = 0.3
    grid_px: int = LARGEST_PX

    def body(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        """Return the network up to its features, and their number."""
        width = 16 * self.widening
        stem = convolution(image_shape[0], 16, 3, stride_to(image_shape, self.grid_px))[:1]
        block = functools.partial(WideBlock, dropout=self.dropout)
        return _staged(stem, block, 16, width, (self.depth, 6, 4), _normalized(4 * width))


@dataclass(frozen=True)
class ResNeXt:
    """Xie et al. (2017), "Aggregated Residual Transformations for Deep Neural Networks", section 5.3.

    Attributes:
        depth: 9 n + 2 layers, n blocks per stage.
        cardinality: Groups of the middle convolution of each block.
        width: Channels of the first convolution, and of one group in the first stage; a block ends in four times as
            many, and each further stage has twice as many.
        grid_px: See `ResNet`.
    """

    depth: int = 29
    cardinality: int = 8
    width: int = 64
    grid_px: int = LARGEST_PX

    def body(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        """Return the network up to its features, and their number."""
        stem = convolution(image_shape[0], self.width, 3, stride_to(image_shape, self.grid_px))
        block = functools.partial(ResNeXtBlock, groups=self.cardinality)
        return _staged(stem, block, self.width, 4 * self.width, (self.depth, 9, 2))


ResidualNetwork = ResNet | WideResNet | ResNeXt


def build_residual(
    network: ResidualNetwork, image_shape: tuple[int, int, int], num_classes: int, *, seed: int = 0
) -> Classifier:
    """Build a network with fresh weights, on the CPU.

    Args:
        image_shape: (C, H, W).
        num_classes: K >= 1.
        seed: Seed of the initial weights, >= 0. The caller's random state is neither read nor changed.

    Raises:
        InputError: If a side of the images is below 8 or above 32, the depth does not fit, or the seed is negative.
    """
    check_sides(image_shape)
    with seeded_init(seed):
        classifier = Classifier(*network.body(image_shape), num_classes)
        for module in classifier.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    nn.init.zeros_(classifier.head.bias)
    return classifier


def check_sides(image_shape: tuple[int, int, int]) -> None:
    """Raise `InputError` unless both sides of images (C, H, W) are 8 to 32 pixels."""
    height, width = image_shape[1:]
    if not SMALLEST_PX <= min(height, width) <= max(height, width) <= LARGEST_PX:
        raise InputError(
            f"Images of {height} x {width} pixels do not fit: ResNet, WideResNet and ResNeXt take sides of "
            f"{SMALLEST_PX} to {LARGEST_PX}. Prepare images of such a size (data.image_size), or measure them by "
            "--protocol idpgan."
        )


class WideBlock(nn.Module):
    """Twice normalization, ReLU and a 3 x 3 convolution, with dropout between them."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Sequential(*_normalized(channels_in))
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            *_normalized(channels_out),
            nn.Dropout(dropout),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
        )
        same = channels_in == channels_out
        self.shortcut = None if same else nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels_in, H, W) to (B, channels_out, H / stride, W / stride)."""
        normalized = self.first(images)
        beside: Tensor = images if self.shortcut is None else self.shortcut(normalized)
        return beside + self.residual(normalized)


class ResNeXtBlock(_Residual):
    """A 1 x 1, a grouped 3 x 3 and a 1 x 1 convolution beside a shortcut (Xie et al. 2017, Figure 3c)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, groups: int) -> None:
        super().__init__()
        inner = groups * channels_out // 4
        self.residual = nn.Sequential(
            *convolution(channels_in, inner, 1),
            nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False),
            *_normalized(inner),
            *convolution(inner, channels_out, 1)[:-1],
        )
        projection = convolution(channels_in, channels_out, 1, stride)[:-1]
        self.shortcut = nn.Sequential(*([] if channels_in == channels_out else projection))


def _staged(
    stem: list[nn.Module],
    block: Callable[[int, int, int], nn.Module],
    channels: int,
    width: int,
    depths: tuple[int, int, int],
    last: Sequence[nn.Module] = (),
) -> tuple[nn.Module, int]:
    """Put three stages of blocks behind a stem; the second and the third halve the grid and double the channels.

    ``depths`` are the layers of the network, those of one block in each stage, and those outside of blocks.
    """
    depth, each, rest = depths
    if depth < each + rest or (depth - rest) % each:
        raise InputError(f"A depth of {depth} layers does not fit: it must be {each} n + {rest}, with n of 1 or more.")
    layers, blocks = list(stem), (depth - rest) // each
    for number in range(3 * blocks):
        channels_out = width << number // blocks
        layers.append(block(channels, channels_out, 2 if number in (blocks, 2 * blocks) else 1))
        channels = channels_out
    return nn.Sequential(*layers, *last, nn.AdaptiveAvgPool2d(1), nn.Flatten()), channels


def _normalized(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
