"""The publisher with the least mean squared error on drawn faces, for each unit and epsilon: the table of `best`.

python benchmarks/best_publisher.py [--people 100] [--shape 112 92] [--seed 3001]

Every sound method with a default for the unit is run at delta = 0 and clipped to bytes. The drawn faces are other
people than those that the public models were fitted on. One JSON line per cell on stderr; the table for
`idpgan.publish.best` on stdout.
"""

from __future__ import annotations

import argparse
import json
import sys

from idpgan import publish
from idpgan.data.faces import draw
from idpgan.data.images import to_unit
from idpgan.metrics.images import mse
from idpgan.publish.best import EPSILONS, UNITS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=100)
    parser.add_argument("--shape", type=int, nargs=2, default=(112, 92))
    parser.add_argument("--seed", type=int, default=3001)
    arguments = parser.parse_args()
    faces = draw(arguments.people, tuple(arguments.shape), 1, people=arguments.people, seed=arguments.seed)
    images = to_unit(faces.images[:, 0])
    for unit in UNITS:
        names = [name for name, row in publish.METHODS.items() if row.sound and unit in row.units]
        best = []
        for epsilon in EPSILONS:
            cells = {}
            for name in names:
                pixels = publish.release(images, name, epsilon=epsilon, unit=unit).to_uint8()
                cells[name] = float(mse(pixels, faces.images[:, 0]).mean())
            best.append(min(cells, key=cells.__getitem__))
            row = {"unit": unit, "epsilon": epsilon, "mse": {name: round(value, 5) for name, value in cells.items()}}
            print(json.dumps(row), file=sys.stderr, flush=True)
        print(f'    "{unit}": {json.dumps(best)},', flush=True)


if __name__ == "__main__":
    main()
