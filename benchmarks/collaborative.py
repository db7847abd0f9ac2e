"""Distributed selective SGD beside its two anchors: every participant alone, and one that holds all images. JSON lines.

python benchmarks/collaborative.py configs/mnist-dssgd.toml [key.sub=value ...] [--data-root DIR] [--alone 30]

All of them go through their images equally often (training.steps). Judged on the test part, which nothing was chosen
on. Nothing here is private.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.config import apply_overrides, load_table
from idpgan.data.load import Split, load
from idpgan.metrics.accuracy import measure_accuracy
from idpgan.trainer import train_on
from idpgan.training.config import build_config

ONE = ["method.participants=1", "method.upload_share=1.0", "method.selection=largest", "method.bound=1000.0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("settings", nargs="*", default=[])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--alone", type=int, help="participants that are also trained alone; default: all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = load_table(arguments.config)
    if arguments.data_root is not None:
        table["data"]["root"] = str(arguments.data_root)
    table = apply_overrides(table, arguments.settings)
    split = load(build_config(table, "the benchmark").data)
    shared = judged("shared", table, split)
    together = judged("all images in one place", apply_overrides(table, ONE), split)
    participants = build_config(table, "the benchmark").method.participants
    shards = [torch.arange(part, len(split.private), participants) for part in range(participants)]
    alone = [
        judged(f"participant {part} alone", apply_overrides(table, ONE), holding(split, shard))
        for part, shard in enumerate(shards[: arguments.alone])
    ]
    summary = {
        "alone_best": max(alone),
        "alone_mean": round(statistics.fmean(alone), 4),
        "shared_above_every_participant": shared > max(alone),
        "points_below_all_in_one_place": round(100 * (together - shared), 2),
    }
    print(json.dumps(summary), flush=True)


def holding(split: Split, positions: Tensor) -> Split:
    """Return the split of somebody who has these private images alone."""
    return Split(split.public, split.private.select(positions), split.holdout, split.test)


def judged(name: str, table: dict[str, Any], split: Split) -> float:
    """Train by a config, print the accuracy on the test part, and return it."""
    config, started = build_config(table, name), time.monotonic()
    classifier = train_on(config, split).product
    accuracy = measure_accuracy(classifier, split.test.existing()).mean
    row = {"who": name, "images": len(split.private), "rounds": config.training.steps, "accuracy": accuracy}
    row |= {"seed": config.training.seed, "weights": sum(weight.numel() for weight in classifier.parameters())}
    print(json.dumps({**row, "seconds": round(time.monotonic() - started)}), flush=True)
    return accuracy


if __name__ == "__main__":
    main()
