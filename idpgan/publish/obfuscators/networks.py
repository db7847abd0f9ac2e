"""What the trained obfuscators share: settings, steps, and networks from images to images or numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import pydantic
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from idpgan.errors import InputError
from idpgan.models.classifier import ResidualBlock
from idpgan.models.initialize import seeded_init
from idpgan.models.optimizers import Adam
from idpgan.progress import Progress
from idpgan.publish.obfuscators.obfuscator import Obfuscator
from idpgan.publish.plan import Options

_STEP = 4  # two halvings


class Training(Options):
    """What all trained obfuscators have in common.

    Attributes:
        width: Channels of the first layer; deeper layers have 2 and 4 times as many.
        steps: Updates of the transforming network.
        learning_rate: Of Adam, for all networks.
        seed: Of initial weights, order and, where there is one, noise.
    """

    width: int = pydantic.Field(32, ge=2, le=512)
    steps: int = pydantic.Field(5000, ge=1)
    batch_size: int = pydantic.Field(64, ge=2)
    learning_rate: float = pydantic.Field(1e-3, gt=0)
    seed: int = pydantic.Field(0, ge=0)


class TrainedObfuscator(Obfuscator):
    """An obfuscator with trained networks, for images whose sides can be halved twice."""

    trained: ClassVar[bool] = True

    def __init__(
        self, config: Any, image_shape: tuple[int, int, int], num_utilities: int = 0, num_identities: int = 0
    ) -> None:
        super().__init__(config, image_shape, num_utilities, num_identities)
        _, height, width = image_shape
        if height % _STEP or width % _STEP or min(height, width) < 2 * _STEP:
            raise InputError(
                f"'{self.name}' takes images with sides that are multiples of {_STEP} and at least {2 * _STEP} px, got "
                f"{width} x {height}. Bring them to such a size with `idpgan prepare`."
            )
        with seeded_init(config.seed):
            self._build()

    @abstractmethod
    def _build(self) -> None:
        """Make the networks."""

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        return (self(images) + 1) / 2  # forward returns [-1, 1]

    def _steps(self, progress: Progress, *networks: nn.Module) -> Iterator[int]:
        """Yield the training steps, and count them; ``networks`` are trained besides the obfuscator's own."""
        every = (self, *networks)
        self.training_parameters = sum(parameter.numel() for network in every for parameter in network.parameters())
        self.train()
        for step in range(1, self.config.steps + 1):
            yield step
            self.steps = step
            progress(f"fit {self.name}", step, self.config.steps)

    def _turns(
        self, num: int, adversaries: nn.Module, helpers: nn.Module, progress: Progress
    ) -> Iterator[tuple[bool, Optimizer, Tensor]]:
        """Yield the turns of adversarial training: ``adversary_steps`` turns of the adversaries for each own turn.

        A turn holds whether it is the adversaries' turn, the optimizer that takes a step, and the positions of a batch.

        Args:
            num: Training images.
            adversaries: Networks that are trained in alternation.
            helpers: Networks that are trained with the obfuscator's own.
        """
        config, device = self.config, next(self.parameters()).device
        optimizer = Adam([*self.parameters(), *helpers.parameters()], lr=config.learning_rate, fused=True)
        adversary_optimizer = Adam(adversaries.parameters(), lr=config.learning_rate, fused=True)
        draw = batches(num, config.batch_size, device)
        for _ in self._steps(progress, adversaries, helpers):
            for _ in range(config.adversary_steps):
                yield True, adversary_optimizer, next(draw)
            yield False, optimizer, next(draw)


def update(optimizer: Optimizer, loss: Tensor) -> None:
    """Take one gradient step on a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Translator(nn.Module):
    """An image to an image: two halvings, two residual blocks, two doublings with skip connections (U-Net)."""

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
    """Yield positions of random batches forever, int64 (B,): epochs without replacement or a short last batch."""
    size = min(batch_size, num)
    while True:
        order = torch.randperm(num).to(device)
        yield from order[: num - num % size].split(size)
