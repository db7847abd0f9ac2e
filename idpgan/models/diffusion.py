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

With ``drawing = "faces"`` an image is its texture, the image in place on a released template, and the displacement that
brought it there (`idpgan.models.registration`). Both together are normal, so all of the above holds for the row of
their numbers, and a drawn texture is bent back by the displacement that was drawn with it. A displacement is counted in
such units that one as large as is expected of photographs weighs as much as an image of contrast d, so that one level
of noise fits both (as Cootes, Edwards and Taylor, "Active appearance models", 1998, weigh shape against texture). F
sees and corrects the texture; the displacement follows by the closed form, which knows how both go together.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from idpgan.models.adapters import rows_of
from idpgan.models.config import ModelConfig
from idpgan.models.gaussian import GaussianGenerator, basis_of
from idpgan.models.initialize import GROUPS, seeded_init, torch_seed
from idpgan.models.registration import Registration, bent_back, displaced, shape_unit

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
        self.label_layers = tuple(name for name, _ in self.named_modules() if name == "kept" or name[:6] == "known.")

    def start_at(self, weights: Mapping[str, Tensor], known: int, rows: Sequence[int | None]) -> None:
        """Take the weights of a network of ``known`` classes; ``rows`` say which of them each class is.

        A class that is none of them begins at their mean.
        """
        taken = dict(weights)
        for name in self.label_layers:
            columns = taken[f"{name}.weight"]
            classes = rows_of(columns[:, :known].T, rows).T
            taken[f"{name}.weight"] = torch.cat([classes, columns[:, known:]], 1)
        self.load_state_dict(taken)

    def forward(self, inputs: Tensor, levels: Tensor, labels: Tensor) -> Tensor:
        """Return F, (B, C, H, W), of inputs (B, 2 C, H, W), levels (B,) and labels (B,), zeros without classes."""
        known = self._known(levels, labels)
        right, below = self.padding
        hidden = self.first(functional.pixel_unshuffle(functional.pad(inputs, (0, right, 0, below)), self.fold))
        for layer, change in zip(self.hidden, self.known, strict=True):
            scale, shift = change(known)[:, :, None, None].chunk(2, dim=1)
            normal = functional.group_norm(hidden, self.groups)
            hidden = hidden + layer(functional.silu(normal * (1 + scale) + shift))
        last = self.last(functional.silu(functional.group_norm(hidden, self.groups)))
        found = functional.pixel_shuffle(last, self.fold)
        rest = inputs[:, inputs.shape[1] // 2 :]
        return found[..., : inputs.shape[-2], : inputs.shape[-1]] + _KEPT * self.kept(known)[:, :, None, None] * rest

    def _known(self, levels: Tensor, labels: Tensor) -> Tensor:
        """Return the class, one number each, and smooth bumps along ln s."""
        first, last = math.log(LEAST), math.log(MOST)
        centers = torch.linspace(first, last, _BUMPS, device=levels.device)
        bumps = (-((levels.log()[:, None] - centers) * ((_BUMPS - 1) / (last - first))).square()).exp()
        classes = torch.arange(self.num_classes, device=labels.device)
        return torch.cat([(labels[:, None] == classes).to(bumps), bumps], dim=1)


class DiffusionGenerator(GaussianGenerator):
    """Draw images by the probability flow of a closed-form denoiser and a network; see the module.

    A latent vector is a row of noise: D = C H W numbers, and 2 ``config.drawn.shape`` for a displacement.

    Args:
        config: The [model] section: ``latent_dim`` coefficients, ``width`` feature maps, ``shape`` functions of a
            displacement a direction.
        image_shape: (C, H, W) in px of any size, C in {1, 3}.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Of the network.

    Attributes:
        mean: (max(num_classes, 1), q), not trained; a displacement in units of `unit`, here and in the factor.
        factor: (max(num_classes, 1), q, q), not trained; its columns are orthogonal.
        template: (max(num_classes, 1), C, H, W), onto which images of each class are brought, not trained; None without
            a displacement.
        network: F.
    """

    template: nn.Parameter | None

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        super().__init__(config, image_shape, num_classes)
        self.mean.requires_grad_(False)
        self.factor.requires_grad_(False)
        self._pixels = math.prod(self.image_shape)
        self.latent_dim = self._pixels + 2 * config.drawn.shape
        template = torch.zeros(len(self.mean), *self.image_shape)
        self.template = nn.Parameter(template, requires_grad=False) if config.drawn.shape else None
        self.network = ResidualNetwork(self.image_shape, config.width, self.num_classes, seed=seed)

    @property
    def known_numbers(self) -> int:
        """Numbers that the steps keep of each image: its displacement, (2 shape)."""
        return 2 * self.config.drawn.shape

    def levels(self, normal: Tensor) -> Tensor:
        """See `training_levels`."""
        return training_levels(normal)

    @property
    def unit(self) -> float:
        """See `shape_unit`."""
        return shape_unit(self.config.drawn.shape, self._pixels)

    def set_moments(self, mean: Tensor, factor: Tensor) -> None:
        """Set means (rows, q) and factors (rows, q, r), r <= q: any that have these products ``F F^T``.

        The numbers of a displacement are in half image sides, as a `GaussianGenerator` has them.
        """
        scale = torch.ones(mean.shape[1], dtype=torch.float64, device=mean.device)
        if self.template is not None:
            scale[-2 * self.config.drawn.shape :] = 1 / self.unit
        axes, lengths, _ = torch.linalg.svd(scale[:, None] * factor.detach().double(), full_matrices=False)
        super().set_moments(scale * mean, axes * lengths[:, None])

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Draw images of noise ``z`` (B, D), standard normal, clamped."""
        rows = _rows(len(z), labels, z.device)
        w, center = z, self._centers(rows)
        levels = torch.logspace(math.log10(MOST), math.log10(LEAST), _INTERVALS + 1, dtype=torch.float64).tolist()
        for level, lower in itertools.pairwise(levels):
            step = math.log(level / lower)
            slope = self._slope(center, w, rows, level)
            there = self._slope(center, w + step * slope, rows, lower)
            w = w + step / 2 * (slope + there)
        last = self._residual(center + self._colored(w, rows, LEAST), rows, LEAST)
        drawn = center + self._colored(w, rows, 0.0) + last
        images = self._texture(drawn)
        if self.template is not None:
            images = bent_back(images, self.unit * drawn[:, self._pixels :])
        return images.clamp(-1.0, 1.0)

    def known(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Return the displacements that bring images (B, C, H, W) into place on the template, (B, 2 shape).

        That of a row is a function of this row, its position, its class, and what was released.
        """
        if self.template is None:
            return images.new_zeros(len(images), 0)
        templates = self.template[_rows(len(images), labels, images.device)]
        return Registration(self.image_shape, self.config.drawn.shape)(images, templates)

    def states(self, images: Tensor, shapes: Tensor) -> Tensor:
        """Return the rows (B, D) that the diffusion moves, of images (B, C, H, W) and their displacements."""
        if self.template is None:
            return images.flatten(1)
        return torch.cat([displaced(images, shapes).flatten(1), shapes / self.unit], dim=1)

    def closed_form(self, noisy: Tensor, labels: Tensor | None, levels: Tensor) -> Tensor:
        """Return the best estimates of rows of the normal distributions from noisy ones, (B, D).

        Args:
            noisy: (B, D).
            labels: (B,) int64 if conditional, else None.
            levels: (B,), standard deviations of the noise.
        """
        rows = _rows(len(noisy), labels, noisy.device)
        center = self._centers(rows)
        gains = 1 / (self._variances()[rows] + levels.square()[:, None])
        return center + self._along(noisy - center, rows, gains)

    def problem(self, states: Tensor, labels: Tensor | None, levels: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the network sees of noisy rows, (B, 2 C, H, W), and what it should answer, (B, C, H, W).

        It sees the closed form of the image, and the rest of the noisy one in units of the noise. Row i is a function
        of row i.

        Args:
            states: (B, D), of `states`.
            labels: (B,) int64 if conditional, else None.
            levels: (B,).
            normal: (B, D), standard normal.
        """
        noisy = states + levels[:, None] * normal
        estimate = self.closed_form(noisy, labels, levels)
        parts = [self._texture(part) for part in (estimate, noisy - estimate, states - estimate)]
        scale = levels[:, None, None, None]
        return torch.cat([parts[0], parts[1] / scale], dim=1), parts[2] / _reach(scale)

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
        states = self.states(images, self.known(images, labels))
        total = torch.zeros(len(images), device=images.device)
        for level in training_levels(math.sqrt(2) * torch.erfinv(2 * quantiles - 1)):
            levels = level.to(images).expand(len(images))
            normal = torch.randn(self.latent_dim, generator=rng).to(images).expand_as(states)
            inputs, target = self.problem(states, labels, levels, normal)
            answer = self.network(inputs, levels, _rows(len(images), labels, images.device))
            total += (answer - target).square().flatten(1).mean(1)
        return total / _ATTACKED

    # Rows of D numbers; ``rows`` (B,) say which normal distribution ------------------------------------------------

    def _variances(self) -> Tensor:
        """Return the variance along each column of the factor, (rows, q)."""
        return self.factor.square().sum(1)

    def _centers(self, rows: Tensor) -> Tensor:
        return self.mean[rows] @ self._functions().T

    def _functions(self) -> Tensor:
        like = self.mean
        return _functions(self.image_shape, self.config.latent_dim, self.config.drawn.shape, like.dtype, like.device)

    def _texture(self, states: Tensor) -> Tensor:
        """Return the images (B, C, H, W) in rows of numbers."""
        return states[:, : self._pixels].reshape(-1, *self.image_shape)

    def _along(self, numbers: Tensor, rows: Tensor, gains: Tensor) -> Tensor:
        """Return ``B F diag(gains) F^T B^T`` of numbers; every class is computed, so that rows do not mix."""
        basis, each = self._functions(), torch.arange(len(rows), device=rows.device)
        found = torch.einsum("kqr,bq->bkr", self.factor, numbers @ basis)[each, rows] * gains
        return torch.einsum("kqr,br->bkq", self.factor, found)[each, rows] @ basis.T

    def _colored(self, w: Tensor, rows: Tensor, level: float) -> Tensor:
        """Return ``(S + s^2 I)^(1/2) w``."""
        gains = 1 / ((self._variances() + level**2).sqrt() + level).clamp(min=1e-20)
        return level * w + self._along(w, rows, gains[rows])

    def _residual(self, noisy: Tensor, rows: Tensor, level: float) -> Tensor:
        """Return ``c(s) F`` of noisy rows, all of one level; zeros for a displacement."""
        levels = noisy.new_full((len(noisy),), level)
        labels = rows if self.num_classes else None
        inputs, _ = self.problem(noisy, labels, levels, torch.zeros_like(noisy))
        found = _reach(levels)[:, None] * self.network(inputs, levels, rows).flatten(1)
        return functional.pad(found, (0, 2 * self.config.drawn.shape))

    def _slope(self, center: Tensor, w: Tensor, rows: Tensor, level: float) -> Tensor:
        """Return by how much w rises as ln s falls: ``(S + s^2 I)^(-1/2)`` of the residual."""
        return self._white(self._residual(center + self._colored(w, rows, level), rows, level), rows, level)

    def _white(self, numbers: Tensor, rows: Tensor, level: float) -> Tensor:
        """Return ``(S + s^2 I)^(-1/2)`` times numbers."""
        root = (self._variances() + level**2).sqrt()
        return numbers / level - self._along(numbers, rows, (1 / (level * root * (root + level)))[rows])


@functools.lru_cache(maxsize=2)  # every batch needs it
@torch.inference_mode(False)  # kept for calls that need gradients
def _functions(
    image_shape: tuple[int, int, int], latent_dim: int, shape: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the functions of the pixels beside the numbers of a displacement as they are, (D, q)."""
    functions = torch.block_diag(basis_of(image_shape, latent_dim), torch.eye(2 * shape, dtype=torch.float64))
    return functions.to(device, dtype)


def _rows(num: int, labels: Tensor | None, device: torch.device) -> Tensor:
    return torch.zeros(num, dtype=torch.int64, device=device) if labels is None else labels
