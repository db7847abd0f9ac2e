"""MNIST that arrives in 10 parts: one stream of running sums, a release per part, and one release at the end.

All three are the aggregate method without public images at one (epsilon, delta) in all; after each part a generator is
trained, a CNN on its images, and judged on the real test images. One JSON line per cell; finished cells are kept and
not computed again, so that the benchmark can be stopped and started. Everything printed is for the curator.

python benchmarks/arrivals.py --data-root DIR --out runs/arrivals [--parts 1 2 5 10] [--seeds 0] [--steps 2250]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch
from sweep import load_config

from idpgan.continual import SumsStream
from idpgan.data.images import Images, to_uint8
from idpgan.data.load import Split, load
from idpgan.files import write_text_atomic
from idpgan.metrics.cache import Cache
from idpgan.metrics.utility import measure_utility
from idpgan.models.generator import Generator
from idpgan.synthesis.aggregate.config import AggregatePlan
from idpgan.synthesis.aggregate.config import AggregateRun as Config
from idpgan.synthesis.aggregate.method import IdpAggregate
from idpgan.synthesis.follow import Follower

PARTS = 10
ARMS = ("stream", "per-part", "single")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/arrivals"))
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    parser.add_argument("--parts", nargs="+", type=int, default=[*range(1, PARTS + 1)], help="after which to judge")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=2250)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    settings = [f"training.steps={arguments.steps}", f"privacy.epsilon={arguments.epsilon}"]
    config = load_config("mnist-aggregate-no-public.toml", settings, arguments)
    if not isinstance(config, Config):
        raise TypeError("the config is not of idp-gan-aggregate.")
    split = load(config.data)
    for seed in arguments.seeds:
        for arm in arguments.arms:
            ARM_OF[arm](config, split, seed, arguments)


def judged(arm: str, part: int, seed: int, arguments: argparse.Namespace) -> bool:
    """Whether a cell is wanted and not there yet."""
    return part in arguments.parts and not _path(arm, part, seed, arguments).exists()


def judge(
    generator: Generator, split: Split, arm: str, part: int, seed: int, arguments: argparse.Namespace, **facts: Any
) -> None:
    """Write one cell: the accuracy of a CNN on what the generator draws."""
    pixels = to_uint8(generator.sample(arguments.samples, seed=seed))
    images = Images(pixels, generator.sample_labels(arguments.samples), split.classes)
    found = measure_utility(
        images, split.test, classifiers=["cnn"], seeds=(seed,), cache=Cache(arguments.out / "cache")
    )
    row = {"arm": arm, "part": part, "seed": seed, "steps": arguments.steps, "epsilon": arguments.epsilon,
           "cnn": found.scores[0].mean, **facts}  # fmt: skip
    write_text_atomic(_path(arm, part, seed, arguments), json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def _path(arm: str, part: int, seed: int, arguments: argparse.Namespace) -> Path:
    name = f"{arm}-{part}-seed{seed}-steps{arguments.steps}-eps{arguments.epsilon:g}-n{arguments.samples}.json"
    return arguments.out / name


def parts_of(split: Split) -> list[Images]:
    """Return the private images in the order of the split, which is random and fixed, in equal parts."""
    return [split.private.select(index) for index in torch.arange(split.num_private).chunk(PARTS)]


def stream(config: Config, split: Split, seed: int, arguments: argparse.Namespace) -> None:
    """One stream of running sums under the whole budget; its state is kept, so that a restart releases nothing anew."""
    follower = Follower(config, split, PARTS)
    state, books = arguments.out / f"stream-seed{seed}-eps{arguments.epsilon:g}.pt", None
    if state.exists():
        books = torch.load(state, weights_only=True)
        follower.ledger.charge(follower.stream.mechanism.event)
        follower.stream = SumsStream.from_state(follower.stream.mechanism, books, ledger=follower.ledger)
    for part, images in enumerate(parts_of(split), start=1):
        if part > follower.stream.count:
            follower.add(images)
            torch.save(follower.stream.state(), state)
    mechanism = follower.stream.mechanism
    for part in range(1, PARTS + 1):
        if not judged("stream", part, seed, arguments):
            continue
        started = time.perf_counter()
        judge(follower.train(part, seed), split, "stream", part, seed, arguments,
              noise=mechanism.noise_std(part) / mechanism.cells.noise_std,
              seconds=round(time.perf_counter() - started, 1))  # fmt: skip


def per_part(config: Config, split: Split, seed: int, arguments: argparse.Namespace) -> None:
    """A release of every part at a tenth of epsilon (and of delta); the generator learns from all sums so far."""
    share = config.privacy.model_copy(
        update={"epsilon": config.privacy.epsilon / PARTS, "delta": config.privacy.delta / PARTS}
    )
    cheap = config.model_copy(update={"privacy": share})
    torch.manual_seed(seed)
    total, sums = None, []
    for images in parts_of(split):
        method = _method(cheap, dataclasses.replace(split, private=images), seed)
        released = method._release()["sums"]
        total = released if total is None else total + released
        sums.append(total)
    for part, so_far in enumerate(sums, start=1):
        if judged("per-part", part, seed, arguments):
            started, method = time.perf_counter(), _method(cheap, split, seed)
            method.start_from(so_far, method.sums.noise_std * part**0.5, method.features)
            judge(_trained(method), split, "per-part", part, seed, arguments,
                  noise=method.noise_std / AggregatePlan(config, split.shape).sums.noise_std,
                  seconds=round(time.perf_counter() - started, 1))  # fmt: skip


def single(config: Config, split: Split, seed: int, arguments: argparse.Namespace) -> None:
    """One release of everything, when the last part is there."""
    if judged("single", PARTS, seed, arguments):
        started, method = time.perf_counter(), _method(config, split, seed)
        method.prepare()
        generator = _trained(method)
        judge(generator, split, "single", PARTS, seed, arguments, noise=1.0,
              seconds=round(time.perf_counter() - started, 1))  # fmt: skip


def _seeded(config: Config, seed: int) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update={"seed": seed})})


def _method(config: Config, split: Split, seed: int) -> IdpAggregate:
    seeded = _seeded(config, seed)
    return IdpAggregate.of(seeded, split, device=torch.device("cpu"))


def _trained(method: IdpAggregate) -> Generator:
    for step in range(1, method.training.steps + 1):
        method.step(step)
    return method.generator


ARM_OF = {"stream": stream, "per-part": per_part, "single": single}

if __name__ == "__main__":
    main()
