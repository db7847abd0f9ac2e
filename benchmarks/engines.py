"""Steps a second and peak memory of a method by both engines, each in a process of its own, with one thread and two.

Images are random, of the shape and number of the config's data; nothing is released. Engines take turns, so that other
load of the machine meets both; a figure is the median of the rounds. On a shared machine the CPU seconds of one thread
say more than the clock.

python benchmarks/engines.py [--configs mnist-dp-gan-opacus mnist-dp-sgd-opacus] [--steps 20] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from idpgan import trainer
from idpgan.data.images import Images
from idpgan.data.load import Split, known_shape
from idpgan.training.config import load_method

ENGINES = ("idpgan", "opacus")
WARM = 4  # steps before timing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=["mnist-dp-gan-opacus", "mnist-dp-sgd-opacus"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data-root", type=Path, help="holds MNIST, whose shape is looked up")
    parser.add_argument("--one", metavar="ENGINE", help="measure one engine in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(arguments)))
        return
    for config in arguments.configs:
        for threads in arguments.threads:
            found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
            for _ in range(arguments.rounds):
                for engine in ENGINES:
                    found[engine].append(asked(config, threads, engine, arguments))
            for engine, rows in found.items():
                middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
                load = round(os.getloadavg()[0], 1)
                print(json.dumps({"config": config, "threads": threads, "engine": engine, **middle, "load": load}))


def asked(config: str, threads: int, engine: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one engine in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, __file__, "--one", engine, "--configs", config, "--threads", str(threads)]
    command += ["--steps", str(arguments.steps)]
    command += ["--data-root", str(arguments.data_root)] if arguments.data_root else []
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)}
    )
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Take steps on random images."""
    torch.set_num_threads(arguments.threads[0])
    root = [f"data.root={json.dumps(str(arguments.data_root))}"] if arguments.data_root else []
    settings = [*root, f"method.engine={arguments.one}", "privacy.noise_multiplier=1"]
    config = trainer.load_config(Path(arguments.configs[0]), settings)
    shape = known_shape(config.data)
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (shape.num_private, *shape.image_shape), dtype=torch.uint8, generator=rng)
    private = Images(pixels, torch.arange(len(pixels)) % len(shape.classes), shape.classes)
    nobody = private.select(torch.arange(0))
    split = Split(public=nobody, private=private, holdout=nobody, test=nobody)
    method = load_method(config.method.name).of(config, split, device=torch.device("cpu"))
    for step in range(1, WARM + 1):
        method.step(step)
    wall, cpu = time.perf_counter(), time.process_time()
    for step in range(WARM + 1, WARM + arguments.steps + 1):
        method.step(step)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "steps_per_second": round(arguments.steps / wall, 3),
        "cpu_seconds_per_step": round(cpu / arguments.steps, 3),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


if __name__ == "__main__":
    main()
