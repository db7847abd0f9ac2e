"""The publisher with the least mean squared error on drawn faces, for each unit and epsilon: the table of `best`.

python benchmarks/best_publisher.py [--people 100] [--shape 112 92] [--seed 3001] [--noise-seeds 3] [--write]

Every sound method with a default for the unit is run at delta = 0 and clipped to bytes; its error is the mean over
releases with noise of their own. The drawn faces are other people than those that the public models were fitted on. One
JSON line per cell on stderr; the table on stdout, and with --write in `idpgan.publish.plan` itself.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

import torch
from torch import Tensor

from idpgan import publish
from idpgan.data.faces import draw
from idpgan.data.images import to_unit
from idpgan.metrics.images import mse
from idpgan.privacy.noise import Noise
from idpgan.publish import plan

_TABLE = re.compile(r"(?<=\n_BEST: Mapping\[str, Sequence\[str\]\] = \{\n).*?(?=^\}\n)", re.DOTALL | re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=100)
    parser.add_argument("--shape", type=int, nargs=2, default=(112, 92))
    parser.add_argument("--seed", type=int, default=3001, help="of the drawn faces")
    parser.add_argument("--noise-seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="replace the table in the source of idpgan.publish.plan")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    faces = draw(arguments.people, tuple(arguments.shape), 1, people=arguments.people, seed=arguments.seed)
    lines = []
    for unit in plan.UNITS:
        names = [name for name, row in publish.METHODS.items() if row.sound and unit in row.units]
        winners = []
        for epsilon in plan.EPSILONS:
            cells = {
                name: errors(faces.images[:, 0], name, unit, epsilon, range(arguments.noise_seeds)) for name in names
            }
            means = {name: statistics.fmean(values) for name, values in cells.items()}
            winners.append(min(means, key=means.__getitem__))
            row = {"unit": unit, "epsilon": epsilon, "mse": {name: round(mean, 5) for name, mean in means.items()}}
            row["most_between_seeds"] = {name: round(max(v) - min(v), 6) for name, v in cells.items()}
            print(json.dumps(row), file=sys.stderr, flush=True)
        lines.append(f'    "{unit}": {json.dumps(winners)},\n')
        print(lines[-1], end="", flush=True)
    if arguments.write:
        source = Path(plan.__file__)
        text, replaced = _TABLE.subn("".join(lines), source.read_text())
        if replaced != 1:
            raise SystemExit(f"{source} has no table to replace.")
        source.write_text(text)


def errors(pixels: Tensor, method: str, unit: str, epsilon: float, seeds: range) -> list[float]:
    """Return the mean squared error of releases of bytes (N, m, n), one for each noise seed."""
    images = to_unit(pixels)
    return [
        float(
            mse(
                publish.release(images, method, epsilon=epsilon, unit=unit, noise=Noise.fixed(seed)).to_uint8(), pixels
            ).mean()
        )
        for seed in seeds
    ]


if __name__ == "__main__":
    main()
