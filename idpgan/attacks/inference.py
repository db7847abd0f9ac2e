"""Re-identification and attribute inference on released images, by a network trained on clear or transformed images.

The *static* attacker trains a network on clear images alone, as papers on obfuscation test their own proposals. The
*adaptive* attacker runs the mechanism on images with known labels, and trains on clear and transformed images
(McPherson, Shokri, Shmatikov, "Defeating image obfuscation with deep learning", 2016, arXiv:1609.00408). Both are then
tested on transformed images that they have not seen. Re-identification asks for people in the training images, on other
pictures of them; attribute inference asks about people outside of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from idpgan.attacks.evaluate import People, binomial_interval, effective
from idpgan.checks import typed
from idpgan.device import own_random_state
from idpgan.errors import InputError
from idpgan.models.classifier import Classifier, build_classifier
from idpgan.models.initialize import torch_seed
from idpgan.training.fit import FitConfig, fit_classifier, predict

_SHIFT = 16  # a side is shifted by up to a sixteenth of itself
_BATCH = 64


@dataclasses.dataclass(frozen=True)
class Inference:
    """How often an attacker was right. Curator only.

    Attributes:
        accuracy: Share of test images whose label was inferred correctly, in [0, 1].
        low: Lower end of the confidence interval; where people are known, of the interval over people
            (`idpgan.attacks.evaluate`).
        chance: Share of test images with the label that is most frequent among them: what one constant answer gets.
        num_labels: Labels to choose from.
        num_test: Images asked about.
    """

    accuracy: float
    low: float
    high: float
    chance: float
    num_labels: int
    num_test: int

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Attacker:
    """A trained attacker; `train_attacker` makes one."""

    model: Classifier
    labels: Tensor  # (K,) int64: the label of each output

    @typed
    def infer(
        self, images: Tensor, truth: Tensor, *, people: Tensor | None = None, confidence: float = 0.95
    ) -> Inference:
        """Ask the attacker about images, float32 (N, C, H, W) in [0, 1], with labels int64 (N,).

        ``people``, int64 (N,), says whose images they are; None takes images for independent.
        """
        _check(images, truth)
        device = next(self.model.parameters()).device
        inferred = self.labels[predict(self.model, images.to(device) * 2 - 1).argmax(1).cpu()]
        hits = (inferred == truth.cpu()).numpy()
        rate, alpha, trials = float(hits.mean()), 1 - confidence, float(len(hits))
        if people is not None:
            group = People(people.cpu().numpy(), 2)
            trials = effective(rate, group.rates(hits), len(hits), group.num, alpha)
        low, high = binomial_interval(rate * trials, trials, alpha)
        chance = float(truth.unique(return_counts=True)[1].max()) / len(truth)
        return Inference(rate, low, high, chance, len(self.labels), len(hits))


def train_attacker(
    known: Sequence[tuple[Tensor, Tensor]],
    *,
    epochs: int = 40,
    learning_rate: float = 3e-3,
    mirror: bool = True,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Attacker:
    """Train a network on images whose labels the attacker knows.

    The network is the convolutional classifier of `idpgan.models.classifier`, also trained on shifted and mirrored
    images. The epoch that does best on a part of these images is kept: test images do not enter this choice.

    Args:
        known: Sets of images, float32 (N, C, H, W) in [0, 1], with labels int64 (N,): clear images, and for an adaptive
            attacker also transformed images.
        epochs: Passes over all of them.
        mirror: Whether a mirrored image has the same label. False where the key distinguishes left and right.

    Raises:
        InputError: If images and labels do not fit together, or there is only one label.
    """
    if not known:
        raise InputError("the attacker needs images whose labels he knows. Give at least one set.")
    for images, labels in known:
        _check(images, labels)
    if len({tuple(images.shape[1:]) for images, _ in known}) > 1:
        raise InputError("the attacker's images must all have one shape.")
    pixels = torch.cat([images for images, _ in known]).to(device) * 2 - 1
    values, numbers = torch.cat([labels.cpu() for _, labels in known]).unique(return_inverse=True)
    if len(values) < 2:
        raise InputError("all labels are equal: there is nothing to tell apart.")
    channels, height, width = pixels.shape[1:]
    model = build_classifier("cnn", (channels, height, width), len(values), seed=seed).to(device)
    config = FitConfig(epochs=epochs, batch_size=_BATCH, learning_rate=learning_rate, seed=seed)
    judged = torch.arange(len(pixels))[:: max(1, len(pixels) // 500)].to(device)  # a part of the attacker's own images

    with own_random_state(pixels.device):
        torch.manual_seed(torch_seed(seed, 3))
        fit_classifier(
            model,
            pixels,
            numbers.to(device),
            config=config,
            held_back=(pixels[judged], numbers.to(device)[judged]),
            augment=functools.partial(_moved, mirror=mirror),
        )
    return Attacker(model, values)


def _moved(batch: Tensor, rng: torch.Generator, mirror: bool) -> Tensor:
    """Shift a batch by some pixels, and mirror every other image."""
    height, width = batch.shape[2:]
    if mirror:
        turned = torch.rand(len(batch), generator=rng, device=batch.device) < 0.5
        batch = torch.where(turned[:, None, None, None], batch.flip(3), batch)
    rows, columns = max(1, height // _SHIFT), max(1, width // _SHIFT)
    padded = functional.pad(batch, (columns, columns, rows, rows), mode="replicate")
    spread = torch.rand(2, generator=rng, device=batch.device).tolist()
    top, left = int(spread[0] * (2 * rows + 1)), int(spread[1] * (2 * columns + 1))
    return padded[:, :, top : top + height, left : left + width]


def _check(images: Tensor, labels: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point() or len(images) == 0:
        actual = f"{images.dtype} {tuple(images.shape)}"
        raise InputError(f"images must be float32 (N, C, H, W) in [0, 1] with N >= 1, got {actual}.")
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise InputError(f"{len(images)} images need int64 labels ({len(images)},), got {tuple(labels.shape)}.")
    low, high = torch.stack(images.aminmax()).tolist()
    if not np.isfinite(low + high) or low < 0 or high > 1:
        raise InputError(f"pixels must lie in [0, 1], found [{low:g}, {high:g}]: clip a release first.")
