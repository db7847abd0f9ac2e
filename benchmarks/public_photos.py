"""What the photos of a few hundred people who agreed bring (`data.public_root`), with and without registration.

Public photos are taken from people of the private part, who then leave it, so that N is the same in every cell: it is
what the largest number leaves. Judged on a fifth of the people (--group choose of `registered_faces`): nothing here
looks at the test part. One JSON line a cell, kept in --out.

python benchmarks/public_photos.py --data-root FOLDER --out CELLS [--photos 0 50 200 800] [--epsilon 1 10] [--seeds 0]
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch
from cells import PACKAGE, code_digest, read_or_measure
from registered_faces import CLASSES, measure, parts

from idpgan.data.images import Images
from idpgan.data.load import Split

SHAPES = (0, 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photos", type=int, nargs="+", default=[0, 50, 200, 800])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--shapes", type=int, nargs="+", default=SHAPES, choices=SHAPES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    private, agreed = consenting(parts(arguments.data_root, "choose"), max(arguments.photos))
    code = code_digest(sorted((PACKAGE / "synthesis").glob("*.py")))
    for seed in arguments.seeds:
        for photos in arguments.photos:
            split = dataclasses.replace(private, public=agreed.select(torch.arange(photos)))
            for shape in arguments.shapes:
                for epsilon in arguments.epsilon:
                    cell = {"row": f"{photos} public photos", "epsilon": epsilon, "seed": seed, "unit": "image"}
                    cell |= {"photos": photos, "model": {"latent_dim": 160, "shape": shape}}
                    if shape:
                        cell["method"] = {"symmetric": True}
                    read_or_measure(cell, lambda _, cell=cell, split=split: measure(cell, split), code, arguments.out)


def consenting(split: Split, most: int) -> tuple[Split, Images]:
    """Return the split without the people who agreed, and ``most`` photos of theirs, those of one person together."""
    people, there = split.private.identities, split.private.null
    if people is None:
        raise SystemExit("the folder names no people.")
    everybody = people.unique()
    order = everybody[torch.randperm(len(everybody), generator=torch.Generator().manual_seed(12))]
    found, chosen = [], torch.zeros(len(people), dtype=torch.bool)
    while sum(map(len, found)) < most:
        mine, order = people == order[0], order[1:]
        chosen |= mine
        found.append(torch.nonzero(mine if there is None else mine & ~there)[:, 0])
    agreed = split.private.select(torch.cat(found)[:most])
    return dataclasses.replace(split, private=split.private.select(~chosen)), Images(
        agreed.images, agreed.labels, CLASSES
    )


if __name__ == "__main__":
    main()
