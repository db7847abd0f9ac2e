"""Utility as DPImageBench measures it, so that its published rows can be compared with.

Gong, Li, Lin and Wang (2025), "DPImageBench: A Unified Benchmark for Differentially Private Image Synthesis", CCS;
repository 2019ChenGong/DPImageBench, evaluation/evaluator.py. A ResNet, a WideResNet and a ResNeXt are trained on
60,000 generated images, and the published number is the best of the three accuracies on real test images.
Where this differs: docs/deviations.md, "DPImageBench".
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.metrics.cache import Cache
from idpgan.metrics.utility import ClassifierScore, UtilityResult, check_sets, majority
from idpgan.models.initialize import torch_seed
from idpgan.models.residual import ResidualNetwork, ResNet, ResNeXt, WideResNet, build_residual, check_sides
from idpgan.progress import Progress, silent
from idpgan.training.fit import FitConfig, fit_classifier, predict

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
# For two CPU cores: some twenty minutes at 28 x 28.
SMALL = BenchmarkSettings(
    ResNet(depth=14, grid_px=16),
    WideResNet(depth=10, widening=2, grid_px=16),
    ResNeXt(depth=11, cardinality=4, width=8, grid_px=16),
    epochs=10,
)


@dataclasses.dataclass(frozen=True)
class BenchmarkResult(UtilityResult):
    """What a set of images taught the three classifiers, in the benchmark's order. Curator only.

    Attributes:
        full: Whether networks and epochs are those of the benchmark.
    """

    full: bool

    @property
    def best(self) -> ClassifierScore:
        """The best of the three on the real test images, as the published rows are: too high by that choice."""
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
        InputError: If n is below 3: then it is no delta below 1/n.
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


@typed
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
    test images, which are read once per fit, after that choice. Only `BenchmarkResult.best` chooses by them.

    Args:
        images: Labeled images under test, at least 3; ``test`` has their shape and classes.
        settings: `FULL` is the benchmark's size, for a GPU.
        seeds: At least one; the benchmark takes one.

    Raises:
        InputError: If shapes or classes differ, labels are missing, there are no seeds, fewer than 3 images, or a side
            is below 8 or above 32 pixels.
    """
    truth = check_sets(images, test, seeds).to(device)
    check_sides(images.image_shape)
    digests = {"images": images.digest(), "test": test.digest()}
    cache = cache or Cache(None)
    scores = []
    for name, network in settings.networks.items():
        runs = []
        for seed in seeds:
            config = settings.fit_config(seed)
            spec = {"network": name, **dataclasses.asdict(network), "config": config.model_dump(mode="json")}

            def run(name: str = name, network: ResidualNetwork = network, config: FitConfig = config) -> Any:
                what = f"dpimagebench: {name}, seed {config.seed}"
                return _run(network, config, images, test, truth, device, progress, what)

            runs.append(cache.get("dpimagebench", {"protocol": PROTOCOL, **spec, **digests}, run))
        scores.append(
            ClassifierScore(
                name=name,
                num_parameters=int(runs[0]["num_parameters"]),
                accuracies=tuple(float(result["accuracy"]) for result in runs),
                held_back_accuracies=tuple(float(result["held_back_accuracy"]) for result in runs),
            )
        )
    return BenchmarkResult(
        scores=tuple(scores),
        seeds=tuple(seeds),
        full=settings == FULL,
        num_images=len(images),
        num_test=len(test),
        majority=majority(truth),
        images_digest=digests["images"],
        test_digest=digests["test"],
        protocol=PROTOCOL,
    )


def _run(
    network: ResidualNetwork,
    config: FitConfig,
    images: Images,
    test: Images,
    truth: Tensor,
    device: torch.device | str,
    progress: Progress,
    what: str,
) -> dict[str, Tensor]:
    """Fit one classifier and ask it about the real test images."""
    model = build_residual(network, images.image_shape, len(images.classes), seed=config.seed).to(device)
    labels = images.labels
    if labels is None:
        raise TypeError("checked to have labels.")
    progress(what, 0, config.epochs)
    with torch.random.fork_rng(devices=[truth.device] if truth.is_cuda else []):  # dropout draws from torch's state
        torch.manual_seed(torch_seed(config.seed, _DROPOUT))
        fitted = fit_classifier(
            model,
            images.images,
            labels,
            config=config,
            on_epoch=lambda epoch: progress(what, epoch.number, config.epochs),
        )
    correct = predict(model, test.images).argmax(dim=1).eq(truth)  # the only use of the real test images
    return {
        "accuracy": correct.double().mean().cpu(),
        "held_back_accuracy": torch.tensor(fitted.best.held_back_accuracy, dtype=torch.float64),
        "num_parameters": torch.tensor(sum(parameter.numel() for parameter in model.parameters())),
    }
