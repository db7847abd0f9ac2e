"""IDP-GAN aggregate on MNIST: utility against epsilon, seeds, training time, and what public images do alone.

One JSON line per cell: CNN trained on 60,000 synthetic images, tested on the real test images. Runs are named by the
hash of their config: finished ones are read back, interrupted ones continue. Everything printed is for the curator.

python benchmarks/aggregate.py --data-root DIR --out runs/aggregate --cells public-eps1 random-eps1 [--threads 2]
python benchmarks/aggregate.py --list
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
from idpgan.data.load import load
from idpgan.models.features import EmbeddingNet
from idpgan.synthesis.aggregate.config import AggregateRun as Config
from idpgan.synthesis.aggregate.method import IdpAggregate
from idpgan.synthesis.aggregate.pretrain import fit_embedding
from idpgan.training.fit import predict

PUBLIC, RANDOM = "mnist-aggregate.toml", "mnist-aggregate-no-public.toml"
CELLS: dict[str, tuple[str, list[str]]] = {
    **{f"public-eps{eps}": (PUBLIC, [f"privacy.epsilon={eps}"]) for eps in ("0.3", "1.0", "3.0", "11.0")},
    **{f"random-eps{eps}": (RANDOM, [f"privacy.epsilon={eps}"]) for eps in ("0.3", "1.0", "3.0", "11.0")},
    **{f"public-eps1.0-seed{seed}": (PUBLIC, [f"training.seed={seed}"]) for seed in (1, 2)},
    **{f"random-eps1.0-seed{seed}": (RANDOM, [f"training.seed={seed}"]) for seed in (1, 2)},
    # Other budgets without public images, at 5 minutes of one core.
    **{
        f"random-eps{eps}-steps2250": (RANDOM, [f"privacy.epsilon={eps}", "training.steps=2250"])
        for eps in ("0.3", "3.0", "11.0")
    },
    # Training time at one epsilon: about 5, 20 and 60 minutes of one core.
    **{f"random-eps1.0-steps{steps}": (RANDOM, [f"training.steps={steps}"]) for steps in (2250, 9000, 26000)},
}
BASELINES = ("public-only", "public-network")


def main() -> None:
    arguments = options(__doc__, [*CELLS, *BASELINES], Path("runs/aggregate")).parse_args()
    if arguments.list:
        print("\n".join([*CELLS, *BASELINES]))
        return
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.cells:
        if name in BASELINES:
            row = BASELINE_OF[name](arguments)
        else:
            row = cell(load_config(*CELLS[name], arguments), arguments)
        row |= {"threads": arguments.threads, "load": round(os.getloadavg()[0], 1)}
        print(json.dumps({"cell": name, **row}), flush=True)


def public_only(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train the same generator on the public split alone: its own sums, next to noiseless, stand for the private."""
    overrides = ["privacy.epsilon=10000", "privacy.delta=1e-4"]
    config = load_config(PUBLIC, overrides, arguments)
    if not isinstance(config, Config):
        raise TypeError(f"{PUBLIC} is not a config of idp-gan-aggregate.")
    split = load(config.data)
    own = dataclasses.replace(split, private=split.public)
    started = time.perf_counter()
    start = IdpAggregate.of(config, own, device=torch.device("cpu"))
    start.prepare()
    row = {f"before_matching_{name}": value for name, value in utility(start.generator, split, arguments).items()}
    method = trainer.train_on(config, own)
    return row | utility(method.generator, split, arguments) | {"seconds": round(time.perf_counter() - started, 1)}


def public_network(arguments: argparse.Namespace) -> dict[str, Any]:
    """Test the public CNN itself, so that nobody is misled by MNIST."""
    config = load_config(PUBLIC, [], arguments)
    split = load(config.data)
    network = EmbeddingNet(split.image_shape, len(split.classes), seed=config.training.seed)
    fit_embedding(network, split.public, steps=3500, seed=config.training.seed)
    right = predict(network, split.test.images).argmax(1) == split.test.labels
    return {"accuracy": right.double().mean().item(), "public_images": len(split.public)}


BASELINE_OF = {"public-only": public_only, "public-network": public_network}

if __name__ == "__main__":
    main()
