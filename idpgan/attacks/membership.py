r"""Membership inference by comparing an image with generated ones, with a critic, or with a classifier.

Pure functions: each gives n images their scores, higher for members. They see members and non-members in one tensor and
are not told which is which. A *calibrated* score subtracts the score against a reference. This removes how typical an
image is: typical images are near generated ones whether or not they were trained on.

| attack | paper | needs |
|---|---|---|
| `nearest_sample` | GAN-Leaks, Chen et al. (2020), arXiv:1909.03935 | generated images |
| `calibrate` | the same, with a reference generator | the same from a reference |
| `neighborhood_count` | Hilprecht, Haerterich, Bernau (2019), PoPETs 2019(4) | generated images |
| `density_ratio` | DOMIAS, van Breugel et al. (2023), arXiv:2302.12580 | generated and other real images |
| `critic_score` | LOGAN, Hayes et al. (2019), arXiv:1705.07663, white box | the critic |
| `classifier_confidence` | Song, Shokri, Mittal (2019); Yang, Zhou and Ning | labeled generated images |
| `latent_reconstruction` | GAN-Leaks, the partial black box | the generator |
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idpgan import checks
from idpgan.attacks.distances import (
    bandwidth,
    check_attacked,
    check_comparable,
    components,
    nearest_neighbors,
    projected,
    shared,
)
from idpgan.checks import typed
from idpgan.data.images import Images, to_float
from idpgan.errors import InputError
from idpgan.models.classifier import Classifier, build_classifier
from idpgan.models.generator import Generator
from idpgan.models.initialize import torch_seed
from idpgan.models.optimizers import Adam
from idpgan.models.private_classifier import log_odds
from idpgan.progress import Progress, silent
from idpgan.ranks import ALONE, Ranks
from idpgan.training.fit import FitConfig, fit_classifier, predict
from idpgan.training.method import CriticScores

_MOST_RADIUS = 1e9  # images lie within 2 sqrt(pixels) of each other
_PULL = 1e-3  # weight of the term that keeps |z|^2 near its dimension, as the paper's L_reg of reconstruction
_SPACE_ROWS = 2000  # of each set that density_ratio takes its space from


@typed
def nearest_sample(images: Tensor, samples: Tensor, *, progress: Progress = silent, ranks: Ranks = ALONE) -> Tensor:
    """Score by the negative squared distance to the nearest generated image, mean over pixels.

    Images (n, ...) and samples (S, ...) are uint8, mapped to [-1, 1], or floating point. The scores are (n,) float32,
    at most 0; 0 for an image that was generated exactly. ``ranks`` share the images (`distances.shared`).

    Raises:
        InputError: If there are no images or samples, or shapes differ.
    """
    check_comparable(images, samples)
    return -shared("nearest", images, samples, 1, progress, ranks)


@typed
def calibrate(scores: Tensor, reference: Tensor) -> Tensor:
    """Return scores (n,) minus those of the same attack against a reference (GAN-Leaks).

    The reference is a generator trained on other images of the same distribution.
    """
    if scores.ndim != 1 or scores.shape != reference.shape:
        raise InputError(
            f"Scores and reference must be one number per image each, got {tuple(scores.shape)} and "
            f"{tuple(reference.shape)}."
        )
    return scores - reference


@typed
def neighborhood_count(
    images: Tensor,
    samples: Tensor,
    *,
    radius: float | None = None,
    dimensions: int = 40,
    progress: Progress = silent,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Score by the share of generated images within a radius (Hilprecht et al.), in principal components: (n,), <= 1.

    Args:
        images: (n, ...) uint8, mapped to [-1, 1], or floating point.
        samples: (S, ...) generated images in the same form; the components are fitted to them.
        radius: Radius in the space of the components; None is the paper's heuristic, the median over all images of the
            distance to the nearest sample, so that half of the images have no sample within it.
        dimensions: Principal components; 40 in the paper for MNIST.
        ranks: Processes of `torchrun` that share the images (`distances.shared`).

    Raises:
        InputError: If there are no images or samples, or shapes differ.
    """
    check_comparable(images, samples)
    checks.whole(dimensions, "dimensions", 1)
    if radius is not None and not 0 <= radius <= _MOST_RADIUS:
        raise InputError(f"radius = {radius} must be in [0, {_MOST_RADIUS:g}].")
    space = components(samples.to(images.device), dimensions, whiten=False)
    points, cloud = projected(images, space), projected(samples, space)
    if radius is None:
        nearest = shared("nearest", points, cloud, 1, ranks=ranks)
        radius = float(nearest.mul(points.shape[1]).sqrt().median())
    return shared("within", points, cloud, radius, progress, ranks) / len(cloud)


@typed
def density_ratio(
    images: Tensor,
    samples: Tensor,
    reference: Tensor,
    *,
    dimensions: int = 30,
    progress: Progress = silent,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Score by log p_G(x) - log p_R(x): where is the generator denser than the real distribution?

    Both densities are Gaussian kernel estimates in ``dimensions`` whitened principal components of the two sets
    together. The paper leaves the estimator open; here each bandwidth is the one with the best leave-one-out
    likelihood. All images are uint8, mapped to [-1, 1], or floating point; none of the reference is among ``images``.
    ``ranks`` share the images (`distances.shared`).

    Raises:
        InputError: If a set is empty, a density has fewer than 3 images, or shapes differ.
    """
    check_comparable(images, samples)
    check_comparable(images, reference)
    checks.whole(dimensions, "dimensions", 1)
    if min(len(samples), len(reference)) < 3:
        raise InputError(f"{len(samples)} samples and {len(reference)} reference images: a density needs 3.")
    both = torch.cat([part[:_SPACE_ROWS].to(images.device) for part in (samples, reference)])
    space = components(both, dimensions, whiten=True)
    points = projected(images, space)
    densities = []
    for done, cloud in enumerate((samples, reference)):
        cloud = projected(cloud, space)
        densities.append(shared("density", points, cloud, bandwidth(cloud), ranks=ranks))
        progress("densities", done + 1, 2)
    return densities[0] - densities[1]


@typed
def critic_score(
    images: Tensor,
    labels: Tensor | None,
    critic: CriticScores,
    *,
    batch_size: int = 500,
    progress: Progress = silent,
) -> Tensor:
    """Score by the critic's own output: an overfit critic knows its training images (LOGAN, white box).

    Images are (n, C, H, W) uint8, mapped to [-1, 1], or floating point, labels (n,) int64 or None.

    Raises:
        InputError: If images and labels do not fit, or the batch size is below 1.
    """
    check_attacked(images, labels)
    checks.whole(batch_size, "batch_size", 1)
    parts = []
    for index in torch.arange(len(images)).split(batch_size):
        batch = images[index]
        batch = to_float(batch) if batch.dtype == torch.uint8 else batch
        with torch.no_grad():
            parts.append(critic(batch, None if labels is None else labels[index]).float())
        progress("critic scores", int(index[-1]) + 1, len(images))
    return torch.cat(parts)


@typed
def classifier_confidence(
    images: Tensor,
    labels: Tensor | None,
    samples: Images,
    *,
    steps: int = 400,
    seed: int = 0,
    progress: Progress = silent,
) -> Tensor:
    """Score by the confidence of a classifier that was trained on the generated images (Yang, Zhou and Ning, 3.2.2).

    p is the confidence in the image's class or, where the attacker does not know the class, in the likeliest one. The
    score is its log-odds log(p / (1 - p)), which orders images as p does but does not round to 1 (Carlini et al. 2022).

    Args:
        images: (n, C, H, W) uint8.
        labels: (n,) int64 in [0, K), or None.
        samples: At least 3 generated images with labels.
        steps: Least number of steps of the fit; large sets get six epochs.

    Raises:
        InputError: If the samples have no labels, or are too few.
    """
    if samples.labels is None:
        raise InputError("The generated images have no labels, so that no classifier can be trained on them.")
    check_attacked(images, labels, len(samples.classes))
    checks.whole(steps, "steps", 1, 10_000_000)
    if list(images.shape[1:]) != list(samples.image_shape):
        raise InputError(f"Images are {tuple(images.shape[1:])}, the generated ones {samples.image_shape}.")
    batch_size = min(256, max(32, len(samples) // 40))
    config = FitConfig(batch_size=batch_size, learning_rate=5e-3, seed=seed)
    model = fitted_classifier(samples, config, steps, images.device, progress, "classifier epochs")
    logits = predict(model, images)
    return log_odds(logits, logits.argmax(1) if labels is None else labels)


def fitted_classifier(
    images: Images, config: FitConfig, steps: int, device: torch.device, progress: Progress, what: str
) -> Classifier:
    """Fit a network to labeled images for at least so many steps; large sets get six epochs."""
    if images.labels is None:
        raise TypeError("checked to have labels.")
    model = build_classifier("cnn", images.image_shape, len(images.classes), seed=config.seed).to(device)
    epochs = max(6, math.ceil(steps * config.batch_size / len(images)))
    fit_classifier(
        model,
        images.images,
        images.labels,
        config=config.model_copy(update={"epochs": epochs}),
        on_epoch=lambda epoch: progress(what, epoch.number, epochs),
    )
    return model


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
    """Score by the negative least squared difference to G(z, label) over z, mean over pixels: (n,) float32, at most 0.

    The score measures how well the generator can be made to draw the image: the partial black box of GAN-Leaks (Chen et
    al. 2020, arXiv:1909.03935), where the attacker chooses latent vectors. Adam through the released generator replaces
    the paper's Powell search, for many images at once. Each restart begins at the latent vector of one of the nearest
    images in a pool of generated images, not at a random vector.

    Args:
        images: (n, C, H, W) uint8, mapped to [-1, 1], or floating point.
        labels: (n,) int64; None if unknown or the generator is unconditional. Where a conditional generator is attacked
            without labels, each image takes the class of the nearest image of the pool.
        generator: Its parameters are not changed.
        steps: Adam steps on z.
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
    optimizer = Adam([z], lr=learning_rate)
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
