"""Adapters of a base of rendered people on photos of faces: what few images of the adapted base teach.

python benchmarks/adapted_people.py --data-root FACES --base RUN --portraits FOLDER --out CELLS [--group judge] ROW ...

FACES as for `benchmarks/people.py`, whose groups and judge are taken. FOLDER is of `idpgan people FOLDER --num 12000
--columns smiling`, RUN of method edm on it (label smiling, holdout_share 0, latent_dim 160, width 96, 1,200 steps of
64 images, method.start = "moments"). A ROW is NAME:EPSILON:SEED: "base", "law" and "moved" (as there), or a name of
ROWS; CELLS/cells.jsonl has a line for each, with the loss on 256 of the judging photos, and what is there is kept.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import people
import torch
from PIL import Image

from idpgan.data.images import Images, to_float
from idpgan.data.load import Split
from idpgan.models import load_generator
from idpgan.models.adapters import trained_weights
from idpgan.models.diffusion import DiffusionGenerator
from idpgan.models.generator import Generator
from idpgan.origin import with_releases
from idpgan.privacy import Noise
from idpgan.privacy.tiles import Tiles
from idpgan.synthesis.diffusion.method import Diffusion
from idpgan.trainer import train_on
from idpgan.training.config import RunConfig, build_config

NUM, LOOKS = 800, {"neutral": "not smiling", "happiness": "smiling"}
LORA, LABELS, ALL = ["labels", "lora:4"], ["labels", "biases"], ["*"]
ROWS: dict[str, dict[str, Any]] = {  # what is trained, and how
    "start": {"trained": LABELS, "steps": 1, "rate": 1e-9, "batch": 64},
    "labels": {"trained": LABELS, "rate": 1e-2},
    "lora": {"trained": LORA, "rate": 3e-3},
    "lora-fast": {"trained": LORA, "rate": 1e-2},
    "all": {"trained": ALL, "rate": 1e-3},
}


def portraits(folder: Path) -> Images:
    """Read a folder of `idpgan people`, whose label is smiling."""
    with (folder / "metadata.csv").open() as file:
        rows = [*csv.DictReader(file)]
    pixels = np.stack([np.asarray(Image.open(folder / row["file_name"]).convert("L")) for row in rows])
    return Images(
        torch.from_numpy(pixels)[:, None], torch.tensor([int(row["smiling"]) for row in rows]), people.CLASSES
    )


def config_of(
    row: dict[str, Any], epsilon: float, seed: int, num: int, base: Path, clip: float, share: float
) -> RunConfig:
    """Return the config of a run on so many photos."""
    table = {
        "data": {"name": "folder", "root": ".", "num_images": num, "image_size": 48, "channels": 1,
                 "classes": list(people.CLASSES), "label": ["expression"], "public_generator": str(base),
                 "public_disjoint": True, "public_labels": LOOKS, "holdout_share": 0.0},
        "model": {"trained": row["trained"]},
        "method": {"name": "diffusion", "start_share": share, "draws": 1, "learning_rate": row["rate"],
                   "ema_decay": 0.0, "clip_norm": clip, "symmetric": bool(share)},
        "privacy": {"epsilon": epsilon, "delta": 1e-5},
        "training": {"steps": row.get("steps", 8), "batch_size": row.get("batch", 512), "seed": seed},
    }  # fmt: skip
    return build_config(with_releases(table), "the row")


def clip_of(row: dict[str, Any], public: Images, base: Path) -> float:
    """Return the median norm of the gradients of 256 portraits at the base."""
    some, nobody = people.mixed_up(public, 256), public.select(torch.arange(0))
    config = config_of(row, 10.0, 0, len(some), base, 1.0, 0.0)
    split, cpu = Split(nobody, some, nobody, nobody), torch.device("cpu")
    method = Diffusion.of(config, split, device=cpu, noise=Noise.fixed(0))
    weights, parts = trained_weights(method.newest.network), torch.arange(len(some)).split(64)
    found = method.dpsgd.clipped_sum(
        method.record_loss, weights, map(method._records, parts), Tiles.fixed(64, "capture")
    )
    return float(found.norms.median())


def generator_of(name: str, epsilon: float, seed: int, private: Images, public: Images, asked: Any) -> Generator:
    """Return what draws the images of a row."""
    if name == "base":
        return load_generator(asked.base)
    if name in ("law", "moved"):
        method = people.generator_of("plain", epsilon, seed, private, public, asked.out)
        drawing = method.generator.config.drawn.model_copy(update={"plain_share": 0.0})
        model = {"moved": people.moved_of(public) if name == "moved" else 0, "drawing": drawing}
        method.generator.config = method.generator.config.model_copy(update=model)
    else:
        row, nobody = ROWS[name], private.select(torch.arange(0))
        config = config_of(row, epsilon, seed, len(private), asked.base, clip_of(row, public, asked.base), 0.5)
        split = Split(public.select(torch.arange(0)), dataclasses.replace(private, identities=None), nobody, nobody)
        method = train_on(config, split)
    return method.artifact(method.plan.config.release).generator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data-root", "base", "portraits", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--group", choices=("choose", "judge"), default="choose")
    parser.add_argument("rows", nargs="+")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    cells, photos, public = asked.out / "cells.jsonl", people.faces(asked.data_root), portraits(asked.portraits)
    private = people.of_group(photos, *sorted(set(range(people.GROUPS)) - {people.CHOOSE, people.JUDGE}))
    judges = people.of_group(photos, people.CHOOSE if asked.group == "choose" else people.JUDGE)
    some = people.mixed_up(judges, 256)
    for text in asked.rows:
        name, epsilon, seed = text.split(":")
        key = {"row": name, "epsilon": float(epsilon), "seed": int(seed), "group": asked.group}
        done = [json.loads(line) for line in cells.read_text().splitlines()] if cells.is_file() else []
        if any(key.items() <= cell.items() for cell in done):
            continue
        generator = generator_of(name, float(epsilon), int(seed), private, public, asked)
        images = generator.sample_images(NUM, seed=int(seed))
        cell = key | {"cnn": people.judge(Images(images.images, images.labels, people.CLASSES), judges, int(seed))}
        if isinstance(generator, DiffusionGenerator):
            cell["loss"] = round(float(generator.denoising_loss(to_float(some.images), some.labels).mean()), 4)
        with cells.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        print(json.dumps(cell), flush=True)


if __name__ == "__main__":
    main()
