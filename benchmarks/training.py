"""Critic steps and images per second of a method on its data, generator steps included; one JSON line.

python benchmarks/training.py configs/mnist-wgan-gp.toml [key.sub=value ...] --data-root DIR [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch

from idpgan import trainer
from idpgan.data.load import load
from idpgan.device import resolve_device
from idpgan.run import describe_environment
from idpgan.training.config import load_method

BURN_IN, STEPS, REPEATS = 10, 20, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("settings", nargs="*", default=[])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    root = [] if arguments.data_root is None else [f"data.root={json.dumps(str(arguments.data_root))}"]
    config = trainer.load_config(arguments.config, [*root, *arguments.settings])
    device = resolve_device(config.training.device)
    method = load_method(config.method.name).of(config, load(config.data), device=device)
    method.prepare()
    step, seconds = 0, []
    for repeat in range(REPEATS + 1):
        started = time.perf_counter()
        for _ in range(STEPS if repeat else BURN_IN):
            step += 1
            method.step(step)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    rate = STEPS / statistics.median(seconds[1:])
    row = {"benchmark": "training", "method": config.method.name, "data": config.data.name, "steps_per_second": rate}
    row |= {"images_per_second": rate * config.training.batch_size, "batch_size": config.training.batch_size}
    row |= {"threads": arguments.threads, "load": os.getloadavg()[0]}
    print(json.dumps({**row, "environment": describe_environment(str(device))}))


if __name__ == "__main__":
    main()
