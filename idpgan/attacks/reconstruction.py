"""Membership inference by reconstruction: how well can the generator be made to draw this image?

The partial black box of GAN-Leaks (Chen et al. 2020, arXiv:1909.03935): the attacker chooses latent
vectors. The paper's Powell search becomes Adam through the released generator, for many images at once; its start is
not a random vector but the latent vectors of the nearest of a pool of generated images, one per restart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan import checks
from idpgan.attacks.distances import check_attacked, nearest_neighbors
from idpgan.checks import typed
from idpgan.data.images import to_float
from idpgan.errors import InputError
from idpgan.models.generator import Generator
from idpgan.models.initialize import torch_seed
from idpgan.progress import Progress, silent

_PULL = 1e-3  # weight of the term that keeps |z|^2 near its dimension, as the paper's L_reg


@typed
def latent_reconstruction(
    images: Tensor,
    labels: Tensor | None,
    generator: Generator,
    *,
    steps: int = 60,
    restarts: int = 2,
    pool: int = 500,
    learning_rate: float = 0.1,
    seed: int = 0,
    batch_size: int = 128,
    progress: Progress = silent,
) -> Tensor:
    """Score by minus the smallest squared difference to G(z, label) over z, mean over pixels: (n,) float32, at most 0.

    Args:
        images: (n, C, H, W) uint8, mapped to [-1, 1], or floating point.
        labels: (n,) int64; None if unknown or the generator is unconditional. Where a conditional generator is attacked
            without labels, each image takes the class of the nearest image of the pool.
        generator: Its parameters are not changed.
        steps: Of Adam, on z.
        restarts: Starts per image, taken from ``pool`` generated images per class.
        batch_size: Images optimized at once.

    Raises:
        InputError: If a number is out of range, or images and labels do not fit the generator.
    """
    for name, number in (("steps", steps), ("restarts", restarts), ("pool", pool), ("batch_size", batch_size)):
        checks.whole(number, name, 1, 1_000_000)
    if not learning_rate > 0:
        raise InputError(f"learning_rate = {learning_rate} must be above 0.")
    check_attacked(images, labels, generator.num_classes or None)
    if images.shape[1:] != generator.image_shape:
        raise InputError(f"Images are {tuple(images.shape[1:])}, the generator makes {generator.image_shape}.")
    was_training = generator.training
    generator.eval()
    latents, starts, classes = _starts(images, labels, generator, pool, restarts, seed)
    scores = torch.empty(len(images), device=images.device)
    for index in torch.arange(len(images), device=images.device).split(batch_size):
        target = to_float(images[index]) if images.dtype == torch.uint8 else images[index].float()
        given = None if classes is None else classes[index].repeat_interleave(starts.shape[1])
        scores[index] = -_search(generator, target, latents[starts[index]], given, steps, learning_rate)
        progress("reconstructions", int(index[-1]) + 1, len(images))
    generator.train(was_training)
    return scores


def _starts(
    images: Tensor, labels: Tensor | None, generator: Generator, pool: int, restarts: int, seed: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return latent vectors (pool, d), the best of them for each image (n, restarts), and the classes (n,)."""
    rng = torch.Generator().manual_seed(torch_seed(seed, 11))
    latents = torch.randn(pool, generator.latent_dim, generator=rng).to(images.device)
    if not generator.num_classes:
        return latents, nearest_neighbors(images, _drawn(generator, latents, None), restarts)[1], None
    best = torch.full((len(images),), torch.inf, device=images.device)
    starts = torch.zeros((len(images), min(restarts, pool)), dtype=torch.int64, device=images.device)
    classes = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    for label in range(generator.num_classes):
        mine = torch.arange(len(images), device=images.device) if labels is None else (labels == label).nonzero()[:, 0]
        if len(mine) == 0:
            continue
        distances, index = nearest_neighbors(images[mine], _drawn(generator, latents, label), restarts)
        closer = distances[:, 0] < best[mine]
        best[mine[closer]], starts[mine[closer]], classes[mine[closer]] = distances[closer, 0], index[closer], label
    return latents, starts, classes


def _drawn(generator: Generator, latents: Tensor, label: int | None) -> Tensor:
    parts = []
    with torch.no_grad():
        for z in latents.split(500):
            given = None if label is None else torch.full((len(z),), label, device=z.device)
            parts.append(generator(z, given))
    return torch.cat(parts)


def _search(
    generator: Generator, target: Tensor, starts: Tensor, labels: Tensor | None, steps: int, learning_rate: float
) -> Tensor:
    """Return the smallest mean squared difference (B,) found from the starts (B, restarts, d)."""
    num, restarts, dimensions = starts.shape
    z = starts.reshape(-1, dimensions).clone().requires_grad_(True)
    wanted = target.repeat_interleave(restarts, 0)
    optimizer = torch.optim.Adam([z], lr=learning_rate)
    best = torch.full((len(z),), torch.inf, device=z.device)
    for _ in range(steps):
        difference = (generator(z, labels) - wanted).square().flatten(1).mean(1)
        pull = (z.square().sum(1) / dimensions - 1).square()
        z.grad = torch.autograd.grad((difference + _PULL * pull).sum(), z)[0]
        optimizer.step()
        best = torch.minimum(best, difference.detach())
    with torch.no_grad():
        best = torch.minimum(best, (generator(z, labels) - wanted).square().flatten(1).mean(1))
    return best.view(num, restarts).amin(1)
