"""Images per second of every publisher, noise included; one JSON line per method.

python benchmarks/publishers.py [METHOD ...] [--images 400] [--shape 112 92] [--epsilon 1] [--device cpu] [--threads 2]

Images are uniform noise unless --faces names a folder of equal-sized .pgm files below it (ORL).
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
from idpgan.run import describe_environment

BURN_IN, REPEATS = 1, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(publish.METHODS))
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--shape", type=int, nargs=2, default=(112, 92))
    parser.add_argument("--faces", type=Path)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--unit")
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE", help="such as sweeps=1")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    images = read(arguments).to(arguments.device)
    options = {key: json.loads(value) for key, value in (setting.split("=") for setting in arguments.set)}
    for method in arguments.methods:
        seconds = [once(images, method, arguments, options) for _ in range(BURN_IN + arguments.repeats)][BURN_IN:]
        median = statistics.median(seconds)
        row = {"benchmark": "publishers", "method": method, "epsilon": arguments.epsilon, "options": options}
        row |= {"shape": list(images.shape), "dtype": str(images.dtype), "seconds": median, "fastest": min(seconds)}
        row |= {"images_per_second": len(images) / median, "load": os.getloadavg()[0]}
        print(json.dumps({**row, "environment": describe_environment(arguments.device)}), flush=True)


def read(arguments: argparse.Namespace) -> torch.Tensor:
    """Return images (N, m, n), float32."""
    if arguments.faces is None:
        rng = torch.Generator().manual_seed(0)
        return torch.rand(arguments.images, *arguments.shape, generator=rng)
    from PIL import Image

    files = sorted(arguments.faces.rglob("*.pgm"))[: arguments.images]
    return torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files]).float() / 255


def once(images: torch.Tensor, method: str, arguments: argparse.Namespace, options: dict[str, object]) -> float:
    """Return the seconds of one release."""
    started = time.perf_counter()
    publish.release(
        images, method, epsilon=arguments.epsilon, unit=arguments.unit, accept_unsound=True, **options
    ).images.cpu()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
