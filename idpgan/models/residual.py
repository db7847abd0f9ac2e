"""ResNet, WideResNet and ResNeXt for images of up to 32 x 32: the three classifiers that DPImageBench judges by.

All take float images in [-1, 1], have three stages that halve height and width twice, and average over positions at the
end. With the default sizes they are those of Gong et al. (2025), "DPImageBench: A Unified Benchmark for Differentially
Private Image Synthesis", CCS (repository 2019ChenGong/DPImageBench, evaluation/classifier/).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from idpgan.checks import typed
from idpgan.errors import InputError
from idpgan.models.classifier import Classifier, ResidualBlock
from idpgan.models.initialize import seeded_init

SMALLEST_PX, LARGEST_PX = 8, 32


@dataclass(frozen=True)
class ResNet:
    """He et al. (2016), "Deep Residual Learning for Image Recognition", section 4.2, with projections for shortcuts.

    Attributes:
        depth: 6 n + 2 layers, n blocks per stage.
        width: Channels of the first stage; each further stage has twice as many.
        grid_px: The first convolution has the smallest stride 1, 2, 4, ... that leaves at most so many rows and
            columns; it is what makes a small network fast.
    """

    depth: int = 110
    width: int = 16
    grid_px: int = LARGEST_PX

    def body(self, image_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
        """Return the network up to its features, and their number."""
        blocks = _per_stage(self.depth, 6, 2)
        layers: list[nn.Module] = [*_stem(image_shape, self.width, self.grid_px), *_normalized(self.width)]
        for channels_in, channels_out, stride in _stages(self.width, self.width, blocks):
            layers.append(ResidualBlock(channels_in, channels_out, stride))
        return nn.Sequential(*layers, *_pooled()), 4 * self.width


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
        blocks, width = _per_stage(self.depth, 6, 4), 16 * self.widening
        layers: list[nn.Module] = _stem(image_shape, 16, self.grid_px)
        for channels_in, channels_out, stride in _stages(16, width, blocks):
            layers.append(WideBlock(channels_in, channels_out, stride, self.dropout))
        return nn.Sequential(*layers, *_normalized(4 * width), *_pooled()), 4 * width


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
        blocks, width = _per_stage(self.depth, 9, 2), 4 * self.width
        layers: list[nn.Module] = [*_stem(image_shape, self.width, self.grid_px), *_normalized(self.width)]
        for channels_in, channels_out, stride in _stages(self.width, width, blocks):
            inner = self.cardinality * channels_out // 4
            layers.append(ResNeXtBlock(channels_in, inner, channels_out, stride, self.cardinality))
        return nn.Sequential(*layers, *_pooled()), 4 * width


ResidualNetwork = ResNet | WideResNet | ResNeXt


@typed
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


class ResNeXtBlock(nn.Module):
    """A 1 x 1, a grouped 3 x 3 and a 1 x 1 convolution beside a shortcut (Xie et al. 2017, Figure 3c)."""

    def __init__(self, channels_in: int, inner: int, channels_out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, inner, 1, bias=False),
            *_normalized(inner),
            nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False),
            *_normalized(inner),
            nn.Conv2d(inner, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        projection = [nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)]
        self.shortcut = nn.Sequential(*([] if channels_in == channels_out else projection))

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels_in, H, W) to (B, channels_out, H / stride, W / stride)."""
        return torch.relu(self.residual(images) + self.shortcut(images))


def _per_stage(depth: int, layers: int, rest: int) -> int:
    """Return the number of blocks of each of the three stages."""
    if depth < layers + rest or (depth - rest) % layers:
        raise InputError(
            f"A depth of {depth} layers does not fit: it must be {layers} n + {rest}, with n of 1 or more."
        )
    return (depth - rest) // layers


def _stages(channels: int, width: int, blocks: int) -> list[tuple[int, int, int]]:
    """List channels in, channels out and stride of all blocks of the three stages."""
    outs = [width << stage for stage in range(3) for _ in range(blocks)]
    starts = (blocks, 2 * blocks)  # of the stages that halve the grid
    return [(([channels, *outs])[i], out, 2 if i in starts else 1) for i, out in enumerate(outs)]


def _stem(image_shape: tuple[int, int, int], channels_out: int, grid_px: int) -> list[nn.Module]:
    channels, height, width = image_shape
    stride = 1
    while max(height, width) > grid_px * stride:
        stride *= 2
    return [nn.Conv2d(channels, channels_out, 3, stride, padding=1, bias=False)]


def _normalized(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def _pooled() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
