"""What releases at epsilon 1, 3 and 10 draw by their law (left), and the portraits moved onto it (right).

python benchmarks/people_picture.py --data-root FACES --portraits NPZ --cells CELLS --out PNG [--law plain] [--tinted]

Folder, portraits, laws and tint are those of `people.py`, and so are the private photos; CELLS keeps the releases. Two
rows a release: above neutral, below happy. All images are those of seed 0, drawn to be looked at: none is chosen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from people import CLASSES, LAWS, add_sources, generator_of, read_sources
from PIL import Image
from torch import Tensor

from idpgan.data.images import make_grid, to_uint8

EPSILONS, COLUMNS, GAP_PX = (1, 3, 10), 8, 12


def stacked(parts: list[Tensor], dim: int) -> Tensor:
    """Put pictures (C, H, W) beside or below each other, with a white gap."""
    shape = list(parts[0].shape)
    shape[dim] = GAP_PX
    gap = torch.full(shape, 255, dtype=torch.uint8)
    return torch.cat([each for part in parts for each in (part, gap)][:-1], dim=dim)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sources(parser)
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--law", choices=LAWS, default="registered")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.cells.mkdir(parents=True, exist_ok=True)
    private, _, public = read_sources(asked)
    labels, bands = [f"position {place}" for place in range(len(CLASSES)) for _ in range(COLUMNS)], []
    for epsilon in EPSILONS:
        method = generator_of(asked.law, epsilon, 0, private, public, asked.cells)
        generator = method.artifact(method.plan.config.release).generator
        drawn = [to_uint8(each.sample(len(labels), labels, seed=0)) for each in (generator.law, generator)]
        bands.append(stacked([make_grid(each, COLUMNS) for each in drawn], 2))
    picture = Image.fromarray(stacked(bands, 1).movedim(0, 2).squeeze(2).numpy())
    (picture.quantize(256) if picture.mode == "RGB" else picture).save(asked.out, optimize=True)


if __name__ == "__main__":
    main()
