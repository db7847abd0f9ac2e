"""Utility: classifiers trained on the images under test, judged once on real test images."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.metrics.cache import Cache
from idpgan.metrics.fitting import RECIPES, fit_named, recipe
from idpgan.progress import Progress, silent
from idpgan.training.fit import predict

PROTOCOL = "train-on-these-test-on-real/1"


@dataclasses.dataclass(frozen=True)
class ClassifierScore:
    """How one kind of classifier did.

    Attributes:
        accuracies: On the real test images, in [0, 1], one per seed.
        held_back_accuracies: On the held-back tenth of the images under test, one per seed; these chose the epoch.
    """

    name: str
    num_parameters: int
    accuracies: tuple[float, ...]
    held_back_accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy over seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds (divided by one less than their number); None for one seed."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


@dataclasses.dataclass(frozen=True)
class UtilityResult:
    """What a set of images taught classifiers about real ones. Curator only: the test images are private.

    Attributes:
        seeds: Each gave every classifier other weights, another held-back part and another order.
        num_images: Images trained on, held-back ones included.
        majority: Share of the most frequent class among the real test images: what one constant answer gets.
        images_digest: Hash of the images trained on.
        protocol: Name and version of how this was computed.
    """

    scores: tuple[ClassifierScore, ...]
    seeds: tuple[int, ...]
    num_images: int
    num_test: int
    majority: float
    images_digest: str
    test_digest: str
    protocol: str

    @property
    def chosen(self) -> ClassifierScore:
        """The classifier that did best on held-back images: the one to quote, chosen without the test images."""
        return max(self.scores, key=lambda score: statistics.fmean(score.held_back_accuracies))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        scores = [{**dataclasses.asdict(score), "mean": score.mean, "std": score.std} for score in self.scores]
        return {**dataclasses.asdict(self), "scores": scores, "chosen": self.chosen.name}


@typed
def measure_utility(
    images: Images,
    test: Images,
    *,
    classifiers: Sequence[str] = tuple(RECIPES),
    seeds: Sequence[int] = (0, 1, 2),
    cache: Cache | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
    what: str = "utility",
) -> UtilityResult:
    """Train classifiers on a set of images and test each once on real ones.

    The epoch of each fit is chosen on a held-back tenth of `images`. The real test images are read once per fit, after
    all choices. The same call gives the ceiling (`images` are the real private training images) and the floor (only the
    public ones): what the images under test have to be compared with.

    Args:
        images: Labeled images, synthetic or real, at least 3; ``test`` has their shape and classes.
        seeds: At least one, each used with every classifier.
        what: First word of what `progress` is told.

    Raises:
        InputError: If shapes or classes differ, labels are missing, there are no seeds or unknown classifiers, or fewer
            than 3 images.
    """
    _check_classifiers(classifiers)
    truth = check_sets(images, test, seeds).to(device)
    digests = {"images": images.digest(), "test": test.digest()}
    cache = cache or Cache(None)

    def run(name: str, seed: int) -> dict[str, Tensor]:
        title = f"{what}: {name}, seed {seed}"
        model, fitted = fit_named(name, images, seed=seed, device=device, progress=progress, what=title)
        correct = predict(model, test.images).argmax(dim=1).eq(truth)  # the only use of the real test images
        return {
            "accuracy": correct.double().mean().cpu(),
            "held_back_accuracy": torch.tensor(fitted.best.held_back_accuracy, dtype=torch.float64),
            "num_parameters": torch.tensor(sum(parameter.numel() for parameter in model.parameters())),
        }

    scores = []
    for name in classifiers:
        runs = []
        for seed in seeds:
            config = recipe(name, len(images), seed).model_dump(mode="json")
            key = {"protocol": PROTOCOL, "classifier": name, "config": config, **digests}
            runs.append(cache.get("utility", key, lambda name=name, seed=seed: run(name, seed)))  # type: ignore[misc]
        scores.append(
            ClassifierScore(
                name=name,
                num_parameters=int(runs[0]["num_parameters"]),
                accuracies=tuple(float(result["accuracy"]) for result in runs),
                held_back_accuracies=tuple(float(result["held_back_accuracy"]) for result in runs),
            )
        )
    return UtilityResult(
        scores=tuple(scores),
        seeds=tuple(seeds),
        num_images=len(images),
        num_test=len(test),
        majority=majority(truth),
        images_digest=digests["images"],
        test_digest=digests["test"],
        protocol=PROTOCOL,
    )


def check_sets(images: Images, test: Images, seeds: Sequence[int]) -> Tensor:
    """Return the labels of the test images, int64 (N,).

    Raises:
        InputError: If a classifier of ``images`` cannot be tested on ``test``, or a seed is given twice or none at all.
    """
    for name, found, expected in (
        ("the shape (C, H, W)", images.image_shape, test.image_shape),
        ("the classes", images.classes, test.classes),
    ):
        if found != expected:
            raise InputError(f"The images have {name} {found}, but the real test images have {expected}.")
    if len(images) < 3 or len(test) == 0:
        raise InputError(f"{len(images)} images to train on and {len(test)} to test on: needed are at least 3 and 1.")
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"Seeds {list(seeds)}: give at least one, none twice.")
    if images.labels is None or test.labels is None:
        raise InputError("Utility needs labeled images, both to train on and to test on.")
    return test.labels


def majority(labels: Tensor) -> float:
    """Return the share of the most frequent class."""
    return int(labels.bincount().max()) / len(labels)


def _check_classifiers(classifiers: Sequence[str]) -> None:
    if not classifiers or len(set(classifiers)) < len(classifiers):
        raise InputError(f"Classifiers {list(classifiers)}: give at least one, none twice.")
    for name in classifiers:
        if name not in RECIPES:
            raise InputError(f"There is no classifier '{name}'. {nearest_hint(name, RECIPES)}")
