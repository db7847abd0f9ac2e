"""How much of the time of a step's exact noise is hidden when a thread draws it while the records are computed.

python benchmarks/noise_ahead.py [--weights 1000000] [--threads 1] [--turns 7]

A step of DP-SGD on a network of about so many weights, 8 x 8 images in, takes turns with itself: the noise after the
sum, the noise ahead of it, and the sum alone. The batch is as large as makes the sum twice as long as the noise. One
JSON line: medians in seconds, and the hidden share ``1 - (ahead - sum alone) / noise``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.func import functional_call

from idpgan.privacy import DPSGDPlan, Noise
from idpgan.privacy.captured_gradients import Weights
from idpgan.privacy.tiles import Tiles, tiled

PIXELS = 64


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--weights", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    width = round(math.sqrt(arguments.weights / 2))
    network = nn.Sequential(
        nn.Linear(PIXELS, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
    )
    step = Step(network)
    step.rows = max(32, round(2 * step.noise_alone() / step.seconds(ahead=None) * step.rows / 32) * 32)
    step.seconds(ahead=None)
    kinds = {"sum": None, "after": False, "ahead": True}
    found: dict[str, list[float]] = {name: [] for name in (*kinds, "noise")}
    for _ in range(arguments.turns):
        found["noise"].append(step.noise_alone())
        for name, ahead in kinds.items():
            found[name].append(step.seconds(ahead=ahead))
    medians = {name: statistics.median(times) for name, times in found.items()}
    hidden = 1 - (medians["ahead"] - medians["sum"]) / medians["noise"]
    row = {"weights": step.count, "records": step.rows, "threads": arguments.threads, "hidden": round(hidden, 3)}
    print(json.dumps(row | {name: round(value, 4) for name, value in medians.items()}))


class Step:
    """Clipped sums of random records, with noise or without.

    Attributes:
        rows: Records of a step.
        count: Weights.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network, self._weights = network, dict(network.named_parameters())
        self._plan, self._noise = DPSGDPlan(0.1, 1.0, 1, 1.0), Noise.fixed(1)
        self.count, self.rows = sum(weight.numel() for weight in self._weights.values()), 256

    def _loss(self, weights: Weights, image: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = functional_call(self._network, dict(weights), (image,))
        return found.square().mean()

    def noise_alone(self) -> float:
        """Return the seconds of drawing."""
        started = time.perf_counter()
        self._plan.grid_noise(self.count, self._noise)
        return time.perf_counter() - started

    def seconds(self, *, ahead: bool | None) -> float:
        """Return the seconds of a sum, with its noise ahead, after it, or without (None)."""
        records, tiles = [torch.randn(self.rows, PIXELS)], Tiles.fixed(32)
        started = time.perf_counter()
        with self._plan.noise_ahead(self._weights, self._noise) if ahead else nullcontext():
            sums = self._plan.clipped_sum(self._loss, self._weights, tiled(records, 32), tiles).sums
            if ahead is not None:
                drawn = self._plan.grid_noise(self.count, self._noise)
                torch.cat([part.flatten() for part in sums.values()]).add_(drawn)
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
