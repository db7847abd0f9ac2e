"""dp-GAN and hybrid on MNIST at epsilon 10: 60 and 10 minutes, seeds, variants, and the hybrid's share of the budget.

One JSON line per cell: CNN trained on 60,000 synthetic images, tested on the real test images. Runs are named by the
hash of their config: finished ones are read back, interrupted ones continue. Everything printed is for the curator.

--tune touches neither private nor test images: the first 5,000 holdout images, repeated to the declared N, stand for
the private ones, and the other holdout images judge. Settings and the share are chosen there, as epsilon covers no
choice made on private images. Results are kept by the hash of the config.

python benchmarks/dp_gan.py --data-root DIR --out runs/dp_gan --cells dp-gan-60min hybrid-60min [--threads 2]
python benchmarks/dp_gan.py --data-root DIR --out runs/dp_gan --tune --cells hybrid-share0.05 hybrid-share0.5
python benchmarks/dp_gan.py --list
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from sweep import cell, load_config, options, utility

from idpgan import trainer
from idpgan.data.load import Split, load
from idpgan.training.config import RunConfig

DP_GAN, HYBRID, AGGREGATE = "mnist-dp-gan.toml", "mnist-hybrid.toml", "mnist-aggregate-no-public.toml"
TUNE_IMAGES = 5_000
# A step of dp-gan takes 0.13 s on one core, one of the hybrid's parts 0.1 s and 0.18 s.
SHORT = ["training.steps=3500"]
SHORT_HYBRID = ["method.aggregate_steps=1500", "training.steps=4250"]
PUBLIC = [
    "data.public_share=0.02", "data.confirm_public=true", "model.latent_dim=32", "model.codes=128", "model.warp=1.0",
    "method.aggregate.features=public", "method.aggregate.moments=40", "method.aggregate.fourier=1000",
    "method.aggregate.metric=public", "method.aggregate.metric_noise=500", "method.aggregate.learning_rate=3e-4",
    "method.aggregate.augment=1.0", "method.aggregate_batch_size=500", "method.aggregate_steps=1000",
]  # fmt: skip
CELLS: dict[str, tuple[str, list[str]]] = {
    "dp-gan-60min": (DP_GAN, []),
    "hybrid-60min": (HYBRID, []),
    "aggregate-alone": (AGGREGATE, ["privacy.epsilon=10"]),  # what the hybrid must beat
    **{f"dp-gan-10min-seed{seed}": (DP_GAN, [*SHORT, f"training.seed={seed}"]) for seed in (0, 1, 2)},
    **{f"hybrid-10min-seed{seed}": (HYBRID, [*SHORT_HYBRID, f"training.seed={seed}"]) for seed in (0, 1, 2)},
    # The comparison of where fakes stand, and of the losses; 10 minutes, wgan-gp about three times that.
    "dp-gan-10min-separate": (DP_GAN, [*SHORT, "method.fakes=separate"]),
    "dp-gan-10min-wgan-gp": (DP_GAN, [*SHORT, "method.loss=wgan-gp"]),
    "dp-gan-10min-no-mismatch": (DP_GAN, [*SHORT, "method.mismatch=0"]),
    "dp-gan-10min-dcgan": (DP_GAN, [*SHORT, "model.generator=dcgan", "model.width=32", "model.latent_dim=32"]),
    "hybrid-public-60min": (HYBRID, [*PUBLIC, "training.steps=15000"]),
    "hybrid-10min-no-match": (HYBRID, [*SHORT_HYBRID, "method.match=0"]),
    **{f"hybrid-share{share}": (HYBRID, [*SHORT_HYBRID, f"method.share={share}"]) for share in (0.05, 0.1, 0.2, 0.5)},
}


def main() -> None:
    parser = options(__doc__, CELLS, Path("runs/dp_gan"))
    parser.add_argument("--settings", nargs="*", default=[], help="section.key=value, on top of every cell's")
    parser.add_argument("--tune", action="store_true", help="on holdout images alone")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(CELLS))
        return
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.cells:
        file, overrides = CELLS[name]
        config = load_config(file, [*overrides, *arguments.settings], arguments)
        row = tuned(config, arguments) if arguments.tune else cell(config, arguments)
        row |= {"threads": arguments.threads, "load": round(os.getloadavg()[0], 1)}
        print(json.dumps({"cell": name, "tune": arguments.tune, "settings": arguments.settings, **row}), flush=True)


def tuned(config: RunConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train on repeated holdout images and judge by the other holdout images, or read the result back."""
    path = arguments.out / f"tune-{config.identity()[:16]}.json"
    if path.exists():
        row: dict[str, Any] = json.loads(path.read_text())
        return row
    split = without_private(load(config.data))
    started = time.perf_counter()
    method = trainer.train_on(config, split)
    row = {"steps": config.training.steps, "train_seconds": round(time.perf_counter() - started, 1)}
    row |= utility(method.generator, split, arguments)
    path.write_text(json.dumps(row) + "\n")
    return row


def without_private(split: Split) -> Split:
    """Return a split of holdout images: some, repeated to the declared N, as private, the others as test.

    With as many records the noise weighs as much as in the real run; only the diversity of the images is less.
    """
    holdout, repeated = split.holdout, torch.arange(split.num_private) % TUNE_IMAGES
    return dataclasses.replace(
        split, private=holdout.select(repeated), test=holdout.select(torch.arange(TUNE_IMAGES, len(holdout)))
    )


if __name__ == "__main__":
    main()
