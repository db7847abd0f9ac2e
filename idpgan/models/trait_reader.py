"""A small network that reads traits of portraits, and s(x), what it reads as a bounded vector: public altogether.

The network is trained on portraits alone, bent in brightness, blur and place, so that it reads photos too. On photos it
is wrong in its own way, which is why nobody believes what it reads: photos and portraits are compared by it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from idpgan.data.images import to_float
from idpgan.errors import InputError
from idpgan.models.initialize import seeded_init, torch_seed
from idpgan.progress import Progress, silent

READ = (
    "smile", "open", "cheeks", "frown", "press", "blink", "squint", "wide", "brow_down", "brow_up", "yaw", "pitch",
    "roll", "light_right", "light_high", "ambient", "lamp", "fill", "exposure", "gamma", "blur", "grain", "age",
    "weight", "skin_light", "ground", "ground_slope", "hair_dark", "glasses", "beard", "moustache", "bald", "fringe",
    "long_hair", "male", "mouth_open", "smiling", "african", "asian", "scale", "shift_right", "shift_down",
)  # fmt: skip
"""Traits that may be seen in a picture of 48 px; which of them are is found out on portraits."""
_LEAST_READ = 0.1  # R^2 on portraits that were not trained on, from which on a trait is read
_SIDE = 48  # px: larger images are read at this size
_EPOCHS, _BATCH, _MOST_HELD = 6, 64, 1000
_FARTHEST = 4.0  # standard deviations
_SPREAD = 1.4  # of the square of a normal number, about
_QUANTILE = 0.9  # of the portraits' lengths: the radius
_AT_ONCE = 500


class TraitReader(nn.Module):
    """Read standardized traits, (B, len(READ)), of images (B, C, H, W) in [-1, 1]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = (channels, 32, 64, 128)
        self.maps = nn.Sequential(*(_block(*pair) for pair in itertools.pairwise(widths)))
        self.head = nn.Sequential(nn.Linear(128 * 9, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, len(READ)))

    def forward(self, images: Tensor) -> Tensor:
        """Read images of any size from 24 px."""
        if max(images.shape[2:]) > _SIDE:
            images = functional.interpolate(images, (_SIDE, _SIDE), mode="area")
        return self.head(functional.adaptive_avg_pool2d(self.maps(images), 3).flatten(1))


def _block(before: int, after: int) -> nn.Module:
    convolution = nn.Conv2d(before, after, 3, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))


class TraitStatistics(nn.Module):
    r"""The vector s(x) of an image x, and v(x), which is summed: functions of x and of constants of portraits alone.

    With z the traits as the network reads them, by the portraits' mean and standard deviation and cut at 4 of these, s
    is z and ``(z^2 - 1) / 1.4``, zero where a trait cannot be read, and shortened to the radius R where it is longer.
    v is ``(sqrt(t), sqrt(1 - t) s / R)``.

    Proof of the norm. ``|s| <= R``, so ``|v|^2 = t + (1 - t) |s|^2 / R^2 <= 1``, whatever the network returns that is
    finite. Center, scale and R are of the portraits, which no private image has touched, and v is computed of one image
    at a time (no batch statistics: the network is in eval mode). A null record adds v = 0, count included, so that
    zeroing out a record moves one sum by at most 1 (`privacy.sums` has the rest: rounding, other relations, people).

    Args:
        channels: Of the images.

    Attributes:
        kept: Which traits are read, bool (len(READ),).
        radius: R, 0-d.
    """

    COUNT_SHARE = 0.05  # t: a count that is wrong by 2 % moves a mean by less than the noise on it
    dimensions = 1 + 2 * len(READ)

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reader = TraitReader(channels)
        self.kept = nn.Buffer(torch.zeros(len(READ), dtype=torch.bool))
        self.center = nn.Buffer(torch.zeros(len(READ), dtype=torch.float64))
        self.spread = nn.Buffer(torch.ones(len(READ), dtype=torch.float64))
        self.radius = nn.Buffer(torch.ones((), dtype=torch.float64))

    @classmethod
    def learn(
        cls,
        images: Tensor,
        traits: Mapping[str, Tensor],
        *,
        seed: int,
        device: torch.device | str = "cpu",
        progress: Progress = silent,
    ) -> Self:
        """Train the network on portraits, uint8 (N, C, H, W), and take all constants from them.

        Raises:
            InputError: If no trait can be read: there are too few portraits.
        """
        with seeded_init(seed):
            made = cls(images.shape[1]).to(device)
        targets = torch.stack([_seen(traits, name) for name in READ], 1)
        made.kept.copy_(_fit(made.reader, images, targets, seed, progress) > _LEAST_READ)
        if not bool(made.kept.any()):
            raise InputError(
                f"no trait can be read after training on {len(images):,} portraits. Draw more: idpgan people PORTRAITS "
                "--num 12000."
            )
        made.eval().requires_grad_(False)
        read = made._read(images)
        made.center.copy_(read.mean(0))
        made.spread.copy_(read.std(0).clamp(min=1e-6))
        made.radius.copy_(made._vectors(read).norm(dim=1).quantile(_QUANTILE))
        return made

    def forward(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return v of images (B, C, H, W) in [-1, 1], (B, `dimensions`) float64 of norm at most 1; rows: of no use."""
        s = self._shortened(self._vectors(self.reader(images).double())) / self.radius
        share = self.COUNT_SHARE
        return torch.cat([s.new_full((len(s), 1), math.sqrt(share)), math.sqrt(1 - share) * s], 1)

    @torch.no_grad()
    def statistics(self, images: Tensor) -> Tensor:
        """Return s of images, uint8 (N, C, H, W), as float64 (N, 2 len(READ)) on the CPU."""
        return self._shortened(self._vectors(self._read(images))).cpu()

    def means(self, sums: Tensor, noise_std: float) -> tuple[Tensor, Tensor]:
        """Return the mean of s of each row, (rows, 2 len(READ)), and the noise on each of its numbers, (rows, 1).

        Args:
            sums: Of v, with noise, (rows, `dimensions`) float64.
            noise_std: Of the noise on each number of them.
        """
        counts = (sums[:, :1] / math.sqrt(self.COUNT_SHARE)).clamp(min=1)
        scale = self.radius.cpu() / (math.sqrt(1 - self.COUNT_SHARE) * counts)
        return self._shortened(sums[:, 1:] * scale) * self.kept.cpu().repeat(2), noise_std * scale

    @torch.no_grad()
    def _read(self, images: Tensor) -> Tensor:
        device = self.radius.device
        return torch.cat([self.reader(to_float(part.to(device))).double() for part in images.split(_AT_ONCE)])

    def _vectors(self, read: Tensor) -> Tensor:
        """Return s before it is shortened, of what was read, (B, len(READ)) float64."""
        z = ((read - self.center) / self.spread).clamp(-_FARTHEST, _FARTHEST)
        return torch.cat([z, (z.square() - 1) / _SPREAD], 1) * self.kept.repeat(2)

    def _shortened(self, vectors: Tensor) -> Tensor:
        return vectors * (self.radius.to(vectors.device) / vectors.norm(dim=1, keepdim=True)).clamp(max=1)


def _seen(traits: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a trait as it is seen, standardized: who does not smile has a smile of 0."""
    values = traits[name] * traits["smiling"] if name == "smile" else traits[name]
    return (values - values.mean()) / (values.std() + 1e-6)


def _fit(reader: TraitReader, images: Tensor, targets: Tensor, seed: int, progress: Progress) -> Tensor:
    """Train a reader, and return R^2 of each trait on portraits that it was not trained on, (len(READ),)."""
    rng = torch.Generator().manual_seed(torch_seed(seed, 1))
    device, order = next(reader.parameters()).device, torch.randperm(len(images), generator=rng)
    held, trained = order.split([num := min(len(images) // 8, _MOST_HELD), len(images) - num])
    steps = _EPOCHS * math.ceil(len(trained) / _BATCH)
    optimizer = torch.optim.AdamW(reader.parameters(), 2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps + 1)
    with seeded_init(seed, stream=2):  # of dropout on the CPU
        for epoch in range(_EPOCHS):
            reader.train()
            for index in trained[torch.randperm(len(trained), generator=rng)].split(_BATCH):
                seen = _bent(to_float(images[index]), rng).to(device)
                loss = functional.mse_loss(reader(seen), targets[index].to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            progress("learn to read portraits", epoch + 1, _EPOCHS)
    reader.eval()
    with torch.no_grad():
        read = torch.cat([reader(to_float(images[index]).to(device)).cpu() for index in held.split(_AT_ONCE)])
    return 1 - (read - targets[held]).square().mean(0) / targets[held].var(0).clamp(min=1e-6)


def _bent(images: Tensor, rng: torch.Generator) -> Tensor:
    """Return images (B, C, H, W) in other light, some blurred, moved by a pixel, with noise, as photos may be."""
    numbers = torch.rand(4, len(images), 1, 1, 1, generator=rng)
    images = images * (0.7 + 0.6 * numbers[0]) + 0.3 * (numbers[1] - 0.5)
    soft = functional.avg_pool2d(functional.pad(images, (1, 1, 1, 1), mode="replicate"), 3, 1)
    images = torch.where(numbers[2] < 0.4, soft, images)
    images = torch.roll(images, torch.randint(-1, 2, (2,), generator=rng).tolist(), (2, 3))
    return (images + 0.04 * numbers[3] * torch.randn(images.shape, generator=rng)).clamp(-1, 1)
