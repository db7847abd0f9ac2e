"""CIFAR-10 by the protocol of DPImageBench: mean and best of three classifiers on 10,000 real test images.

FILE is a tar of train/CLASS/*.jpg and test/CLASS/*.jpg. It is unpacked once. The method is what `idpgan init` proposes
for its training images; N is 45,000 of 50,000, the rest is holdout. One JSON line a run; what was trained or judged
before is read back, and what was interrupted goes on. Settings are chosen by --part holdout, never on the test part.

python benchmarks/cifar.py --tar FILE|--images FOLDER --out DIR
    [--epsilons 1.0 10.0] [--seeds 0] [--part test] [key.sub=value ...]
"""

from __future__ import annotations

import argparse
import itertools
import json
import tarfile
from pathlib import Path
from typing import Any

import torch
from cells import finish

from idpgan.commands.evaluate import EvaluateOptions, evaluate_source
from idpgan.commands.init import InitOptions, config_for
from idpgan.config import apply_overrides
from idpgan.files import write_text_atomic
from idpgan.training.config import RunConfig, build_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=[])
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--tar", type=Path)
    given.add_argument("--images", type=Path, help="in the place of the tar: a folder of its layout")
    parser.add_argument("--out", type=Path, required=True, help="unpacked images and runs")
    parser.add_argument("--epsilons", nargs="+", default=["1.0", "10.0"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--part", default="test", choices=["test", "holdout"])
    parser.add_argument("--num", type=int, help="generated images; default: the protocol's 60,000")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = options.images or unpacked(options.tar, options.out / "images")
    for seed, epsilon in itertools.product(options.seeds, options.epsilons):
        own = [f"training.seed={seed}", f'training.device="{options.device}"', *options.settings]
        print(json.dumps(row(proposed(images, float(epsilon), own), options)), flush=True)


def unpacked(tar: Path, folder: Path) -> Path:
    """Return the folder of the images, unpacked where it is not there; a folder that is there is whole."""
    if not folder.exists():
        part = folder.with_suffix(".part")
        with tarfile.open(tar) as archive:
            archive.extractall(part, filter="data")
        part.rename(folder)
    return folder


def proposed(images: Path, epsilon: float, settings: list[str]) -> RunConfig:
    """Return what `idpgan init --epsilon` proposes, with settings."""
    table = config_for(str(images), InitOptions(epsilon=epsilon)).table
    return build_config(apply_overrides(table, settings), "what init proposes")


def row(config: RunConfig, options: argparse.Namespace) -> dict[str, Any]:
    """Train one config and measure it, or read back what was found."""
    run = options.out / config.identity()[:16]
    finish(config, run, None)
    found = run / f"dpimagebench-{options.part}-{options.num or 'all'}.json"
    if not found.exists():
        asked = EvaluateOptions(
            protocol="dpimagebench", part=options.part, num=options.num, device=options.device, out=found
        )  # fmt: skip
        write_text_atomic(found, json.dumps(evaluate_source(run, asked).to_json(), indent=1) + "\n")
    measured = json.loads(found.read_text())
    result, privacy = measured["dpimagebench"], measured["privacy"]["own"]
    scores = {score["name"]: score["mean"] for score in result["scores"]}
    return {
        "benchmark": "cifar", "run": run.name, "method": config.method.name, "seed": config.training.seed,
        "proven": privacy, "part": options.part, "num_images": result["num_images"],
        "mean": result["mean"], "best": max(scores.values()), "scores": scores, "settings": config.method.to_json(),
    }  # fmt: skip


if __name__ == "__main__":
    main()
