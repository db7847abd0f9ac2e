"""What a step of DP-SGD would gain if its operations were recorded and replayed, without autograd, vmap and Python.

OMP_NUM_THREADS=1 python benchmarks/replay.py [--turns 15] [--threads 1]

Capture, rows and clip of 256 pairs of images of 28 x 28 take turns with their recording. One JSON line for each critic:
whether other weights and records give the same bits, operations, seconds to record, and the medians of replay over step
by processor seconds, each turn by itself, and by the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.privacy import captured_gradients, layer_gradients
from idpgan.synthesis.dp_gan.loss import CriticLoss

PAIRS, CLASSES, WIDTHS = 256, 10, (16, 32, 64)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for width in WIDTHS:
        print(json.dumps({"threads": arguments.threads, **measured(width, arguments.turns)}), flush=True)


@torch.no_grad()
def measured(width: int, turns: int) -> dict[str, Any]:
    """Record the step of a critic, and let step and recording take turns."""
    critic = Critic(ModelConfig(width=width), (1, 28, 28), CLASSES)
    loss, rng = CriticLoss(critic, "non-saturating", penalty=0.0, paired=True), torch.Generator().manual_seed(1)
    names, weights = zip(*((name, weight.detach()) for name, weight in critic.named_parameters()), strict=True)

    def step(weights: Sequence[Tensor], records: Sequence[Tensor]) -> list[Tensor]:
        named = dict(zip(names, weights, strict=True))
        gradients, losses = captured_gradients.capture(loss.of_record, named, records)
        total = {name: torch.zeros(weight.shape, dtype=torch.float64) for name, weight in named.items()}
        counted = torch.ones(PAIRS, dtype=torch.bool)
        return [layer_gradients.clip_and_add(gradients, counted, 1.0, 2.0**-20, total), losses, *total.values()]

    begun = time.process_time()
    layer_gradients.is_gpu = lambda device: True  # type: ignore[attr-defined]  # masks, where the CPU asks
    recorded = make_fx(step)(list(weights), drawn(rng))
    layer_gradients.is_gpu = lambda device: False  # type: ignore[attr-defined]
    seconds = time.process_time() - begun
    moved, others = [weight + 0.1 * torch.randn(weight.shape, generator=rng) for weight in weights], drawn(rng)
    same = all(map(torch.equal, step(moved, others), recorded(moved, others)))
    ratios = list(taken(lambda: step(moved, others), lambda: recorded(moved, others), turns))
    processor, clock = (round(statistics.median(each), 3) for each in zip(*ratios, strict=True))
    count = sum(node.op == "call_function" for node in recorded.graph.nodes)
    found = {"weights": sum(map(torch.numel, weights)), "same": same, "operations": count}
    return found | {"record": round(seconds, 2), "processor": processor, "clock": clock}


def drawn(rng: torch.Generator) -> list[Tensor]:
    """Draw records: a real image and a fake, each with its label, and coins."""
    real, fake = torch.randn(2, PAIRS, 1, 28, 28, generator=rng).tanh()
    labels = torch.randint(CLASSES, (2, PAIRS), generator=rng)
    return [real, labels[0], fake, torch.rand(PAIRS, generator=rng), labels[1]]


def taken(step: Any, replay: Any, turns: int) -> Iterator[tuple[float, float]]:
    """Yield replay over step in each turn, by processor seconds and by the clock; the first two are left out."""
    for turn in range(turns + 2):
        times = []
        for work in (step, replay) if turn % 2 else (replay, step):
            begun = time.process_time(), time.perf_counter()
            work()
            times.append((time.process_time() - begun[0], time.perf_counter() - begun[1]))
        first, second = times if turn % 2 else times[::-1]
        if turn > 1:
            yield second[0] / first[0], second[1] / first[1]


if __name__ == "__main__":
    main()
