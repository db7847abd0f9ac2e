"""Classifiers attacked by changed inputs: accuracy under PGD, and DeepFool's rho. One JSON line a network.

python benchmarks/adversarial.py RUN [--data-root DIR] [--num 1000] [--radius 0.3] [--steps 40]
python benchmarks/adversarial.py --paper [LeNet FC500-150-10] --data-root DIR [--num 10000] [--epochs 10] [--seed 0]

RUN is a finished run of any classifier. ``--paper`` measures rho of the two MNIST networks of Moosavi-Dezfooli, Fawzi
and Frossard 2016, table 1: LeNet, test error 1 %, rho 0.20; FC500-150-10, test error 1.7 %, rho 0.11. Both are trained
here on the raw training images, plainly. Not private. Judged on the test part, which nothing was trained or chosen on.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import idpgan
from idpgan.attacks.adversarial import accuracy, deepfool, pgd
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, to_float
from idpgan.data.load import load
from idpgan.run import RunFolder
from idpgan.trainer import load_config

PAPER = {"LeNet": 0.20, "FC500-150-10": 0.11}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--paper", nargs="*", metavar="NETWORK", help=f"of {', '.join(PAPER)}; default both")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--num", type=int, help="test images that are attacked; 1000 of a run, 10000 of the paper")
    parser.add_argument("--radius", type=float, default=0.3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=10, help="of the paper's networks")
    parser.add_argument("--seed", type=int, default=0, help="of the paper's networks")
    arguments = parser.parse_args()
    if (arguments.run is None) == (arguments.paper is None):
        parser.error("name a run, or say --paper.")
    if unknown := set(arguments.paper or ()) - set(PAPER):
        parser.error(f"the paper has no network {', '.join(sorted(unknown))}: {', '.join(PAPER)}.")
    if arguments.run is not None:
        print(json.dumps(of_run(arguments)))
        return
    torch.set_num_threads(1)
    root = {} if arguments.data_root is None else {"root": str(arguments.data_root)}
    split = load(DataConfig(name="mnist", **root))
    train, test = split.private.existing(), first(split.test.existing(), arguments.num or 10_000)
    for name in arguments.paper or PAPER:
        print(json.dumps(of_paper(name, train, test, arguments)), flush=True)


def first(images: Images, num: int) -> Images:
    """Return the first images."""
    return images.select(torch.arange(min(num, len(images))))


def of_run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Attack the classifier of a run by PGD and by DeepFool."""
    root = [] if arguments.data_root is None else [f"data.root={json.dumps(str(arguments.data_root))}"]
    config = load_config(RunFolder.open(arguments.run).config, root)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = idpgan.load_classifier(arguments.run).requires_grad_(False).to(device)
    test = first(load(config.data).test.existing(), arguments.num or 1000).to(device)
    started = time.monotonic()
    attacked = pgd(network, test.images, test.labels, radius=arguments.radius, steps=arguments.steps)
    after_pgd = time.monotonic()
    fooled = deepfool(network, test.images)
    return {
        "run": str(arguments.run),
        "method": config.method.name,
        "images": len(test),
        "accuracy": accuracy(network, test.images, test.labels),
        "radius": arguments.radius,
        "steps": arguments.steps,
        "accuracy_under_pgd": accuracy(network, attacked, test.labels),
        "rho": fooled.robustness,
        "fooled": fooled.success.float().mean().item(),
        "seconds_pgd": round(after_pgd - started, 1),
        "seconds_deepfool": round(time.monotonic() - after_pgd, 1),
    }


def of_paper(name: str, train: Images, test: Images, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train a network of the paper, and attack it by DeepFool."""
    started = time.monotonic()
    network = fitted(name, train, arguments.epochs, arguments.seed)
    trained = time.monotonic()
    fooled = deepfool(network, test.images)
    return {
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
