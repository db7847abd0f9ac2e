"""Time utility and inception score of 60,000 real MNIST images, the ceiling of both; one JSON line.

python benchmarks/utility.py --data-root DIR [--device cpu] [--threads 2] [--seeds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.metrics.features import fit_feature_classifier, full_training_set
from idpgan.metrics.inception import measure_inception
from idpgan.metrics.utility import measure_utility
from idpgan.run import describe_environment

LIMITS = {"utility": 600, "feature_classifier": 300, "inception": 180}  # seconds on two CPU cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, help="where the files of MNIST lie")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    load_before = os.getloadavg()[0]
    split = load(DataConfig(name="mnist", root=arguments.data_root)).to(arguments.device)
    images = full_training_set(split)

    clocks: dict[str, dict[str, float]] = {"seconds": {}, "cpu_seconds": {}}  # they differ where others share the cores

    @contextlib.contextmanager
    def timed(name: str) -> Iterator[None]:
        started, cpu_started = time.perf_counter(), time.process_time()
        yield
        clocks["seconds"][name] = round(time.perf_counter() - started, 2)
        clocks["cpu_seconds"][name] = round(time.process_time() - cpu_started, 2)

    with timed("feature_classifier"):
        classifier = fit_feature_classifier(images, device=arguments.device)
    with timed("inception"):
        inception = measure_inception(images, classifier)
    with timed("utility"):
        utility = measure_utility(images, split.test, seeds=range(arguments.seeds), device=arguments.device)

    result = {
        "benchmark": "utility",
        "num_images": len(images),
        "seeds": arguments.seeds,
        "threads": arguments.threads,
        **clocks,
        "within_limits": all(clocks["seconds"][name] <= limit for name, limit in LIMITS.items()),
        "accuracies": {score.name: score.accuracies for score in utility.scores},
        "inception_score": [inception.mean, inception.std],
        "classifier_sha256": classifier.sha256,
        "classifier_held_back_accuracy": classifier.held_back_accuracy,
        "load_average": [load_before, os.getloadavg()[0]],
        "environment": describe_environment(arguments.device),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
