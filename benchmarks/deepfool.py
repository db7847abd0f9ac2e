"""DeepFool's rho of the two MNIST networks of its paper, beside the figures there. A JSON line a network.

python benchmarks/deepfool.py --data-root DIR [--num 10000] [--epochs 10] [--seed 0]

Moosavi-Dezfooli, Fawzi and Frossard 2016, table 1: LeNet, test error 1 %, rho 0.20; FC500-150-10, test error 1.7 %, rho
0.11. Both are trained here on the raw training images, plainly, and judged on the test part. Not private.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from idpgan.attacks.adversarial import accuracy, deepfool
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, to_float
from idpgan.data.load import load

PAPER = {"LeNet": 0.20, "FC500-150-10": 0.11}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--networks", nargs="+", choices=tuple(PAPER), default=list(PAPER))
    parser.add_argument("--num", type=int, default=10_000, help="test images that are attacked")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    root = {} if arguments.data_root is None else {"root": str(arguments.data_root)}
    split = load(DataConfig(name="mnist", **root))
    train, test = split.private.existing(), split.test.existing()
    test = test.select(torch.arange(min(arguments.num, len(test))))
    for name in arguments.networks:
        started = time.monotonic()
        network = fitted(name, train, arguments.epochs, arguments.seed)
        trained = time.monotonic()
        fooled = deepfool(network, test.images)
        row = {
            "network": name,
            "weights": sum(weight.numel() for weight in network.parameters()),
            "epochs": arguments.epochs,
            "seed": arguments.seed,
            "images": len(test),
            "error": 1 - accuracy(network, test.images, test.labels),
            "rho": fooled.robustness,
            "paper": PAPER[name],
            "ratio": fooled.robustness / PAPER[name],
            "fooled": fooled.success.float().mean().item(),
            "mean_steps": fooled.steps.float().mean().item(),
            "seconds_training": round(trained - started),
            "seconds_deepfool": round(time.monotonic() - trained),
        }
        print(json.dumps(row), flush=True)


def build(name: str) -> nn.Sequential:
    """Return LeNet (two convolutions with pooling, 500 hidden numbers) or two hidden layers of 500 and 150."""
    if name == "LeNet":
        body = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()]
        return nn.Sequential(*body, nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))
    hidden = [nn.Flatten(), nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 150), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(150, 10))


def fitted(name: str, images: Images, epochs: int, seed: int) -> nn.Sequential:
    """Return the network after momentum descent over the images, the rate falling to nothing."""
    torch.manual_seed(seed)
    network = build(name)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    batches = -(-len(images) // 100)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    labels: Tensor = images.labels
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(100):
            loss = cross_entropy(network(to_float(images.images[chosen])), labels[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval().requires_grad_(False)


if __name__ == "__main__":
    main()
