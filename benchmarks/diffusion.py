"""Diffusion on MNIST: what its steps add to the release that it starts at, as a curve over record passes.

One JSON line per checkpoint: steps, record passes (records drawn x copies), accuracy of a CNN that is trained on
generated images and tested on real test images, FID in the features of a CNN that is fitted to the holdout images.
Checkpoint 0 is the release of moments itself. All lines are for the curator: epsilon does not cover them, and a
checkpoint that is chosen by them is not private.

python benchmarks/diffusion.py --data-root DIR --out runs/diffusion
python benchmarks/diffusion.py --data-root DIR --out runs/diffusion --settings privacy.epsilon=1 --every 100
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from sweep import load_config

from idpgan.data.images import Images, to_uint8
from idpgan.data.load import Split, load
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import FeatureClassifier, fit_feature_classifier
from idpgan.metrics.fidelity import measure_fidelity
from idpgan.metrics.utility import measure_utility
from idpgan.models.config import Purpose
from idpgan.models.generator import Generator
from idpgan.synthesis.diffusion.method import Diffusion


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="where the files of MNIST lie")
    parser.add_argument("--out", type=Path, default=Path("runs/diffusion"), help="lines and cache")
    parser.add_argument("--config", default="mnist-diffusion.toml")
    parser.add_argument("--settings", nargs="*", default=[], help="section.key=value")
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--samples", type=int, default=10_000, help="generated images of a checkpoint")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    config = load_config(arguments.config, arguments.settings, arguments)
    split, cache = load(config.data), Cache(arguments.out / "cache")
    method = Diffusion.of(config, split, device=torch.device("cpu"))
    network = fit_feature_classifier(split.holdout, cache=cache)
    facts = {"config": config.identity()[:16], "seed": config.training.seed, "threads": arguments.threads}
    with open(arguments.out / f"{facts['config']}.jsonl", "w") as lines:
        for row in curve(method, config.training.steps, arguments.every):
            row |= judged(method.generator, split, network, arguments.samples, cache)
            line = json.dumps({**facts, **row, "load": round(os.getloadavg()[0], 1)})
            print(line, flush=True)
            print(line, file=lines, flush=True)


def curve(method: Diffusion, steps: int, every: int) -> Any:
    """Train, and yield what was spent at each checkpoint; the averaged network is the method's generator then."""
    seconds = time.perf_counter()
    method.prepare()
    seconds = time.perf_counter() - seconds
    for step in range(steps + 1):
        stats = {}
        if step:
            started = time.perf_counter()
            method.ledger.charge(method.step_event())
            stats = {name: round(float(value), 4) for name, value in method.step(step).items()}
            seconds += time.perf_counter() - started
        if step % every == 0 or step == steps:
            passes = step * method.dpsgd.divisor * method.draws  # expected: the very number is private
            epsilon = method.ledger.epsilon(method.plan.delta)
            yield {"step": step, "passes": passes, "epsilon": epsilon, "train_seconds": round(seconds, 1), **stats}


def judged(
    generator: Generator, split: Split, network: FeatureClassifier, samples: int, cache: Cache
) -> dict[str, float]:
    """Return accuracy and FID of a generator, on images that are drawn to train on."""
    started = time.perf_counter()
    drawn = to_uint8(generator.sample(samples, seed=0, purpose=Purpose.TRAINING))
    images = Images(drawn, generator.sample_labels(samples), split.classes)
    seconds = time.perf_counter() - started
    accuracy = measure_utility(images, split.test, classifiers=["cnn"], seeds=(0,), cache=cache).scores[0].mean
    fid = measure_fidelity(images, split.test, network, cache=cache).fid
    return {"samples": samples, "cnn": accuracy, "fid": round(fid, 3), "sample_seconds": round(seconds, 1)}


if __name__ == "__main__":
    main()
