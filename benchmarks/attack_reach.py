"""Two controls of all attacks on images alone: a generator that returns its training images, and one that saw nothing.

python benchmarks/attack_reach.py MNIST_FOLDER PHOTOS [PHOTOS ...] [--out FILE.json]

Of 6,000 images of each set, 1,500 are members, 1,500 are others, 1,000 are reference. The first generator returns its
members with noise of 8 grey levels, among 500 fresh images; the second returns 2,000 fresh images. Photos are cut to
48 x 48 pixels. The intervals of the second are at 99.9 % for all attacks together: none may miss the guess.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import idpgan
from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.files import write_text_atomic

NUM, SIDE, NOISE = 6_000, 48, 8.0
PARTS = {"members": (0, 1500), "others": (1500, 3000), "reference": (3000, 4000), "fresh": (4000, 6000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("photos", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    print("| images | generator | leak | strongest: AUC | strongest: found at 1 % |\n|---|---|---|---|---|")
    for name, images in sets(arguments.mnist, arguments.photos):
        for what, result in controls(images):
            found[f"{name}, {what}"] = result.to_json()
            cells = [shown(result.best.auc), shown(result.best.tpr)]
            print(f"| {name} | {what} | {'found' if result.leak else 'none'} | {' | '.join(cells)} |", flush=True)
    if arguments.out is not None:
        write_text_atomic(arguments.out, json.dumps(found, indent=1) + "\n")


def sets(mnist: Path, photos: list[Path]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield each set by name, uint8, in a random order."""
    split = load(DataConfig(name="mnist", root=mnist))
    yield "MNIST", split.private.images[:NUM, 0].numpy()
    for folder in photos:
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
        chosen = np.random.default_rng(0).permutation(len(files))[:NUM]
        pixels = [Image.open(files[i]).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR) for i in chosen]
        yield folder.name, np.stack([np.asarray(each) for each in pixels])


def controls(images: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what the attacks find of a generator that returns its training images, and of one that saw nothing."""
    rng = np.random.default_rng(1)
    images = images[rng.permutation(len(images))]
    members, others, reference, fresh = (images[slice(*part)] for part in PARTS.values())
    noisy = np.clip(members + rng.normal(0, NOISE, members.shape), 0, 255).astype(np.uint8)
    yield "returns its training images", idpgan.attack(np.concatenate([noisy, fresh[:500]]), members, others, reference)
    yield "saw nothing", idpgan.attack(fresh, members, others, reference, confidence=0.999)


def shown(best: Any) -> str:
    """Return the name of the strongest attack, its figure and its interval."""
    return f"`{best.name}` {best.value:.3f} [{best.interval[0]:.3f}, {best.interval[1]:.3f}]"


if __name__ == "__main__":
    main()
