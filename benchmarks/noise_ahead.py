"""How much of the time of a step's exact noise is hidden when a thread draws it while the records are computed.

python benchmarks/noise_ahead.py [--weights 1000000] [--threads 1] [--turns 7] [--dense]

A step of DP-SGD of 32 images of 8 x 8 on a denoiser of about so many weights, that of `diffusion`, takes turns with
itself: the noise after the sum, the noise ahead of it, and the sum alone. ``--dense`` takes three linear layers in its
place, whose sum consists of many short operations: between these both threads want the interpreter. One JSON line:
medians in seconds, and the hidden share ``(after - ahead) / noise``.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.func import functional_call

from idpgan.models.diffusion import ResidualNetwork
from idpgan.privacy import DPSGDPlan, Noise
from idpgan.privacy.captured_gradients import Weights
from idpgan.privacy.tiles import Tiles, tiled

SHAPE, RECORDS = (1, 8, 8), 32


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--weights", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    step = Step(dense(arguments.weights) if arguments.dense else denoiser(arguments.weights))
    step.seconds(ahead=None)
    kinds = {"sum": None, "after": False, "ahead": True}
    found: dict[str, list[float]] = {name: [] for name in (*kinds, "noise")}
    for _ in range(arguments.turns):
        found["noise"].append(step.noise_alone())
        for name, ahead in kinds.items():
            found[name].append(step.seconds(ahead=ahead))
    medians = {name: statistics.median(times) for name, times in found.items()}
    hidden = (medians["after"] - medians["ahead"]) / medians["noise"]
    row = {"weights": step.count, "dense": arguments.dense, "threads": arguments.threads, "hidden": round(hidden, 3)}
    print(json.dumps(row | {name: round(value, 4) for name, value in medians.items()}))


def denoiser(weights: int) -> nn.Module:
    """Return the network of `diffusion`, of about so many weights, as a function of noisy images."""
    network = ResidualNetwork(SHAPE, round(math.sqrt(weights / 27)), 0, seed=0)
    network.forward = functools.partial(_denoised, network.forward)  # type: ignore[method-assign]
    return network


def _denoised(forward: Callable[..., torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    levels = torch.ones(len(images), device=images.device)
    return forward(torch.cat([images, images], 1), levels, torch.zeros(len(images), dtype=torch.int64))


def dense(weights: int) -> nn.Module:
    """Return three linear layers of about so many weights."""
    width, pixels = round(math.sqrt(weights / 2)), math.prod(SHAPE)
    layers = [nn.Linear(pixels, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)]
    return nn.Sequential(nn.Flatten(), *layers)


class Step:
    """Clipped sums of random records, with noise or without.

    Attributes:
        count: Weights.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network, self._weights = network, dict(network.named_parameters())
        self._plan, self._noise = DPSGDPlan(0.1, 1.0, 1, 1.0), Noise.fixed(1)
        self.count = sum(weight.numel() for weight in self._weights.values())

    def _loss(self, weights: Weights, image: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = functional_call(self._network, dict(weights), (image[None],))
        return (found - 1).square().mean()

    def noise_alone(self) -> float:
        """Return the seconds of drawing."""
        started = time.perf_counter()
        self._plan.grid_noise(self.count, self._noise)
        return time.perf_counter() - started

    def seconds(self, *, ahead: bool | None) -> float:
        """Return the seconds of a sum, with its noise ahead, after it, or without (None)."""
        records, tiles = [torch.randn(RECORDS, *SHAPE)], Tiles.fixed(RECORDS)
        started = time.perf_counter()
        with self._plan.noise_ahead(self._weights, self._noise) if ahead else nullcontext():
            sums = self._plan.clipped_sum(self._loss, self._weights, tiled(records, RECORDS), tiles).sums
            if ahead is not None:
                drawn = self._plan.grid_noise(self.count, self._noise)
                torch.cat([part.flatten() for part in sums.values()]).add_(drawn)
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
