"""DCGAN generators for 8, 28, 32, 48 and 64 px, conditional or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from idpgan.config import InputError
from idpgan.models.config import ModelConfig, classes_of, family_of, labels_error
from idpgan.models.initialise import group_norm, seeded_init, torch_seed

LATENT_BLOCK = 1024  # rows of z drawn per call, whatever the batch size: the same z for any batch size


class Generator(nn.Module):
    """Map latent vectors, and classes if conditional, to images in [-1, 1].

    The layout is that of DCGAN (`Radford et al. 2016 <https://arxiv.org/abs/1511.06434>`_): a start map from z (and
    a learned class embedding beside it), transposed convolutions of 4 x 4 and stride 2, normalisation, ReLU, tanh.
    Normalisation may be BatchNorm: a generator sees no private record.

    Args:
        config: The [model] section.
        image_shape: (C, H, W) in px; H = W in {8, 28, 32, 48, 64}, C in {1, 3}.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Seed of the initial weights, >= 0. The caller's random state is neither read nor changed.

    Attributes:
        num_classes: Classes that the generator is conditioned on, 0 for none.
        classes: Their names, "0", "1", ... until a loaded checkpoint or the caller names them.

    Raises:
        ConfigError: If the shape is not supported, or classes are asked for and there are none.
    """

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        super().__init__()
        family = family_of(image_shape)
        self.config = config
        self.image_shape = (int(image_shape[0]), int(image_shape[1]), int(image_shape[2]))
        self.latent_dim = config.latent_dim
        self.num_classes = classes_of(config, num_classes)
        self.classes: tuple[str, ...] = tuple(map(str, range(self.num_classes)))
        channels = config.width * 2 ** (family.doublings - 1)
        self.start_shape = (channels, family.start, family.start)
        with seeded_init(seed):
            self.embedding = nn.Embedding(self.num_classes, config.latent_dim) if self.num_classes else None
            inputs = config.latent_dim * (2 if self.num_classes else 1)
            self.project = nn.Linear(inputs, channels * family.start**2, bias=False)
            self.blocks = nn.Sequential(*_blocks(config, channels, family.doublings, self.image_shape[0]))
            self.apply(_initialise)

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """Generate one image per latent vector.

        Args:
            z: (B, latent_dim), standard normal.
            labels: (B,) int64 in [0, num_classes) if conditional, else None.

        Returns:
            (B, C, H, W) in [-1, 1].

        Raises:
            InputError: If labels are missing, or given to an unconditional generator.
        """
        if (labels is None) == (self.embedding is not None):
            raise labels_error("generator", self.num_classes)
        if self.embedding is not None:
            z = torch.cat([z, self.embedding(labels)], dim=1)  # (B, 2 * latent_dim)
        return torch.tanh(self.blocks(self.project(z).view(-1, *self.start_shape)))  # (B, C, H, W)

    def sample_labels(self, num: int) -> Tensor | None:
        """Return ``num`` labels that cycle through the classes, or None for an unconditional generator.

        Uniform and not the class frequencies of the private images, which would be a release of their own.

        Returns:
            (num,) int64, on the CPU: 0, 1, ..., num_classes - 1, 0, 1, ...
        """
        return torch.arange(_checked_num(num)) % self.num_classes if self.num_classes else None

    def sample(
        self,
        num: int,
        labels: Tensor | Sequence[int] | int | None = None,
        seed: int | None = None,
        batch_size: int = 500,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Generate images, in eval mode and without gradients.

        One seed gives one sequence of latent vectors on every device: ``sample(n)`` starts with the images of
        ``sample(m)``, m < n, whatever the batch size. Pixels of different batch sizes or devices may differ by
        floating-point rounding (about 1e-6). The caller's random state is neither read nor changed.

        Args:
            num: Number of images, >= 0.
            labels: Classes of the images: ``num`` integers, or one for all; None = ``sample_labels(num)``.
            seed: Any integer >= 0; None = fresh entropy from the operating system.
            batch_size: Images per forward pass, >= 1. Bounds the memory.
            progress: Called with (images done, images in all) after each of them.

        Returns:
            (num, C, H, W) float32 in [-1, 1], on the CPU.

        Raises:
            InputError: If an argument is out of its range.
        """
        if batch_size < 1:
            raise InputError(f"batch_size = {batch_size} must be at least 1, for example 500.")
        chosen = self.sample_labels(num) if labels is None else self._checked_labels(labels, num)
        device = self.project.weight.device
        images = torch.empty(_checked_num(num), *self.image_shape)
        done = 0
        with _eval_mode(self), torch.no_grad():
            for latent in _latents(num, self.latent_dim, seed):
                for z in latent.split(batch_size):
                    part = slice(done, done + len(z))
                    of_part = None if chosen is None else chosen[part].to(device)
                    images[part] = self(z.to(device), of_part).cpu()
                    done = part.stop
                    if progress is not None:
                        progress(done, num)
        return images

    def _checked_labels(self, labels: Tensor | Sequence[int] | int, num: int) -> Tensor:
        """Return labels as (num,) int64 on the CPU, or refuse them."""
        if not self.num_classes:
            raise labels_error("generator", 0)
        try:
            given = torch.as_tensor(labels).cpu()
        except (TypeError, ValueError, RuntimeError) as error:  # text, or rows of different lengths
            raise InputError(f"labels must be {num} integers in a row, got {labels!r:.80}.") from error
        if given.ndim == 0:
            given = given.expand(_checked_num(num))
        if given.shape != (num,):
            raise InputError(f"{num} images need {num} labels in one row, got shape {tuple(given.shape)}.")
        if given.numel() and (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool):
            raise InputError(f"labels must be integers in [0, {self.num_classes - 1}], got {given.dtype}.")
        given = given.to(torch.int64)
        outside = given[(given < 0) | (given >= self.num_classes)]
        if len(outside):
            known = ", ".join(self.classes[:10]) + (", ..." if self.num_classes > 10 else "")
            raise InputError(
                f"label {int(outside[0])} is not in [0, {self.num_classes - 1}]: this generator knows "
                f"{self.num_classes} classes ({known})."
            )
        return given


def _blocks(config: ModelConfig, channels: int, doublings: int, image_channels: int) -> Iterator[nn.Module]:
    """Yield the layers from start map to image; every transposed convolution doubles the side."""
    yield from (_norm(config, channels), nn.ReLU())
    for _ in range(doublings - 1):
        yield nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1, bias=False)
        channels //= 2
        yield from (_norm(config, channels), nn.ReLU())
    yield nn.ConvTranspose2d(channels, image_channels, 4, stride=2, padding=1)


def _norm(config: ModelConfig, channels: int) -> nn.Module:
    """Build the generator's normalisation layer."""
    return nn.BatchNorm2d(channels) if config.generator_norm == "batch" else group_norm(channels)


def _initialise(module: nn.Module) -> None:
    """Set DCGAN's initial weights: N(0, 0.02^2) for (transposed) convolutions, the start map included."""
    if isinstance(module, nn.ConvTranspose2d | nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _latents(num: int, latent_dim: int, seed: int | None) -> Iterator[Tensor]:
    """Yield ``num`` standard normal rows in blocks of fixed size, so that row i never depends on ``num``."""
    rng = torch.Generator()
    if seed is None:
        rng.seed()
    else:
        rng.manual_seed(torch_seed(seed))
    for start in range(0, num, LATENT_BLOCK):
        yield torch.randn(LATENT_BLOCK, latent_dim, generator=rng)[: num - start]


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    """Switch to eval mode and give every submodule its own mode back afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _checked_num(num: int) -> int:
    """Return ``num`` if it is a possible number of images."""
    if num < 0:
        raise InputError(f"num = {num} must be at least 0: it is the number of images to generate.")
    return num
