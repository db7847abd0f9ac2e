"""Fit the model of faces that the sound publishers use (publish/sound/prior.py) on drawn faces, and write it.

python benchmarks/face_prior.py [--faces 6000] [--seed 101] [--out idpgan/publish/sound/face_prior.safetensors]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import save_file

from idpgan.data.faces import draw
from idpgan.publish.sound.prior import FILE, SHAPE, fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=6000, help="one of each person")
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--out", type=Path, default=FILE)
    arguments = parser.parse_args()
    drawn = draw(arguments.faces, SHAPE, 1, people=arguments.faces, seed=arguments.seed).images[:, 0]
    save_file({name: value.half() for name, value in fit(drawn / 255).items()}, arguments.out)


if __name__ == "__main__":
    main()
