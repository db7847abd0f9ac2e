"""DP-MERF at any epsilon: one noisy mean of random Fourier features a class, and a generator that has the same.

Harder, Adamczewski and Park (AISTATS 2021); settings of DPImageBench's `configs/DP-MERF/mnist_28_eps1.0.yaml`
(0a447c8): 10,000 features of squared length scale 105, five passes of 550 batches of 100, Adam from 0.01, nine tenths
of it after each pass. As there, noise is for a replaced image, whose mean moves by 2 / n: the features of an image have
norm 1, and its class is one column. The multiplier is the least that the exact Gaussian trade-off allows, theirs is
that of Renyi accounting, which is a little larger.

python benchmarks/papers/dp_merf.py --data-root DIR --out FILE.npz [--epsilon 0.2] [--seed 0] [--num 20000]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.metrics.dpimagebench import benchmark_delta
from idpgan.privacy import Event, Gaussian, Noise, Relation, Unit, calibrate

FEATURES, LENGTH, CODE, CLASSES = 10_000, 105.0, 5, 10
PASSES, BATCH, RATE, DECAY = 5, 100, 1e-2, 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num", type=int, default=20_000)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    private = load(DataConfig(name="mnist", root=options.data_root, holdout_share=0.08333)).private
    delta = benchmark_delta(len(private.images))

    def price(multiplier: float) -> list[Event]:
        return [Event("gaussian", Unit.IMAGE, Relation.REPLACE_ONE, multiplier)]

    mechanism = Gaussian(
        2 / len(private.images), calibrate(price, options.epsilon, delta), Unit.IMAGE, Relation.REPLACE_ONE
    )
    directions = torch.randn(FEATURES // 2, 784) / LENGTH**0.5
    released = mechanism(means(private.images.flatten(1), private.labels, directions), Noise.system())
    generator = trained(released, directions, len(private.images) // BATCH).eval()
    labels = torch.arange(options.num) % CLASSES
    with torch.no_grad():
        images = torch.cat([generator(torch.randn(len(part), CODE), part) for part in labels.split(1000)])
    np.savez(options.out, images=(images * 255).round().byte().reshape(-1, 28, 28, 1).numpy(), labels=labels.numpy())
    print(f"epsilon {options.epsilon:g}, delta {delta:.4g}, noise multiplier {mechanism.noise_multiplier:.4g}")


def embedded(images: Tensor, directions: Tensor) -> Tensor:
    """Return random Fourier features (N, FEATURES), each row of norm 1, of flat images (N, 784), bytes or in [0, 1]."""
    phases = (images if images.is_floating_point() else images / 255) @ directions.T
    return torch.cat((phases.cos(), phases.sin()), 1) / len(directions) ** 0.5


def means(images: Tensor, labels: Tensor, directions: Tensor) -> Tensor:
    """Return the sum over images of features times one-hot class, over the number of images: (FEATURES, CLASSES)."""
    total = torch.zeros(2 * len(directions), CLASSES)
    for part, classes in zip(images.split(1000), labels.split(1000), strict=True):
        total += embedded(part, directions).T @ functional.one_hot(classes, CLASSES).float()
    return total / len(images)


def trained(released: Tensor, directions: Tensor, steps: int) -> nn.Module:
    """Return a generator whose batches have the released means."""
    generator = Generator()
    optimizer = torch.optim.Adam(generator.parameters(), lr=RATE)
    for _ in range(PASSES):
        for _ in range(steps):
            labels = torch.randint(CLASSES, (BATCH,))
            drawn = generator(torch.randn(BATCH, CODE), labels)
            loss = (released - means(drawn, labels, directions)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= DECAY
    return generator


class Generator(nn.Module):
    """Code and class to a flat image in [0, 1]: two dense layers, then twice enlarged and convolved."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(
            nn.Linear(CODE + CLASSES, 200), nn.BatchNorm1d(200), nn.ReLU(), nn.Linear(200, 16 * 49), nn.BatchNorm1d(784)
        )
        self.grown = nn.Sequential(
            nn.ReLU(),
            nn.UpsamplingBilinear2d(scale_factor=2),
            nn.Conv2d(16, 8, 5, padding=2),
            nn.ReLU(),
            nn.UpsamplingBilinear2d(scale_factor=2),
            nn.Conv2d(8, 1, 5, padding=2),
            nn.Sigmoid(),
        )

    def forward(self, codes: Tensor, labels: Tensor) -> Tensor:  # noqa: D102
        inputs = torch.cat((codes, functional.one_hot(labels, CLASSES).float()), 1)
        return self.grown(self.dense(inputs).view(-1, 16, 7, 7)).flatten(1)


if __name__ == "__main__":
    main()
