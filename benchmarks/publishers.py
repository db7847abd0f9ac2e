"""Every publisher: images per second, noise included, or with --judge what becomes of faces; one JSON line a method.

python benchmarks/publishers.py [METHOD ...] [--images 400] [--shape 112 92] [--epsilon 1] [--device cpu] [--threads 2]
python benchmarks/publishers.py --judge --faces ORL|drawn --unit image --epsilon 10 [METHOD ...]

Images are uniform noise unless --faces names a folder of equal-sized .pgm files below it (ORL, a folder for each
person), or says "drawn": 400 drawn faces, ten of each person, whom no model was fitted on. --judge releases once for
each noise seed and states the squared error of the clipped images, and how many faces are recognized (first half of
each person's released images against the second), mean and standard deviation over the seeds; its first row is a
constant image of each face's own mean, which protects nothing and knows nothing but that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from idpgan import publish
from idpgan.metrics.recognition import halves, recognize
from idpgan.privacy.noise import Noise
from idpgan.run import describe_environment

BURN_IN, REPEATS = 1, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--shape", type=int, nargs=2, default=(112, 92))
    parser.add_argument("--faces")
    parser.add_argument("--judge", action="store_true", help="errors and recognition, of sound methods unless named")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--unit")
    parser.add_argument("--noise-seeds", type=int, default=3, help="of --judge")
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE", help="such as sweeps=1")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    images, people = read(arguments)
    images = images.to(arguments.device)
    options = {key: json.loads(value) for key, value in (setting.split("=") for setting in arguments.set)}
    if arguments.judge:
        judge(images, people, arguments, options)
        return
    for method in arguments.methods or publish.METHODS:
        seconds = [once(images, method, arguments, options) for _ in range(BURN_IN + arguments.repeats)][BURN_IN:]
        median = statistics.median(seconds)
        row = {"benchmark": "publishers", "method": method, "epsilon": arguments.epsilon, "options": options}
        row |= {"shape": list(images.shape), "dtype": str(images.dtype), "seconds": median, "fastest": min(seconds)}
        row |= {"images_per_second": len(images) / median, "load": os.getloadavg()[0]}
        print(json.dumps({**row, "environment": describe_environment(arguments.device)}), flush=True)


def read(arguments: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return images (N, m, n), float32, and whose they are, (N,)."""
    if arguments.faces is None:
        rng = torch.Generator().manual_seed(0)
        return torch.rand(arguments.images, *arguments.shape, generator=rng), None
    if arguments.faces == "drawn":
        from idpgan.data.faces import draw

        drawn = draw(arguments.images, tuple(arguments.shape), 1, people=arguments.images // 10, seed=202)
        return drawn.images[:, 0].float() / 255, drawn.identities
    from PIL import Image

    files = sorted(Path(arguments.faces).rglob("*.pgm"))[: arguments.images]
    folders = sorted({file.parent for file in files})
    images = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files]).float() / 255
    return images, torch.tensor([folders.index(file.parent) for file in files])


def judge(
    images: torch.Tensor, people: torch.Tensor | None, arguments: argparse.Namespace, options: dict[str, object]
) -> None:
    """Print a row for the constant image, one for the images as they are, and one per method."""
    constant = images.mean((1, 2), keepdim=True).expand_as(images)
    terms = {"unit": arguments.unit, "epsilon": arguments.epsilon, "images": list(images.shape)}
    for name, shown in (("constant image", constant), ("no noise", images)):
        print(json.dumps({"method": name, **terms, **facts(shown, images, people)}), flush=True)
    for method in arguments.methods or [name for name, info in publish.METHODS.items() if info.sound]:
        if arguments.unit not in (None, *publish.METHODS[method].units):
            continue
        started = time.perf_counter()
        found = []
        for seed in range(arguments.noise_seeds):
            noise = Noise.fixed(seed)
            released = publish.release(
                images,
                method,
                epsilon=arguments.epsilon,
                unit=arguments.unit,
                accept_unsound=True,
                noise=noise,
                **options,
            )
            found.append(facts(released.images.clamp(0, 1), images, people))
        seconds = (time.perf_counter() - started) / arguments.noise_seeds  # judging included
        row = {"method": method, **terms, "noise_seeds": arguments.noise_seeds, **spread(found)}
        row |= {"seconds": round(seconds, 2), "options": dict(released.options), "load": os.getloadavg()[0]}
        print(json.dumps(row), flush=True)


def facts(shown: torch.Tensor, images: torch.Tensor, people: torch.Tensor | None) -> dict[str, float]:
    """Return the error of a pixel and the share of faces recognized."""
    found = {"mse": round(float((shown - images).square().mean()), 5)}
    if people is not None:
        train, test = halves(people)
        found["recognized"] = round(recognize(shown[train], people[train], shown[test], people[test]).accuracy, 3)
    return found


def spread(found: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each number, and its standard deviation where there are several seeds."""
    row = {name: round(statistics.fmean(facts[name] for facts in found), 5) for name in found[0]}
    if len(found) > 1:
        row |= {f"{name}_std": round(statistics.stdev(facts[name] for facts in found), 5) for name in found[0]}
    return row


def once(images: torch.Tensor, method: str, arguments: argparse.Namespace, options: dict[str, object]) -> float:
    """Return the seconds of one release."""
    started = time.perf_counter()
    publish.release(
        images, method, epsilon=arguments.epsilon, unit=arguments.unit, accept_unsound=True, **options
    ).images.cpu()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
