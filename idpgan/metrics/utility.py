"""Utility: classifiers trained on the images under test, judged once on real test images."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.data.load import place
from idpgan.errors import InputError
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import RECIPES, fit_named, recipe
from idpgan.metrics.metric import Judging, MetricResult, MetricTable
from idpgan.progress import Progress, silent
from idpgan.training.fit import TrainedModel, predict

PROTOCOL = "train-on-these-test-on-real/1"
_SEEDS = 3
LEAST_TO_FIT = 3  # images: a tenth, one at least, is held back


@dataclasses.dataclass(frozen=True)
class ClassifierScore:
    """The accuracies of one kind of classifier.

    Attributes:
        accuracies: Accuracies on the real test images, in [0, 1], one per seed.
        held_back_accuracies: Those on the held-back tenth of the images under test, one per seed; these chose the
            epoch.
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
class UtilityResult(MetricResult):
    """Accuracies on real images of classifiers trained on a set of images. Curator only: the test images are private.

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
        return {**super().to_json(), "scores": scores, "chosen": self.chosen.name}


def measure_utility(
    images: Images,
    test: Images,
    *,
    classifiers: Sequence[str] = tuple(RECIPES),
    seeds: Sequence[int] = tuple(range(_SEEDS)),
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
        seeds: At least one seed, each used with every classifier.
        what: First word of the messages to `progress`.

    Raises:
        InputError: If shapes or classes differ, labels are missing, there are no seeds or unknown classifiers, or fewer
            than 3 images.
    """
    if not classifiers or len(set(classifiers)) < len(classifiers):
        raise InputError(f"Classifiers {list(classifiers)}: give at least one, none twice.")

    for name in classifiers:
        if name not in RECIPES:
            raise InputError(f"There is no classifier '{name}'. {nearest_hint(name, RECIPES)}")

    def fit(name: str, seed: int) -> tuple[nn.Module, TrainedModel]:
        title = f"{what}: {name}, seed {seed}"
        return fit_named(name, images, seed=seed, device=device, progress=progress, what=title)

    truth = check_sets(images, test, seeds).to(device)
    recipes: dict[tuple[str, int], Mapping[str, Any]] = {
        (name, seed): {"classifier": name, "config": recipe(name, len(images), seed).model_dump(mode="json")}
        for name in classifiers
        for seed in seeds
    }
    scores = judge_fits(("utility", PROTOCOL), recipes, fit, images, (test, truth), cache)
    return UtilityResult(*scores, PROTOCOL)


def check_sets(images: Images, test: Images, seeds: Sequence[int]) -> Tensor:
    """Return the labels of the test images, int64 (N,).

    Raises:
        InputError: If a classifier of ``images`` cannot be tested on ``test``, or a seed is given twice or none at all.
    """
    for name, actual, expected in (
        ("the shape (C, H, W)", images.image_shape, test.image_shape),
        ("the classes", images.classes, test.classes),
    ):
        if actual != expected:
            raise InputError(f"The images have {name} {actual}, but the real test images have {expected}.")
    if len(images) < LEAST_TO_FIT or len(test) == 0:
        counts = f"{len(images)} images to train on and {len(test)} to test on"
        raise InputError(f"{counts}: needed are at least {LEAST_TO_FIT} and 1.")
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"Seeds {list(seeds)}: give at least one, none twice.")
    if images.labels is None or test.labels is None:
        raise InputError("Utility needs labeled images, both to train on and to test on.")
    return test.labels


def judge_fits(
    protocol: tuple[str, str],
    recipes: Mapping[tuple[str, int], Mapping[str, Any]],
    fit: Callable[[str, int], tuple[nn.Module, TrainedModel]],
    images: Images,
    real: tuple[Images, Tensor],
    cache: Cache | None,
) -> tuple[tuple[ClassifierScore, ...], tuple[int, ...], int, int, float, str, str]:
    """Fit every classifier with every seed, and ask each once about the real test images.

    Args:
        protocol: Kind in the cache, and name with version.
        recipes: All that a fit depends on, by the name of a classifier and a seed, as JSON values.
        fit: Maps a name and a seed to a fitted classifier.
        real: The test images, and their labels where the classifiers compute.

    Returns:
        The values of a `UtilityResult`, in its order, but for the protocol.
    """
    (test, truth), (kind, version) = real, protocol
    digests = {"images": images.digest(), "test": test.digest()}

    def compute(name: str, seed: int) -> dict[str, Tensor]:
        model, fitted = fit(name, seed)
        correct = predict(model, test.images).argmax(dim=1).eq(truth)  # the only use of the real test images
        return {
            "accuracy": correct.double().mean().cpu(),
            "held_back_accuracy": torch.tensor(fitted.best.held_back_accuracy, dtype=torch.float64),
            "num_parameters": torch.tensor(sum(parameter.numel() for parameter in model.parameters())),
        }

    cache, scores, seeds = cache or Cache(None), [], tuple(dict.fromkeys(seed for _, seed in recipes))
    for name in dict.fromkeys(name for name, _ in recipes):
        keys = [(seed, {"protocol": version, **recipes[name, seed], **digests}) for seed in seeds]
        runs = [cache.get(kind, key, functools.partial(compute, name, seed)) for seed, key in keys]
        measured = (tuple(float(run[what]) for run in runs) for what in ("accuracy", "held_back_accuracy"))
        scores.append(ClassifierScore(name, int(runs[0]["num_parameters"]), *measured))
    majority = int(truth.bincount().max()) / len(truth)
    return tuple(scores), seeds, len(images), len(test), majority, digests["images"], digests["test"]


def measure(what: str, judging: Judging, images: Images) -> UtilityResult | None:
    """Measure the utility of images: ``what`` says which, those under test, the private or the public ones."""
    if images.labels is None:
        judging.notes.append(f"{what} is not measured: there are no labels to train with")
        return None
    return measure_utility(
        place(images, judging.device),
        judging.judges,
        classifiers=judging.classifiers,
        seeds=range(judging.num_seeds or _SEEDS),
        cache=judging.cache,
        device=judging.device,
        progress=judging.progress,
        what=what,
    )


def check_floor(judging: Judging) -> None:
    """Refuse to measure the utility of public images where there are none."""
    if len(judging.split.public) == 0 or judging.split.public.labels is None:
        raise InputError(
            "The floor needs public images with labels, and there are none. Set data.public_share or data.public_root."
        )


def table(content: Mapping[str, Any]) -> MetricTable | None:
    """Return accuracies by kind of classifier, and what a constant answer gets."""
    headings = {"utility": "these images", "ceiling": "real private images (ceiling)", "floor": "public images (floor)"}
    results = {name: content[name] for name in headings if content.get(name)}
    if not results:
        return None
    first = next(iter(results.values()))
    by_classifier = zip(*(result["scores"] for result in results.values()), strict=True)
    rows = [(scores[0]["name"], *map(spread, scores)) for scores in by_classifier]
    rows.append(("always the majority", *(f"{result['majority']:.2%}" for result in results.values())))
    return MetricTable(
        f"Utility: accuracy on {first['num_test']:,} real {content['part']} images of a classifier trained on these, "
        f"mean ± standard deviation over {len(first['seeds'])} seed(s)",
        ("classifier, trained on", *(headings[name] for name in results)),
        tuple(rows),
    )


def spread(score: Mapping[str, Any]) -> str:
    """Write the mean accuracy over seeds, and its standard deviation where there are several."""
    std = score.get("std")
    return f"{score['mean']:.2%}" + (f" ± {std:.2%}" if std is not None else "")
