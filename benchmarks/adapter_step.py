"""A clipped step of adapters against the plain step of the same batch: time and memory.

python benchmarks/adapter_step.py [--trained lora:4] [--batch 32] [--turns 3] [--threads 2] [--precision float32]

The network is a `UNet2DModel` of diffusers with about 10 million weights, random, on 32 x 32 pixels. Both steps go
forward and backward through it, for the adapters alone; the clipped one gives each record's gradient, clipped and
summed exactly. They take turns; one JSON line holds the medians in seconds, their ratio, and the most bytes of tensors
that each makes at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import diffusers
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from idpgan.models.adapters import adapt, trained_weights
from idpgan.privacy import DPSGDPlan
from idpgan.privacy.step_memory import most_bytes
from idpgan.privacy.tiles import Tiles, tiled

SIDE = 32
BLOCKS = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}


class Unet(nn.Module):
    """The network as a function of noisy images and steps."""

    def __init__(self) -> None:
        super().__init__()
        widths = {"block_out_channels": (120, 240), "layers_per_block": 1, "norm_num_groups": 24}
        self.model = diffusers.UNet2DModel(sample_size=SIDE, in_channels=3, out_channels=3, **widths, **BLOCKS)

    def forward(self, images: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """Return what it predicts."""
        found: torch.Tensor = self.model(images, steps).sample
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trained", nargs="+", default=["lora:4"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["float32", "bf16", "tf32"], default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    network = Unet()
    whole = sum(weight.numel() for weight in network.parameters())
    adapt(network, arguments.trained)
    weights, num = trained_weights(network), arguments.batch
    images, steps = torch.randn(num, 3, SIDE, SIDE), torch.randint(1000, (num,))
    plan, tiles = DPSGDPlan(1.0, 1.0, num, 1.0), Tiles(num, torch.arange(num), num, precision=arguments.precision)

    def loss(given: Any, image: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            found: torch.Tensor = functional_call(network, dict(given), (image[None], step[None]))
        return (found - 1).square().mean()

    def clipped() -> object:
        return plan.clipped_sum(loss, weights, tiled([images, steps], num), tiles)

    def plain() -> object:
        losses = (network(images, steps) - 1).square().mean((1, 2, 3))
        return torch.autograd.grad(losses.sum(), [*weights.values()])

    memory = {"plain": most_bytes(plain), "clipped": most_bytes(clipped)}
    taken: dict[str, list[float]] = {"plain": [], "clipped": []}
    for _ in range(arguments.turns):
        for name, call in (("plain", plain), ("clipped", clipped)):
            started = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - started)
    seconds = {name: round(statistics.median(times), 4) for name, times in taken.items()}
    trained = sum(weight.numel() for weight in weights.values())
    row = {"trained": arguments.trained, "weights": whole, "of them": trained, **vars(arguments), "seconds": seconds}
    ratios = {name: round(part["clipped"] / part["plain"], 3) for name, part in (("time", seconds), ("bytes", memory))}
    print(json.dumps({**row, "bytes": memory, "ratio": ratios}))


if __name__ == "__main__":
    main()
