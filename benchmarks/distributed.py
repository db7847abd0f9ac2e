"""dp-GAN by two gloo processes of one thread each against one process of one thread; one JSON line.

Both take turns in one run: rank 0 alone while rank 1 sleeps, then both together, each on the same batches of the same
60,000 images of noise, generator steps included. ``speedup`` is by the clock, the median over the turns, and means
something on idle cores only. ``speedup_cpu`` is the CPU time of a step alone over that of the busier of the two ranks:
what the clock would show if nobody had to wait for a core or for the other rank.

torchrun --nproc-per-node 2 benchmarks/distributed.py [key.sub=value ...] [--steps 10] [--turns 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from idpgan import trainer
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.ranks import ALONE, Ranks
from idpgan.run import describe_environment
from idpgan.synthesis.dp_gan.method import DpGan
from idpgan.synthesis.dp_gan.method import DpGanRun as Config
from idpgan.training.distributed import joined

NUM, CLASSES = 60_000, tuple("0123456789")
CONFIG = Path(__file__).parents[1] / "configs" / "mnist-dp-gan.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=10, help="critic steps of a turn")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = trainer.load_config(CONFIG, ["training.device=cpu", *arguments.settings])
    if not isinstance(config, Config):
        raise TypeError(f"{CONFIG} is not of dp-gan.")
    with joined() as ranks:
        if ranks.size != 2:
            raise SystemExit("start it by torchrun --nproc-per-node 2.")
        split = noise_images()
        alone, together = (method_of(config, split, who) for who in (ALONE, ranks))
        turns = [turn(alone, together, ranks, number, arguments.steps) for number in range(arguments.turns + 1)]
        if ranks.first:
            print(json.dumps(row(config, alone, turns[1:], arguments.steps)))


def noise_images() -> Split:
    """Return images of the size and number of MNIST's; what they show costs nothing more."""
    draws = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (NUM, 1, 28, 28), generator=draws, dtype=torch.uint8)
    private = Images(pixels, torch.randint(len(CLASSES), (NUM,), generator=draws), CLASSES)
    few = private.select(torch.arange(2))
    return Split(private.select(torch.arange(0)), private, few, few)


def method_of(config: Config, split: Split, ranks: Ranks) -> DpGan:
    method = DpGan.of(config, split, device=torch.device("cpu"))
    method.share_steps(ranks)
    return method


def turn(alone: DpGan, together: DpGan, ranks: Ranks, number: int, steps: int) -> tuple[float, float, float, float]:
    """Return the seconds of both ways, by the clock and of the CPU; of the busier rank."""
    seconds = [0.0, 0.0]
    if ranks.first:
        seconds = timed(alone, number * steps, steps)
    both = torch.tensor([*seconds, 0.0, 0.0], dtype=torch.float64)
    dist.barrier()
    both[2:] = torch.tensor(timed(together, number * steps, steps), dtype=torch.float64)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return tuple(both.tolist())


def timed(method: DpGan, first: int, steps: int) -> list[float]:
    clocks: tuple[Callable[[], float], ...] = (time.perf_counter, time.process_time)
    started = [clock() for clock in clocks]
    for step in range(first + 1, first + steps + 1):
        method.step(step)
    return [clock() - start for clock, start in zip(clocks, started, strict=True)]


def row(config: Config, method: DpGan, turns: list[tuple[float, float, float, float]], steps: int) -> dict[str, object]:
    one, one_cpu, two, two_cpu = (statistics.median(column) / steps for column in zip(*turns, strict=True))
    return {
        "benchmark": "distributed",
        "method": "dp-gan",
        "speedup": round(statistics.median(a / b for a, _, b, _ in turns), 3),
        "speedup_cpu": round(statistics.median(a / b for _, a, _, b in turns), 3),
        "seconds_per_step": {"one": round(one, 4), "two": round(two, 4)},
        "cpu_seconds_per_step": {"one": round(one_cpu, 4), "busier of two": round(two_cpu, 4)},
        "batch_size": config.training.batch_size,
        "critic_weights": sum(weight.numel() for weight in method.critic.parameters()),
        "generator_weights": sum(weight.numel() for weight in method.newest.parameters()),
        "steps": steps * len(turns),
        "load": os.getloadavg()[0],
        "environment": describe_environment("cpu"),
    }


if __name__ == "__main__":
    main()
