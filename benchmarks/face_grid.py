"""A picture of what runs have released: for each run a row a class, drawn for looking (`model.truncation`).

Images come from the release folders alone, never from private photos, and smaller ones are enlarged to the size of the
largest by whole pixels. Rows of one run stand together, in the order of the runs.

python benchmarks/face_grid.py RUN [RUN ...] --out docs/faces-registered.png [--columns 12] [--seed 5]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.utils import make_grid, save_image

from idpgan.release.generator import load_generator

GAP = 2  # px, white


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders of `idpgan train`, or releases")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--columns", type=int, default=12)
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args()
    drawn = [rows(run, arguments.columns, arguments.seed) for run in arguments.runs]
    side = max(images.shape[-1] for images in drawn)
    tiles = torch.cat([enlarged(images, side) for images in drawn])
    save_image(make_grid(tiles, nrow=arguments.columns, padding=GAP, pad_value=1.0), arguments.out)


def rows(run: Path, columns: int, seed: int) -> Tensor:
    """Return ``columns`` images of each class of a release, (classes columns, 3, H, W) in [0, 1]."""
    generator = load_generator(run)
    classes = max(len(generator.classes), 1)
    labels = torch.arange(classes).repeat_interleave(columns) if generator.classes else None
    images = generator.sample(classes * columns, labels, seed)
    return (images.expand(-1, 3, -1, -1) + 1) / 2


def enlarged(images: Tensor, side: int) -> Tensor:
    """Repeat pixels until images (B, 3, H, W) are ``side`` px wide, a multiple of their width."""
    if side % images.shape[-1]:
        raise SystemExit(
            f"images of {images.shape[-1]} px do not fit {side} px: choose sizes of which one divides the other."
        )
    return functional.interpolate(images, scale_factor=side // images.shape[-1], mode="nearest")


if __name__ == "__main__":
    main()
