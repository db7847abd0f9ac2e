"""Distributed selective SGD beside its anchors, or over the values of one setting. JSON lines.

python benchmarks/collaborative.py configs/mnist-dssgd.toml [key.sub=value ...] [--data-root DIR] [--alone 30]
python benchmarks/collaborative.py configs/digits-dssgd.toml --vary method.participants 2 5 15 40 [--seeds 0 1 2]

The anchors are every participant alone, and one that holds all images. All of them go through their images equally
often (training.steps). Judged on the test part, which nothing was chosen on. Nothing here is private.
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
    parser.add_argument("--vary", nargs="+", metavar=("KEY", "VALUE"), help="a setting and its values, without anchors")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of --vary")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = load_table(arguments.config)
    if arguments.data_root is not None:
        table["data"]["root"] = str(arguments.data_root)
    table = apply_overrides(table, arguments.settings)
    split = load(build_config(table, "the benchmark").data)
    if arguments.vary:
        key, *values = arguments.vary
        varied(table, key, values, arguments.seeds, split)
    else:
        anchored(table, split, arguments.alone)


def varied(table: dict[str, Any], key: str, values: list[str], seeds: list[int], split: Split) -> None:
    """Print mean and spread of the accuracy at each value of a setting."""
    for value in values:
        setting = f"{key}={value}"
        tables = [apply_overrides(table, [setting, f"training.seed={seed}"]) for seed in seeds]
        found = [judged(setting, one, split) for one in tables]
        spread = round(statistics.stdev(found), 4) if len(found) > 1 else None
        row = {"setting": setting, "mean": round(statistics.fmean(found), 4), "std": spread, "seeds": seeds}
        print(json.dumps(row), flush=True)


def anchored(table: dict[str, Any], split: Split, most: int | None) -> None:
    """Print the accuracy with sharing, of one that holds all images, and of ``most`` participants alone."""
    shared = judged("shared", table, split)
    together = judged("all images in one place", apply_overrides(table, ONE), split)
    participants = build_config(table, "the benchmark").method.participants
    shards = [torch.arange(part, len(split.private), participants) for part in range(participants)]
    alone = [
        judged(f"participant {part} alone", apply_overrides(table, ONE), holding(split, shard))
        for part, shard in enumerate(shards[:most])
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
