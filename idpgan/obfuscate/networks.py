"""Networks that the trained obfuscators share: image to image, image to numbers, numbers to image."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from idpgan.errors import InputError
from idpgan.models.classifier import ResidualBlock

_STEP = 4  # two halvings


def check_sides(image_shape: tuple[int, int, int], name: str) -> None:
    """Refuse images whose sides cannot be halved twice."""
    _, height, width = image_shape
    if height % _STEP or width % _STEP or min(height, width) < 2 * _STEP:
        raise InputError(
            f"'{name}' takes images with sides that are multiples of {_STEP} and at least {2 * _STEP} px, got "
            f"{width} x {height}. Bring them to such a size with `idpgan prepare`."
        )


class Translator(nn.Module):
    """An image to an image: two halvings, two residual blocks, two doublings with the finer maps beside (U-Net)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.fine = nn.Sequential(*convolution(channels, width))
        self.middle = nn.Sequential(*convolution(width, 2 * width, stride=2))
        self.coarse = nn.Sequential(
            *convolution(2 * width, 4 * width, stride=2),
            ResidualBlock(4 * width, 4 * width, 1),
            ResidualBlock(4 * width, 4 * width, 1),
        )
        self.to_middle = nn.Sequential(*doubling(4 * width, 2 * width))
        self.to_fine = nn.Sequential(*doubling(4 * width, width))
        self.out = nn.Conv2d(2 * width, channels, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C, H, W), any range."""
        fine = self.fine(images)
        middle = self.middle(fine)
        upper = torch.cat([self.to_middle(self.coarse(middle)), middle], dim=1)
        mapped: Tensor = self.out(torch.cat([self.to_fine(upper), fine], dim=1))
        return mapped


class Trunk(nn.Sequential):
    """An image to a vector of ``4 width (H / 4) (W / 4)`` numbers."""

    def __init__(self, image_shape: tuple[int, int, int], width: int) -> None:
        channels, height, side = image_shape
        super().__init__(
            *convolution(channels, width),
            *convolution(width, 2 * width, stride=2),
            *convolution(2 * width, 4 * width, stride=2),
            nn.Flatten(),
        )
        self.num_features = 4 * width * (height // _STEP) * (side // _STEP)


class Painter(nn.Module):
    """A vector to an image in [-1, 1]."""

    def __init__(self, num_inputs: int, image_shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        channels, height, side = image_shape
        self.first = 4 * width, height // _STEP, side // _STEP
        self.ground = nn.Linear(num_inputs, self.first[0] * self.first[1] * self.first[2])
        self.grow = nn.Sequential(
            nn.BatchNorm2d(4 * width),
            nn.ReLU(inplace=True),
            *doubling(4 * width, 2 * width),
            *doubling(2 * width, width),
            nn.Conv2d(width, channels, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """Map (B, num_inputs) to (B, C, H, W)."""
        painted: Tensor = self.grow(self.ground(vectors).view(-1, *self.first))
        return painted


def convolution(channels_in: int, channels_out: int, stride: int = 1) -> list[nn.Module]:
    """3 x 3 convolution, batch normalization, leaky ReLU."""
    conv = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(channels_out), nn.LeakyReLU(0.2, inplace=True)]


def doubling(channels_in: int, channels_out: int) -> list[nn.Module]:
    """Transposed 4 x 4 convolution that doubles both sides, batch normalization, ReLU."""
    conv = nn.ConvTranspose2d(channels_in, channels_out, 4, 2, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True)]


def batches(num: int, batch_size: int, device: torch.device) -> Iterator[Tensor]:
    """Yield positions of random batches for ever, int64 (B,): epochs without replacement, the short rest left out."""
    size = min(batch_size, num)
    while True:
        order = torch.randperm(num).to(device)
        yield from order[: num - num % size].split(size)


def num_trained(*networks: nn.Module) -> int:
    """Return the trained numbers of some networks."""
    return sum(parameter.numel() for network in networks for parameter in network.parameters())
