"""Membership inference by the loss of what was released on an image: a classifier's, or a denoiser's.

Pure functions like those of `membership`: scores (n,), higher = more like a member. No shadow models are trained.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from idpgan.attacks.distances import check_attacked
from idpgan.attacks.membership import fitted_classifier
from idpgan.checks import typed
from idpgan.data.images import Images, to_float
from idpgan.errors import InputError
from idpgan.models.private_classifier import log_odds
from idpgan.progress import Progress, silent
from idpgan.training.fit import FitConfig, predict

Denoiser = Callable[[Tensor, Tensor | None], Tensor]  # images (n, C, H, W) in [-1, 1], labels -> losses (n,)
Logits = Callable[[Tensor], Tensor]  # images (n, C, H, W) -> (n, K)

LEAST_REFERENCE = 40
_LEAST_OF_CLASS = 20  # reference images that a class needs for a line of its own
_STEPS = 400  # least number of steps of the fit; large sets get six epochs
_RIDGE = 1e-3
_DENOISED = 250  # images of a call


@typed
def loss_threshold(images: Tensor, labels: Tensor | None, logits: Logits) -> Tensor:
    """Score by the classifier's confidence in the image's class: members have a lower loss (Yeom et al. 2018).

    The score is the log-odds, which orders images as the loss does, without rounding.

    Args:
        images: (n, C, H, W) uint8 or floating point.
        labels: (n,) int64, or None: then the likeliest class counts.
        logits: Of the classifier under attack.

    Raises:
        InputError: If images and labels do not fit together.
    """
    check_attacked(images, labels)
    found = logits(images)
    return log_odds(found, found.argmax(1) if labels is None else labels)


@typed
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
        logits: Of the classifier under attack.
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
    if rest.labels is None:
        raise TypeError("selected images keep their labels.")
    found = logits(images)
    asked = found.argmax(1) if labels is None else labels.to(found.device)
    return _distance(
        (log_odds(predict(second, rest.images), rest.labels), log_odds(logits(rest.images), rest.labels), rest.labels),
        (log_odds(predict(second, images), asked), log_odds(found, asked), asked),
        len(reference.classes),
    )


def _distance(known: tuple[Tensor, Tensor, Tensor], asked: tuple[Tensor, Tensor, Tensor], num_classes: int) -> Tensor:
    """Return how many standard deviations points lie above the line of their class.

    Args:
        known: Difficulty, confidence and class of images that are not members, (m,) each.
        asked: The same of the images in question, (n,) each.
        num_classes: K.
    """
    scores = torch.zeros(len(asked[0]), dtype=torch.float64, device=asked[0].device)
    for label in range(num_classes):
        mine, like = asked[2] == label, known[2] == label
        if int(like.sum()) < _LEAST_OF_CLASS:
            like = torch.ones_like(like)
        at, level = known[0][like].double(), known[1][like].double()
        center, spread = at.mean(), at.std().clamp(min=1e-6)
        z = (at - center) / spread
        slope = (z * (level - level.mean())).mean() / ((z * z).mean() + _RIDGE)
        error = (level - level.mean() - slope * z).std().clamp(min=1e-6)
        expected = level.mean() + slope * (asked[0][mine].double() - center) / spread
        scores[mine] = (asked[1][mine].double() - expected) / error
    return scores.float()


@typed
def denoising_loss(images: Tensor, labels: Tensor | None, denoiser: Denoiser, *, progress: Progress = silent) -> Tensor:
    """Score by how well a released diffusion takes noise of several levels off an image: better of members.

    Matsumoto, Miura and Yanai, "Membership inference attacks against diffusion models" (2023); all images get the same
    noise, so that its luck cancels in their order.

    Args:
        images: (n, C, H, W) uint8 or floating point in [-1, 1].
        labels: (n,) int64, or None.
        denoiser: As `idpgan.models.diffusion.DiffusionGenerator.denoising_loss`.
    """
    check_attacked(images, labels)
    found = []
    for start in range(0, len(images), _DENOISED):
        some = slice(start, start + _DENOISED)
        part = images[some]
        losses = denoiser(
            to_float(part) if part.dtype == torch.uint8 else part, None if labels is None else labels[some]
        )
        found.append(-losses)
        progress("losses", min(start + _DENOISED, len(images)), len(images))
    return torch.cat(found)
