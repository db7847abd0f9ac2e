"""Utility as DPImageBench measures it, for comparison with its published rows.

Gong, Li, Lin and Wang (2025), "DPImageBench: A Unified Benchmark for Differentially Private Image Synthesis", CCS;
repository 2019ChenGong/DPImageBench, evaluation/evaluator.py. A ResNet, a WideResNet and a ResNeXt are trained on
60,000 generated images, and the published number is the best of the three accuracies on real test images.
Where this differs: docs/reference/deviations.md, "DPImageBench".
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from idpgan.data.images import Images
from idpgan.data.load import place
from idpgan.device import own_random_state
from idpgan.errors import InputError
from idpgan.metrics.accuracy import epsilon_text
from idpgan.metrics.cache import Cache
from idpgan.metrics.metric import Judging, MetricTable
from idpgan.metrics.utility import ClassifierScore, UtilityResult, check_sets, judge_fits, spread
from idpgan.models.classifier import ResidualNetwork, ResNet, ResNeXt, WideResNet, build_residual, check_sides
from idpgan.models.initialize import torch_seed
from idpgan.progress import Progress, silent
from idpgan.training.fit import FitConfig, TrainedModel, fit_classifier

PROTOCOL = "dpimagebench/1"
NUM_IMAGES = 60_000
PUBLISHED_SIDES = (28, 32)
_DROPOUT = 3  # stream of the seed


@dataclasses.dataclass(frozen=True)
class BenchmarkSettings:
    """What is trained, and for how long.

    Attributes:
        epochs: Passes over eleven twelfths of the images; the learning rate falls after 40 % and 80 % of them.
    """

    resnet: ResNet
    wrn: WideResNet
    resnext: ResNeXt
    epochs: int

    @property
    def networks(self) -> dict[str, ResidualNetwork]:
        """The three by the benchmark's names."""
        return {"resnet": self.resnet, "wrn": self.wrn, "resnext": self.resnext}

    def fit_config(self, seed: int) -> FitConfig:
        """Return the benchmark's recipe: Adam from 0.01 in two steps, a moving average, no augmentation."""
        return FitConfig(
            epochs=self.epochs,
            batch_size=256,
            learning_rate=1e-2,
            weight_decay=0.0,
            schedule="step",
            ema_decay=0.9999,
            held_back_share=1 / 12,  # 5,000 of 60,000
            seed=seed,
        )


FULL = BenchmarkSettings(ResNet(), WideResNet(), ResNeXt(), epochs=50)
# For two CPU cores: about twenty minutes at 28 x 28.
SMALL = BenchmarkSettings(
    ResNet(depth=14, grid_px=16),
    WideResNet(depth=10, widening=2, grid_px=16),
    ResNeXt(depth=11, cardinality=4, width=8, grid_px=16),
    epochs=10,
)


@dataclasses.dataclass(frozen=True)
class BenchmarkResult(UtilityResult):
    """Accuracies of the three classifiers trained on a set of images, in the benchmark's order. Curator only.

    Attributes:
        full: Whether networks and epochs are those of the benchmark.
    """

    full: bool

    @property
    def best(self) -> ClassifierScore:
        """The best of the three on the real test images, as in the published rows: this choice biases it upwards."""
        return max(self.scores, key=lambda score: score.mean)

    @property
    def mean(self) -> float:
        """Mean accuracy of the three."""
        return statistics.fmean(score.mean for score in self.scores)

    @property
    def std(self) -> float:
        """Standard deviation of the three (divided by three, as the benchmark does)."""
        return statistics.pstdev(score.mean for score in self.scores)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**super().to_json(), "best": self.best.name, "mean": self.mean, "std": self.std}


def benchmark_delta(num_private: int) -> float:
    """Return the benchmark's delta, ``1 / (n ln n)`` for n private images; data/dataset_loader.py, `load_data`.

    Raises:
        InputError: If n is below 3, where this delta is not below 1/n.
    """
    if num_private < 3:
        raise InputError(f"1 / (n ln n) is below 1/n from 3 private images on, and there are {num_private}.")
    return 1 / (num_private * math.log(num_private))


def check_benchmark(image_shape: tuple[int, int, int], classes: Sequence[str], num_private: int) -> None:
    """Raise `InputError` where the protocol cannot measure images of a data set."""
    if not classes:
        raise InputError(
            "--protocol dpimagebench trains classifiers, and the data set has no classes. Measure it by --protocol "
            "idpgan, or declare its labels with data.label."
        )
    check_sides(image_shape)
    benchmark_delta(num_private)


def measure_dpimagebench(
    images: Images,
    test: Images,
    *,
    settings: BenchmarkSettings = SMALL,
    seeds: Sequence[int] = (0,),
    cache: Cache | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> BenchmarkResult:
    """Train the three classifiers on a set of images and test each once on real ones.

    The epoch of each fit is chosen on a held-back twelfth of `images` (the benchmark's ``eval.mode=syn``), never on the
    test images, which are read once per fit, after that choice. Only `BenchmarkResult.best` uses them to choose.

    Args:
        images: Labeled images under test, at least 3; ``test`` has their shape and classes.
        settings: `FULL` is the benchmark's size, for a GPU.
        seeds: At least one seed; the benchmark takes one.

    Raises:
        InputError: If shapes or classes differ, labels are missing, there are no seeds, fewer than 3 images, or a side
            is below 8 or above 32 pixels.
    """
    truth = check_sets(images, test, seeds).to(device)
    check_sides(images.image_shape)
    networks = settings.networks

    def fit(name: str, seed: int) -> tuple[nn.Module, TrainedModel]:
        model = build_residual(networks[name], images.image_shape, len(images.classes), seed=seed).to(device)
        what = f"dpimagebench: {name}, seed {seed}, steps"
        with own_random_state(truth.device):  # dropout draws from torch's state
            torch.manual_seed(torch_seed(seed, _DROPOUT))
            return model, fit_classifier(
                model,
                images.images,
                cast(Tensor, images.labels),
                config=settings.fit_config(seed),
                on_step=lambda done, total: progress(what, done, total),
            )

    configs = {seed: settings.fit_config(seed).model_dump(mode="json") for seed in seeds}
    recipes: dict[tuple[str, int], Mapping[str, Any]] = {
        (name, seed): {"network": name, **dataclasses.asdict(network), "config": configs[seed]}
        for name, network in networks.items()
        for seed in seeds
    }
    scores = judge_fits(("dpimagebench", PROTOCOL), recipes, fit, images, (test, truth), cache)
    return BenchmarkResult(*scores, PROTOCOL, full=settings == FULL)


def measure(judging: Judging, images: Images) -> BenchmarkResult:
    """Measure the images under test, and note what a reader of the published rows has to know."""
    result = measure_dpimagebench(
        place(images, judging.device),
        judging.judges,
        settings=FULL if judging.full else SMALL,
        seeds=range(judging.num_seeds or 1),
        cache=judging.cache,
        device=judging.device,
        progress=judging.progress,
    )
    judging.notes.extend(
        (
            "the best of three is chosen by the accuracy itself, as the published rows are: it is too high by that "
            "choice",
            "the epoch of each fit is chosen on held-back generated images; the published rows chose it on 5,000 real "
            "validation images",
        )
    )
    if not result.full:
        judging.notes.append("networks and epochs are smaller than the benchmark's; --full takes its own, on a GPU")
    if result.num_images != NUM_IMAGES:
        judging.notes.append(f"{result.num_images:,} images were taken; the published rows took {NUM_IMAGES:,}")
    if not set(images.image_shape[1:]) <= set(PUBLISHED_SIDES):
        judging.notes.append("the benchmark has images of 28 x 28 and 32 x 32 pixels: no published row is of these")
    return result


def table(content: Mapping[str, Any]) -> MetricTable | None:
    """Return the three accuracies, what a reader quotes of them, and epsilon at the benchmark's delta."""
    result = content.get("dpimagebench")
    if not result:
        return None
    scores = {score["name"]: score for score in result["scores"]}
    rows = [
        (
            score["name"],
            f"{score['num_parameters']:,}",
            spread(score),
            f"{statistics.fmean(score['held_back_accuracies']):.2%}",
        )
        for score in scores.values()
    ]
    best, chosen = scores[result["best"]], scores[result["chosen"]]
    lines = [
        f"best of three: {best['mean']:.2%} ({best['name']}); mean of three {result['mean']:.2%} ± "
        f"{result['std']:.2%}; chosen on held-back generated images: {chosen['mean']:.2%} ({chosen['name']})",
        f"accuracy on {result['num_test']:,} real {content['part']} images, {len(result['seeds'])} seed(s)",
    ]
    if "privacy" in content:
        privacy = content["privacy"]
        proven, own = privacy["benchmark"], privacy["own"]
        if own is None:
            stated = "no epsilon is known: the images come without the charges of a release"
        else:
            stated = (
                f"epsilon {epsilon_text(proven['epsilon'])}, unit {proven['unit']}, {proven['relation']}; at the run's "
            )
            stated += f"own delta {own['delta']:.3g}: epsilon {epsilon_text(own['epsilon'])}"
        lines.append(f"at delta = 1 / (n ln n) = {proven['delta']:.4g}, n = {privacy['num_private']:,}: {stated}")
    return MetricTable(
        f"Utility by {result['protocol']}",
        ("classifier", "parameters", "accuracy", "held back"),
        (*rows, ("always the majority", "", f"{result['majority']:.2%}", "")),
        tuple(lines),
    )
