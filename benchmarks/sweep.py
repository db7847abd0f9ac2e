"""What the sweeps over configs share: run a config once, read it back ever after, measure utility."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from idpgan import load_generator, trainer
from idpgan.data.images import Images, to_uint8
from idpgan.data.load import Split, load
from idpgan.metrics.cache import Cache
from idpgan.metrics.utility import measure_utility
from idpgan.models.generator import Generator
from idpgan.training.config import RunConfig

CONFIGS = Path(__file__).parents[1] / "configs"


def options(description: str | None, cells: Iterable[str], out: Path) -> argparse.ArgumentParser:
    """Return the options that every sweep has."""
    names = [*cells]
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the cells and stop")
    parser.add_argument("--cells", nargs="+", default=names, choices=names)
    parser.add_argument("--data-root", type=Path, help="where the files of MNIST lie")
    parser.add_argument("--out", type=Path, default=out, help="runs and cache")
    parser.add_argument("--classifiers", nargs="+", default=["cnn"], help="cnn, resnet, logistic")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--threads", type=int, default=2)
    return parser


def load_config(file: str, overrides: Iterable[str], arguments: argparse.Namespace) -> RunConfig:
    """Return a config of ``configs/`` with a cell's settings, and where the data lie."""
    root = [] if arguments.data_root is None else [f"data.root={json.dumps(str(arguments.data_root))}"]
    return trainer.load_config(CONFIGS / file, [*root, *overrides])


def finish(config: RunConfig, path: Path, data_root: Path | None) -> None:
    """Train a config in ``path``: from the start, from where it was interrupted, or not at all if it is done."""
    if not (path / "config.toml").exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        trainer.start(config, path)
    elif not (path / "release" / "privacy.json").exists():
        trainer.resume(path, data_root)


def cell(config: RunConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one config (or continue it, or read it back) and measure it."""
    path = arguments.out / config.identity()[:16]
    finish(config, path, arguments.data_root)
    last = json.loads((path / "stats.jsonl").read_text().splitlines()[-1])
    row = {"seed": config.training.seed, "epsilon": last["epsilon"], "delta": last["delta"], "steps": last["step"]}
    row |= {"train_seconds": last["seconds"], "run": str(path)}
    return row | utility(load_generator(path), load(config.data), arguments)


def utility(generator: Generator, split: Split, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the accuracy of each classifier trained on synthetic images, seed 0."""
    labels = generator.sample_labels(arguments.samples)
    images = Images(to_uint8(generator.sample(arguments.samples, seed=0)), labels, split.classes)
    cache = Cache(arguments.out / "cache")
    result = measure_utility(images, split.test, classifiers=arguments.classifiers, seeds=(0,), cache=cache)
    return {score.name: score.mean for score in result.scores}
