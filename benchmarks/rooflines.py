"""Where a clipped step and the votes of `evolution` spend their time, beside the same matrix products and bytes alone.

One JSON line for each width of the critic of `idpgan doctor --benchmark` and one for the votes: milliseconds, medians
of the turns. ``capture`` is the pass forward and the one for the outputs' gradients, ``rows`` multiplies out what each
record adds, ``clip`` measures, scales and adds it up. ``products`` and ``bytes`` are floors: the same convolutions and
products on the same shapes alone, in whatever order of memory is fastest, and one copy of the rows.

python benchmarks/rooflines.py [--threads 1 2] [--turns 9]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from idpgan.device import resolve_device
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.privacy.captured_gradients import capture
from idpgan.privacy.layer_gradients import blocks, clip_and_add
from idpgan.synthesis.dp_gan.loss import CriticLoss
from idpgan.synthesis.evolution.embedding import LEVELS, nearest

BATCH, BURNT, GRID = 256, 2, 2.0**-32
RECORDS, CANDIDATES, DIMENSIONS = 10_000, 2_000, 200
Parts = dict[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    resolve_device("cpu")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for what, parts in works(options.widths):
            found = {name: 1000 * median for name, median in timed(parts, options.turns).items()}
            row = {"benchmark": "rooflines", "what": what, "threads": threads, **found, "load": os.getloadavg()[0]}
            print(
                json.dumps({key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()})
            )


def timed(parts: Parts, turns: int) -> dict[str, float]:
    """Return the median seconds of each part, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(BURNT + turns):
        for name, call in parts.items():
            started = time.perf_counter()
            call()
            if turn >= BURNT:
                taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in taken.items()}


def works(widths: list[int]) -> Iterator[tuple[str, Parts]]:
    for width in widths:
        weights, parts = clipped_step(width)
        yield f"clipped step, {weights:,} weights", parts
    yield f"votes of {RECORDS:,} among {CANDIDATES:,}", votes()


def clipped_step(width: int) -> tuple[int, Parts]:
    """Return the number of weights, and the parts of a step on pairs of a real image and its fake."""
    critic, draws = Critic(ModelConfig(width=width), (1, 28, 28), 10), torch.Generator().manual_seed(1)
    weights = {name: weight.detach() for name, weight in critic.named_parameters()}
    real, fake = torch.randn(2, BATCH, 1, 28, 28, generator=draws).tanh()
    labels, counted = torch.arange(BATCH) % 10, torch.ones(BATCH, dtype=torch.bool)
    loss = CriticLoss(critic, "non-saturating", penalty=0.0, paired=True)
    records = [real, labels, fake, torch.zeros(BATCH), labels]
    gradients, _ = capture(loss.of_record, weights, records)
    total = {name: torch.zeros(weight.shape, dtype=torch.float64) for name, weight in weights.items()}
    held = torch.zeros(BATCH, sum(gradient.width for gradient in gradients.values()))

    def rows() -> None:
        for _ in blocks(gradients, BATCH):
            pass

    return sum(weight.numel() for weight in weights.values()), {
        "capture": lambda: capture(loss.of_record, weights, records),
        "rows": rows,
        "rows and clip": lambda: clip_and_add(gradients, counted, 1.0, GRID, total),
        "products": products(width),
        "bytes": held.clone,
    }


def products(width: int) -> Callable[[], None]:
    """Return the two convolutions of the critic forward, the second one backward, and each record's product in it."""
    last = torch.channels_last
    image, middle = torch.randn(2 * BATCH, 1, 28, 28), torch.randn(2 * BATCH, width, 14, 14).to(memory_format=last)
    first, second = torch.randn(width, 1, 4, 4), torch.randn(2 * width, width, 4, 4).to(memory_format=last)
    slope = torch.randn(2 * BATCH, 2 * width, 7, 7).to(memory_format=last)
    left, right = torch.randn(32, 2 * width, 98), torch.randn(32, 98, 16 * width)
    out = torch.empty(32, 2 * width, 16 * width)

    def call() -> None:
        functional.conv2d(image, first, stride=2, padding=1)
        functional.conv2d(middle, second, stride=2, padding=1)
        torch.nn.grad.conv2d_input(middle.shape, second, slope, stride=2, padding=1)
        for _ in range(BATCH // 32):
            torch.bmm(left, right, out=out)

    return call


def votes() -> Parts:
    """Return the search for the nearest candidates, and its one product alone, in tiles and as a whole."""

    def drawn(num: int) -> Tensor:
        return (LEVELS * torch.randn(num, DIMENSIONS, generator=torch.Generator().manual_seed(num)).tanh()).to(
            torch.int8
        )

    records, candidates = drawn(RECORDS), drawn(CANDIDATES)
    left, right, out = records.float(), candidates.float(), torch.empty(512, CANDIDATES)

    def tiles() -> None:
        for part in left.split(512):
            torch.mm(part, right.T, out=out[: len(part)])

    return {
        "nearest": lambda: nearest(records, candidates),
        "products": tiles,
        "bytes": lambda: [out.max(1) for _ in range(-(-RECORDS // 512))],
    }


if __name__ == "__main__":
    main()
