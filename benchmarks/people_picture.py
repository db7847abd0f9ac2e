"""What one release draws by its law (left), and the portraits that were moved onto it (right): two rows a run.

python benchmarks/people_picture.py RUN ... --out PNG

A run is a folder that `idpgan train` wrote with `model.moved`; above its first class, below its second one. All images
are those of seed 0, as they are drawn to be looked at: none is chosen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from idpgan import load_generator
from idpgan.data.images import make_grid, to_uint8

COLUMNS, GAP_PX = 8, 12


def rows_of(run: Path, names: list[str]) -> Tensor:
    """Return the two halves of a run, uint8 (C, H, W), with a white gap between them."""
    generator = load_generator(run)
    places = [generator.classes.index(name) for name in names]
    labels = [f"position {place}" for place in places for _ in range(COLUMNS)]
    halves = [
        make_grid(to_uint8(drawing.sample(len(labels), labels, seed=0)), COLUMNS)
        for drawing in (generator.law, generator)
    ]
    gap = torch.full((*halves[0].shape[:2], GAP_PX), 255, dtype=torch.uint8)
    return torch.cat([halves[0], gap, halves[1]], dim=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--classes", nargs=2, default=["neutral", "happiness"])
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    bands = [rows_of(run, asked.classes) for run in asked.runs]
    gap = torch.full((bands[0].shape[0], GAP_PX, bands[0].shape[2]), 255, dtype=torch.uint8)
    stacked = torch.cat([part for band in bands for part in (band, gap)][:-1], dim=1)
    Image.fromarray(stacked.movedim(0, 2).squeeze(2).numpy()).save(asked.out, optimize=True)


if __name__ == "__main__":
    main()
