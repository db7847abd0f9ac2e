"""Membership inference by what a network says of an image: a critic, a classifier, a denoiser, or a generator.

Pure functions like those of `membership`: scores (n,), higher = more like a member. No shadow models are trained.

| attack | paper | needs |
|---|---|---|
| `critic_score` | LOGAN, Hayes et al. (2019), arXiv:1705.07663, white box | the critic |
| `classifier_confidence` | Song, Shokri, Mittal (2019); Yang, Zhou and Ning | labeled generated images |
| `latent_reconstruction` | GAN-Leaks, the partial black box | the generator |
| `loss_threshold` | Yeom et al. (2018), arXiv:1709.01604 | the classifier |
| `loss_calibrated` | Watson et al. (2022), arXiv:2111.08440; LiRA's offline test | the classifier, reference images |
| `denoising_loss` | Matsumoto, Miura, Yanai (2023), arXiv:2302.03262 | the denoiser |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from idpgan import checks
from idpgan.attacks.distances import check_attacked, floats, nearest_neighbors
from idpgan.data.images import Images, to_float
from idpgan.errors import InputError
from idpgan.models.classifier import Classifier, build_classifier
from idpgan.models.generator import Generator
from idpgan.models.initialize import torch_seed
from idpgan.models.optimizers import Adam
from idpgan.models.private_classifier import log_odds
from idpgan.progress import Progress, silent
from idpgan.training.fit import FitConfig, fit_classifier, predict
from idpgan.training.method import CriticScores

Denoiser = Callable[[Tensor, Tensor | None], Tensor]  # images (n, C, H, W) in [-1, 1], labels -> losses (n,)
Logits = Callable[[Tensor], Tensor]  # images (n, C, H, W) -> (n, K)

LEAST_REFERENCE = 40
_LEAST_OF_CLASS = 20  # reference images that a class needs for a line of its own
_STEPS = 400  # least number of steps of the fit; large sets get six epochs
_RIDGE = 1e-3
_DENOISED = 250  # images of a call
_PULL = 1e-3  # weight of the term that keeps |z|^2 near its dimension, as the paper's L_reg of reconstruction


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
    model = build_classifier("cnn", images.image_shape, len(images.classes), seed=config.seed).to(device)
    epochs = max(6, math.ceil(steps * config.batch_size / len(images)))
    fit_classifier(
        model,
        images.images,
        cast(Tensor, images.labels),
        config=config.model_copy(update={"epochs": epochs}),
        on_step=lambda done, total: progress(what, done, total),
    )
    return model


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
        target = floats(images[index])
        chosen = None if classes is None else classes[index].repeat_interleave(starts.shape[1])
        scores[index] = -_search(generator, target, latents[starts[index]], chosen, steps, learning_rate)
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
            classes = None if label is None else torch.full((len(z),), label, device=z.device)
            parts.append(generator(z, classes))
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


def loss_threshold(images: Tensor, labels: Tensor | None, logits: Logits, *, progress: Progress = silent) -> Tensor:
    """Score by the classifier's confidence in the image's class: members have a lower loss (Yeom et al. 2018).

    The score is the log-odds, which orders images as the loss does, without rounding.

    Args:
        images: (n, C, H, W) uint8 or floating point.
        labels: (n,) int64, or None: then the likeliest class counts.
        logits: Logits of the classifier under attack.

    Raises:
        InputError: If images and labels do not fit together.
    """
    check_attacked(images, labels)
    outputs = logits(images)
    progress("losses", len(images), len(images))
    return log_odds(outputs, outputs.argmax(1) if labels is None else labels)


def loss_calibrated(
    images: Tensor,
    labels: Tensor | None,
    logits: Logits,
    reference: Images,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Tensor:
    """Score by how far the confidence lies above that in equally difficult non-members of the class.

    A second classifier, fitted to one half of the reference images, says how difficult an image is (Watson et al.
    2022, "On the importance of difficulty calibration in membership inference attacks"). On the other half a line per
    class predicts the log-odds of the classifier under attack from those of the second one. The score is the distance
    from that line in standard deviations: LiRA's offline test (Carlini et al. 2022) with one line in place of the
    shadow models of every image.

    Args:
        images: (n, C, H, W) uint8.
        labels: (n,) int64, or None: then the likeliest class counts.
        logits: Logits of the classifier under attack.
        reference: At least 40 labeled images of the same distribution, neither members nor non-members.
        seed: Seed of the second classifier.
        progress: Called with the epochs of its fit.

    Raises:
        InputError: If images, labels and reference do not fit together, or the reference is too small.
    """
    if reference.labels is None or len(reference) < LEAST_REFERENCE:
        raise InputError(
            f"Calibration needs at least {LEAST_REFERENCE} labeled reference images, got {len(reference)}"
            f"{' without labels' if reference.labels is None else ''}."
        )
    check_attacked(images, labels, len(reference.classes))
    half = len(reference) // 2
    known, config = reference.select(torch.arange(half)), FitConfig(batch_size=min(256, max(8, half // 20)), seed=seed)
    second = fitted_classifier(known, config, _STEPS, images.device, progress, "second classifier")
    rest = reference.select(torch.arange(half, len(reference))).to(images.device)
    truth = cast(Tensor, rest.labels)
    outputs = logits(images)
    classes = outputs.argmax(1) if labels is None else labels.to(outputs.device)
    return _distance(
        (log_odds(predict(second, rest.images), truth), log_odds(logits(rest.images), truth), truth),
        (log_odds(predict(second, images), classes), log_odds(outputs, classes), classes),
        len(reference.classes),
    )


def _distance(known: tuple[Tensor, Tensor, Tensor], queried: tuple[Tensor, Tensor, Tensor], num_classes: int) -> Tensor:
    """Return how many standard deviations points lie above the line of their class.

    Args:
        known: Difficulty, confidence and class of images that are not members, (m,) each.
        queried: The same of the images in question, (n,) each.
        num_classes: K.
    """
    scores = torch.zeros(len(queried[0]), dtype=torch.float64, device=queried[0].device)
    for label in range(num_classes):
        mine, like = queried[2] == label, known[2] == label
        if int(like.sum()) < _LEAST_OF_CLASS:
            like = torch.ones_like(like)
        at, level = known[0][like].double(), known[1][like].double()
        center, spread = at.mean(), at.std().clamp(min=1e-6)
        z = (at - center) / spread
        slope = (z * (level - level.mean())).mean() / ((z * z).mean() + _RIDGE)
        error = (level - level.mean() - slope * z).std().clamp(min=1e-6)
        expected = level.mean() + slope * (queried[0][mine].double() - center) / spread
        scores[mine] = (queried[1][mine].double() - expected) / error
    return scores.float()


def denoising_loss(images: Tensor, labels: Tensor | None, denoiser: Denoiser, *, progress: Progress = silent) -> Tensor:
    """Score by how well a released diffusion takes noise of several levels off an image: better of members.

    Matsumoto, Miura and Yanai, "Membership inference attacks against diffusion models" (2023); all images get the same
    noise, so that its luck cancels in their order.

    Args:
        images: (n, C, H, W) uint8 or floating point in [-1, 1].
        labels: (n,) int64, or None.
        denoiser: A function such as `idpgan.models.diffusion.DiffusionGenerator.denoising_loss`.
    """
    check_attacked(images, labels)
    scores = []
    for start in range(0, len(images), _DENOISED):
        some = slice(start, start + _DENOISED)
        part = images[some]
        losses = denoiser(
            to_float(part) if part.dtype == torch.uint8 else part, None if labels is None else labels[some]
        )
        scores.append(-losses)
        progress("losses", min(start + _DENOISED, len(images)), len(images))
    return torch.cat(scores)
