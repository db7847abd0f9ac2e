r"""A diffusion generator: the exact flow of a normal distribution a class, and a small network for what it lacks.

Noise of standard deviation s on every pixel turns an image x of a normal distribution of mean m and covariance S, which
lies in the span of low DCT functions, into one whose best estimate of x is known: ``m + S (S + s^2 I)^-1 (y - m)``. The
denoiser here is that estimate plus ``c(s) F(y, s, class)``, with ``c(s) = s d / sqrt(s^2 + d^2)`` and d = 0.5 as in
Karras, Aittala, Aila and Laine, "Elucidating the design space of diffusion-based generative models" (2022, EDM); the
last layer of F is zero at first. Outside of the span the mean is zero and so is the variance.

Images are drawn by their probability flow, ``dy/ds = (y - D(y; s)) / s``, from level `MOST` to `LEAST`. In the numbers
``w = (S + s^2 I)^(-1/2) (y - m)`` the normal distribution stands still, and only F moves them:
``dw/d(ln s) = -(S + s^2 I)^(-1/2) c(s) F``. This is solved by Heun's method, so that the normal distribution is
integrated exactly: with F = 0 an image is ``m + S^(1/2) w``, of the very law of a `GaussianGenerator`. The last step,
from `LEAST` to 0, adds c F as it is at `LEAST`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from idpgan.models.config import ModelConfig
from idpgan.models.gaussian import GaussianGenerator, basis_of
from idpgan.models.initialize import GROUPS, seeded_init, torch_seed

LEAST, MOST = 0.1, 10.0  # levels s of noise on pixels in [-1, 1]
_TYPICAL, _SPREAD = 0.6, 1.2  # exp of the mean, and standard deviation, of ln s in training
_CONTRAST = 0.5  # d: of the pixels of any image
_INTERVALS = 12  # of Heun's method: 25 passes of the network
_BLOCKS = 3
_KEPT = 2.0  # factor of the share in `ResidualNetwork`: it has farther to go than other weights
_BUMPS = 6  # functions of ln s that the network sees
_ATTACKED = 8  # levels at which `denoising_loss` looks


def training_levels(normal: Tensor) -> Tensor:
    """Return levels of noise, log-normal between `LEAST` and `MOST`, from standard normal numbers of any shape."""
    return (math.log(_TYPICAL) + _SPREAD * normal).exp().clamp(LEAST, MOST)


def _reach(levels: Tensor) -> Tensor:
    """Return c(s)."""
    return levels * _CONTRAST / (levels.square() + _CONTRAST**2).sqrt()


class ResidualNetwork(nn.Module):
    """F: convolutions on an image that is folded into fewer and deeper pixels, changed by class and level.

    To what the convolutions find it adds the rest of the noisy image, in a share by class and level: where there is
    little noise, what the closed form leaves is mostly image.

    Its layers are convolutions, linear ones and normalization within one image, all of whose weights
    `idpgan.privacy.captured_gradients` captures.

    Args:
        image_shape: (C, H, W) of any size.
        width: Feature maps.
        num_classes: 0 for none.
        seed: Of the weights; those of the last layer and of the share are zero.
    """

    def __init__(self, image_shape: Sequence[int], width: int, num_classes: int, *, seed: int) -> None:
        super().__init__()
        channels, height, width_px = image_shape
        side = max(height, width_px)
        self.fold = 1 if side <= 16 else 2 if side <= 32 else 4
        self.num_classes, self.groups = num_classes, math.gcd(width, GROUPS)
        self.padding = -width_px % self.fold, -height % self.fold
        with seeded_init(seed):
            self.first = nn.Conv2d(2 * channels * self.fold**2, width, 3, padding=1)
            self.hidden = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(_BLOCKS))
            self.known = nn.ModuleList(nn.Linear(num_classes + _BUMPS, 2 * width) for _ in range(_BLOCKS))
            self.kept = nn.Linear(num_classes + _BUMPS, channels, bias=False)
            self.last = nn.Conv2d(width, channels * self.fold**2, 3, padding=1)
        nn.init.zeros_(self.kept.weight)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, inputs: Tensor, levels: Tensor, labels: Tensor) -> Tensor:
        """Return F, (B, C, H, W), of inputs (B, 2 C, H, W), levels (B,) and labels (B,), zeros without classes."""
        known = self._known(levels, labels)
        right, below = self.padding
        hidden = self.first(functional.pixel_unshuffle(functional.pad(inputs, (0, right, 0, below)), self.fold))
        for layer, change in zip(self.hidden, self.known, strict=True):
            scale, shift = change(known)[:, :, None, None].chunk(2, dim=1)
            hidden = hidden + layer(functional.silu(self._normal(hidden) * (1 + scale) + shift))
        found = functional.pixel_shuffle(self.last(functional.silu(self._normal(hidden))), self.fold)
        rest = inputs[:, inputs.shape[1] // 2 :]
        return found[..., : inputs.shape[-2], : inputs.shape[-1]] + _KEPT * self.kept(known)[:, :, None, None] * rest

    def _normal(self, hidden: Tensor) -> Tensor:
        return functional.group_norm(hidden, self.groups)

    def _known(self, levels: Tensor, labels: Tensor) -> Tensor:
        """Return the class, one number each, and smooth bumps along ln s."""
        first, last = math.log(LEAST), math.log(MOST)
        centers = torch.linspace(first, last, _BUMPS, device=levels.device)
        bumps = (-((levels.log()[:, None] - centers) * ((_BUMPS - 1) / (last - first))).square()).exp()
        classes = torch.arange(self.num_classes, device=labels.device)
        return torch.cat([(labels[:, None] == classes).to(bumps), bumps], dim=1)


class DiffusionGenerator(GaussianGenerator):
    """Draw images by the probability flow of a closed-form denoiser and a network; see the module.

    A latent vector is an image of noise: C H W numbers.

    Args:
        config: The [model] section: ``latent_dim`` coefficients, ``width`` feature maps.
        image_shape: (C, H, W) in px of any size, C in {1, 3}.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Of the network.

    Attributes:
        mean: (max(num_classes, 1), q), not trained.
        factor: (max(num_classes, 1), q, q), not trained; its columns are orthogonal.
        network: F.
    """

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        super().__init__(config, image_shape, num_classes)
        self.mean.requires_grad_(False)
        self.factor.requires_grad_(False)
        self.latent_dim = math.prod(self.image_shape)
        self.network = ResidualNetwork(self.image_shape, config.width, self.num_classes, seed=seed)

    def set_moments(self, mean: Tensor, factor: Tensor) -> None:
        """Set means (rows, q) and factors (rows, q, r), r <= q: any that have these products ``F F^T``."""
        axes, lengths, _ = torch.linalg.svd(factor.detach().double(), full_matrices=False)
        super().set_moments(mean, axes * lengths[:, None])

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Draw images of noise ``z`` (B, C H W), standard normal, clamped."""
        rows = _rows(len(z), labels, z.device)
        center, w = self._centers(rows), z
        levels = torch.logspace(math.log10(MOST), math.log10(LEAST), _INTERVALS + 1, dtype=torch.float64).tolist()
        for level, lower in itertools.pairwise(levels):
            step = math.log(level / lower)
            slope = self._slope(center, w, rows, level)
            there = self._slope(center, w + step * slope, rows, lower)
            w = w + step / 2 * (slope + there)
        last = self._residual(center + self._colored(w, rows, LEAST), rows, LEAST)
        return (center + self._colored(w, rows, 0.0) + last).view(-1, *self.image_shape).clamp(-1.0, 1.0)

    def closed_form(self, noisy: Tensor, labels: Tensor | None, levels: Tensor) -> Tensor:
        """Return the best estimates of images of the normal distributions from noisy ones, (B, C, H, W).

        Args:
            noisy: (B, C, H, W).
            labels: (B,) int64 if conditional, else None.
            levels: (B,), standard deviations of the noise.
        """
        rows = _rows(len(noisy), labels, noisy.device)
        center = self._centers(rows)
        gains = 1 / (self._variances()[rows] + levels.square()[:, None])
        return (center + self._along(noisy.flatten(1) - center, rows, gains)).view_as(noisy)

    def problem(self, images: Tensor, labels: Tensor | None, levels: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the network sees of noisy images, (B, 2 C, H, W), and what it should answer, (B, C, H, W).

        It sees the closed form, and the rest of the noisy image in units of the noise. Row i is a function of row i.

        Args:
            images: (B, C, H, W) in [-1, 1].
            labels: (B,) int64 if conditional, else None.
            levels: (B,).
            normal: (B, C, H, W), standard normal.
        """
        scale = levels[:, None, None, None]
        noisy = images + scale * normal
        estimate = self.closed_form(noisy, labels, levels)
        return torch.cat([estimate, (noisy - estimate) / scale], dim=1), (images - estimate) / _reach(scale)

    def loss(
        self, weights: Mapping[str, Tensor], inputs: Tensor, levels: Tensor, label: Tensor, target: Tensor
    ) -> Tensor:
        """Return the mean EDM loss of K noisy copies of one image, 0-d; ``1 / c^2`` is its weight of a level.

        Args:
            weights: Of `network`.
            inputs: (K, 2 C, H, W), as of `problem`, and ``target`` (K, C, H, W) likewise.
            levels: (K,).
            label: 0-d.
        """
        answer = functional_call(self.network, dict(weights), (inputs, levels, label.expand(len(inputs))))
        return (answer - target).square().mean()

    @torch.no_grad()
    def denoising_loss(self, images: Tensor, labels: Tensor | None, *, seed: int = 0) -> Tensor:
        """Return how badly images are told from noise of eight levels, (B,); all images get the same noise."""
        rng = torch.Generator().manual_seed(torch_seed(seed))
        quantiles = (torch.arange(_ATTACKED) + 0.5) / _ATTACKED
        labels = labels if self.num_classes else None
        total = torch.zeros(len(images), device=images.device)
        for level in training_levels(math.sqrt(2) * torch.erfinv(2 * quantiles - 1)):
            levels = level.to(images).expand(len(images))
            normal = torch.randn(self.image_shape, generator=rng).to(images).expand_as(images)
            inputs, target = self.problem(images, labels, levels, normal)
            answer = self.network(inputs, levels, _rows(len(images), labels, images.device))
            total += (answer - target).square().flatten(1).mean(1)
        return total / _ATTACKED

    # Images as rows of C H W numbers; rows (B,) say which normal distribution --------------------------------------

    def _variances(self) -> Tensor:
        """Return the variance along each column of the factor, (rows, q)."""
        return self.factor.square().sum(1)

    def _centers(self, rows: Tensor) -> Tensor:
        return self.mean[rows] @ self._functions().T

    def _functions(self) -> Tensor:
        return basis_of(self.image_shape, self.config.latent_dim).to(self.mean)

    def _along(self, pixels: Tensor, rows: Tensor, gains: Tensor) -> Tensor:
        """Return ``B F diag(gains) F^T B^T`` of pixels; every class is computed, so that rows do not mix."""
        basis, each = self._functions(), torch.arange(len(rows), device=rows.device)
        found = torch.einsum("kqr,bq->bkr", self.factor, pixels @ basis)[each, rows] * gains
        return torch.einsum("kqr,br->bkq", self.factor, found)[each, rows] @ basis.T

    def _colored(self, w: Tensor, rows: Tensor, level: float) -> Tensor:
        """Return ``(S + s^2 I)^(1/2) w``."""
        gains = 1 / ((self._variances() + level**2).sqrt() + level).clamp(min=1e-20)
        return level * w + self._along(w, rows, gains[rows])

    def _whitened(self, pixels: Tensor, rows: Tensor, level: float) -> Tensor:
        """Return ``(S + s^2 I)^(-1/2)`` of pixels, s > 0."""
        root = (self._variances() + level**2).sqrt()
        return pixels / level - self._along(pixels, rows, (1 / (level * root * (root + level)))[rows])

    def _residual(self, noisy: Tensor, rows: Tensor, level: float) -> Tensor:
        """Return ``c(s) F`` of noisy images, all of one level."""
        levels = noisy.new_full((len(noisy),), level)
        images, labels = noisy.view(-1, *self.image_shape), rows if self.num_classes else None
        inputs, _ = self.problem(images, labels, levels, torch.zeros_like(images))
        return _reach(levels)[:, None] * self.network(inputs, levels, rows).flatten(1)

    def _slope(self, center: Tensor, w: Tensor, rows: Tensor, level: float) -> Tensor:
        """Return by how much w rises as ln s falls."""
        return self._whitened(self._residual(center + self._colored(w, rows, level), rows, level), rows, level)


def _rows(num: int, labels: Tensor | None, device: torch.device) -> Tensor:
    return torch.zeros(num, dtype=torch.int64, device=device) if labels is None else labels
