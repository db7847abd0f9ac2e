"""IDP-GAN as published on MNIST, epsilon x |L|: noise scale, claimed, proven, inception score, utility.

One JSON line per cell. Cells are named by the hash of their config: finished ones are read back, interrupted ones
continue. Everything measured here is for the curator (real images judge it); no epsilon covers it.

python benchmarks/idp_published.py --accounting                       # scale and proven only: no training, no images
python benchmarks/idp_published.py --data-root DIR --out runs/idp --steps 20000 [--device cuda]
python benchmarks/idp_published.py --data-root DIR --steps 2000 --set model.width=16 method.learning_rate=5e-4
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cells import finish

from idpgan import load_generator, trainer
from idpgan.data.images import Images, to_uint8
from idpgan.data.load import known_shape, load
from idpgan.files import write_text_atomic
from idpgan.metrics.cache import Cache
from idpgan.metrics.evaluation import evaluate_images
from idpgan.privacy import compose_epsilon
from idpgan.privacy.guarantee import number_to_json
from idpgan.release.statement import read_privacy
from idpgan.run import describe_environment
from idpgan.synthesis import idp_published_plan as published
from idpgan.training.config import RunConfig

CONFIGS = Path(__file__).parents[1] / "configs"
EPSILONS = (0.3, 1.0, 3.0, 11.0)  # split evenly between first layer and loss
BATCH_SIZES = (64, 256, 2048)
PIXEL_STD = 0.62  # of MNIST in [-1, 1], a constant of this page: how loud the noise is beside an image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="where the files of MNIST lie")
    parser.add_argument("--out", type=Path, default=Path("runs/idp-published"), help="runs, cache and results")
    parser.add_argument("--steps", type=int, default=20_000, help="critic steps")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=BATCH_SIZES)
    parser.add_argument("--samples", type=int, default=10_000, help="generated images that are judged")
    parser.add_argument("--seeds", type=int, default=1, help="classifiers of each kind for utility")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every cell")
    parser.add_argument("--accounting", action="store_true", help="noise scale and proven only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for config in cells(arguments):
        row = account(config)
        if not arguments.accounting:
            row |= measured(config, arguments)
        print(json.dumps(row), flush=True)


def cells(arguments: argparse.Namespace) -> Iterator[Any]:
    """Yield the config of every cell."""
    common = [f"training.steps={arguments.steps}", f"training.device={arguments.device}", *arguments.set]
    if arguments.data_root is not None:
        common.append(f"data.root={json.dumps(str(arguments.data_root))}")
    for epsilon in arguments.epsilons:
        for batch_size in arguments.batch_sizes:
            halves = [f"privacy.epsilon1={epsilon / 2}", f"privacy.epsilon2={epsilon / 2}"]
            overrides = [*common, *halves, f"training.batch_size={batch_size}"]
            yield trainer.load_config(CONFIGS / "mnist-idp-gan-published.toml", overrides)


def account(config: Any) -> dict[str, Any]:
    """Return what the formula gives and what is proven for it, by when noise is drawn."""
    plan, delta = published.Plan(config, known_shape(config.data)), config.privacy.delta or 0.0
    pixels, accesses = plan.pixel_noise, plan.most_accesses
    per_step = [event.repeated(event.count * accesses) for event in pixels.events()]
    return {
        "claimed": config.privacy.epsilon1 + config.privacy.epsilon2,
        "batch_size": config.training.batch_size,
        "steps": config.training.steps,
        "scale": round(pixels.scale, 4),
        "noise_to_signal": round(pixels.scale * math.sqrt(2) / PIXEL_STD, 2),
        "delta": delta,
        "proven_once": round(pixels.proven(delta).epsilon, 4),
        "proven_once_pure": round(pixels.pure_epsilon, 2),
        "accesses": accesses,
        "proven_per_step": number_to_json(round(compose_epsilon(per_step, delta), 2)),
        "proven_once_with_labels": round(compose_epsilon(plan.events, delta), 2),
        "coefficient_scale": round(plan.coefficient_scale, 3),
    }


def measured(config: RunConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and judge a cell, or read what an earlier call found."""
    name = config.identity()[:16]
    result, run = arguments.out / f"{name}.json", arguments.out / name
    if not result.exists():
        finish(config, run, arguments.data_root)
        write_text_atomic(result, json.dumps(judge(config, run, arguments)) + "\n")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return {"run": str(run), **found}


def judge(config: RunConfig, run: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers of a finished run."""
    generator = load_generator(run)
    labels = generator.sample_labels(arguments.samples)
    images = Images(to_uint8(generator.sample(arguments.samples, labels, seed=0)), labels, generator.classes)
    cuda = arguments.device != "cpu" and torch.cuda.is_available()
    evaluation = evaluate_images(
        images,
        load(config.data),
        num_seeds=arguments.seeds,
        cache=Cache(arguments.out / "cache"),
        device="cuda" if cuda else "cpu",
    )
    inception, utility = evaluation.results["inception"], evaluation.results["utility"]
    report = read_privacy(run / "release" / "privacy.json").report.to_json()
    return {
        "report": {name: report[name] for name in ("claimed", "proven", "private")},
        "inception_score": inception and [inception.mean, inception.std],
        "utility": utility and utility.chosen.mean,
        "classifier": utility and utility.chosen.name,
        "samples_png": str(run / "release" / "samples.png"),
        "environment": describe_environment("cuda" if cuda else "cpu"),
    }


if __name__ == "__main__":
    main()
