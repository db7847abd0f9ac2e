"""Digits of 43 unbalanced classes in color, 32 x 32, made of MNIST: a stand-in for many classes, such as signs.

A class is a digit on one of five kinds of ground. Sizes, places, light and the ground around vary from image to image,
and image counts fall as 1 / (k + 8): the largest class has six times as many as the smallest. Images of train/ are
made of MNIST's training images, those of test/ of its test images.

python benchmarks/many_classes.py --mnist DIR --out FOLDER [--num 22000] [--test 5000]
python benchmarks/cifar.py --images FOLDER --out DIR [--epsilons ...] [key.sub=value ...]
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from idpgan.data.config import DataConfig
from idpgan.data.images import to_unit
from idpgan.data.mnist import read

CLASSES, SIDE, OFFSET = 43, 32, 8
GROUNDS = (  # of the plate, and of the stroke on it: red, green, blue in [0, 1]
    ((0.95, 0.95, 0.95), (0.05, 0.05, 0.05)),
    ((0.80, 0.10, 0.10), (0.95, 0.95, 0.95)),
    ((0.10, 0.25, 0.75), (0.95, 0.95, 0.95)),
    ((0.95, 0.80, 0.10), (0.10, 0.10, 0.10)),
    ((0.15, 0.15, 0.15), (0.95, 0.95, 0.95)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num", type=int, default=22_000, help="images of train/")
    parser.add_argument("--test", type=int, default=5_000, help="images of test/")
    options = parser.parse_args()
    mnist = read(DataConfig(name="mnist", root=options.mnist))
    for part, digits, num, seed in (("train", mnist.images, options.num, 0), ("test", mnist.test, options.test, 1)):
        write(options.out / part, *made(to_unit(digits.images[:, 0]), digits.labels, num, seed))


def made(digits: Tensor, shown: Tensor, num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return color images, uint8 (num, 3, 32, 32), and their classes, of digits (N, 28, 28) in [0, 1]."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(1 / (torch.arange(CLASSES) + float(OFFSET)), num, replacement=True, generator=rng)
    chosen = torch.empty(num, dtype=torch.int64)
    for digit in range(10):
        own, members = (shown == digit).nonzero()[:, 0], (labels % 10 == digit).nonzero()[:, 0]
        order = torch.cat([own[torch.randperm(len(own), generator=rng)] for _ in range(-(-len(members) // len(own)))])
        chosen[members] = order[: len(members)]
    return painted(digits[chosen], labels // 10, rng), labels


def painted(digits: Tensor, grounds: Tensor, rng: torch.Generator) -> Tensor:
    """Paint digits (N, 28, 28) on round plates of a kind (N,), in changing size, place, light and surroundings."""
    num = len(digits)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(num, *shape, generator=rng)

    places = torch.zeros(num, 2, 3)
    places[:, 0, 0] = places[:, 1, 1] = uniform(1.0, 1.4)
    places[:, :, 2] = uniform(-0.2, 0.2, 2)
    grid = affine_grid(places, [num, 1, SIDE, SIDE], align_corners=False)
    plate = (8 * (1.0 - grid.norm(dim=3))).clamp(0, 1)[:, None]
    stroke = plate * grid_sample(digits[:, None], 1.25 * grid, align_corners=False)
    colors = torch.tensor(GROUNDS)[grounds]  # (N, 2, 3)
    around = uniform(0.0, 1.0, 3, 4, 4)
    around = torch.nn.functional.interpolate(around, size=(SIDE, SIDE), mode="bilinear")
    images = around.lerp(colors[:, 0, :, None, None].expand_as(around), plate.expand_as(around))
    images = images.lerp(colors[:, 1, :, None, None].expand_as(around), stroke.expand_as(around))
    images = images * uniform(0.25, 1.0, 1, 1, 1) + 0.03 * torch.randn(images.shape, generator=rng)
    return (255 * images.clamp(0, 1)).round().byte()


def write(folder: Path, images: Tensor, labels: Tensor) -> None:
    """Write images as FOLDER/CLASS/NUMBER.png."""
    for label in range(CLASSES):
        (folder / f"{label:02}").mkdir(parents=True, exist_ok=True)
    for number, image, label in zip(itertools.count(), images.permute(0, 2, 3, 1).numpy(), labels.tolist()):
        Image.fromarray(image).save(folder / f"{label:02}" / f"{number:05}.png")


if __name__ == "__main__":
    main()
